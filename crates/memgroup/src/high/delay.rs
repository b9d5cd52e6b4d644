//! Delay: how long who owes waits.
//!
//! `r² × debt / 4096` seconds, where r is by how much of its limit the worst level is above it: what Linux' shifts come to, which charges in pages of 4096 bytes. With
//! 64 pages, 1 % above is 6.4 ms, 5 % is 160 ms, 10 % is 640 ms; from 17.7 % on it is 2 s, and more it never is.
//!
//! - B1. Computed in `f64`: the error is far below a nanosecond in two seconds. No number overflows: the largest ratio is 2^48 / 4096, its square times
//!   2^64 bytes about 2^124.

use core::time::Duration;

use super::Level;

/// The longest delay.
pub(crate) const MOST: Duration = Duration::from_secs(2);

/// What is shorter is not worth a wait: a thread that sleeps and is woken loses as much by that alone.
pub(crate) const LEAST: Duration = Duration::from_millis(10);

/// A limit that is less counts as so much, as in Linux: else a byte above a limit of 0 would be infinitely far above it.
const PAGE: u64 = 4096;

impl Level {
    /// By how much of its limit usage is above it; 0 where it is not.
    pub(crate) fn ratio(self) -> f64 {
        self.above() as f64 / self.limit.max(PAGE) as f64
    }
}

/// Seconds that a debt costs at a ratio, however many.
fn seconds(ratio: f64, debt_bytes: u64) -> f64 {
    ratio * ratio * (debt_bytes as f64 / PAGE as f64)
}

/// What a debt costs at a ratio.
pub(crate) fn delay(ratio: f64, debt_bytes: u64) -> Duration {
    Duration::from_secs_f64(seconds(ratio, debt_bytes).min(MOST.as_secs_f64()))
}

/// Whether a debt is worth a wait.
pub(crate) fn is_due(ratio: f64, debt_bytes: u64) -> bool {
    delay(ratio, debt_bytes) >= LEAST
}

/// The part of a debt that is still to be paid when of its delay at a ratio so much is left. What costs more than the longest delay is paid by that.
pub(crate) fn unpaid(ratio: f64, debt_bytes: u64, left: Duration) -> u64 {
    let whole = seconds(ratio, debt_bytes);
    if whole <= 0.0 {
        return 0;
    }
    // A cast of what is too large for the type stops at its largest value.
    ((left.as_secs_f64() / whole) * debt_bytes as f64).min(debt_bytes as f64) as u64
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;
    use crate::counter::LARGEST;

    const BATCH: u64 = 64 * PAGE;

    fn at(usage: u64, limit: u64, debt: u64) -> Duration {
        delay(Level { usage, limit }.ratio(), debt)
    }

    #[test]
    fn it_grows_with_the_square_of_what_is_above_up_to_two_seconds() {
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
    fn it_is_proportional_to_what_is_owed() {
        for pages in [1_u32, 2, 7, 100] {
            let ratio = 0.01;
            let off = delay(ratio, u64::from(pages) * PAGE).abs_diff(delay(ratio, PAGE) * pages);
            assert!(off <= Duration::from_nanos(u64::from(pages)), "{pages} pages are {off:?} off");
        }
    }

    #[test]
    fn less_than_ten_milliseconds_are_not_due() {
        assert!(!is_due(0.01, BATCH));
        assert!(!is_due(0.01, 99 * PAGE));
        assert!(is_due(0.01, 101 * PAGE));
        assert!(!is_due(0.0, u64::MAX));
    }

    #[test]
    fn absurd_numbers_come_to_the_longest_delay_or_to_none() {
        for limit in [0, 1, PAGE, LARGEST - 1] {
            for debt in [0, 1, PAGE, LARGEST, u64::MAX] {
                let delay = at(LARGEST, limit, debt);
                assert!(delay <= MOST, "{limit} and {debt}: {delay:?}");
                assert_eq!(at(limit, limit, debt), Duration::ZERO);
                assert_eq!(at(LARGEST, crate::UNLIMITED, debt), Duration::ZERO);
            }
        }
        assert_eq!(at(LARGEST, 0, u64::MAX), MOST);
        assert_eq!(at(PAGE, 0, PAGE), Duration::from_secs(1), "one page above no limit at all");
    }

    #[test]
    fn what_is_left_of_a_delay_is_what_is_left_of_the_debt() {
        for (ratio, debt) in [(0.05, BATCH), (0.1, PAGE), (0.17, BATCH)] {
            let whole = delay(ratio, debt);
            assert!(unpaid(ratio, debt, whole).abs_diff(debt) <= 1);
            assert!(unpaid(ratio, debt, whole / 4).abs_diff(debt / 4) <= 1);
            assert_eq!(unpaid(ratio, debt, Duration::ZERO), 0);
        }
        // A hundred seconds' worth is paid by two.
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
