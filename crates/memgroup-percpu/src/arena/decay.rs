//! How much of the float may stay: bytes that became empty lately, with less weight the older they
//! are.
//!
//!   bytes that became empty ─▶ │ now │ ... │ ... │ ... │ ─▶ older: 0
//!                    weight     16/16  15/16        1/16
//!
//! - I1. The sum of the ring is at most the float as of the last call.
//! - B1. An interval is a sixteenth of the decay. Bytes count as new until the first call after
//!   they became empty. So they may stay longer than the decay, by the time between two calls.
//!
//! The caller passes the time in, so that tests can make it up.

use core::time::Duration;
use std::time::Instant;

const INTERVALS: usize = 16;

#[derive(Debug)]
pub(crate) struct Decay {
    float_bytes: u64,
    interval: Duration,
    /// Bytes by the interval in which they were first seen; `ring[0]` is the present one, the last
    /// has all that is older.
    ring: [u64; INTERVALS + 1],
    since: Option<Instant>,
}

impl Decay {
    pub(crate) fn new(float_bytes: u64, decay: Duration) -> Self {
        Self { float_bytes, interval: decay / INTERVALS as u32, ring: [0; INTERVALS + 1], since: None }
    }

    /// How many of `empty_bytes` may stay at `now`.
    pub(crate) fn allowed(&mut self, now: Instant, empty_bytes: u64) -> u64 {
        self.advance(now);
        self.note(empty_bytes);
        if self.interval.is_zero() {
            return 0;
        }
        let weights = (0..=INTERVALS as u128).rev();
        let weighted: u128 =
            self.ring.iter().zip(weights).map(|(&bytes, weight)| u128::from(bytes) * weight).sum();
        ((weighted / INTERVALS as u128) as u64).min(self.float_bytes)
    }

    /// Moves the ring on by the intervals that passed.
    fn advance(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let passed = now.saturating_duration_since(since);
        let intervals = match self.interval.as_nanos() {
            0 => u128::MAX,
            interval => passed.as_nanos() / interval,
        };
        if intervals == 0 {
            return;
        }
        let steps = intervals.min(INTERVALS as u128) as usize;
        let old: u64 = self.ring[INTERVALS - steps..].iter().sum();
        self.ring.copy_within(..INTERVALS - steps, steps);
        self.ring[..steps].fill(0);
        self.ring[INTERVALS] = old;
        self.since =
            if steps < INTERVALS { since.checked_add(self.interval * steps as u32) } else { Some(now) };
    }

    /// Notes how many bytes are empty. More than before are new ones; fewer are taken from the
    /// newest, which are used again first.
    fn note(&mut self, empty_bytes: u64) {
        let known: u64 = self.ring.iter().sum();
        if empty_bytes >= known {
            self.ring[0] += empty_bytes - known;
            return;
        }
        take(self.ring.iter_mut(), known - empty_bytes);
    }

    /// `bytes` were given back: the oldest go first.
    pub(crate) fn given_back(&mut self, bytes: u64) {
        take(self.ring.iter_mut().rev(), bytes);
    }
}

/// Takes `gone` bytes out of intervals, from the first ones as many as they have.
fn take<'r>(intervals: impl Iterator<Item = &'r mut u64>, mut gone: u64) {
    for bytes in intervals {
        let part = gone.min(*bytes);
        *bytes -= part;
        gone -= part;
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_float_shrinks_in_even_steps_to_nothing() {
        let (start, mut decay) = (Instant::now(), Decay::new(1 << 20, 16 * MS));
        assert_eq!(decay.allowed(start, 1600), 1600);
        for step in 1..=16_u32 {
            assert_eq!(decay.allowed(start + step * MS, 1600), u64::from(16 - step) * 100, "after {step} ms");
        }
        assert_eq!(decay.allowed(start + 1000 * MS, 1600), 0);
    }

    #[test]
    fn never_allows_more_than_configured() {
        let mut decay = Decay::new(1000, 16 * MS);
        assert_eq!(decay.allowed(Instant::now(), 5000), 1000);
    }

    #[test]
    fn keeps_newer_bytes_longer_and_reuses_them_first() {
        let (start, mut decay) = (Instant::now(), Decay::new(1 << 20, 16 * MS));
        assert_eq!(decay.allowed(start, 1600), 1600);
        assert_eq!(decay.allowed(start + 8 * MS, 3200), 800 + 1600);
        assert_eq!(decay.allowed(start + 8 * MS, 1600), 800, "the new half was used again");
        decay.given_back(800);
        assert_eq!(decay.allowed(start + 8 * MS, 800), 400);
    }

    #[test]
    fn gives_the_oldest_bytes_back_first() {
        let (start, mut decay) = (Instant::now(), Decay::new(1 << 20, 16 * MS));
        for (age, empty_bytes) in [(0, 100), (4, 300), (8, 700)] {
            decay.allowed(start + age * MS, empty_bytes);
        }
        // 100 bytes of weight 8, 200 of weight 12, 400 of weight 16.
        for (bytes, left, allowed) in [(0, 700, 600), (100, 600, 550), (150, 450, 437), (450, 0, 0)] {
            decay.given_back(bytes);
            assert_eq!(decay.allowed(start + 8 * MS, left), allowed, "{left} bytes are left");
        }
    }

    #[test]
    fn keeps_nothing_without_a_decay() {
        let mut decay = Decay::new(1 << 20, Duration::ZERO);
        let start = Instant::now();
        assert_eq!(decay.allowed(start + MS, 1600), 0);
    }
}
