//! Time in ticks of the time-stamp counter where there is one, in nanoseconds elsewhere.
//!
//! The counter runs at one rate on all CPUs, and they agree on it (`constant_tsc`; hypervisors give
//! their guests the same). The overlap rule of a window needs agreement within microseconds only.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::os;

/// Converts ticks to nanoseconds; calibrated once per run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    ticks_per_ns: f64,
    counted: bool,
}

impl Clock {
    /// Calibrates the counter against the monotonic clock over `over`.
    pub(crate) fn calibrate(over: Duration) -> Clock {
        if os::ticks().is_none() {
            return Clock { ticks_per_ns: 1.0, counted: false };
        }
        let (begin, begin_ticks) = (Instant::now(), now());
        while begin.elapsed() < over {
            std::hint::spin_loop();
        }
        let (elapsed, end_ticks) = (begin.elapsed(), now());
        Clock { ticks_per_ns: (end_ticks - begin_ticks) as f64 / elapsed.as_nanos() as f64, counted: true }
    }

    pub(crate) fn ns(&self, ticks: f64) -> f64 {
        ticks / self.ticks_per_ns
    }

    /// Ticks of so many nanoseconds.
    pub(crate) fn ticks(&self, ns: f64) -> f64 {
        ns * self.ticks_per_ns
    }

    /// Cycles of the counter, where it is a counter of cycles.
    pub(crate) fn cycles(&self, ns: f64) -> Option<f64> {
        self.counted.then(|| self.ticks(ns))
    }

    pub(crate) fn ticks_per_us(&self) -> u64 {
        self.ticks(1e3) as u64
    }

    pub(crate) fn stopwatch(self) -> Stopwatch {
        Stopwatch { clock: self, reading_ticks: reading_ticks() }
    }

    /// The counter's rate, where there is one.
    pub(crate) fn ghz(&self) -> Option<f64> {
        self.counted.then_some(self.ticks_per_ns)
    }
}

/// Now, in ticks. May be read a few instructions early or late; costs about 20 cycles.
#[inline]
pub(crate) fn now() -> u64 {
    os::ticks().unwrap_or_else(monotonic_ns)
}

/// Now, in ticks, ordered against the instructions before and after: for timing one call.
#[inline]
pub(crate) fn now_ordered() -> u64 {
    os::ticks_ordered().unwrap_or_else(monotonic_ns)
}

#[cold]
fn monotonic_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Times calls one by one, less the cost of the two readings of the counter.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch {
    clock: Clock,
    reading_ticks: u64,
}

impl Stopwatch {
    /// Nanoseconds that a call took, and its result.
    #[inline(always)]
    pub(crate) fn time<T>(&self, call: impl FnOnce() -> T) -> (f64, T) {
        let begin = now_ordered();
        let result = call();
        let ticks = now_ordered() - begin;
        (self.clock.ns(ticks.saturating_sub(self.reading_ticks) as f64), result)
    }
}

/// Ticks that two ordered readings cost themselves: the smallest of many.
pub(crate) fn reading_ticks() -> u64 {
    (0..1000)
        .map(|_| {
            let begin = now_ordered();
            now_ordered() - begin
        })
        .min()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_monotonic_clock() {
        let clock = Clock::calibrate(Duration::from_millis(5));
        let (begin, wall) = (now(), Instant::now());
        std::thread::sleep(Duration::from_millis(20));
        let (ticks, wall) = (now() - begin, wall.elapsed().as_nanos() as f64);
        // The readings are not taken at one instant: a thread switched out between them puts them
        // apart, in one direction for the first pair and in the other for the second; a factor of
        // two is beyond that.
        let ratio = clock.ns(ticks as f64) / wall;
        assert!((0.5..2.0).contains(&ratio), "ratio {ratio}");
    }

    #[test]
    fn converts_ticks_and_nanoseconds_back_and_forth() {
        let clock = Clock { ticks_per_ns: 2.5, counted: true };
        assert_eq!(clock.ns(clock.ticks(8.0)), 8.0);
        assert_eq!(clock.cycles(4.0), Some(10.0));
        assert_eq!(clock.ticks_per_us(), 2500);
        assert_eq!(Clock { ticks_per_ns: 1.0, counted: false }.cycles(4.0), None);
    }
}
