//! What was taken out of a place: waiting for those who use it, or leaving that to the last of them.
//!
//! - I1. A value that was taken is one `Taken`'s, which ends once: its place is vacant from then on, and the value a box again.
//! - I2. A `Taken` ends after a scan that found its place in use nowhere (`place` I3), or without one if there was no lease when
//!   the value was taken.
//! - I3. A departure is in its place until a scan, made under the place's lock, finds nobody; who takes it out then ends it, so once,
//!   and after the lock.
//! - E1. detach ↔ unpin: the departure is in the place before the scan of who detaches, so either that scan ends it, or somebody whom the
//!   scan met leaves later and finds it. Loom: `loom_what_is_detached_runs_once_and_after_the_last_pin`.

#![allow(unsafe_code)]

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::ptr::{NonNull, read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::occupant::Occupant;
use super::place::Place;
use crate::grace::Evidence;
use crate::grace::section::model_failed;
use crate::interleave;
use crate::mutation::{Mutation, active};
use crate::spin;

/// A value that is in its place no more, and not given back yet.
pub(super) struct Taken<T: 'static> {
    place: &'static Place<T>,
    value: NonNull<T>,
}

// SAFETY: whoever has it reads the value while others do, hence `Sync`, and may get or drop it, hence `Send`.
unsafe impl<T: Send + Sync> Send for Taken<T> {}
// SAFETY: through `&Taken<T>` there is `&T` and nothing else.
unsafe impl<T: Sync> Sync for Taken<T> {}

impl<T: 'static> Taken<T> {
    /// What the caller alone has taken out of the place.
    pub(super) fn new(place: &'static Place<T>, value: NonNull<T>) -> Self {
        Self { place, value }
    }

    /// The place is vacant, and the value the caller's.
    ///
    /// # Safety
    ///
    /// Nobody uses the value (I2).
    unsafe fn end(self) -> Box<T> {
        self.place.anchor().vacate();
        // SAFETY: out of a box (`place` I1), of this `Taken` alone (I1), and used by nobody.
        unsafe { Box::from_raw(self.value.as_ptr()) }
    }
}

/// What is to be done when nobody is in a place any more.
pub(super) struct Departure {
    evidence: Evidence,
    then: Then,
}

enum Then {
    /// Somebody waits, and will look again.
    #[cfg_attr(memgroup_loom, allow(dead_code))]
    Wake(Thread),
    /// The value is detached.
    Run(Box<dyn FnOnce() + Send>),
}

impl Departure {
    /// What a scan for this departure may believe.
    pub(super) fn evidence(&self) -> Evidence {
        self.evidence
    }

    /// The departure is over, on the thread that found it so. A panic of what is run ends here: who runs it has only left the place,
    /// maybe in a panic of its own.
    pub(super) fn end_containing_panics(self) {
        match self.then {
            Then::Wake(thread) => thread.unpark(),
            // A model's failure is a panic too.
            Then::Run(run) if cfg!(memgroup_loom) => run(),
            Then::Run(run) => {
                if let Err(payload) = catch_unwind(AssertUnwindSafe(run)) {
                    // Its drop could panic once more.
                    core::mem::forget(payload);
                }
            }
        }
    }

    fn end_here(self) {
        match self.then {
            Then::Wake(thread) => thread.unpark(),
            Then::Run(run) => run(),
        }
    }
}

/// A value that was withdrawn from its [`Place`]; those who pinned it before may still use it.
///
/// [`wait`](Self::wait) for them, or [`detach`](Self::detach) it. Dropped, it is detached, and the value is dropped after its last
/// use.
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
    // Without it nobody can use the value.
    evidence: Option<Evidence>,
}

impl<T: Send + Sync> Withdrawn<T> {
    pub(super) fn new(taken: Taken<T>, evidence: Option<Evidence>) -> Self {
        Self { taken, evidence }
    }

    /// Waits until nobody uses the value any more. Waits for no use of another place.
    ///
    /// # Errors
    ///
    /// [`WaitError::UsedHere`] at once if the calling thread uses the value itself.
    pub fn wait(self) -> Result<Box<T>, WaitError<T>> {
        self.wait_for(None)
    }

    /// As [`wait`](Self::wait), but gives up at `deadline`. One that is past asks once.
    ///
    /// # Errors
    ///
    /// [`WaitError::Deadline`]; or [`WaitError::UsedHere`] at once if the calling thread uses the value itself.
    pub fn wait_until(self, deadline: Instant) -> Result<Box<T>, WaitError<T>> {
        self.wait_for(Some(deadline))
    }

