//! The arithmetic of a report: median, smallest, ninetieth percentile, quantiles of calls, ratios.

use std::borrow::Borrow;
use std::collections::BTreeMap;

/// The figures kept of many samples of one quantity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) p90: f64,
    /// Samples that counted.
    pub(crate) count: usize,
}

impl Summary {
    /// None when there is no sample.
    pub(crate) fn of(samples: impl IntoIterator<Item = impl Borrow<f64>>) -> Option<Summary> {
        let mut sorted: Vec<f64> =
            samples.into_iter().map(|sample| *sample.borrow()).filter(|sample| sample.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, count) = (sorted.first()?, sorted.len());
        let middle = count / 2;
        let median =
            if count % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        // Nearest rank: the smallest sample that at least 90 % of the samples do not exceed.
        let p90 = sorted[(count * 9).div_ceil(10) - 1];
        Some(Summary { median, min, p90, count })
    }

    /// The same quantity in another unit; `by` is not negative.
    pub(crate) fn scaled(self, by: f64) -> Summary {
        Summary { median: self.median * by, min: self.min * by, p90: self.p90 * by, count: self.count }
    }
}

/// The median of a summary that may be missing.
pub(crate) fn median(of: Option<Summary>) -> Option<f64> {
    of.map(|of| of.median)
}

/// The median of some samples.
pub(crate) fn median_of(samples: impl IntoIterator<Item = impl Borrow<f64>>) -> Option<f64> {
    median(Summary::of(samples))
}

/// `above / below`, where both were measured.
pub(crate) fn ratio(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    match (above, below) {
        (Some(above), Some(below)) if below > 0.0 => Some(above / below),
        _ => None,
    }
}

/// The middle, the ninety-ninth percentile, that of the ten thousandths, and the largest of timed
/// calls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Quantiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// 99.99 %.
    pub(crate) p9999: f64,
    pub(crate) max: f64,
}

impl Quantiles {
    /// By nearest rank; none of no calls.
    pub(crate) fn of(mut times: Vec<f64>) -> Option<Quantiles> {
        times.sort_by(f64::total_cmp);
        let at = |part: usize| times.get((times.len() * part).div_ceil(10_000).max(1) - 1).copied();
        Some(Quantiles { p50: at(5_000)?, p99: at(9_900)?, p9999: at(9_999)?, max: at(10_000)? })
    }
}

/// Samples of several quantities by name; a quantity without samples has none.
#[derive(Debug, Default)]
pub(crate) struct Samples(BTreeMap<String, Vec<f64>>);

impl Samples {
    pub(crate) fn push(&mut self, name: &str, sample: f64) {
        self.0.entry(name.to_owned()).or_default().push(sample);
    }

    /// Adds a block of calls that were timed in nanoseconds, in a larger unit: a sample of "`name`
    /// p50" and one of "`name` p99". "`name` max" is the largest call of all blocks.
    pub(crate) fn block(&mut self, name: &str, ns: Vec<f64>, ns_per_unit: f64) {
        let Some(block) = Quantiles::of(ns) else { return };
        self.push(&format!("{name} p50"), block.p50 / ns_per_unit);
        self.push(&format!("{name} p99"), block.p99 / ns_per_unit);
        let max = self.0.entry(format!("{name} max")).or_default();
        *max = vec![max.iter().copied().fold(block.max / ns_per_unit, f64::max)];
    }

    /// A quantity's median over the one of other samples.
    pub(crate) fn over(&self, below: &Samples, name: &str) -> Option<f64> {
        ratio(self.median(name), below.median(name))
    }

    pub(crate) fn of(&self, name: &str) -> &[f64] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn summary(&self, name: &str) -> Option<Summary> {
        Summary::of(self.of(name))
    }

    pub(crate) fn median(&self, name: &str) -> Option<f64> {
        median(self.summary(name))
    }
}

/// One sample of each.
impl<const N: usize> From<[(&str, f64); N]> for Samples {
    fn from(samples: [(&str, f64); N]) -> Samples {
        Samples(samples.map(|(name, sample)| (name.to_owned(), vec![sample])).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_middle_of_two_for_an_even_number() {
        assert_eq!(Summary::of([4.0, 1.0, 3.0, 2.0]).unwrap().median, 2.5);
        assert_eq!(Summary::of([5.0, 1.0, 3.0]).unwrap().median, 3.0);
    }

    #[test]
    fn takes_p90_by_nearest_rank() {
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!(Summary::of(&ten).unwrap().p90, 9.0);
        let eleven: Vec<f64> = (1..=11).map(f64::from).collect();
        assert_eq!(Summary::of(&eleven).unwrap().p90, 10.0);
        assert_eq!(Summary::of([7.0]).unwrap(), Summary { median: 7.0, min: 7.0, p90: 7.0, count: 1 });
    }

    #[test]
    fn has_no_summary_of_no_sample() {
        assert_eq!(Summary::of([0.0; 0]), None);
        assert_eq!(Summary::of([f64::NAN, f64::INFINITY]), None);
    }

    #[test]
    fn takes_quantiles_by_nearest_rank() {
        let block = Quantiles::of((1..=200).rev().map(f64::from).collect());
        assert_eq!(block, Some(Quantiles { p50: 100.0, p99: 198.0, p9999: 200.0, max: 200.0 }));
        assert_eq!(Quantiles::of(vec![7.0]), Some(Quantiles { p50: 7.0, p99: 7.0, p9999: 7.0, max: 7.0 }));
        assert_eq!(Quantiles::of(Vec::new()), None);
    }

    #[test]
    fn takes_the_median_of_blocks_and_the_largest_of_all() {
        let mut samples = Samples::default();
        for busy in [1.0, 1.0, 100.0, 2.0] {
            samples.block("call", vec![busy * 1e3; 10], 1e3);
        }
        assert_eq!(["call p99", "call max"].map(|of| samples.median(of)), [Some(1.5), Some(100.0)]);
        assert_eq!(samples.over(&samples, "call p50"), Some(1.0));
        assert_eq!(samples.over(&Samples::default(), "call p50"), None);
    }

    #[test]
    fn needs_both_sides_for_a_ratio() {
        assert_eq!(ratio(Some(6.0), Some(2.0)), Some(3.0));
        assert_eq!(ratio(None, Some(2.0)), None);
        assert_eq!(ratio(Some(6.0), Some(0.0)), None);
    }
}
