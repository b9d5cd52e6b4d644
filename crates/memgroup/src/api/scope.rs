//! Scope: the current group of a thread.
//!
//! An adapter that hooks foreign allocations gets no argument that could name the group. It
//! charges the current group of the thread. Entering and leaving a scope take a few plain stores.
//! With `Config::scope_time`, the default, each also reads the clock and may add to one statistic;
//! with `Config::scope_time_sampled` only one in many does. While a stall lasts, each also checks
//! the groups that it changes (`observe::pressure`). Neither allocates, and the thread-local of
//! the current group has no destructor. So scopes work inside an allocator and while a thread
//! ends.
//!
//! - I1. The thread keeps a place of the node table together with its generation. A guard that was
//!   forgotten can keep its group current for longer than the handle lives, but never makes
//!   another group current.
//! - I2. Guards are dropped in the reverse order of their making. A guard that is not leaves no
//!   group current.
//! - B1. The generation is checked once, when a charge or an addition begins. If a guard was
//!   forgotten and its group is released just then, the operation counts for the next group in the
//!   place. No check that is cheap enough for a charge prevents that.

use std::cell::Cell;
use std::marker::PhantomData;

use memgroup_sync::grace;
use memgroup_sync::ticks::{self, Moment};

use crate::base::effort::Means;
use crate::base::id::GroupId;
use crate::charge::charge::Charge;
use crate::observe::pressure;
use crate::state::stats::builtin::{CPU, cpu};
use crate::stats::update;
use crate::stock::Unheld;
use crate::tree::error::ChargeError;
use crate::tree::handle::Group;
use crate::tree::node::Node;

/// The bits of a depth that count guards.
const GUARDS: u32 = 0xffff;

/// The current group of a thread.
///
/// It consists of words that are each read and written as a whole: a load of two smaller stores
/// would wait for them. A charge reads the first two.
#[derive(Clone, Copy)]
struct Current {
    node: Option<&'static Node>,
    generation: u64,
    /// The number of guards that live. The bits above `GUARDS` count guards dropped out of order
    /// since there was none.
    depth: u64,
}

impl Current {
    const NONE: Current = Current { node: None, generation: 0, depth: 0 };

    #[inline(always)]
    fn of(node: Option<&'static Node>, generation: u64, depth: u32) -> Current {
        Current { node, generation, depth: u64::from(depth) }
    }

    #[inline(always)]
    fn generation(self) -> u64 {
        self.generation
    }

    #[inline(always)]
    fn depth(self) -> u32 {
        self.depth as u32
    }

    #[inline(always)]
    fn node(self) -> Option<&'static Node> {
        self.node.filter(|node| node.generation() == self.generation)
    }
}

std::thread_local! {
    static CURRENT: Cell<Current> = const { Cell::new(Current::NONE) };
    // Since when the group is current, where this stretch of time is measured. Apart from the
    // other, because a charge reads that alone.
    static SINCE: Cell<Option<Moment>> = const { Cell::new(None) };
    static RANDOM: Cell<u64> = const { Cell::new(0) };
}

/// Returns whether the stretch of time that begins is a sample, as one in `of` is on average.
#[inline]
fn draw(of: u32) -> bool {
    if of == 1 {
        return true;
    }
    // A sequence of period 2^64 (Knuth, MMIX). Its upper bits are good enough, and never fall in
    // step with the polls of a task.
    let next = RANDOM.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    RANDOM.set(next);
    ((next >> 32) * u64::from(of)) >> 32 == 0
}

/// How many stretches of time of the group one sample stands for; 0 where none is measured.
#[inline(always)]
fn sampled_of(node: Option<&'static Node>) -> u32 {
    node.map_or(0, |node| node.shared().config.scope_time_of())
}

/// The most nanoseconds that one stretch of time counts: 36 years. So a sample of a very long
/// scope does not take the statistic out of its range.
const COUNTED_MOST: u64 = 1 << 60;

/// The nanoseconds that a stretch of time counts which is a sample of `of`.
#[inline(always)]
fn counted(nanos: u64, of: u32) -> i64 {
    nanos.saturating_mul(of.into()).min(COUNTED_MOST) as i64
}

/// Ends the stretch of time of the group that was current, and begins one of the next. `scopes`
/// are those that end with it.
#[inline(always)]
fn count_time(ended: Option<&'static Node>, begun: Option<&'static Node>, scopes: i64) {
    let (of, begun_of) = (sampled_of(ended), sampled_of(begun));
    if of == 0 && begun_of == 0 {
        return;
    }
    let since = SINCE.get().filter(|_| of > 0);
    let is_drawn = begun_of > 0 && draw(begun_of);
    if since.is_none() && !is_drawn {
        return SINCE.set(None);
    }
    let now = ticks::now();
    SINCE.set(is_drawn.then_some(now));
    if let (Some(node), Some(since)) = (ended, since) {
        update::add(node, CPU, cpu::SCOPE_USEC.index(), counted(now.nanos_since(since), of));
        if scopes > 0 {
            update::add(node, CPU, cpu::NR_SCOPES.index(), scopes * i64::from(of));
        }
    }
}

