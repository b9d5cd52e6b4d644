//! The middle, the ninety-ninth percentile, that of the thousandths and the largest of many timed calls, by blocks.
//!
//! Blocks of calls take turns with those of other cases. A quantile is taken in each block, and then the median of the blocks', so that one
//! block in which the machine was busy elsewhere does not tell; the largest is the largest of all.

use super::stats::Summary;

/// What one block of calls took, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Quantiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// 99.9 %.
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

impl Quantiles {
    /// None of no calls.
    pub(crate) fn of(mut times: Vec<f64>) -> Option<Quantiles> {
        times.sort_by(f64::total_cmp);
        // Nearest rank.
        let at = |mille: usize| times.get((times.len() * mille).div_ceil(1000).max(1) - 1).copied();
        Some(Quantiles { p50: at(500)?, p99: at(990)?, p999: at(999)?, max: at(1000)? })
    }
}

/// Blocks of one case.
#[derive(Debug, Default)]
pub(crate) struct Times(Vec<Quantiles>);

impl Times {
    pub(crate) fn push(&mut self, block: Vec<f64>) {
        self.0.extend(Quantiles::of(block));
    }

    fn summary(&self, of: impl Fn(&Quantiles) -> f64) -> Option<Summary> {
        Summary::of(&self.0.iter().map(of).collect::<Vec<_>>())
    }

    pub(crate) fn p50(&self) -> Option<Summary> {
        self.summary(|block| block.p50)
    }

    pub(crate) fn p99(&self) -> Option<Summary> {
        self.summary(|block| block.p99)
    }

    pub(crate) fn p999(&self) -> Option<Summary> {
        self.summary(|block| block.p999)
    }

    /// Of all blocks.
    pub(crate) fn max(&self) -> Option<f64> {
        self.0.iter().map(|block| block.max).reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_nearest_rank() {
        let block = Quantiles::of((1..=200).rev().map(f64::from).collect());
        assert_eq!(block, Some(Quantiles { p50: 100.0, p99: 198.0, p999: 200.0, max: 200.0 }));
        assert_eq!(Quantiles::of(vec![7.0]), Some(Quantiles { p50: 7.0, p99: 7.0, p999: 7.0, max: 7.0 }));
        assert_eq!(Quantiles::of(Vec::new()), None);
    }

    #[test]
    fn a_busy_block_does_not_tell_but_for_the_largest() {
        let mut times = Times::default();
        for busy in [1.0, 1.0, 100.0] {
            times.push(vec![busy; 10]);
        }
        assert_eq!(times.p99().map(|p99| p99.median), Some(1.0));
        assert_eq!(times.max(), Some(100.0));
    }
}