    fn wait_for(self, deadline: Option<Instant>) -> Result<Box<T>, WaitError<T>> {
        let mut spin = spin::Wait::new();
        loop {
            if !self.taken.place.is_used(self.evidence) || active(Mutation::WaitLooksAtNobody) {
                let (taken, _) = self.into_parts();
                // SAFETY: the scan has found nobody, or there was no lease (I2).
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

    /// Sleeps until somebody who leaves the place finds it empty, for `most` at most.
    fn sleep(&self, most: Option<Duration>) {
        // Where the barrier is lost, who leaves may not see that it is waited for.
        const UNPROVEN: Duration = Duration::from_millis(1);

        let Some(evidence) = self.evidence else { return };
        let anchor = self.taken.place.anchor();
        // For `blockers` and who prints the error: from now on it is known how long they are in.
        self.occupants().for_each(drop);
        anchor.depart(Departure { evidence, then: Then::Wake(std::thread::current()) });
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
        anchor.cancel();
    }

    /// Who uses the value now. The first call that meets a use notes the time, for [`Occupant::held`]; so does a wait.
    #[must_use]
    pub fn blockers(&self) -> Vec<Occupant> {
        self.occupants().collect()
    }

    fn occupants(&self) -> impl Iterator<Item = Occupant> {
        let place = self.taken.place;
        let occupants = |evidence| place.anchor().domain().occupants(place.key(), evidence);
        self.evidence.into_iter().flat_map(occupants)
    }

    /// Whether the calling thread itself uses the value, so that waiting would not end.
    #[must_use]
    pub fn is_used_here(&self) -> bool {
        let place = self.taken.place;
        self.evidence.is_some() && place.anchor().domain().uses_here(place.key())
    }

    /// Has `then` done with the value after its last use: by the thread whose use that is, when it ends it, or here and now. It is
    /// called once, under no lock, and when the place can be used again already.
    ///
    /// A panic of `then` on another thread's use ends there, after the panic hook has told of it.
    pub fn detach(self, then: impl FnOnce(Box<T>) + Send + 'static) {
        let (taken, evidence) = self.into_parts();
        let anchor = taken.place.anchor();
        // SAFETY: run below where there was no lease, and as a departure after the scan that finds nobody (I2, I3).
        let end = move || then(unsafe { taken.end() });
        let Some(evidence) = evidence.filter(|_| !active(Mutation::DetachRunsAtOnce)) else { return end() };
        let departure = Departure { evidence, then: Then::Run(Box::new(end)) };
        if active(Mutation::DetachScansFirst) && !anchor.domain().uses(anchor.key(), evidence) {
            return departure.end_here();
        }
        anchor.depart(departure);
        if matches!(evidence, Evidence::Proofs { .. }) {
            // Who leaves may not see that the place is waited for.
            anchor.domain().watch(anchor);
        }
        if active(Mutation::DetachScansFirst) {
            return;
        }
        if let Some(departure) = anchor.take_if_over() {
            departure.end_here();
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

impl<T: Send + Sync + fmt::Debug> fmt::Debug for Withdrawn<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Withdrawn").field(&**self).finish()
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

/// Why a wait for the last use of a value ended without it. Printed, it names the threads.
pub enum WaitError<T: Send + Sync + 'static> {
    /// The deadline came first.
    Deadline(Withdrawn<T>),
    /// The calling thread uses the value itself.
    UsedHere(Withdrawn<T>),
}

impl<T: Send + Sync> WaitError<T> {
    /// What was waited for.
    pub fn into_withdrawn(self) -> Withdrawn<T> {
        match self {
            Self::Deadline(withdrawn) | Self::UsedHere(withdrawn) => withdrawn,
        }
    }
}

impl<T: Send + Sync> fmt::Debug for WaitError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline(_) => f.write_str("Deadline(..)"),
            Self::UsedHere(_) => f.write_str("UsedHere(..)"),
        }
    }
}

impl<T: Send + Sync> fmt::Display for WaitError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (withdrawn, why) = match self {
            Self::Deadline(withdrawn) => (withdrawn, "before the deadline"),
            Self::UsedHere(withdrawn) => (withdrawn, "on a thread that uses it"),
        };
        write!(f, "end all uses of what was withdrawn from place {:#x} {why}", withdrawn.taken.place.key())?;
        let mut separator = ": ";
        for blocker in withdrawn.blockers() {
            write!(f, "{separator}{blocker}")?;
            separator = ", ";
        }
        Ok(())
    }
}

impl<T: Send + Sync> std::error::Error for WaitError<T> {}