/// Returns whether a change of scope from or to the group is more than a store: its hierarchy
/// measures pressure, or the time in scopes.
#[inline(always)]
fn is_observed(node: Option<&'static Node>) -> bool {
    node.is_some_and(|node| {
        let config = &node.shared().config;
        config.pressure() || config.scope_time_of() > 0
    })
}

/// Counts time, and shows the change to stalls. Out of line, so that the compiler makes a few
/// plain stores of the rest.
#[inline(never)]
fn observe(before: Current, after: Current, scopes: i64) {
    let (before, generation, after) = (before.node(), after.generation(), after.node());
    count_time(before, after, scopes);
    let is_shown = |node: &&'static Node| node.shared().config.pressure();
    let (seen, shown) = (before.filter(is_shown), after.filter(is_shown));
    if seen.is_some() || shown.is_some() {
        pressure::publish(seen, shown, generation);
    }
}

/// Guard that keeps a group current on this thread, or [none](leave). Dropping it restores the
/// group that was current before.
///
/// It is not `Send`. Guards are dropped in the reverse order of their making, as variables are. A
/// guard that is dropped before a later one leaves no group current, until all of them are
/// dropped. A guard that is forgotten (`mem::forget`) keeps its group current on the thread, at
/// most until the group is released. An operation of the thread that races with that release may
/// count for the next group that reuses the id.
#[must_use = "the change lasts only while the guard lives"]
pub struct Scope<'g> {
    before: Current,
    /// Whether the change back is more than a store.
    is_observed: bool,
    // The borrow keeps the group's handle, hence its node, while the thread points to it; the
    // pointer makes the guard !Send.
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
#[inline(always)]
pub fn enter(group: &Group) -> Scope<'_> {
    let node = group.node();
    change(Some(node), node.generation())
}

/// Leaves this thread without a current group, for a pause in the middle of its work. Dropping the
/// guard makes the group current again.
///
/// Until then the thread is not at work in the group, and its time is not counted there.
/// [`try_charge_current`] charges nothing.
///
/// ```
/// use memgroup::{Config, Hierarchy, scope};
///
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let tenant = hierarchy.create("/tenant").unwrap();
/// let _scope = scope::enter(&tenant);
/// {
///     let _outside = scope::leave();
///     assert_eq!(scope::current(), None);
/// }
/// assert_eq!(scope::current(), Some(tenant.clone()));
/// ```
pub fn leave() -> Scope<'static> {
    change(None, 0)
}

/// Makes the group of the node current, or none.
#[inline(always)]
fn change<'g>(node: Option<&'static Node>, generation: u64) -> Scope<'g> {
    let before = CURRENT.get();
    let after = Current::of(node, generation, before.depth() + 1);
    CURRENT.set(after);
    let is_observed = is_observed(node) || is_observed(before.node());
    if is_observed {
        observe(before, after, 0);
    }
    Scope { before, is_observed, group: PhantomData }
}

/// The current group of this thread.
pub fn current() -> Option<Group> {
    // Within the section the node is not given back. While the group lives its handle is counted,
    // before another group could take its place.
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

/// Charges `bytes` to the current group of this thread, as [`Group::try_charge`] does; `None` if
/// there is none.
///
/// The group may be of any hierarchy. Code that stores the id instead of the charge uses
/// [`Hierarchy::try_charge_current`](crate::Hierarchy::try_charge_current).
#[inline]
pub fn try_charge_current(bytes: u64) -> Option<Result<Charge, ChargeError>> {
    let unheld = Unheld::begin();
    let node = node()?;
    Some(node.charge_unheld(unheld, bytes, Means::PLAIN).map(|()| Charge::owning(node, bytes)))
}

impl Drop for Scope<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let current = CURRENT.get();
        if current.depth() != self.before.depth() + 1 {
            return leave_out_of_order();
        }
        CURRENT.set(self.before);
        if self.is_observed {
            observe(current, self.before, 1);
        }
    }
}

/// Leaves no group current, because a guard was dropped out of order and the right group is
/// unknown.
///
/// The upper bits of the depth warn older guards: the guard of the group that they would restore
/// may have been dropped.
#[cold]
fn leave_out_of_order() {
    let current = CURRENT.get();
    let guards = (current.depth() & GUARDS).saturating_sub(1);
    let depth = if guards == 0 { 0 } else { (current.depth() & !GUARDS).wrapping_add(GUARDS + 1) | guards };
    let after = Current::of(None, 0, depth);
    CURRENT.set(after);
    if is_observed(current.node()) {
        observe(current, after, 0);
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::{COUNTED_MOST, counted};

    #[test]
    fn a_sample_of_a_long_stretch_of_time_counts_as_much_as_fits() {
        const HOUR: u64 = 3_600_000_000_000;
        assert_eq!((counted(0, 65_536), counted(HOUR, 1)), (0, HOUR as i64));
        assert_eq!(counted(HOUR, 65_536), (HOUR * 65_536) as i64);
        for nanos in [40 * HOUR, u64::MAX] {
            assert_eq!(counted(nanos, 65_536), COUNTED_MOST as i64);
        }
    }
}
