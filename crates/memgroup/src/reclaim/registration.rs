//! Registration: a shrinker is registered, attached to groups, and removed.
//!
//! ```text
//!   add ─▶ number drawn ─▶ put: from here on walks can find it ──────┐
//!   attach ─▶ slot of the group drawn ─▶ occupied ─▶ marked ─────────┤ a walk
//!   withdraw ─▶ walks find it no more ─▶ its own calls have ended ─▶ box returned, or dropped by the thread that ends the last call
//! ```
//!
//! Registering takes two short locks, one after the other. No callback, no reclaim and no wait is
//! under them, and no table grows with the number of groups. Removing waits for calls of the
//! removed shrinker and for nothing else. The kernel's first lock-free form waited for a grace
//! period of all shrinkers. It cost 89 % of the mounts and unmounts with which it was measured.
//!
//! - I1. A slot holds a handle on its group.

use std::sync::Arc;

use memgroup_sync::atomic::Ordering;
use memgroup_sync::hazard::{Place, WaitError, Withdrawn};

use crate::base::deadline::Deadline;
use crate::reclaim::due::UNKNOWN_CLASS;
use crate::reclaim::entry::{ShrinkerEntry, domain};
use crate::reclaim::error::{CallsError, ShrinkerError};
use crate::reclaim::group;
use crate::reclaim::registry::Registered;
use crate::reclaim::release::SlotRef;
use crate::reclaim::shrinker::{Quarantine, Shrinker, ShrinkerConfig, ShrinkerId};
use crate::reclaim::slot::SlotState;
use crate::tree::handle::{Group, Hierarchy};
use crate::tree::node::Node;
use crate::tree::shared::Shared;

/// A registered [`Shrinker`]. Dropping it removes the shrinker without waiting, as
/// [`withdraw`](Registration::withdraw) does. Calls that run go on, and the thread that ends the
/// last one drops the shrinker.
#[must_use = "a shrinker is removed when this is dropped"]
pub struct Registration {
    registered: Arc<Registered>,
}

/// A shrinker's attachment to one group, for the memory that it holds of that group. Dropping it
/// gives the slot up: walks no longer ask the shrinker for the group.
///
/// A call that has begun may still come to its end then, and one that a walk is about to make may
/// begin. A [`Shrinker::count`] may be told the token of the shrinker that has the slot next. A
/// [`Shrinker::scan`] is told this one's. So callbacks look up the token, or its meaning is kept
/// until the shrinker is removed: no call begins after that.
#[must_use = "the shrinker is not asked for the group any more when this is dropped"]
pub struct ShrinkerSlot {
    group: Group,
    slot: SlotRef,
    /// Until the slot is given up the shrinker's number is no other's (`registry` I1).
    _registered: Arc<Registered>,
}

/// The [`Registration`] and the only [`ShrinkerSlot`] of a shrinker that has the memory of one
/// group alone. Its callbacks are told token 0. Dropping it removes the shrinker, as dropping the
/// registration does.
#[must_use = "a shrinker is removed when this is dropped"]
pub struct GroupShrinker {
    registration: Registration,
    slot: ShrinkerSlot,
}

/// Registers a shrinker with the hierarchy.
pub(crate) fn register(
    shared: &'static Shared,
    config: ShrinkerConfig,
    shrinker: Box<dyn Shrinker>,
) -> Result<Registration, ShrinkerError> {
    let registry = shared.shrinkers();
    let name = config.name.clone();
    let Some(number) = registry.places.draw(|| Place::empty(domain())) else {
        return Err(ShrinkerError::TooMany { name });
    };
    shared.hold();
    let registered = Arc::new(Registered { hierarchy: Hierarchy::adopted(shared), number, name });
    registered.place().put(Box::new(ShrinkerEntry::new(config, shrinker, Arc::clone(&registered))));
    // ORDERING: Relaxed; as in `is_any`.
    registry.live.fetch_add(1, Ordering::Relaxed);
    Ok(Registration { registered })
}

