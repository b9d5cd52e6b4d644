//! Calls that were timed one by one: beside the usual figures the mean and the longest, in which a few slow calls show.

use crate::harness::stats::Summary;
use crate::harness::table::{count, figure};

/// The columns of a table of calls.
pub(super) const COLUMNS: [&str; 7] = ["us", "median", "min", "p90", "mean", "longest", "calls"];

/// What is kept of the times of some calls, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Calls {
    pub(super) us: Summary,
    pub(super) mean_us: f64,
    pub(super) longest_us: f64,
}

impl Calls {
    /// None when there was no call.
    pub(super) fn of(times_us: &[f64]) -> Option<Calls> {
        let us = Summary::of(times_us)?;
        let mean_us = times_us.iter().sum::<f64>() / times_us.len() as f64;
        let longest_us = times_us.iter().copied().fold(us.p90, f64::max);
        Some(Calls { us, mean_us, longest_us })
    }

    /// The row of a table with [`COLUMNS`].
    pub(super) fn row(&self, name: String) -> Vec<String> {
        let Calls { us, mean_us, longest_us } = *self;
        let times = [us.median, us.min, us.p90, mean_us, longest_us].map(figure);
        std::iter::once(name).chain(times).chain([count(us.count as u64)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_call_shows_in_the_mean_and_the_longest() {
        let mut times = vec![1.0; 99];
        times.push(10_001.0);
        let calls = Calls::of(&times).unwrap();
        assert_eq!((calls.us.median, calls.us.p90, calls.mean_us), (1.0, 1.0, 101.0));
        assert_eq!(calls.row("r".to_owned()), ["r", "1.00", "1.00", "1.00", "101", "10,001", "100"]);
        assert_eq!(Calls::of(&[]), None);
    }
}
