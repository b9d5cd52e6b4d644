//! Entry: a registered shrinker, how it is called, and what became of its calls.
//!
//! - I1. Nothing a callback does comes out of here but its answer: a panic is caught, counted, and sets the shrinker aside.
//! - I2. An entry has its number until its last call has ended and it is dropped: its place is vacant before the number is another's.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use memgroup_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use memgroup_sync::{global, interleave};

use super::registry::Registered;
use super::shrinker::{Ask, Count, Quarantine, Scan, Shrinker, ShrinkerConfig};
use memgroup_sync::hazard::Domain;
#[cfg(test)]
use memgroup_sync::hazard::Place;

global! {
    static CALLS: Domain = Domain::new();
}

/// Who is calling which shrinker, in all hierarchies.
pub(crate) fn domain() -> &'static Domain {
    &CALLS
}

/// The place of a shrinker that is not there.
#[cfg(test)]
pub(crate) fn nobody() -> &'static Place<Entry> {
    memgroup_sync::keep(Box::new(Place::empty(domain())))
}

/// Calls that took too long, after which a shrinker is set aside.
const OVERRUNS_MOST: u64 = 3;

/// In `out`: why it is not called.
const PANICKED: u32 = 1;
const OVERDUE: u32 = 2;
const LEAVING: u32 = 4;
/// One such call.
const LASTING: u32 = 8;

/// See the module.
pub(crate) struct Entry {
    pub(crate) config: ShrinkerConfig,
    /// A panic of it goes no further than here, and then it is not called again.
    shrinker: AssertUnwindSafe<Box<dyn Shrinker>>,
    /// 0: it is called. Why not, and how many calls of it have lasted for too long and go on.
    out: AtomicU32,
    pub(crate) calls: Calls,
    /// Dropped after the shrinker (I2).
    _registered: Arc<Registered>,
}

/// What became of the calls of [`Shrinker::scan`].
#[derive(Default)]
pub(crate) struct Calls {
    pub(crate) scans: AtomicU64,
    pub(crate) asked: AtomicU64,
    pub(crate) claimed: AtomicU64,
    pub(crate) freed: AtomicU64,
    pub(crate) nanos: AtomicU64,
    pub(crate) stopped: AtomicU64,
    pub(crate) panics: AtomicU64,
    pub(crate) overruns: AtomicU64,
    /// What the last one freed.
    pub(crate) last: AtomicU64,
}

/// What one call came to.
pub(crate) struct Called {
    pub(crate) claimed: u64,
    pub(crate) has_stopped: bool,
}

impl Entry {
    pub(crate) fn new(
        config: ShrinkerConfig,
        shrinker: Box<dyn Shrinker>,
        registered: Arc<Registered>,
    ) -> Entry {
        Entry {
            config,
            shrinker: AssertUnwindSafe(shrinker),
            out: AtomicU32::new(0),
            calls: Calls::default(),
            _registered: registered,
        }
    }

    /// Why it is not called, if it is not.
    pub(crate) fn quarantine(&self) -> Option<Quarantine> {
        // ORDERING: Relaxed; a call more or less before it is noticed does no harm.
        match self.out.load(Ordering::Relaxed) {
            out if out & PANICKED != 0 => Some(Quarantine::Panicked),
            out if out & OVERDUE != 0 || out >= LASTING => Some(Quarantine::Overdue),
            _ => None,
        }
    }

    /// Whether no further call of it is to begin, also not for whoever has it pinned.
    #[inline]
    pub(crate) fn is_out(&self) -> bool {
        // ORDERING: Relaxed; a call more or less before it is noticed does no harm, the removal waits for it.
        self.out.load(Ordering::Relaxed) != 0
    }

    /// It is about to be withdrawn: who is in a series of calls ends it.
    pub(crate) fn leave(&self) {
        // ORDERING: Relaxed; as in `is_out`.
        self.out.fetch_or(LEAVING, Ordering::Relaxed);
    }

    /// Whether it is about to be withdrawn, or was.
    pub(crate) fn is_leaving(&self) -> bool {
        // ORDERING: Relaxed; as in `is_out`.
        self.out.load(Ordering::Relaxed) & LEAVING != 0
    }

    /// It is called again.
    pub(crate) fn reinstate(&self) {
        // ORDERING: Relaxed, both; as in `quarantine`.
        self.calls.overruns.store(0, Ordering::Relaxed);
        // ORDERING: as above.
        self.out.fetch_and(!(PANICKED | OVERDUE), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn count(&self, token: u64) -> Count {
        interleave::point();
        self.call(|shrinker| shrinker.count(token)).unwrap_or(Count::Unknown)
    }

    pub(crate) fn scan(&self, ask: &Ask<'_>) -> Called {
        interleave::point();
        match self.call(|shrinker| shrinker.scan(ask)) {
            Some(Scan::Freed { bytes }) => Called { claimed: bytes, has_stopped: false },
            Some(Scan::Stopped { bytes }) => Called { claimed: bytes, has_stopped: true },
            None => Called { claimed: 0, has_stopped: true },
        }
    }

    #[inline]
    fn call<T>(&self, call: impl FnOnce(&dyn Shrinker) -> T) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(|| call(&**self.shrinker))) {
            Ok(answer) => Some(answer),
            Err(panic) => {
                self.panicked(panic);
                None
            }
        }
    }

    #[cold]
    fn panicked(&self, panic: Box<dyn std::any::Any + Send>) {
        add(&self.calls.panics, 1);
        // ORDERING: Relaxed; as in `quarantine`.
        self.out.fetch_or(PANICKED, Ordering::Relaxed);
        // What was thrown is the user's too, and so is its drop.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            std::mem::forget(again);
        }
    }

    /// A call has returned after so long.
    pub(crate) fn took(&self, nanos: u64) {
        add(&self.calls.nanos, nanos);
        if self.is_overrun(nanos) {
            // ORDERING: Relaxed; a number by itself.
            let overruns = self.calls.overruns.fetch_add(1, Ordering::Relaxed) + 1;
            if overruns >= OVERRUNS_MOST {
                self.set_aside();
            }
        }
    }

    /// Whether that is longer than a call may take.
    pub(crate) fn is_overrun(&self, nanos: u64) -> bool {
        Duration::from_nanos(nanos) > self.config.patience
    }

    /// A call has lasted for too long and goes on.
    pub(crate) fn lasts(&self) {
        // ORDERING: Relaxed; a number by itself, which is 0 again when all have ended. A call may end before this: then it is as if there were many, until this makes it so.
        self.out.fetch_add(LASTING, Ordering::Relaxed);
    }

    /// Such a call has ended.
    pub(crate) fn lasts_no_more(&self) {
        // ORDERING: Relaxed; as in `lasts`.
        self.out.fetch_sub(LASTING, Ordering::Relaxed);
    }

    fn set_aside(&self) {
        // ORDERING: Relaxed; as in `quarantine`.
        self.out.fetch_or(OVERDUE, Ordering::Relaxed);
    }
}

/// Adds to a figure for people.
pub(crate) fn add(figure: &AtomicU64, by: u64) {
    // ORDERING: Relaxed; a number by itself.
    figure.fetch_add(by, Ordering::Relaxed);
}
