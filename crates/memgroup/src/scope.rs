//! Scope: the group in force on this thread.
//!
//! Adapters that hook somebody else's allocations have no argument to carry the group in; they charge the group whose
//! scope the thread is in. Entering and leaving are a few plain stores; nothing is counted, nothing allocated, and the
//! thread-local has no destructor, so all of it works inside an allocator and while a thread ends.
//!
//! - I1. The thread points to a place of the node table together with its generation: a guard that was forgotten can leave a
//!   group in force longer than its handle, but never puts another group in its place.
//! - I2. Guards end in the reverse order of their beginning. One that does not leaves no group in force.
//! - B1. The generation is looked at once, when a charge or an addition begins. Where the guard was forgotten and the group is released
//!   just then, what was begun counts for the next group in the place, and may come when that is there already: nothing that is
//!   cheap enough for a charge holds the release off.

use core::marker::PhantomData;
use std::cell::Cell;

use memgroup_sync::ticks::{self, Moment};

use crate::charge::Charge;
use crate::error::ChargeError;
use crate::group::{Group, GroupId};
use crate::node::Node;
use crate::pressure;
use crate::rstat::builtin::{CPU, cpu};
use crate::rstat::update;

/// The bits of a depth that count guards.
const GUARDS: u32 = 0xffff;

/// What is in force on a thread.
#[derive(Clone, Copy)]
struct Current {
    node: Option<&'static Node>,
    generation: u32,
    /// Guards that live; above `GUARDS`, how often one ended out of order since there was none.
    depth: u32,
}

impl Current {
    const NOBODY: Current = Current { node: None, generation: 0, depth: 0 };

    #[inline]
    fn node(&self) -> Option<&'static Node> {
        self.node.filter(|node| node.generation() == self.generation)
    }

    /// The group, if others are to see that the thread is in its scope.
    #[inline]
    fn shown(&self) -> Option<&'static Node> {
        self.node().filter(|node| node.shared.config.pressure)
    }

    /// The group, if the time in its scopes is counted.
    #[inline]
    fn timed(&self) -> Option<&'static Node> {
        self.node().filter(|node| node.shared.config.scope_time)
    }
}

/// From now on the thread's time is another's; what has passed is that of `node`, the group in force, if it is counted.
#[inline]
fn count_time(node: Option<&'static Node>, now: Moment) {
    let since = SINCE.replace(Some(now));
    if let (Some(node), Some(since)) = (node, since) {
        update::add(node, CPU, cpu::SCOPE_USEC, now.nanos_since(since) as i64);
    }
}

/// Puts `after` in force, where `before` was.
#[inline]
fn change(before: Current, after: Current) {
    CURRENT.set(after);
    let (seen, shown) = (before.shown(), after.shown());
    if seen.is_some() || shown.is_some() {
        pressure::publish(seen, shown, after.generation);
    }
}

std::thread_local! {
    static CURRENT: Cell<Current> = const { Cell::new(Current::NOBODY) };
    // Since when the group in force is, where its time is counted. By itself, because a charge looks at the other alone.
    static SINCE: Cell<Option<Moment>> = const { Cell::new(None) };
}

/// While it lives, its group is in force on this thread; dropping it restores what was before.
///
/// Not `Send`. Guards are dropped in the reverse order of their making, as they are when bound to variables; one that is
/// dropped before a later one leaves no group in force, until all of them are gone. A guard that is forgotten
/// (`mem::forget`) leaves its group in force on the thread, at most until the group is released. What the thread does for the group in
/// force in that very instant, a charge, an addition or a call of [`current`], may then be for the next group that is created.
#[must_use = "the group is in force only while the guard lives"]
pub struct Scope<'g> {
    before: Current,
    // The borrow keeps the group's handle, hence its node, while the thread points to it; the pointer makes the guard !Send.
    group: PhantomData<(&'g Group, *const ())>,
}

/// Puts `group` in force on this thread.
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
    if node.shared.config.scope_time || until_now.is_some() {
        count_time(until_now, ticks::now());
    }
    let (node, generation) = (Some(node), node.generation());
    change(before, Current { node, generation, depth: before.depth + 1 });
    Scope { before, group: PhantomData }
}

/// The group in force on this thread.
pub fn current() -> Option<Group> {
    // With the group alive, its handle is counted before anybody could take its place.
    node().map(Group::pinned)
}

/// The id of the group in force on this thread; two loads.
#[inline]
pub fn current_id() -> Option<GroupId> {
    node().map(|node| node.id)
}

/// The node of the group in force on this thread.
#[inline]
pub(crate) fn node() -> Option<&'static Node> {
    CURRENT.get().node()
}

/// Charges `bytes` to the group in force on this thread, as [`Group::try_charge`] does; `None` if none is. Whichever
/// hierarchy it is of; who keeps the id instead of the charge takes
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
                update::add(node, CPU, cpu::NR_SCOPES, 1);
            } else if self.before.timed().is_some() {
                SINCE.set(Some(ticks::now()));
            }
            change(current, self.before);
        } else {
            out_of_order();
        }
    }
}

/// A guard ended before a later one, or after an earlier one did: whom to charge is anybody's guess, so nobody. Guards from before
/// this one's end are told by the upper bits that what they would restore may be a group whose guard is gone.
#[cold]
fn out_of_order() {
    let current = CURRENT.get();
    let guards = (current.depth & GUARDS).saturating_sub(1);
    let depth = if guards == 0 { 0 } else { (current.depth & !GUARDS).wrapping_add(GUARDS + 1) | guards };
    change(current, Current { depth, ..Current::NOBODY });
}
