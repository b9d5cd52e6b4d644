//! Latencies of statements, with three digits, added up over threads.

use hdrhistogram::Histogram;

/// Significant decimal digits.
const DIGITS: u8 = 3;
/// One hour; longer statements count as one hour.
const NS_MAX: u64 = 3_600_000_000_000;

/// The latencies of statements.
#[derive(Debug)]
pub(crate) struct Latencies {
    /// In nanoseconds.
    ns: Histogram<u64>,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { ns: Histogram::new_with_bounds(1, NS_MAX, DIGITS).expect("the bounds are valid") }
    }
}

impl Latencies {
    pub(crate) fn record(&mut self, ns: u64) {
        self.ns.saturating_record(ns);
    }

    pub(crate) fn add(&mut self, other: &Latencies) {
        self.ns.add(&other.ns).expect("all histograms have the same bounds");
    }

    /// The latency in microseconds that `share` of the statements did not exceed; none without
    /// statements.
    pub(crate) fn quantile_us(&self, share: f64) -> Option<f64> {
        (!self.ns.is_empty()).then(|| self.ns.value_at_quantile(share) as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::{Latencies, NS_MAX};

    fn of(values: impl IntoIterator<Item = u64>) -> Latencies {
        let mut latencies = Latencies::default();
        values.into_iter().for_each(|ns| latencies.record(ns));
        latencies
    }

    #[test]
    fn has_no_quantile_without_statements() {
        assert_eq!(of([]).quantile_us(0.5), None);
    }

    #[test]
    fn adds_threads_like_one_histogram() {
        // From nanoseconds to more than an hour: buckets of every width.
        let values = |seed: u64| (0..20_000).map(move |n: u64| (n * seed) % (3 << (n % 44)) + 1);
        let (first, second) = (of(values(7_919)), of(values(104_729).chain([u64::MAX])));
        let mut sum = first;
        sum.add(&second);
        let whole = of(values(7_919).chain(values(104_729)).chain([u64::MAX]));
        for share in [0.0, 0.001, 0.25, 0.5, 0.9, 0.99, 0.9999, 1.0] {
            assert_eq!(sum.quantile_us(share), whole.quantile_us(share), "{share}");
        }
        let most = sum.quantile_us(1.0).expect("some") * 1e3;
        assert!((most / NS_MAX as f64 - 1.0).abs() < 1e-3, "{most}");
    }
}
