//! Miss counts: how often a group's stock was missed, refilled and drained, while the group has no
//! record for statistics.
//!
//! Most groups miss their stock a few times and are then served by it. Two words in the node count
//! that, so that such a group needs no copy of all statistics on each slot. A group that misses
//! more often gets a record.
//!
//! ```text
//!   counts    12 bits each: charges, misses, refills, returns, drains      drained    bytes
//! ```
//!
//! - I1. A field of `counts` is at most `MOST`, so it never overflows into the next.
//! - E1. add → mark, clear → take: RMWs of one word, as for a slot's words (`stats::update` E1).

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::erasable;

use crate::state::stats::builtin::memory;

erasable! {
    /// The miss counts of one group since the last flush.
    pub(crate) struct MissCounts {
        counts: AtomicU64,
        drained: AtomicU64,
    }
}

const BITS: usize = 12;
const MASK: u64 = (1 << BITS) - 1;
/// The most that a field counts.
const MOST: u64 = 255;
/// The statistics that have a field.
const FIRST: usize = memory::CHARGES.index();
const LAST: usize = memory::STOCK_DRAINS.index();
const DRAINED: usize = memory::STOCK_DRAINED.index();

const _: () = assert!((LAST + 1 - FIRST) * BITS <= 64 && DRAINED == LAST + 1 && MOST <= MASK);

impl MissCounts {
    /// Adds to the count of this statistic; whether there is one with room for it.
    pub(crate) fn try_add(&self, index: usize, delta: u64) -> bool {
        if index == DRAINED {
            // ORDERING: AcqRel RMW; E1.
            self.drained.fetch_add(delta, Ordering::AcqRel);
            return true;
        }
        if !(FIRST..=LAST).contains(&index) || delta > MOST {
            return false;
        }
        let shift = (index - FIRST) * BITS;
        let add = |counts: u64| {
            let count = (counts >> shift & MASK) + delta;
            (count <= MOST).then_some(counts + (delta << shift))
        };
        // ORDERING: AcqRel RMW; E1. Relaxed where nothing is added.
        self.counts.fetch_update(Ordering::AcqRel, Ordering::Relaxed, add).is_ok()
    }

    /// Takes the counts to zero; `each` gets the statistics that are not zero.
    pub(crate) fn take(&self, mut each: impl FnMut(usize, i64)) {
        // ORDERING: AcqRel RMWs, also of words that are zero; E1.
        let drained = self.drained.swap(0, Ordering::AcqRel);
        // ORDERING: as above.
        let counts = self.counts.swap(0, Ordering::AcqRel);
        for index in (FIRST..=DRAINED).filter(|&index| of(index, counts, drained) != 0) {
            each(index, of(index, counts, drained) as i64);
        }
    }

    /// The count of a statistic as it is now; 0 where it has none.
    pub(crate) fn peek(&self, index: usize) -> u64 {
        // ORDERING: Relaxed, both; compared with no other value.
        let counts = self.counts.load(Ordering::Relaxed);
        // ORDERING: as above.
        of(index, counts, self.drained.load(Ordering::Relaxed))
    }
}

fn of(index: usize, counts: u64, drained: u64) -> u64 {
    match index {
        FIRST..=LAST => counts >> ((index - FIRST) * BITS) & MASK,
        DRAINED => drained,
        _ => 0,
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use memgroup_sync::Erasable;

    use super::*;

    #[test]
    fn counts_each_statistic_by_itself_up_to_the_most() {
        let counts = MissCounts::zero();
        for index in FIRST..=LAST {
            assert!(counts.try_add(index, 1) && counts.try_add(index, MOST - 1));
            assert!(!counts.try_add(index, 1), "there is no more room");
        }
        assert!(
            counts.try_add(DRAINED, 1 << 40) && !counts.try_add(LAST + 2, 1) && !counts.try_add(FIRST - 1, 1)
        );
        assert_eq!((counts.peek(FIRST), counts.peek(DRAINED), counts.peek(0)), (MOST, 1 << 40, 0));
        let mut taken = Vec::new();
        counts.take(|index, value| taken.push((index, value)));
        let all = (FIRST..=LAST).map(|index| (index, MOST as i64)).chain([(DRAINED, 1 << 40)]);
        assert_eq!(taken, all.collect::<Vec<_>>());
        counts.take(|index, value| panic!("{value} of {index} is left"));
    }
}
