//! How long a wedge stays: a cache that gave memory back keeps its lower capacity until then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A cache may have as much while it settles, however much it gave.
pub(crate) const FLOOR_BYTES: u64 = 256 << 10;

/// A deadline at which the next insertion takes the wedge out.
pub(crate) struct Settle {
    begin: Instant,
    wait: Duration,
    /// Nanoseconds after `begin`, plus one; 0 while no wedge is in.
    until: AtomicU64,
}

impl Settle {
    pub(crate) fn new(wait: Duration) -> Settle {
        Settle { begin: Instant::now(), wait, until: AtomicU64::new(0) }
    }

    fn nanos(time: Duration) -> u64 {
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Starts the time anew. The wedge is in.
    pub(crate) fn start(&self) {
        let until = Settle::nanos(self.begin.elapsed().saturating_add(self.wait)).saturating_add(1);
        // ORDERING: Relaxed; a wedge stays too long or goes too early by one insertion at most. The cache's own lock orders the wedge.
        self.until.store(until, Ordering::Relaxed);
    }

    /// Whether this thread has to take the wedge out: the time is over, and no other thread has been told so.
    pub(crate) fn is_over(&self) -> bool {
        // ORDERING: Relaxed, both; as in `start`.
        let until = self.until.load(Ordering::Relaxed);
        until != 0
            && until <= Settle::nanos(self.begin.elapsed())
            && self.until.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Settle;

    #[test]
    fn tells_one_thread_once_that_the_time_is_over() {
        let settle = Settle::new(Duration::ZERO);
        assert!(!settle.is_over(), "no wedge is in");
        settle.start();
        // The clock of some machines moves in coarse steps.
        while !settle.is_over() {}
        assert!(!settle.is_over());
    }

    #[test]
    fn keeps_a_wedge_for_the_longest_time_without_overflow() {
        let settle = Settle::new(Duration::MAX);
        settle.start();
        assert!(!settle.is_over());
    }
}
