//! How long statements took: counted to three digits, added up over threads, processes and runs.
//!
//! - I1. Latencies that went through JSON and were added up there are the same as if one histogram had recorded them all: each is written
//!   as a value that stands for its bucket, with its count, and falls into that bucket again.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::error::RunError;

/// Latencies are told apart to three digits.
const DIGITS: u8 = 3;
/// An hour; a statement that takes longer counts as one of an hour.
const NS_MOST: u64 = 3_600_000_000_000;

/// The latencies of statements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "Vec<(u64, u64)>", try_from = "Vec<(u64, u64)>")]
pub(crate) struct Latencies {
    /// In nanoseconds.
    ns: Histogram<u64>,
}

impl Latencies {
    /// None yet.
    pub(crate) fn new() -> Result<Latencies, RunError> {
        let ns = Histogram::new_with_bounds(1, NS_MOST, DIGITS)
            .map_err(|error| RunError::engine("make a histogram of latencies", error))?;
        Ok(Latencies { ns })
    }

    pub(crate) fn record(&mut self, ns: u64) {
        self.ns.saturating_record(ns);
    }

    pub(crate) fn add(&mut self, other: &Latencies) -> Result<(), RunError> {
        self.ns.add(&other.ns).map_err(|error| RunError::engine("add up latencies", error))
    }

    /// What `share` of them stayed within, in microseconds; none if there are none.
    pub(crate) fn quantile_us(&self, share: f64) -> Option<f64> {
        (!self.ns.is_empty()).then(|| self.ns.value_at_quantile(share) as f64 / 1e3)
    }
}

impl From<Latencies> for Vec<(u64, u64)> {
    fn from(latencies: Latencies) -> Vec<(u64, u64)> {
        let recorded = latencies.ns.iter_recorded();
        recorded.map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value())).collect()
    }
}

impl TryFrom<Vec<(u64, u64)>> for Latencies {
    type Error = RunError;

    fn try_from(counts: Vec<(u64, u64)>) -> Result<Latencies, RunError> {
        let mut latencies = Latencies::new()?;
        for (ns, count) in counts {
            latencies.ns.saturating_record_n(ns, count);
        }
        Ok(latencies)
    }
}

#[cfg(test)]
mod tests {
    use super::{Latencies, NS_MOST};

    fn of(values: impl IntoIterator<Item = u64>) -> Latencies {
        let mut latencies = Latencies::new().expect("a histogram");
        values.into_iter().for_each(|ns| latencies.record(ns));
        latencies
    }

    #[test]
    fn without_a_statement_done_there_is_no_latency() {
        assert_eq!(of([]).quantile_us(0.5), None);
    }

    #[test]
    fn runs_that_went_through_json_add_up_to_what_one_histogram_would_have_recorded() {
        // From nanoseconds to more than an hour, so that buckets of every width are hit.
        let values = |seed: u64| (0..20_000).map(move |n: u64| (n * seed) % (3 << (n % 44)) + 1);
        let there_and_back = |latencies: &Latencies| -> Latencies {
            let text = serde_json::to_string(latencies).expect("it is JSON");
            serde_json::from_str(&text).expect("it reads back")
        };
        let (first, second) = (of(values(7_919)), of(values(104_729).chain([u64::MAX])));
        let mut sum = there_and_back(&first);
        assert_eq!(sum.quantile_us(0.99), first.quantile_us(0.99));
        sum.add(&there_and_back(&second)).expect("same digits");
        let whole = of(values(7_919).chain(values(104_729)).chain([u64::MAX]));
        for share in [0.0, 0.001, 0.25, 0.5, 0.9, 0.99, 0.9999, 1.0] {
            assert_eq!(sum.quantile_us(share), whole.quantile_us(share), "{share}");
        }
        let most = sum.quantile_us(1.0).expect("some") * 1e3;
        assert!((most / NS_MOST as f64 - 1.0).abs() < 1e-3, "{most}");
    }
}
