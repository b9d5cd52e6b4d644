//! Delay: the time that a debt costs.
//!
//! `r² × debt / 4096` seconds, where `r` is the part of its limit by which the worst level exceeds
//! it. Linux computes the same by shifts, because it charges in pages of 4096 bytes.
//! `docs/high.md` has a table. No delay is longer than 2 s, which 64 pages cost at 17.7 % above
//! the limit.
//!
//! - B1. Computed in `f64`: the error is far below a nanosecond in two seconds. No number
//!   overflows, because the largest ratio is 2^48 / 4096, and its square times 2^64 bytes is about
//!   2^124.

use core::time::Duration;

use crate::control::high::Level;

/// The longest delay.
pub(crate) const MOST: Duration = Duration::from_secs(2);

/// The shortest delay worth a sleep: to sleep and to be woken costs a thread as much by itself.
const LEAST: Duration = Duration::from_millis(10);

/// A smaller limit counts as this one, as in Linux. Otherwise a byte above a limit of 0 would be
/// infinitely far above it.
const PAGE: u64 = 4096;

impl Level {
    /// Returns the part of its limit by which usage exceeds it, or 0 if it doesn't.
    pub(crate) fn ratio(self) -> f64 {
        self.above() as f64 / self.limit.max(PAGE) as f64
    }
}

/// Returns the seconds that a debt costs at a ratio, without an upper bound.
fn seconds(ratio: f64, debt_bytes: u64) -> f64 {
    ratio * ratio * (debt_bytes as f64 / PAGE as f64)
}

/// Returns the delay that a debt costs at a ratio.
pub(crate) fn delay(ratio: f64, debt_bytes: u64) -> Duration {
    Duration::from_secs_f64(seconds(ratio, debt_bytes).min(MOST.as_secs_f64()))
}

/// Returns whether a debt is worth a sleep.
pub(crate) fn is_due(ratio: f64, debt_bytes: u64) -> bool {
    delay(ratio, debt_bytes) >= LEAST
}

/// Returns the part of a debt that is unpaid when `left` of its delay is left. The longest delay
/// pays for the whole debt, even if the debt would cost more.
pub(crate) fn unpaid(ratio: f64, debt_bytes: u64, left: Duration) -> u64 {
    let whole = seconds(ratio, debt_bytes);
    if whole <= 0.0 {
        return 0;
    }
    // A cast of a number that is too large for the type saturates.
    ((left.as_secs_f64() / whole) * debt_bytes as f64).min(debt_bytes as f64) as u64
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::base::limit::BYTES_MAX;
    use crate::control::high::delay::*;

    const BATCH: u64 = 64 * PAGE;

    fn at(usage: u64, limit: u64, debt: u64) -> Duration {
        delay(Level { usage, limit }.ratio(), debt)
    }

    #[test]
    fn grows_with_the_square_of_the_excess_up_to_two_seconds() {
        for (per_mille, micros) in [
            (0, 0),
            (10, 6_400),
            (12, 9_216),
            (13, 10_816),
            (50, 160_000),
            (100, 640_000),
            (176, 1_982_464),
            (177, 2_000_000),
            (5_000, 2_000_000),
        ] {
            let limit = 1_000_000_000;
            let delay = at(limit + limit / 1000 * per_mille, limit, BATCH);
            let off = delay.as_micros().abs_diff(micros);
            assert!(off <= 1, "{per_mille} per mille above: {delay:?}");
        }
    }

    #[test]
    fn is_proportional_to_the_debt() {
        for pages in [1_u32, 2, 7, 100] {
            let ratio = 0.01;
            let off = delay(ratio, u64::from(pages) * PAGE).abs_diff(delay(ratio, PAGE) * pages);
            assert!(off <= Duration::from_nanos(u64::from(pages)), "{pages} pages are {off:?} off");
        }
    }

    #[test]
    fn is_not_due_below_ten_milliseconds() {
        assert!(!is_due(0.01, BATCH));
        assert!(!is_due(0.01, 99 * PAGE));
        assert!(is_due(0.01, 101 * PAGE));
        assert!(!is_due(0.0, u64::MAX));
    }

    #[test]
    fn is_zero_or_the_longest_for_absurd_numbers() {
        for limit in [0, 1, PAGE, BYTES_MAX - 1] {
            for debt in [0, 1, PAGE, BYTES_MAX, u64::MAX] {
                let delay = at(BYTES_MAX, limit, debt);
                assert!(delay <= MOST, "{limit} and {debt}: {delay:?}");
                assert_eq!(at(limit, limit, debt), Duration::ZERO);
                assert_eq!(at(BYTES_MAX, crate::base::limit::UNLIMITED, debt), Duration::ZERO);
            }
        }
        assert_eq!(at(BYTES_MAX, 0, u64::MAX), MOST);
        assert_eq!(at(PAGE, 0, PAGE), Duration::from_secs(1), "one page above no limit at all");
    }

    #[test]
    fn leaves_a_debt_in_proportion_to_the_delay_left() {
        for (ratio, debt) in [(0.05, BATCH), (0.1, PAGE), (0.17, BATCH)] {
            let whole = delay(ratio, debt);
            assert!(unpaid(ratio, debt, whole).abs_diff(debt) <= 1);
            assert!(unpaid(ratio, debt, whole / 4).abs_diff(debt / 4) <= 1);
            assert_eq!(unpaid(ratio, debt, Duration::ZERO), 0);
        }
        // A delay of two seconds pays for a debt of a hundred.
        let ratio = 0.1;
        let debt = 10_000 * PAGE;
        assert!(unpaid(ratio, debt, MOST).abs_diff(debt / 50) <= 1);
        let rest = delay(ratio, unpaid(ratio, debt, MOST / 2));
        assert!(
            rest.abs_diff(MOST / 2) < Duration::from_millis(1),
            "half of it is paid, and {rest:?} is left"
        );
        assert_eq!(unpaid(0.0, debt, MOST), 0);
        assert_eq!(unpaid(1e-14, 1000, MOST), 1000, "no more than was owed");
    }
}
