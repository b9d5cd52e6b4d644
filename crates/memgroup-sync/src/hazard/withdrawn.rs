//! A value that was taken out of a place: waiting for its users, or leaving it to the last of
//! them.
//!
//! - I1. A value that was taken is one `Taken`'s, which ends once: its place is vacant from then
//!   on, and the value a box again.
//! - I2. A `Taken` ends after a scan that found its place in use nowhere (`place` I3), or without
//!   one if there was no lease when the value was taken.
//! - I3. A departure is in its place until a scan under the place's lock finds no user. The thread
//!   that takes it out then ends it, so once, and without the lock.
//! - E1. detach ↔ unpin: the departure is in the place before the detaching thread scans. So
//!   either that scan ends it, or a thread that the scan met leaves later and finds it. Loom:
//!   `loom_a_detached_value_runs_once_and_after_the_last_pin`.

#![allow(unsafe_code)]

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::ptr::{NonNull, read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::occupant::Occupant;
use super::place::Place;
use crate::grace::{Evidence, stall};
use crate::keep::model_failed;
use crate::mutation::{Mutation, active};
use crate::{interleave, spin};

/// A value that left its place, and is not given back yet.
struct Taken<T: 'static> {
    place: &'static Place<T>,
    value: NonNull<T>,
}

// SAFETY: its owner reads the value while other threads do, hence `Sync`, and may get or drop it,
// hence `Send`.
unsafe impl<T: Send + Sync> Send for Taken<T> {}
// SAFETY: through `&Taken<T>` there is `&T` and nothing else.
unsafe impl<T: Sync> Sync for Taken<T> {}

impl<T: 'static> Taken<T> {
    /// Makes the place vacant, and the value the caller's.
    ///
    /// # Safety
    ///
    /// No thread uses the value (I2).
    unsafe fn end(self) -> Box<T> {
        self.place.anchor.vacate();
        // SAFETY: out of a box (`place` I1), of this `Taken` alone (I1), and used by no thread.
        unsafe { Box::from_raw(self.value.as_ptr()) }
    }
}

/// The work to be done when no thread uses a place any more.
pub(super) struct Departure {
    /// The evidence that a scan for this departure uses.
    pub(super) evidence: Evidence,
    /// Wakes a thread, which will scan again; or runs the closure of a value that is detached.
    then: Box<dyn FnOnce() + Send>,
}

impl Departure {
    /// Ends the departure, on the thread that proved it over. A panic of the closure ends here:
    /// the calling thread has only left the place, maybe in a panic of its own.
    pub(super) fn end_containing_panics(self) {
        // A model's failure is a panic too.
        if cfg!(memgroup_loom) {
            (self.then)();
        } else if let Err(payload) = catch_unwind(AssertUnwindSafe(self.then)) {
            // Its drop could panic once more.
            core::mem::forget(payload);
        }
    }
}

/// A value that was withdrawn from its [`Place`]; threads that pinned it before may still use it.
///
/// [`wait`](Self::wait) for them, or [`detach`](Self::detach) it. Dropping it detaches it, and
/// drops the value after its last use.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_sync::hazard::{Domain, Place, WaitError};
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use std::time::Instant;
///
/// static DOMAIN: Domain = Domain::new();
/// static PLACE: Place<String> = Place::empty(&DOMAIN);
/// static DONE: AtomicBool = AtomicBool::new(false);
///
/// PLACE.put(Box::new("a callback".to_owned()));
/// let mut lease = DOMAIN.lease();
/// let pinned = lease.pin(&PLACE).unwrap();
///
/// let withdrawn = PLACE.withdraw().unwrap();
/// assert!(withdrawn.is_used_here());
/// let Err(WaitError::UsedHere(withdrawn)) = withdrawn.wait() else { panic!("it would wait for itself") };
/// withdrawn.detach(|value| DONE.store(*value == "a callback", Ordering::Relaxed));
/// assert_eq!(*pinned, "a callback");
/// assert!(!DONE.load(Ordering::Relaxed));
/// drop(pinned);
/// assert!(DONE.load(Ordering::Relaxed));
/// # }
/// ```
#[must_use = "dropped, it drops the value after its last use"]
pub struct Withdrawn<T: Send + Sync + 'static> {
    taken: Taken<T>,
    // Without it no thread can use the value.
    evidence: Option<Evidence>,
}

impl<T: Send + Sync> Withdrawn<T> {
    /// The value that the caller alone has taken out of the place.
    pub(super) fn new(place: &'static Place<T>, value: NonNull<T>, evidence: Option<Evidence>) -> Self {
        Self { taken: Taken { place, value }, evidence }
    }

    /// Waits until no thread uses the value any more. It waits for no use of another place.
    ///
    /// # Errors
    ///
    /// [`WaitError::UsedHere`] at once if the calling thread uses the value itself.
    pub fn wait(self) -> Result<Box<T>, WaitError<T>> {
        self.wait_for(None)
    }

    /// Like [`wait`](Self::wait), but gives up at `deadline`. With one in the past it scans once.
    ///
    /// # Errors
    ///
    /// [`WaitError::Deadline`]; or [`WaitError::UsedHere`] at once if the calling thread uses the
    /// value itself.
    pub fn wait_until(self, deadline: Instant) -> Result<Box<T>, WaitError<T>> {
        self.wait_for(Some(deadline))
    }

