//! Settings of a plan that fit the memory a query can hold.
//!
//! DataFusion's operators need some batches of rows in each partition before they can spill: to
//! sort one, to merge two spilled files, to pass one on. Their need grows with the rows of a batch
//! and with the partitions, but not with the limit. So a plan with eight partitions and 8,192 rows
//! in a batch fails below about 100 MiB, whichever consumer a pool refuses. The remedy is a plan
//! for the limit.

use datafusion::common::config::ConfigNonZeroUsize;
use datafusion::prelude::SessionConfig;

/// Bytes that each partition of a plan should have, with batches of [`ROWS`] rows of about 64
/// bytes.
const PARTITION: usize = 32 << 20;
/// DataFusion's rows of a batch.
const ROWS: usize = 8192;
/// Fewer rows in a batch save little memory and cost much time.
const ROWS_LEAST: usize = 1024;
/// Bytes of a row in a merge of spilled files, which holds two batches of each file, each counted
/// twice.
const MERGED_ROW: usize = 256;
/// At first, consumers that can spill get this many eighths of their even share. A sort of narrow
/// rows needs more memory for the keys of its merge than for the rows, and succeeds with fewer.
pub(crate) const EIGHTHS: usize = 8;
/// A merge of spilled files has at least two of them, and at most this many, because each is an
/// open file.
const FAN_IN: (usize, usize) = (2, 64);

/// The settings for one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fit {
    most: usize,
    rows: usize,
    partitions: usize,
    /// Bytes that a sort reserves for its merge in each partition.
    merge: usize,
    /// Spilled files that are merged at once.
    pub(crate) fan_in: usize,
    /// Joins sort both sides, which can spill. A hash join cannot.
    sorts_joins: bool,
    /// Eighths of its even share up to which a consumer that can spill grows.
    pub(crate) eighths: usize,
}

impl Fit {
    /// Returns the settings for a query that can hold `most` bytes and would have `partitions`
    /// partitions.
    pub(crate) fn of(most: usize, partitions: usize) -> Fit {
        let rows = rows(most / partitions.max(1));
        // First fewer rows, which costs little, then fewer partitions.
        let partitions = (most / (PARTITION / ROWS * rows)).clamp(1, partitions.max(1));
        Fit::with(most, rows, partitions)
    }

    fn with(most: usize, rows: usize, partitions: usize) -> Fit {
        let each = most / partitions;
        let fan_in = (each / 4 / (MERGED_ROW * rows)).clamp(FAN_IN.0, FAN_IN.1);
        Fit { most, rows, partitions, merge: each / 8, fan_in, sorts_joins: false, eighths: EIGHTHS }
    }

    /// Returns settings for half the memory, with consumers that spill earlier, or `None` if
    /// everything is at its minimum already. The first step keeps hash joins. The second one
    /// differs only in using joins that sort both sides, which can spill, but take far longer.
    pub(crate) fn smaller(self) -> Option<Fit> {
        if self.eighths < EIGHTHS && !self.sorts_joins {
            return Some(Fit { sorts_joins: true, ..self });
        }
        let is_least = self.rows == ROWS_LEAST && self.partitions == 1 && self.eighths == 1;
        (!is_least).then(|| {
            let eighths = (self.eighths / 2).max(1);
            Fit { sorts_joins: self.sorts_joins, eighths, ..Fit::of(self.most / 2, self.partitions) }
        })
    }

    /// Applies the settings to a configuration, where they are lower than its own.
    pub(crate) fn apply(self, mut config: SessionConfig) -> SessionConfig {
        let rows = self.rows.min(config.batch_size());
        let merge = self.merge.min(config.options().execution.sort_spill_reservation_bytes);
        config.options_mut().optimizer.prefer_hash_join &= !self.sorts_joins;
        // Each batch that a repartition spills gets a file of its own, because DataFusion 55.2 may
        // wait for ever for a file to which it no longer writes
        // (https://github.com/apache/datafusion/issues/24883).
        config.options_mut().execution.max_spill_file_size_bytes =
            ConfigNonZeroUsize::try_new(1).expect("one is not zero");
        // DataFusion sorts no join in a plan of one partition.
        let partitions = if self.sorts_joins { self.partitions.max(2) } else { self.partitions };
        config
            .with_batch_size(rows)
            .with_target_partitions(partitions)
            .with_sort_spill_reservation_bytes(merge)
    }
}

/// Returns the rows of a batch for partitions with `bytes` bytes each.
fn rows(each: usize) -> usize {
    (each / (PARTITION / ROWS)).clamp(ROWS_LEAST, ROWS)
}

