//! Scope: the current group of a thread.
//!
//! An adapter that hooks foreign allocations gets no argument that could name the group. It charges the current group of the thread.
//! Entering and leaving a scope take a few plain stores. With `Config::scope_time`, the default, each also reads the clock and may add to
//! one statistic. While a stall lasts, each also checks the groups that it changes (`observe::pressure`). Neither allocates, and the
//! thread-local of the current group has no destructor. So scopes work inside an allocator and while a thread ends.
//!
//! - I1. The thread keeps a place of the node table together with its generation. A guard that was forgotten can keep its group
//!   current for longer than the handle lives, but never makes another group current.
//! - I2. Guards are dropped in the reverse order of their making. A guard that is not leaves no group current.
//! - B1. The generation is checked once, when a charge or an addition begins. If a guard was forgotten and its group is released just
//!   then, the operation counts for the next group in the place. No check that is cheap enough for a charge prevents that.

use std::cell::Cell;
use std::marker::PhantomData;

use memgroup_sync::grace;
use memgroup_sync::ticks::{self, Moment};

use crate::base::id::GroupId;
use crate::charge::charge::Charge;
use crate::observe::pressure;
use crate::state::stats::builtin::{CPU, cpu};
use crate::stats::update;
use crate::tree::error::ChargeError;
use crate::tree::handle::Group;
use crate::tree::node::Node;

/// The bits of a depth that count guards.
const GUARDS: u32 = 0xffff;

/// The current group of a thread.
#[derive(Clone, Copy)]
struct Current {
    node: Option<&'static Node>,
    generation: u32,
    /// Number of guards that live. The bits above `GUARDS` count guards dropped out of order since there was none.
    depth: u32,
}

impl Current {
    const NONE: Current = Current { node: None, generation: 0, depth: 0 };

    #[inline(always)]
    fn node(&self) -> Option<&'static Node> {
        self.node.filter(|node| node.generation() == self.generation)
    }

    /// The group, if pressure is measured in its hierarchy.
    #[inline]
    fn shown(&self) -> Option<&'static Node> {
        self.node().filter(|node| node.shared().config.pressure)
    }

    /// The group, if the time in its scopes is counted.
    #[inline]
    fn timed(&self) -> Option<&'static Node> {
        self.node().filter(|node| node.shared().config.scope_time)
    }
}

std::thread_local! {
    static CURRENT: Cell<Current> = const { Cell::new(Current::NONE) };
    // Since when the group is current, where its time is counted. Apart from the other, because a charge reads that alone.
    static SINCE: Cell<Option<Moment>> = const { Cell::new(None) };
}

/// Counts the time since the last change for `node`, the group that was current, and starts anew.
#[inline]
fn count_time(node: Option<&'static Node>, now: Moment) {
    let since = SINCE.replace(Some(now));
    if let (Some(node), Some(since)) = (node, since) {
        update::add(node, CPU, cpu::SCOPE_USEC.index(), now.nanos_since(since) as i64);
    }
}

/// Replaces the current group.
#[inline]
fn change(before: Current, after: Current) {
    CURRENT.set(after);
    let (seen, shown) = (before.shown(), after.shown());
    if seen.is_some() || shown.is_some() {
        pressure::publish(seen, shown, after.generation);
    }
}

/// Guard that keeps a group current on this thread. Dropping it restores the group that was current before.
///
/// It is not `Send`. Guards are dropped in the reverse order of their making, as variables are. A guard that is dropped before a
/// later one leaves no group current, until all of them are dropped. A guard that is forgotten (`mem::forget`) keeps its group
/// current on the thread, at most until the group is released. An operation of the thread that races with that release may count
/// for the next group that reuses the id.
#[must_use = "the group is current only while the guard lives"]
pub struct Scope<'g> {
    before: Current,
    // The borrow keeps the group's handle, hence its node, while the thread points to it; the pointer makes the guard !Send.
    group: PhantomData<(&'g Group, *const ())>,
}

/// Makes `group` the current group of this thread.
///
/// ```
/// use memgroup::{Config, Hierarchy, scope};
///
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let tenant = hierarchy.create("/tenant").unwrap();
/// {
///     let _scope = scope::enter(&tenant);
///     assert_eq!(scope::current(), Some(tenant.clone()));
/// }
/// assert_eq!(scope::current(), None);
/// ```
#[inline]
pub fn enter(group: &Group) -> Scope<'_> {
    let before = CURRENT.get();
    let node = group.node();
    let until_now = before.timed();
    if node.shared().config.scope_time || until_now.is_some() {
        count_time(until_now, ticks::now());
    }
    let (node, generation) = (Some(node), node.generation());
    change(before, Current { node, generation, depth: before.depth + 1 });
    Scope { before, group: PhantomData }
}

/// The current group of this thread.
pub fn current() -> Option<Group> {
    // Within the section the node is not given back. While the group lives its handle is counted, before another group could take its
    // place.
    let _section = grace::enter();
    node().map(Group::pinned)
}

/// Id of the current group of this thread; two loads.
#[inline]
pub fn current_id() -> Option<GroupId> {
    node().map(Node::group_id)
}

/// Node of the current group of this thread.
#[inline(always)]
pub(crate) fn node() -> Option<&'static Node> {
    CURRENT.get().node()
}

/// Charges `bytes` to the current group of this thread, as [`Group::try_charge`] does; `None` if there is none.
///
/// The group may be of any hierarchy. Code that stores the id instead of the charge uses
/// [`Hierarchy::try_charge_current`](crate::Hierarchy::try_charge_current).
#[inline]
pub fn try_charge_current(bytes: u64) -> Option<Result<Charge, ChargeError>> {
    let node = node()?;
    Some(node.charge(bytes).map(|()| Charge::owning(node, bytes)))
}

impl Drop for Scope<'_> {
    #[inline]
    fn drop(&mut self) {
        let current = CURRENT.get();
        if current.depth == self.before.depth + 1 {
            if let Some(node) = current.timed() {
                count_time(Some(node), ticks::now());
                update::add(node, CPU, cpu::NR_SCOPES.index(), 1);
            } else if self.before.timed().is_some() {
                SINCE.set(Some(ticks::now()));
            }
            change(current, self.before);
        } else {
            leave_out_of_order();
        }
    }
}

/// Leaves no group current, because a guard was dropped out of order and the right group is unknown.
///
/// The upper bits of the depth warn older guards: the guard of the group that they would restore may have been dropped.
#[cold]
fn leave_out_of_order() {
    let current = CURRENT.get();
    let guards = (current.depth & GUARDS).saturating_sub(1);
    let depth = if guards == 0 { 0 } else { (current.depth & !GUARDS).wrapping_add(GUARDS + 1) | guards };
    change(current, Current { depth, ..Current::NONE });
}