    fn wait_for(self, deadline: Option<Instant>) -> Result<Box<T>, WaitError<T>> {
        let mut spin = spin::Wait::new();
        loop {
            if !self.taken.place.is_used(self.evidence) || active(Mutation::WaitAssumesNoUser) {
                let (taken, _) = self.into_parts();
                // SAFETY: the scan has found no user, or there was no lease (I2).
                return Ok(unsafe { taken.end() });
            }
            if self.is_used_here() {
                return Err(WaitError::UsedHere(self));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(WaitError::Deadline(self));
            }
            if cfg!(memgroup_loom) || !spin.yields_next() {
                spin.wait();
            } else {
                self.sleep(left);
            }
        }
    }

    /// Sleeps until a thread that leaves the place finds it unused, for at most `most`.
    fn sleep(&self, most: Option<Duration>) {
        // Where the barrier is lost, a leaving thread may not see that this one waits.
        const UNPROVEN: Duration = Duration::from_millis(1);

        let Some(evidence) = self.evidence else { return };
        let anchor = &self.taken.place.anchor;
        // For `blockers` and the printed error: from now on it is known how long they use it.
        self.occupants().for_each(drop);
        let sleeper = std::thread::current();
        anchor.depart(Some(Departure { evidence, then: Box::new(move || sleeper.unpark()) }));
        interleave::point();
        if self.taken.place.is_used(self.evidence) {
            let most = match evidence {
                Evidence::Proofs { .. } => Some(most.unwrap_or(UNPROVEN).min(UNPROVEN)),
                Evidence::Loads | Evidence::Exchanges => most,
            };
            match most {
                Some(most) => std::thread::park_timeout(most),
                None => std::thread::park(),
            }
        }
        anchor.depart(None);
    }

    /// The threads that use the value now. The first call that meets a use notes the time, for
    /// [`Occupant::held`]; so does a wait.
    pub fn blockers(&self) -> Vec<Occupant> {
        self.occupants().collect()
    }

    fn occupants(&self) -> impl Iterator<Item = Occupant> {
        let place = self.taken.place;
        let occupants = |evidence| place.anchor.domain.occupants(place.key(), evidence);
        self.evidence.into_iter().flat_map(occupants)
    }

    /// Returns whether the calling thread itself uses the value, so that waiting would not end.
    pub fn is_used_here(&self) -> bool {
        self.evidence.is_some() && self.taken.place.is_used_here()
    }

    /// Runs `then` with the value after its last use: on the thread that leaves last, or here and
    /// now if there is none. It runs once, without a lock, and when the place can be used again
    /// already.
    ///
    /// A panic of `then` on another thread ends there, after the panic hook has reported it.
    pub fn detach(self, then: impl FnOnce(Box<T>) + Send + 'static) {
        let (taken, evidence) = self.into_parts();
        let anchor = &taken.place.anchor;
        // SAFETY: run below where there was no lease, and as a departure after the scan that finds
        // no user (I2, I3).
        let end = move || then(unsafe { taken.end() });
        let Some(evidence) = evidence.filter(|_| !active(Mutation::DetachRunsAtOnce)) else { return end() };
        let departure = Departure { evidence, then: Box::new(end) };
        let scanned_first = active(Mutation::DetachScansFirst);
        if scanned_first && !anchor.domain.uses(anchor.key(), evidence) {
            return (departure.then)();
        }
        anchor.depart(Some(departure));
        if matches!(evidence, Evidence::Proofs { .. }) {
            // A leaving thread may not see that a departure waits.
            anchor.domain.defer(anchor);
        }
        if !scanned_first && let Some(departure) = anchor.take_if_over() {
            (departure.then)();
        }
    }

    fn into_parts(self) -> (Taken<T>, Option<Evidence>) {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is neither dropped nor used again, so the `Taken` goes on as one (I1).
        (unsafe { read(&raw const this.taken) }, this.evidence)
    }
}

impl<T: Send + Sync> Deref for Withdrawn<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: out of a box, which is given back by consuming the `Taken` only (I1).
        unsafe { self.taken.value.as_ref() }
    }
}

impl<T: Send + Sync> Drop for Withdrawn<T> {
    fn drop(&mut self) {
        if !model_failed() {
            // SAFETY: the fields are not used any more, so the `Taken` goes on as one (I1).
            let taken = unsafe { read(&raw const self.taken) };
            Self { taken, evidence: self.evidence }.detach(drop);
        }
    }
}

/// The reason why a wait for the last use of a value ended without it. Printed, it names the
/// threads.
pub enum WaitError<T: Send + Sync + 'static> {
    /// The deadline came first.
    Deadline(Withdrawn<T>),
    /// The calling thread uses the value itself.
    UsedHere(Withdrawn<T>),
}

impl<T: Send + Sync> fmt::Debug for WaitError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<T: Send + Sync> fmt::Display for WaitError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (withdrawn, why) = match self {
            Self::Deadline(withdrawn) => (withdrawn, "before the deadline"),
            Self::UsedHere(withdrawn) => (withdrawn, "on a thread that uses it"),
        };
        write!(f, "end all uses of the value withdrawn from place {:#x} {why}", withdrawn.taken.place.key())?;
        stall::write_list(f, &withdrawn.blockers())
    }
}

impl<T: Send + Sync> std::error::Error for WaitError<T> {}