/// Takes a free slot of a group that the caller holds; `None` if it, or a group above, has as many
/// as it can have.
pub(crate) fn occupy(
    node: &'static Node,
    place: &'static Place<ShrinkerEntry>,
    token: u64,
) -> Option<SlotRef> {
    let slots = &group::enlist(node)?.slots;
    let number = slots.draw(SlotState::new)?;
    let state = slots.get(number)?;
    state.occupy(place, token, UNKNOWN_CLASS);
    Some(SlotRef { node, generation: node.generation(), number, state })
}

impl Registration {
    /// Attaches the shrinker to `group`, for the memory that it holds of that group. Its callbacks
    /// are told `token`, to find that memory by.
    ///
    /// # Errors
    /// The group is of another hierarchy, was removed, or has as many slots as it can have.
    pub fn attach(&self, group: &Group, token: u64) -> Result<ShrinkerSlot, ShrinkerError> {
        let (name, path, node) = (|| self.registered.name.clone(), || group.path(), group.node());
        if !std::ptr::eq(node.shared(), self.registered.hierarchy.shared()) {
            return Err(ShrinkerError::OtherHierarchy { name: name(), group: path() });
        }
        if !group.is_online() {
            return Err(ShrinkerError::Removed { name: name(), group: path() });
        }
        let slot = occupy(node, self.registered.place(), token)
            .ok_or_else(|| ShrinkerError::Full { name: name(), group: path() })?;
        Ok(ShrinkerSlot { group: group.clone(), slot, _registered: Arc::clone(&self.registered) })
    }

    /// Its number, under which [`Hierarchy::shrinkers`](crate::Hierarchy::shrinkers) lists it.
    #[must_use]
    pub fn id(&self) -> ShrinkerId {
        ShrinkerId(self.registered.number)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.registered.name
    }

    /// The reason why it is not called, if there is one.
    #[must_use]
    pub fn quarantine(&self) -> Option<Quarantine> {
        domain().lease().pin(self.registered.place()).and_then(|entry| entry.quarantine())
    }

    /// Ends its quarantine.
    pub fn reinstate(&self) {
        if let Some(entry) = domain().lease().pin(self.registered.place()) {
            entry.reinstate();
        }
    }

    /// Removes it: from now on no call of it begins. The [`Removal`] tells when those that run
    /// have ended.
    ///
    /// While a thread walks over shrinkers, and is in no call of [`Shrinker::scan`], this makes an
    /// expedited `membarrier`. It interrupts the running threads of the process for some
    /// microseconds. So do all ways to remove a shrinker.
    pub fn withdraw(self) -> Removal {
        Removal { withdrawn: self.take(), registered: Arc::clone(&self.registered) }
    }

    /// Removes it, and waits until its own calls have ended. It does not wait for calls of other
    /// shrinkers.
    ///
    /// # Errors
    /// It is removed from within its own call. It is removed all the same, and dropped when that
    /// call ends.
    pub fn remove(self) -> Result<(), CallsError> {
        self.withdraw().wait()
    }

