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

/// What a mechanism does about a cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Removal {
    /// The cost does not stand clear of the noise.
    NoCost,
    /// The cost does; the share of it that is removed does not: it could be anything, or is negative within its error.
    NoShare(Share),
    /// A share worth reading. A negative one stands clear of its error: the mechanism adds to the cost.
    Clear(Share),
}

/// 1 when all of a cost goes, 0 when nothing; with its standard error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Share {
    pub(crate) removed: f64,
    pub(crate) error: f64,
}

/// The share of a cost that a mechanism removes. The cost must be more than three standard errors of the difference that it
/// is, and the error of the share at most [`SHARE_ERROR_MOST`]; all three medians stray.
pub(crate) fn share_removed(
    without_cost: Summary,
    without_mechanism: Summary,
    with_mechanism: Summary,
) -> Removal {
    let [base, without, with] = [without_cost, without_mechanism, with_mechanism].map(Summary::median_error);
    let cost = without_mechanism.median - without_cost.median;
    if cost <= 3.0 * base.hypot(without) {
        return Removal::NoCost;
    }
    let removed = (without_mechanism.median - with_mechanism.median) / cost;
    // To first order, of (without - with) / (without - base).
    let error = ((1.0 - removed) * without).hypot(with).hypot(removed * base) / cost;
    let share = Share { removed, error };
    let adds = removed < 0.0;
    let is_clear = error <= SHARE_ERROR_MOST && !(adds && -removed <= 3.0 * error);
    if is_clear { Removal::Clear(share) } else { Removal::NoShare(share) }
}

/// With more, even a half would not be told from nothing or all.
const SHARE_ERROR_MOST: f64 = 1.0 / 6.0;

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
        let share = |with| share_removed(steady(100.0), steady(200.0), steady(with));
        let exact = |removed| Removal::Clear(Share { removed, error: 0.0 });
        assert_eq!([100.0, 150.0, 200.0].map(share), [1.0, 0.5, 0.0].map(exact));
        assert_eq!(share(220.0), exact(-0.2), "what adds to the cost beyond doubt is not hidden");
        assert_eq!(share_removed(steady(100.0), steady(100.0), steady(90.0)), Removal::NoCost);
    }

    #[test]
    fn a_cost_within_the_noise_has_no_share() {
        let noisy = |median, count| Summary { median, min: median, p90: median + 1281.6, count };
        assert!((noisy(100.0, 100).median_error() - 125.33).abs() < 1e-9);
        assert_eq!(share_removed(noisy(100.0, 100), noisy(600.0, 100), noisy(300.0, 100)), Removal::NoCost);
        let Removal::Clear(share) = share_removed(noisy(100.0, 900), noisy(600.0, 900), noisy(300.0, 900))
        else {
            panic!("a cost of twelve standard errors has a share");
        };
        // Each median strays by 41.8: sqrt(0.4^2 + 1 + 0.6^2) of that, over a cost of 500.
        assert!((share.removed - 0.6).abs() < 1e-9 && (share.error - 0.103).abs() < 1e-3, "{share:?}");
    }

    #[test]
    fn a_share_is_lost_where_it_is_wide_or_negative_within_its_error() {
        // Medians that stray by `error` each.
        let of = |median: f64, error: f64| {
            let p90 = median + error * 10.0 * 1.2816 / 1.2533;
            Summary { median, min: median, p90, count: 100 }
        };
        // 22 ns without the mechanism, 29 with it, and a mechanism whose windows vary: 33 % "added", of anything.
        let removal = share_removed(of(2000.0, 5.0), of(2022.0, 5.0), of(2029.0, 20.0));
        assert!(matches!(removal, Removal::NoShare(share) if share.removed < 0.0), "{removal:?}");
        let wide = share_removed(of(2000.0, 5.0), of(2050.0, 5.0), of(2020.0, 20.0));
        assert!(matches!(wide, Removal::NoShare(share) if share.removed > 0.5), "{wide:?}");
        let adds = |with| share_removed(of(2000.0, 1.0), of(2050.0, 1.0), of(with, 1.0));
        assert!(matches!(adds(2052.0), Removal::NoShare(_)), "{:?}", adds(2052.0));
        assert!(matches!(adds(2070.0), Removal::Clear(share) if share.removed < 0.0), "{:?}", adds(2070.0));
    }
}
