//! Registry: which shrinkers there are, and in which groups.
//!
//! ```text
//!   add ─▶ number drawn ─▶ put: from here on walks can find it ──┐
//!   seat ─▶ roster of the group ─▶ occupied ─▶ marked ───────────┤ a walk
//!   withdraw ─▶ found no more ─▶ its own calls have ended ─▶ box back, or dropped by whoever ends the last
//! ```
//!
//! Registering takes two short locks of its own, one after the other; no callback, no reclaim and no wait is under them, and nothing grows
//! with the number of groups. Removing waits for calls of the one that is removed and for nothing else: the kernel's first
//! lock-free form waited for a grace period of all of them, and cost 89 % of the mounts and unmounts it was measured with.
//!
//! - I1. A shrinker's number is given to another only when it was withdrawn, its last call has ended, and all its seats are given up.
//! - I2. A seat holds a handle on its group.

use std::sync::Arc;
use std::time::Instant;

use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicU32, Ordering};
use memgroup_sync::hazard::{Place, WaitError, Withdrawn};

use super::entry::{Entry, domain};
use super::error::{RemoveError, ShrinkerError};
use super::report::ShrinkerId;
use super::room::{CLASSES, Room};
use super::roster::{self, Numbers, Standing};
use super::shrinker::{Quarantine, Shrinker, ShrinkerConfig};
use crate::group::Group;
use crate::shared::Shared;

/// Where a seat is marked before its shrinker has been asked: among the largest, so that it is asked soon.
pub(crate) const UNKNOWN_CLASS: usize = CLASSES - 1;

/// All shrinkers of a hierarchy.
pub(crate) struct Registry {
    places: Room<Place<Entry>>,
    numbers: Mutex<Numbers>,
    /// Registered and not withdrawn.
    live: AtomicU32,
}

impl Registry {
    pub(crate) fn new() -> Registry {
        Registry { places: Room::new(), numbers: Mutex::new(Numbers::new()), live: AtomicU32::new(0) }
    }

    /// Whether there is any.
    pub(crate) fn is_any(&self) -> bool {
        // ORDERING: Relaxed; one that is registered just now has not been asked for anything yet.
        self.live.load(Ordering::Relaxed) > 0
    }

    /// Numbers below which all that were ever given out lie.
    pub(crate) fn numbers(&self) -> u32 {
        self.numbers.lock().given_out()
    }

    pub(crate) fn place(&'static self, number: u32) -> Option<&'static Place<Entry>> {
        self.places.get(number)
    }
}

/// A number that is registered, until its last call has ended and its last seat is given up.
pub(crate) struct Registered {
    shared: &'static Shared,
    number: u32,
    name: String,
}

impl Registered {
    fn place(&self) -> &'static Place<Entry> {
        let registry = &self.shared.shrinkers;
        registry.place(self.number).expect("a number that was given out has a place")
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.shared.shrinkers.numbers.lock().give_back(self.number);
        self.shared.let_go();
    }
}

/// A registered [`Shrinker`]. Dropping it removes the shrinker without waiting: calls that run go on, and the last one to end drops it.
#[must_use = "a shrinker is removed when this is dropped"]
pub struct Registration {
    registered: Arc<Registered>,
    is_withdrawn: bool,
}

/// What a shrinker may hold of one group. Dropping it gives the seat up: the shrinker is not asked for that group any more, though a call that
/// has begun may still come to its end, and one that a walk is about to make may begin. A [`Shrinker::count`] may then be told the token of who has the
/// seat next; a [`Shrinker::scan`] is told this one's. What a token stands for is therefore looked up by the callbacks, or kept until the shrinker is removed:
/// after that no call begins.
#[must_use = "the shrinker is not asked for the group any more when this is dropped"]
pub struct Seat {
    group: Group,
    number: u32,
    /// Until this seat is given up the number is no other shrinker's (I1).
    _registered: Arc<Registered>,
}

/// The [`Registration`] and the only [`Seat`] of a shrinker that has the memory of one group alone.
#[must_use = "a shrinker is removed when this is dropped"]
pub struct GroupShrinker {
    registration: Registration,
    seat: Seat,
}

/// Registers a shrinker with the hierarchy.
pub(crate) fn register(
    shared: &'static Shared,
    config: ShrinkerConfig,
    shrinker: Box<dyn Shrinker>,
) -> Result<Registration, ShrinkerError> {
    let registry = &shared.shrinkers;
    let name = config.name.clone();
    let Some(number) = registry.numbers.lock().draw() else {
        return Err(ShrinkerError::TooMany { name });
    };
    registry.places.extend(number, || Place::empty(domain()));
    shared.hold();
    let registered = Arc::new(Registered { shared, number, name });
    registered.place().put(Box::new(Entry::new(config, shrinker, Arc::clone(&registered))));
    // ORDERING: Relaxed; as in `is_any`.
    registry.live.fetch_add(1, Ordering::Relaxed);
    Ok(Registration { registered, is_withdrawn: false })
}