/// Fits `config` to a plan that was already made, and that runs `partitions` partitions at a time
/// within `bytes`.
///
/// The result has fewer rows in a batch, and its sorts reserve fewer bytes for their merges, if
/// `config` has more than fits. Each batch that a repartition spills gets a file of its own.
/// [`Tenant::begin`](crate::Tenant::begin) does more, before a plan is made.
///
/// ```
/// use datafusion::prelude::SessionConfig;
/// use memgroup_datafusion::fit_config;
///
/// let config = fit_config(SessionConfig::new(), 32 << 20, 4);
/// assert_eq!(config.batch_size(), 2048);
/// assert_eq!(config.options().execution.sort_spill_reservation_bytes, 1 << 20);
/// ```
pub fn fit_config(config: SessionConfig, bytes: usize, partitions: usize) -> SessionConfig {
    let (partitions, planned) = (partitions.max(1), config.target_partitions());
    let fit = Fit::with(bytes, rows(bytes / partitions), partitions);
    fit.apply(config).with_target_partitions(planned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_nothing_where_there_is_room() {
        let config = SessionConfig::new().with_target_partitions(8);
        let fit = Fit::of(8 << 30, 8);
        assert_eq!((fit.rows, fit.partitions, fit.fan_in), (ROWS, 8, FAN_IN.1));
        let applied = fit.apply(config.clone());
        assert_eq!(
            applied.options().execution.sort_spill_reservation_bytes,
            config.options().execution.sort_spill_reservation_bytes
        );
    }

    #[test]
    fn lowers_the_rows_first_and_then_the_partitions() {
        let of = |mib: usize| {
            let fit = Fit::of(mib << 20, 4);
            (fit.rows, fit.partitions)
        };
        assert_eq!(
            [of(128), of(64), of(16), of(8), of(1)],
            [(8192, 4), (4096, 4), (1024, 4), (1024, 2), (1024, 1)]
        );
    }

    #[test]
    fn comes_to_the_smallest_plan() {
        let all = std::iter::successors(Some(Fit::of(1 << 30, 16)), |fit| fit.smaller());
        let last = all.inspect(|fit| assert!(fit.fan_in >= FAN_IN.0)).last().unwrap();
        assert_eq!((last.rows, last.partitions, last.sorts_joins, last.eighths), (ROWS_LEAST, 1, true, 1));
    }

    #[test]
    fn the_first_smaller_plan_keeps_hash_joins_and_the_second_differs_in_them_alone() {
        let first = Fit::of(64 << 20, 4).smaller().unwrap();
        assert_eq!((first.most, first.rows, first.sorts_joins, first.eighths), (32 << 20, 2048, false, 4));
        let second = first.smaller().unwrap();
        assert_eq!(second, Fit { sorts_joins: true, ..first });
        let third = second.smaller().unwrap();
        assert_eq!((third.most, third.sorts_joins, third.eighths), (16 << 20, true, 2));
    }

    #[test]
    fn keeps_what_is_less_already() {
        let config = SessionConfig::new().with_batch_size(100).with_sort_spill_reservation_bytes(7);
        let applied = Fit::of(16 << 20, config.target_partitions()).apply(config);
        assert_eq!(
            (applied.batch_size(), applied.options().execution.sort_spill_reservation_bytes),
            (100, 7)
        );
    }

    /// DataFusion 55.2 reads a file only as far as it is written, and the batch that it waits for
    /// may be in the next one.
    #[test]
    fn each_batch_that_a_repartition_spills_has_a_file_of_its_own() {
        let spill_file = |config: SessionConfig| config.options().execution.max_spill_file_size_bytes.get();
        for most in [16 << 20, 8 << 30] {
            let config = SessionConfig::new();
            assert_eq!(spill_file(Fit::of(most, 4).apply(config.clone())), 1);
            assert_eq!(spill_file(fit_config(config, most, 4)), 1);
        }
    }

    #[test]
    fn fits_a_plan_that_is_made_already_with_its_partitions() {
        let fitted = fit_config(SessionConfig::new().with_target_partitions(200), 16 << 20, 4);
        let reserved = fitted.options().execution.sort_spill_reservation_bytes;
        assert_eq!((fitted.batch_size(), fitted.target_partitions(), reserved), (1024, 200, 512 << 10));
        assert!(fitted.options().optimizer.prefer_hash_join);
        for roomy in [8 << 30, 1 << 51, usize::MAX] {
            let roomy = fit_config(SessionConfig::new(), roomy, 0);
            assert_eq!(roomy.batch_size(), SessionConfig::new().batch_size());
        }
    }
}