    /// Takes the shrinker from its place, once.
    fn take(&self) -> Option<Withdrawn<ShrinkerEntry>> {
        if let Some(entry) = domain().lease().pin(self.registered.place()) {
            entry.set_withdrawn();
        }
        self.registered.place().withdraw().inspect(|_| {
            // ORDERING: Relaxed; as in `is_any`.
            self.registered.registry().live.fetch_sub(1, Ordering::Relaxed);
        })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// A shrinker of which no more calls begin, while some may still run. If this is dropped, the
/// thread that ends the last call drops the shrinker.
#[must_use = "it tells when the last call has ended"]
pub struct Removal {
    withdrawn: Option<Withdrawn<ShrinkerEntry>>,
    registered: Arc<Registered>,
}

impl Removal {
    /// Waits until its calls have ended, and drops it.
    ///
    /// # Errors
    /// The calling thread is in a call of it. It is dropped when that ends.
    pub fn wait(mut self) -> Result<(), CallsError> {
        let Some(withdrawn) = self.withdrawn.take() else { return Ok(()) };
        withdrawn.wait().map(drop).map_err(|error| self.failed(error).0)
    }

    /// As [`wait`](Removal::wait), until `deadline`.
    ///
    /// # Errors
    /// The calling thread is in a call of it; or a call still runs. The error then names the
    /// thread and the time that the call has lasted. The removal is returned with the error,
    /// to wait again or to drop it.
    pub fn wait_until(mut self, deadline: impl Into<Deadline>) -> Result<(), (CallsError, Removal)> {
        let Some(withdrawn) = self.withdrawn.take() else { return Ok(()) };
        withdrawn.wait_until(deadline.into().instant_or_far()).map(drop).map_err(|error| {
            let (error, withdrawn) = self.failed(error);
            self.withdrawn = Some(withdrawn);
            (error, self)
        })
    }

    /// Has `then` run when its last call has ended: on the thread that ends it, or here and now.
    /// Its owner can free there the memory that its callbacks use.
    pub fn detach(mut self, then: impl FnOnce() + Send + 'static) {
        match self.withdrawn.take() {
            Some(withdrawn) => withdrawn.detach(move |entry| {
                drop(entry);
                then();
            }),
            None => then(),
        }
    }

    fn failed(&self, error: WaitError<ShrinkerEntry>) -> (CallsError, Withdrawn<ShrinkerEntry>) {
        let name = Some(self.registered.name.clone());
        match error {
            WaitError::UsedHere(withdrawn) => (CallsError::FromWithin { name }, withdrawn),
            WaitError::Deadline(withdrawn) => {
                let caller = withdrawn.blockers().into_iter().max_by_key(|occupant| occupant.held());
                (CallsError::blocked(name, caller.as_ref()), withdrawn)
            }
        }
    }
}

impl ShrinkerSlot {
    /// Has the next walk that does not explore count the shrinker: it may hold memory now, or
    /// several times as much as before. To be called when the first object came into an empty
    /// cache, and when a cache has grown a lot. Until then the last count decides when the
    /// shrinker is asked.
    ///
    /// A walk doesn't see a cache that it found empty until this call, whatever came into the
    /// cache in between, and charges beside it may be refused. So **mark the cache under its
    /// lock**, in the same hold in which its first object comes in. A thread that marks it
    /// after the lock is free may lose its CPU just before the call. Others then find a cache
    /// that isn't empty, don't mark it, and fill it. If no single lock guards the cache, every
    /// thread that adds an object must mark the slot until one such call has returned; or mark
    /// it after each object.
    ///
    /// The call takes no lock and runs no callback, so it may be made under any lock.
    ///
    /// It costs about as much as a system call if the slot was not marked. The [`Shrinker::count`]
    /// that finds the cache empty after all sees all that was stored before this call.
    pub fn mark(&self) {
        let SlotRef { node, number, state, .. } = self.slot;
        let _move = node.shared().shrinkers().begin_mark_move();
        state.forget_size(UNKNOWN_CLASS);
        group::mark(node, number, UNKNOWN_CLASS);
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }
}

impl Drop for ShrinkerSlot {
    fn drop(&mut self) {
        self.slot.give_up();
    }
}

impl GroupShrinker {
    pub(crate) fn new(
        group: &Group,
        config: ShrinkerConfig,
        shrinker: Box<dyn Shrinker>,
    ) -> Result<GroupShrinker, ShrinkerError> {
        let registration = register(group.node().shared(), config, shrinker)?;
        let slot = registration.attach(group, 0)?;
        Ok(GroupShrinker { registration, slot })
    }

    /// See [`ShrinkerSlot::mark`].
    pub fn mark(&self) {
        self.slot.mark();
    }

    /// The registration, for its name and its [quarantine](Registration::quarantine).
    pub fn registration(&self) -> &Registration {
        &self.registration
    }

    /// See [`Registration::withdraw`].
    pub fn withdraw(self) -> Removal {
        self.registration.withdraw()
    }

    /// See [`Registration::remove`].
    ///
    /// # Errors
    /// As there.
    pub fn remove(self) -> Result<(), CallsError> {
        self.withdraw().wait()
    }
}
