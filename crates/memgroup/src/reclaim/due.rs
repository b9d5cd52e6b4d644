//! Due: how many of its bytes a cache is asked for, at which of a walk's priorities.
//!
//! The arithmetic is Linux', in bytes. At priority p, F bytes that a cache holds and D deferred
//! bytes make `min((D >> p) + (4 F / cost >> p), 2 F)`. They are asked for in batches. Work below
//! a batch, and below F, is deferred, up to 2 F in all. In Linux a cache of less than a batch is
//! *counted* at every priority and *scanned* at the last two. Here the class of its mark keeps a
//! walk away before anything could be asked for ([`least_class`]). The last count keeps it from
//! being counted too early ([`Due::asked_from`]).

use crate::reclaim::bitmap::CLASSES;

/// The priority at which a walk begins: a four-thousandth of the bytes that there are.
pub(crate) const PRIORITIES: u32 = 12;

/// From this priority on every marked cache is counted, whatever the last count was: the refusal
/// comes next.
pub(crate) const SERIOUS: u32 = 1;

/// The priority at which a round explores: the highest one that reaches all classes.
pub(crate) const EXPLORED: u32 = CLASS_PRIORITIES;

/// A class has the caches whose sizes are within this many powers of two. The next class is asked
/// as many priorities earlier.
pub(crate) const CLASS_PRIORITIES: u32 = 3;

/// The class of a cache before it was counted: the largest, so that it is asked soon.
pub(crate) const UNKNOWN_CLASS: usize = CLASSES - 1;

/// The class of a cache that holds so much: the first priorities ask only those that have hundreds
/// of batches.
pub(crate) fn class_of(bytes: u64, batch_bytes: u64) -> usize {
    let batches = bytes / batch_bytes;
    ((batches.max(1).ilog2() / CLASS_PRIORITIES) as usize).min(CLASSES - 1)
}

/// The least class of which anything can be asked at a priority: a batch is reached with
/// `2^(priority - 1)` batches.
pub(crate) fn least_class(priority: u32) -> usize {
    ((priority.saturating_sub(1) / CLASS_PRIORITIES) as usize).min(CLASSES - 1)
}

/// The bytes that a cache should be asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    /// Bytes that it holds.
    bytes: u64,
    /// Bytes that were due before, and were not asked for.
    deferred: u64,
    batch_bytes: u64,
    /// Bytes due at priority 0; `None`: half of the bytes that it holds, at any priority.
    whole: Option<u64>,
}

impl Due {
    pub(crate) fn new(bytes: u64, deferred: u64, batch_bytes: u64, cost: u32) -> Due {
        Due { bytes, deferred, batch_bytes, whole: bytes.saturating_mul(4).checked_div(u64::from(cost)) }
    }

    /// The most that is asked for at once, and deferred.
    fn most(self) -> u64 {
        self.bytes.saturating_mul(2)
    }

    /// The bytes due at a priority because of its size, without deferred ones.
    pub(crate) fn fresh(self, priority: u32) -> u64 {
        self.whole.map_or(self.bytes / 2, |whole| whole >> priority).min(self.most())
    }

    /// The bytes due at a priority. At the last, a batch however small its share is.
    pub(crate) fn work(self, priority: u32) -> u64 {
        let least = if priority == 0 { self.bytes.min(self.batch_bytes) } else { 0 };
        (self.deferred >> priority).saturating_add(self.fresh(priority)).min(self.most()).max(least)
    }

    /// Returns whether so much work is worth a call at a priority.
    pub(crate) fn is_enough(self, work: u64, priority: u32) -> bool {
        work > 0 && (work >= self.batch_bytes || work >= self.bytes || priority == 0)
    }

    /// The first priority, as they go down, at which anything is asked for; at the latest
    /// `SERIOUS`.
    pub(crate) fn asked_from(self) -> u32 {
        let all = self.whole.unwrap_or(u64::MAX).saturating_add(self.deferred);
        // At a higher priority not even all of it together would be enough.
        let bound = (all / self.batch_bytes.min(self.bytes).max(1)).checked_ilog2().unwrap_or(0);
        let priorities = SERIOUS + 1..=bound.min(PRIORITIES);
        let asked = priorities.rev().find(|&priority| self.is_enough(self.work(priority), priority));
        asked.unwrap_or(SERIOUS)
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::reclaim::due::*;

    const BATCH: u64 = 64 << 10;

    fn due(bytes: u64, cost: u32) -> Due {
        Due::new(bytes, 0, BATCH, cost)
    }

    #[test]
    fn walks_a_class_from_the_first_priority_that_reaches_a_batch() {
        for batches in [1u64, 2, 7, 8, 9, 63, 64, 100, 511, 512, 5_000, 1 << 20] {
            let due = due(batches * BATCH, 2);
            let class = class_of(due.bytes, BATCH);
            for priority in 0..=PRIORITIES {
                assert!(
                    !due.is_enough(due.work(priority), priority) || class >= least_class(priority),
                    "{batches} batches are asked for at {priority}, and class {class} is not walked there"
                );
            }
        }
    }

    #[test]
    fn asks_a_cache_below_a_batch_at_the_last_priorities_only() {
        let due = due(4096, 2);
        let asked: Vec<u32> =
            (0..=PRIORITIES).filter(|&priority| due.is_enough(due.work(priority), priority)).collect();
        assert_eq!(asked, [0, 1]);
    }

    #[test]
    fn asks_in_proportion_to_size_and_cost_up_to_twice_the_size() {
        for (bytes, priority, cost, share) in [
            (1 << 20, 12, 2, 512),
            (1 << 20, 12, 4, 256),
            (1 << 20, 0, 2, 2 << 20),
            (1 << 20, 0, 1, 2 << 20),
            (1 << 20, 9, 0, 1 << 19),
            (1_000_003, 3, 7, 4 * 1_000_003 / 7 / 8),
            (u64::MAX, 0, 1, u64::MAX),
            (u64::MAX / 4, 0, 4, u64::MAX / 4),
        ] {
            assert_eq!(due(bytes, cost).fresh(priority), share, "{bytes} at {priority}, cost {cost}");
        }
    }

    #[test]
    fn begins_to_ask_where_anything_is_due() {
        let mut state = 1u64;
        let mut random = move |bits: u32| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let of = (state >> 33) as u32 % (bits + 1);
            (state >> 16) & ((1 << of) - 1)
        };
        for _ in 0..200_000 {
            let (bytes, deferred, batch) = (random(44), random(44), random(24) + 1);
            let due = Due::new(bytes, deferred, batch, random(4) as u32);
            let asked = |&priority: &u32| due.is_enough(due.work(priority), priority);
            let first = (0..=PRIORITIES).rev().find(asked).unwrap_or(0);
            assert_eq!(due.asked_from(), first.max(SERIOUS), "{due:?}");
        }
    }
}
