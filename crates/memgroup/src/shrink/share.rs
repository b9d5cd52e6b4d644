//! Share: how much of what a cache holds it is asked for, at which of a walk's priorities.
//!
//! Linux' arithmetic, in bytes: at priority p, F bytes that it holds and D deferred ones make `min((D >> p) + (4 F / cost >> p), 2 F)`, asked for in
//! batches; what is less than a batch, and less than all there is, is deferred, up to 2 F in all. There a cache of less than a batch is
//! *counted* at every priority and *scanned* at the last two; here the class of its mark keeps a walk from coming by before it could be
//! asked for anything ([`least_class`]), and what it said last keeps it from being counted when it is come by too early ([`asked_from`]).

use super::room::CLASSES;

/// The priority at which a walk begins: a four-thousandth of what there is.
pub(crate) const PRIORITIES: u32 = 12;

/// From this priority on every cache that is marked is counted, whatever it said last: what comes after it is the refusal.
pub(super) const SERIOUS: u32 = 1;

/// The class of a cache that holds so much: the first priorities ask only those that have hundreds of batches.
pub(super) fn class_of(bytes: u64, batch_bytes: u64) -> usize {
    let batches = bytes / batch_bytes;
    (batches.max(1).ilog2() as usize / 3).min(CLASSES - 1)
}

/// The least class of which something can be asked at a priority: a batch is reached with `2^(priority - 1)` batches.
pub(crate) fn least_class(priority: u32) -> usize {
    (priority.saturating_sub(1) as usize / 3).min(CLASSES - 1)
}

/// What of a cache is to be asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    /// What it holds.
    bytes: u64,
    /// What it was to be asked for before, and was not.
    deferred: u64,
    batch_bytes: u64,
    /// Of what it holds, before it is divided by the priority; `None`: half of it at any.
    whole: Option<u64>,
}

impl Due {
    pub(super) fn new(bytes: u64, deferred: u64, batch_bytes: u64, cost: u32) -> Due {
        let whole = bytes.checked_mul(4).map_or_else(
            || {
                (u128::from(bytes) * 4)
                    .checked_div(u128::from(cost))
                    .map(|whole| whole.min(u64::MAX.into()) as u64)
            },
            |bytes| bytes.checked_div(u64::from(cost)),
        );
        Due { bytes, deferred, batch_bytes, whole }
    }

    /// The most that is asked for at once, and deferred.
    pub(super) fn most(self) -> u64 {
        self.bytes.saturating_mul(2)
    }

    /// What is to be asked for at a priority because of what it holds.
    pub(super) fn fresh(self, priority: u32) -> u64 {
        self.whole.map_or(self.bytes / 2, |whole| whole >> priority).min(self.most())
    }

    /// What is to be asked for at a priority. At the last, a batch however little its share is.
    pub(super) fn work(self, priority: u32) -> u64 {
        let least = if priority == 0 { self.bytes.min(self.batch_bytes) } else { 0 };
        (self.deferred >> priority).saturating_add(self.fresh(priority)).min(self.most()).max(least)
    }

    /// Whether so much work is worth a call at a priority.
    pub(super) fn is_enough(self, work: u64, priority: u32) -> bool {
        work > 0 && (work >= self.batch_bytes || work >= self.bytes || priority == 0)
    }

    /// The first priority, as they go down, at which it is asked for anything, but no later than when it is serious.
    pub(super) fn asked_from(self) -> u32 {
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
    use super::*;

    const BATCH: u64 = 64 << 10;

    fn due(bytes: u64, cost: u32) -> Due {
        Due::new(bytes, 0, BATCH, cost)
    }

    #[test]
    fn a_class_is_asked_from_the_first_priority_at_which_a_batch_is_reached() {
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
    fn what_is_smaller_than_a_batch_is_asked_at_the_last_priorities_only() {
        let due = due(4096, 2);
        let asked: Vec<u32> =
            (0..=PRIORITIES).filter(|&priority| due.is_enough(due.work(priority), priority)).collect();
        assert_eq!(asked, [0, 1]);
    }

    #[test]
    fn a_share_is_in_proportion_to_size_and_cost_and_never_more_than_twice_all() {
        for (bytes, priority, cost, share) in [
            (1 << 20, 12, 2, 512),
            (1 << 20, 12, 4, 256),
            (1 << 20, 0, 2, 2 << 20),
            (1 << 20, 0, 1, 2 << 20),
            (1 << 20, 9, 0, 1 << 19),
            (1_000_003, 3, 7, 4 * 1_000_003 / 7 / 8),
            (u64::MAX, 0, 1, u64::MAX),
            (u64::MAX / 2, 0, 4, u64::MAX / 2),
        ] {
            assert_eq!(due(bytes, cost).fresh(priority), share, "{bytes} at {priority}, cost {cost}");
        }
    }

    #[test]
    fn where_a_cache_is_asked_first_is_where_anything_would_be_asked_of_it() {
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
