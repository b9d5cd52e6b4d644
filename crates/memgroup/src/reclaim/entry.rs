//! Entry: a registered shrinker, how it is called, and the figures of its calls.
//!
//! - I1. Only the answer of a callback leaves this module: a panic is caught, counted, and
//!   quarantines the shrinker.
//! - I2. An entry keeps its number until its last call has ended and it is dropped: its place is
//!   vacant before the number is another's.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use memgroup_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use memgroup_sync::hazard::Domain;
#[cfg(test)]
use memgroup_sync::hazard::Place;
use memgroup_sync::{global, interleave};

use crate::reclaim::registry::Registered;
use crate::reclaim::shrinker::{Ask, Count, Quarantine, Scan, Shrinker, ShrinkerConfig};

global! {
    static CALLS: Domain = Domain::new();
}

/// The calls of shrinkers that run, in all hierarchies.
pub(crate) fn domain() -> &'static Domain {
    &CALLS
}

/// A place without a shrinker.
#[cfg(test)]
pub(crate) fn empty_place() -> &'static Place<ShrinkerEntry> {
    memgroup_sync::keep(Box::new(Place::empty(domain())))
}

/// Calls that took too long, after which a shrinker is quarantined.
const OVERRUNS_MOST: u64 = 3;

/// In `out`: the reasons why the shrinker is not called.
const PANICKED: u32 = 1;
const OVERDUE: u32 = 2;
const WITHDRAWN: u32 = 4;
/// In `out`: one call that runs and has taken too long.
const OVERDUE_CALL: u32 = 8;

/// A registered shrinker.
pub(crate) struct ShrinkerEntry {
    pub(crate) config: ShrinkerConfig,
    /// After a panic it is not called again before the user reinstates it.
    shrinker: AssertUnwindSafe<Box<dyn Shrinker>>,
    /// 0: it is called.
    out: AtomicU32,
    pub(crate) calls: Calls,
    /// Dropped after the shrinker (I2).
    _registered: Arc<Registered>,
}

/// The figures of the calls of [`Shrinker::scan`].
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
    /// Bytes that the last one freed.
    pub(crate) last: AtomicU64,
}

impl ShrinkerEntry {
    pub(crate) fn new(
        config: ShrinkerConfig,
        shrinker: Box<dyn Shrinker>,
        registered: Arc<Registered>,
    ) -> ShrinkerEntry {
        ShrinkerEntry {
            config,
            shrinker: AssertUnwindSafe(shrinker),
            out: AtomicU32::new(0),
            calls: Calls::default(),
            _registered: registered,
        }
    }

    /// The reason why it is not called.
    pub(crate) fn quarantine(&self) -> Option<Quarantine> {
        match self.out() {
            out if out & PANICKED != 0 => Some(Quarantine::Panicked),
            out if out & OVERDUE != 0 || out >= OVERDUE_CALL => Some(Quarantine::Overdue),
            _ => None,
        }
    }

    #[inline]
    fn out(&self) -> u32 {
        // ORDERING: Relaxed; one more call before a thread notices does no harm, and a removal
        // waits for it.
        self.out.load(Ordering::Relaxed)
    }

    fn set_out(&self, reason: u32) {
        // ORDERING: Relaxed; as in `out`.
        self.out.fetch_or(reason, Ordering::Relaxed);
    }

    /// Returns whether no further call may begin, not even on a thread that has it pinned.
    #[inline]
    pub(crate) fn is_out(&self) -> bool {
        self.out() != 0
    }

    /// Has threads that are in a series of calls end it; the entry is withdrawn next.
    pub(crate) fn set_withdrawn(&self) {
        self.set_out(WITHDRAWN);
    }

    pub(crate) fn is_withdrawn(&self) -> bool {
        self.out() & WITHDRAWN != 0
    }

    /// Ends the quarantine.
    pub(crate) fn reinstate(&self) {
        // ORDERING: Relaxed, both; as in `out`.
        self.calls.overruns.store(0, Ordering::Relaxed);
        // ORDERING: as above.
        self.out.fetch_and(!(PANICKED | OVERDUE), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn count(&self, token: u64) -> Count {
        interleave::point();
        self.call(|shrinker| shrinker.count(token)).unwrap_or(Count::Unknown)
    }

    pub(crate) fn scan(&self, ask: &Ask<'_>) -> Scan {
        interleave::point();
        self.call(|shrinker| shrinker.scan(ask)).unwrap_or(Scan::Stopped { bytes: 0 })
    }

    #[inline]
    fn call<T>(&self, call: impl FnOnce(&dyn Shrinker) -> T) -> Option<T> {
        catch_unwind(AssertUnwindSafe(|| call(&**self.shrinker))).map_err(|panic| self.panicked(panic)).ok()
    }

    #[cold]
    fn panicked(&self, panic: Box<dyn std::any::Any + Send>) {
        add(&self.calls.panics, 1);
        self.set_out(PANICKED);
        // The payload is the user's too, and its drop may panic.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            std::mem::forget(again);
        }
    }

    /// Notes how long a call took that has returned.
    pub(crate) fn took(&self, nanos: u64) {
        add(&self.calls.nanos, nanos);
        if self.is_overrun(nanos) && add(&self.calls.overruns, 1) + 1 >= OVERRUNS_MOST {
            self.set_out(OVERDUE);
        }
    }

    /// Returns whether that is longer than a call may take.
    pub(crate) fn is_overrun(&self, nanos: u64) -> bool {
        Duration::from_nanos(nanos) > self.config.patience
    }

    /// Counts a call that runs and has taken too long.
    pub(crate) fn begin_overdue_call(&self) {
        // ORDERING: Relaxed; a number by itself, which is 0 again when all such calls have ended. A
        // call may end before it is counted: until then the number has wrapped, and the shrinker is
        // out as well.
        self.out.fetch_add(OVERDUE_CALL, Ordering::Relaxed);
    }

    pub(crate) fn end_overdue_call(&self) {
        // ORDERING: Relaxed; as in `begin_overdue_call`.
        self.out.fetch_sub(OVERDUE_CALL, Ordering::Relaxed);
    }
}

/// Adds to a figure of a report. Returns the figure before.
pub(crate) fn add(figure: &AtomicU64, by: u64) -> u64 {
    // ORDERING: Relaxed; a number by itself.
    figure.fetch_add(by, Ordering::Relaxed)
}
