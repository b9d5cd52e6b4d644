//! The arithmetic of a report: median, smallest, ninetieth percentile, ratios and shares.

/// What is kept of many samples of one quantity.
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
    pub(crate) fn of(samples: &[f64]) -> Option<Summary> {
        let mut sorted: Vec<f64> = samples.iter().copied().filter(|sample| sample.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, count) = (sorted.first()?, sorted.len());
        let middle = count / 2;
        let median =
            if count % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        // Nearest rank: the smallest sample that at least 90 % of the samples do not exceed.
        let p90 = sorted[(count * 9).div_ceil(10) - 1];
        Some(Summary { median, min, p90, count })
    }

    /// About how far the median would stray from run to run: its standard error, with the upper tenth for the spread
    /// (what disturbs a window makes it longer, never shorter).
    pub(crate) fn median_error(self) -> f64 {
        const P90_IN_DEVIATIONS: f64 = 1.2816;
        const MEDIAN_OVER_MEAN: f64 = 1.2533;
        (self.p90 - self.median) / P90_IN_DEVIATIONS * MEDIAN_OVER_MEAN / (self.count as f64).sqrt()
    }

    /// The same quantity in another unit; `by` is not negative.
    pub(crate) fn scaled(self, by: f64) -> Summary {
        Summary { median: self.median * by, min: self.min * by, p90: self.p90 * by, count: self.count }
    }
}

/// The share of a cost that a mechanism removes: 1 when it removes all, 0 when nothing. None when the cost does not
/// stand clear of the noise (three standard errors of the difference that it is).
pub(crate) fn share_removed(
    without_cost: Summary,
    without_mechanism: Summary,
    with_mechanism: Summary,
) -> Option<f64> {
    let cost = without_mechanism.median - without_cost.median;
    let noise = without_cost.median_error().hypot(without_mechanism.median_error());
    (cost > 3.0 * noise).then(|| (without_mechanism.median - with_mechanism.median) / cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_the_middle_of_two() {
        assert_eq!(Summary::of(&[4.0, 1.0, 3.0, 2.0]).unwrap().median, 2.5);
        assert_eq!(Summary::of(&[5.0, 1.0, 3.0]).unwrap().median, 3.0);
    }

    #[test]
    fn p90_is_the_nearest_rank() {
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!(Summary::of(&ten).unwrap().p90, 9.0);
        let eleven: Vec<f64> = (1..=11).map(f64::from).collect();
        assert_eq!(Summary::of(&eleven).unwrap().p90, 10.0);
        assert_eq!(Summary::of(&[7.0]).unwrap(), Summary { median: 7.0, min: 7.0, p90: 7.0, count: 1 });
    }

    #[test]
    fn no_sample_is_no_summary() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[f64::NAN, f64::INFINITY]), None);
    }

    #[test]
    fn a_share_is_one_when_the_whole_cost_goes_and_none_when_there_is_no_cost() {
        let steady = |median| Summary { median, min: median, p90: median, count: 100 };
        assert_eq!(share_removed(steady(100.0), steady(200.0), steady(100.0)), Some(1.0));
        assert_eq!(share_removed(steady(100.0), steady(200.0), steady(150.0)), Some(0.5));
        assert_eq!(share_removed(steady(100.0), steady(200.0), steady(220.0)), Some(-0.2));
        assert_eq!(share_removed(steady(100.0), steady(100.0), steady(90.0)), None);
    }

    #[test]
    fn a_cost_within_the_noise_has_no_share() {
        let noisy = |median, count| Summary { median, min: median, p90: median + 1281.6, count };
        assert!((noisy(100.0, 100).median_error() - 125.33).abs() < 1e-9);
        assert_eq!(share_removed(noisy(100.0, 100), noisy(600.0, 100), noisy(300.0, 100)), None);
        assert_eq!(share_removed(noisy(100.0, 400), noisy(600.0, 400), noisy(300.0, 400)), Some(0.6));
    }
}
