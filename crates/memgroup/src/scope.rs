//! Scope: the group in force on this thread.
//!
//! Adapters that hook somebody else's allocations have no argument to carry the group in; they charge the group whose
//! scope the thread is in. Entering and leaving are two plain stores; nothing is counted, nothing allocated, and the
//! thread-local has no destructor, so all of it works inside an allocator and while a thread ends.

use core::marker::PhantomData;
use std::cell::Cell;

use crate::charge::Charge;
use crate::error::ChargeError;
use crate::group::{Group, GroupId};
use crate::node::Node;

std::thread_local! {
    static CURRENT: Cell<Option<&'static Node>> = const { Cell::new(None) };
}

/// While it lives, its group is in force on this thread; dropping it restores what was before.
///
/// Not `Send`. Guards are dropped in the reverse order of their making, as they are when bound to variables.
#[must_use = "the group is in force only while the guard lives"]
pub struct Scope<'g> {
    before: Option<&'static Node>,
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
    Scope { before: CURRENT.replace(Some(group.node())), group: PhantomData }
}

/// The group in force on this thread.
pub fn current() -> Option<Group> {
    CURRENT.get().map(Group::pinned)
}

/// The id of the group in force on this thread; one load.
#[inline]
pub fn current_id() -> Option<GroupId> {
    CURRENT.get().map(|node| node.id)
}

/// The node of the group in force on this thread.
#[inline]
pub(crate) fn node() -> Option<&'static Node> {
    CURRENT.get()
}

/// Charges `bytes` to the group in force on this thread, as [`Group::try_charge`] does; `None` if none is. Whichever
/// hierarchy it is of; who keeps the id instead of the charge takes
/// [`Hierarchy::try_charge_current`](crate::Hierarchy::try_charge_current).
#[inline]
pub fn try_charge_current(bytes: u64) -> Option<Result<Charge, ChargeError>> {
    let node = CURRENT.get()?;
    Some(node.charge(bytes).map(|()| Charge::owning(node, bytes)))
}

impl Drop for Scope<'_> {
    #[inline]
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}
