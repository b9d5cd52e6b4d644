//! Ticks: a clock for short times, read at the beginning and the end of each timed operation.
//!
//! It is the processor's time-stamp counter where that runs at one rate in all states of the core,
//! and the monotonic clock elsewhere. A reading takes 9 ns on the machine of the figures, and 23
//! ns of the monotonic clock. The rate is measured once, for a millisecond, before the first
//! reading: sums of times then never decrease because of a better estimate. (Crates for this
//! purpose measure for 10 to 200 ms.)
//!
//! - I1. The rate, once known, never changes. Zero: there is no reliable counter, or the clock was
//!   not prepared. Moments are then the monotonic clock's nanoseconds.
//! - E1. prepare → now: a timing thread got its hierarchy from a thread that had prepared the
//!   clock, so both moments are of one kind.

#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Nanoseconds a tick, in units of 2^-32; 0 where moments are nanoseconds.
static RATE: AtomicU64 = AtomicU64::new(0);

/// How long the rate is measured.
const MEASURED: Duration = Duration::from_millis(1);

/// A moment; good for differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(u64);

/// Measures the clock's rate, the first time; takes a millisecond then.
pub fn prepare() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        if let Some(rate) = measure() {
            // ORDERING: Relaxed; published with the hierarchy that the caller makes next (E1).
            RATE.store(rate, Ordering::Relaxed);
        }
    });
}

/// The present moment. The caller has called [`prepare`] before, or two moments could be of two
/// kinds.
#[inline]
pub fn now() -> Moment {
    // ORDERING: Relaxed; see `prepare`.
    Moment(if RATE.load(Ordering::Relaxed) != 0 { counter().unwrap_or_default() } else { monotonic() })
}

/// The monotonic clock: nanoseconds since the first call.
#[cold]
pub(crate) fn monotonic() -> u64 {
    static BEGINNING: OnceLock<Instant> = OnceLock::new();
    BEGINNING.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

impl Moment {
    /// Nanoseconds from `earlier` to this moment; 0 if it was not earlier.
    #[inline]
    pub fn nanos_since(self, earlier: Moment) -> u64 {
        let ticks = self.0.saturating_sub(earlier.0);
        // ORDERING: Relaxed; see `prepare`.
        match RATE.load(Ordering::Relaxed) {
            0 => ticks,
            rate => ((u128::from(ticks) * u128::from(rate)) >> 32) as u64,
        }
    }
}

/// The rate of the counter, if there is a reliable one.
fn measure() -> Option<u64> {
    #[cfg(all(target_arch = "x86_64", not(miri), not(memgroup_loom)))]
    if !is_steady() {
        return None;
    }
    let (began, first) = both()?;
    while began.elapsed() < MEASURED {
        std::hint::spin_loop();
    }
    let (ended, last) = both()?;
    let (nanos, ticks) = (ended.duration_since(began).as_nanos(), last.checked_sub(first)?);
    let rate = (nanos << 32).checked_div(u128::from(ticks))?;
    // From 100 MHz to 20 GHz: no processor has another rate.
    ((1 << 32) / 20..10 << 32).contains(&rate).then_some(rate as u64)
}

/// The monotonic clock and the counter at one moment: the closest of some pairs, so that an
/// interruption between the two does not count.
fn both() -> Option<(Instant, u64)> {
    let pair = |_| {
        let (before, at, after) = (counter()?, Instant::now(), counter()?);
        Some((after.wrapping_sub(before), at, before.wrapping_add(after.wrapping_sub(before) / 2)))
    };
    (0..8).filter_map(pair).min_by_key(|pair| pair.0).map(|(_, at, ticks)| (at, ticks))
}

#[cfg(all(target_arch = "x86_64", not(miri), not(memgroup_loom)))]
#[inline]
fn counter() -> Option<u64> {
    // SAFETY: rdtsc is part of x86_64 and has no operand.
    Some(unsafe { core::arch::x86_64::_rdtsc() })
}

#[cfg(not(all(target_arch = "x86_64", not(miri), not(memgroup_loom))))]
#[inline]
fn counter() -> Option<u64> {
    None
}

/// Returns whether the counter runs at one rate in all states of the core.
#[cfg(all(target_arch = "x86_64", not(miri), not(memgroup_loom)))]
fn is_steady() -> bool {
    use core::arch::x86_64::__cpuid;
    const EXTENDED: u32 = 0x8000_0000;
    const POWER: u32 = 0x8000_0007;
    const INVARIANT_TSC: u32 = 1 << 8;
    #[allow(unused_unsafe, reason = "newer compilers declare it safe")]
    let ask = |leaf| {
        // SAFETY: every x86_64 has the instruction, and returns zeros for leaves that it does not
        // have.
        unsafe { __cpuid(leaf) }
    };
    ask(EXTENDED).eax >= POWER && ask(POWER).edx & INVARIANT_TSC != 0
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_monotonic_clock_within_a_thousandth() {
        prepare();
        let outer = Instant::now();
        let begin = now();
        let inner = Instant::now();
        while inner.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let least = inner.elapsed();
        let nanos = now().nanos_since(begin) as f64;
        let most = outer.elapsed();
        let (least, most) = (least.as_nanos() as f64, most.as_nanos() as f64);
        assert!(nanos >= least * 0.999 && nanos <= most * 1.001, "{least} {nanos} {most}");
    }

    #[test]
    fn returns_zero_for_a_moment_that_was_not_earlier() {
        prepare();
        let moment = now();
        assert_eq!(moment.nanos_since(moment), 0);
        assert_eq!(moment.nanos_since(Moment(u64::MAX)), 0);
    }
}
