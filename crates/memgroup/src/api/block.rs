//! For allocators that charge each block of memory to the group in force. `memgroup-alloc` is one.
//!
//! An allocator cannot refuse, unwind or wait. So a charge for a block is made at any limit
//! ([`Owner::charge`]), and the thread finds out later, at a [`checkpoint`]. The block keeps its
//! [`Owner`], in eight bytes, and whichever thread frees it uncharges that.
//!
//! An allocator may hold bytes back: charged bytes that no block uses, on each thread, so that not
//! each block comes to the engine. It [registers](register) as a [`Holder`], and the engine takes
//! them where a charge lacks them, and where a charge waits. Of a removed group it takes those
//! that it can take without disturbing another thread. The others follow with their threads' next
//! blocks.
//!
//! | at | the allocator |
//! |---|---|
//! | a new block | looks whether the thread [is inside](is_inside) the engine: then no group is charged. Else it charges the [current] owner |
//! | a block that grows | charges the difference to its owner |
//! | a freed block | uncharges its owner, at once or later; inside the engine by [`Owner::uncharge_inside`] |
//!
//! # The guarantees with held back bytes
//!
//! Let N be the most bytes that the allocator holds back: for `memgroup-alloc` 64 KiB for each
//! slot of each thread, with eight slots a thread.
//!
//! - **G1**: a refusal is right but for bytes that threads put back after the engine took the held
//!   back bytes for it: fewer than N.
//! - **G2**: charges for blocks are forced, and exceed a limit by any amount. Held back bytes are
//!   charged, so they never hide usage.
//! - **G3**: usage exceeds the charged bytes by up to N more.
//!
//! While a charge waits in a group, bytes of it are held back only where they could not help a
//! charge that waits ([`Owner::may_hold_beside`]). Once a group is removed, no more bytes of it
//! are held back than threads have in their slots until their next blocks.

use memgroup_sync::{depth, grace};

use crate::api::scope;
use crate::base::deadline::Deadline;
use crate::base::effort::Means;
pub use crate::base::process::begin_child;
pub use crate::charge::block::{Charged, is_over};
pub use crate::control::held_back::{Holder, Take, register};
use crate::tree::error::ChargeError;
pub use crate::tree::owner::Owner;

/// The owner of blocks that this thread allocates now: the group of its [scope](crate::scope).
///
/// ```
/// use memgroup::{Config, Hierarchy, block, scope};
///
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let tenant = hierarchy.create("/tenant").unwrap();
/// assert!(block::current().is_none());
/// let _scope = scope::enter(&tenant);
/// let owner = block::current().unwrap();
/// let charged = owner.charge(100, 0).unwrap();
/// assert_eq!((charged.bytes, tenant.usage_exact()), (100, 100));
/// owner.uncharge(100);
/// assert_eq!(tenant.usage_exact(), 0);
/// ```
#[inline(always)]
pub fn current() -> Option<Owner> {
    scope::node().map(Owner::of)
}

/// Whether this thread is within the engine: it holds a lock of the engine, is in a read section,
/// or allocates for the engine itself. Charging a block there could wait for a lock that the
/// thread has, and would charge the engine's memory to a tenant.
#[inline]
pub fn is_inside() -> bool {
    depth::is_inside() || grace::inside()
}

/// As [`is_inside`], without read sections: where no engine call follows.
#[inline(always)]
pub fn allocates_inside() -> bool {
    depth::is_inside()
}

/// A safe point: whether the group in force on this thread is within its limits, after all that
/// the engine can do about it.
///
/// It is one load while [no block](is_over) of the thread was charged beyond a limit. Else the
/// engine makes room, as it does for a charge of one byte more: it takes prepaid bytes, asks
/// shrinkers, and stops victims, on this thread. Without a current group it is `Ok`.
///
/// A group above that only its other groups have filled is no reason to stop. If the group right
/// below it uses no more than its even [share](crate::Group::set_share) there, or its own
/// [`min`](crate::Group::set_min), the checkpoint passes that level.
///
/// # Errors
/// The group, or one above, is still above its limit. The next call asks again.
///
/// ```
/// use memgroup::{Config, Hierarchy, block, scope};
///
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let tenant = hierarchy.create("/tenant").unwrap();
/// tenant.set_max(1000).unwrap();
/// let _scope = scope::enter(&tenant);
/// let owner = block::current().unwrap();
/// let charged = owner.charge(4000, 0).unwrap();
/// assert_eq!(block::checkpoint().unwrap_err().usage(), 4000);
/// owner.uncharge(charged.bytes);
/// block::checkpoint().unwrap();
/// ```
#[inline]
pub fn checkpoint() -> Result<(), ChargeError> {
    if is_over() { ask_for_room(Means::PLAIN) } else { Ok(()) }
}

/// A [`checkpoint`] that waits until `deadline` for the group to be within its limits, as
/// [`Group::charge_until`](crate::Group::charge_until) does.
///
/// The thread parks. It goes on when other threads free enough, or a limit is raised. The wait is
/// a stall in the group's [pressure](crate::Group::pressure). The thread keeps its own memory
/// meanwhile. Where it [is inside](is_inside) the engine, it does not wait.
///
/// # Errors
/// As for [`checkpoint`]; [`ChargeErrorKind::Deadline`](crate::ChargeErrorKind::Deadline) after a
/// wait.
///
/// ```
/// use std::time::Duration;
///
/// use memgroup::{ChargeErrorKind, Config, Hierarchy, block, scope};
///
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let tenant = hierarchy.create("/tenant").unwrap();
/// tenant.set_max(1000).unwrap();
/// let _scope = scope::enter(&tenant);
/// let owner = block::current().unwrap();
/// let charged = owner.charge(4000, 0).unwrap();
/// let over = block::checkpoint_until(Duration::from_millis(5)).unwrap_err();
/// assert_eq!(over.kind(), ChargeErrorKind::Deadline);
/// std::thread::scope(|threads| {
///     threads.spawn(|| owner.uncharge(charged.bytes));
///     block::checkpoint_until(Duration::from_secs(60)).unwrap();
/// });
/// ```
#[inline]
pub fn checkpoint_until(deadline: impl Into<Deadline>) -> Result<(), ChargeError> {
    if is_over() { wait_for_room(deadline.into()) } else { Ok(()) }
}

#[cold]
fn wait_for_room(deadline: Deadline) -> Result<(), ChargeError> {
    ask_for_room(if is_inside() { Means::PLAIN } else { Means::until(deadline.instant_or_far()) })
}

#[cold]
fn ask_for_room(means: Means) -> Result<(), ChargeError> {
    scope::node().map_or(Ok(()), |node| crate::charge::block::checkpoint(node, means))
}