impl Registration {
    /// Gives it a seat in `group`, for what it holds of that group. `token` is what its callbacks are told, to find it by.
    ///
    /// # Errors
    /// The group is of another hierarchy, was removed, or has as many seats as it can have.
    pub fn seat(&self, group: &Group, token: u64) -> Result<Seat, ShrinkerError> {
        let (name, node) = (|| self.registered.name.clone(), group.node());
        if !std::ptr::eq(node.shared, self.registered.shared) {
            return Err(ShrinkerError::OtherHierarchy { name: name(), group: group.path() });
        }
        if !group.is_online() {
            return Err(ShrinkerError::Removed { name: name(), group: group.path() });
        }
        let full = || ShrinkerError::Full { name: name(), group: group.path() };
        if !roster::enlist(node) {
            return Err(full());
        }
        let roster = node.roster().ok_or_else(full)?;
        let number = roster.draw_seat().ok_or_else(full)?;
        let cell = roster.seats.get(number).ok_or_else(full)?;
        cell.occupy(self.registered.place(), token, UNKNOWN_CLASS);
        Ok(Seat { group: group.clone(), number, _registered: Arc::clone(&self.registered) })
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

    /// Why it is not called, if it is not.
    #[must_use]
    pub fn quarantine(&self) -> Option<Quarantine> {
        domain().lease().pin(self.registered.place()).and_then(|entry| entry.quarantine())
    }

    /// It is called again, whatever it did.
    pub fn reinstate(&self) {
        if let Some(entry) = domain().lease().pin(self.registered.place()) {
            entry.reinstate();
        }
    }

    /// Removes it: from now on no call of it begins. The [`Removal`] tells when those that run have ended.
    pub fn withdraw(mut self) -> Removal {
        self.is_withdrawn = true;
        Removal { withdrawn: self.take(), registered: Arc::clone(&self.registered) }
    }

    /// Removes it, and waits until its own calls have ended, for nobody else's.
    ///
    /// # Errors
    /// It is removed from within itself. It is removed all the same, and dropped when that call ends.
    pub fn remove(self) -> Result<(), RemoveError> {
        self.withdraw().wait()
    }

    fn take(&self) -> Option<Withdrawn<Entry>> {
        if let Some(entry) = domain().lease().pin(self.registered.place()) {
            entry.leave();
        }
        let withdrawn = self.registered.place().withdraw();
        if withdrawn.is_some() {
            // ORDERING: Relaxed; as in `is_any`.
            self.registered.shared.shrinkers.live.fetch_sub(1, Ordering::Relaxed);
        }
        withdrawn
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.is_withdrawn {
            drop(self.take());
        }
    }
}

/// A shrinker that is not called any more, but perhaps still runs. Dropping this leaves it to whoever ends its last call to drop it.
#[must_use = "it tells when the last call has ended"]
pub struct Removal {
    withdrawn: Option<Withdrawn<Entry>>,
    registered: Arc<Registered>,
}

impl Removal {
    /// Waits until its calls have ended, and drops it.
    ///
    /// # Errors
    /// This is a call of it. It is dropped when that ends.
    pub fn wait(mut self) -> Result<(), RemoveError> {
        let Some(withdrawn) = self.withdrawn.take() else { return Ok(()) };
        withdrawn.wait().map(drop).map_err(|error| self.failed(error).0)
    }

    /// As [`wait`](Removal::wait), until `deadline`.
    ///
    /// # Errors
    /// This is a call of it; or a call goes on, of which the error tells the thread and for how long: then the removal is given back
    /// beside it, to wait again or to leave it.
    pub fn wait_until(mut self, deadline: Instant) -> Result<(), (RemoveError, Removal)> {
        let Some(withdrawn) = self.withdrawn.take() else { return Ok(()) };
        withdrawn.wait_until(deadline).map(drop).map_err(|error| {
            let (error, withdrawn) = self.failed(error);
            self.withdrawn = Some(withdrawn);
            (error, self)
        })
    }

    /// Has `then` run when its last call has ended: by the thread that ends it, or here and now. Its owner can free there what its callbacks
    /// use.
    pub fn detach(mut self, then: impl FnOnce() + Send + 'static) {
        match self.withdrawn.take() {
            Some(withdrawn) => withdrawn.detach(move |entry| {
                drop(entry);
                then();
            }),
            None => then(),
        }
    }

    fn failed(&self, error: WaitError<Entry>) -> (RemoveError, Withdrawn<Entry>) {
        let name = self.registered.name.clone();
        match error {
            WaitError::UsedHere(withdrawn) => (RemoveError::FromWithin { name }, withdrawn),
            WaitError::Deadline(withdrawn) => {
                let blocker = withdrawn.blockers().into_iter().max_by_key(|occupant| occupant.held());
                (RemoveError::blocked(name, blocker), withdrawn)
            }
        }
    }
}

impl Seat {
    /// There may be something to give back now, or several times as much as before: to be called when the first thing came into what was
    /// empty, and when a cache has grown a lot. The next walk counts it; until then what it said last decides when it is asked.
    ///
    /// It costs about as much as a system call where the seat was not marked. What was stored before the call is seen by the
    /// [`Shrinker::count`] that decides that the seat is empty after all.
    pub fn mark(&self) {
        let node = self.group.node();
        if let Some(cell) = node.roster().and_then(|roster| roster.seats.get(self.number)) {
            cell.forget_size(UNKNOWN_CLASS);
            roster::mark(node, self.number, UNKNOWN_CLASS);
        }
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        super::leave(self.group.node(), self.number);
    }
}

impl GroupShrinker {
    pub(crate) fn new(
        group: &Group,
        config: ShrinkerConfig,
        shrinker: Box<dyn Shrinker>,
    ) -> Result<GroupShrinker, ShrinkerError> {
        let registration = register(group.node().shared, config, shrinker)?;
        let seat = registration.seat(group, 0)?;
        Ok(GroupShrinker { registration, seat })
    }

    /// See [`Seat::mark`].
    pub fn mark(&self) {
        self.seat.mark();
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
    pub fn remove(self) -> Result<(), RemoveError> {
        self.withdraw().wait()
    }
}
