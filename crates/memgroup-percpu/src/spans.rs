//! Which granules of a unit are taken: a bitmap with first fit.
//!
//! - I1. A set bit is a granule that is taken, or one beyond the end of the unit.
//! - I2. Every granule below `first_free` is taken.
//! - I3. `free` is the number of clear bits.

/// The bitmap of one chunk: each granule stands for the same bytes of every unit.
#[derive(Debug)]
pub(crate) struct Spans {
    taken: Box<[u64]>,
    granules: usize,
    first_free: usize,
    free: usize,
}

impl Spans {
    pub(crate) fn new(granules: usize) -> Self {
        let mut taken = vec![0; granules.div_ceil(64)].into_boxed_slice();
        if let (Some(last), used @ 1..) = (taken.last_mut(), granules % 64) {
            *last = u64::MAX << used;
        }
        Self { taken, granules, first_free: 0, free: granules }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free == self.granules
    }

    /// Takes the lowest free run of `count` granules that begins at a multiple of `align`, a power of two.
    pub(crate) fn take(&mut self, count: usize, align: usize) -> Option<usize> {
        debug_assert!(count > 0 && align.is_power_of_two());
        if count > self.free {
            return None;
        }
        let mut start = self.first_free.next_multiple_of(align);
        while start + count <= self.granules {
            match self.last_taken(start, start + count) {
                None => {
                    self.mark(start, count, true);
                    self.free -= count;
                    if start <= self.first_free {
                        self.first_free = self.next_free(start + count);
                    }
                    return Some(start);
                }
                Some(taken) => start = self.next_free(taken + 1).next_multiple_of(align),
            }
        }
        None
    }

    /// Gives back what `take` returned for the same `count`.
    pub(crate) fn give_back(&mut self, start: usize, count: usize) {
        debug_assert!((start..start + count).all(|granule| self.is_taken(granule)), "given back twice");
        self.mark(start, count, false);
        self.free += count;
        self.first_free = self.first_free.min(start);
    }

    fn is_taken(&self, granule: usize) -> bool {
        self.taken[granule / 64] & (1 << (granule % 64)) != 0
    }

    /// The highest taken granule of `from..to`: the search goes on behind it.
    fn last_taken(&self, from: usize, to: usize) -> Option<usize> {
        let mut end = to;
        while end > from {
            let word = (end - 1) / 64;
            let start = from.max(word * 64);
            let bits = self.taken[word] & mask(start % 64, end - start);
            if bits != 0 {
                return Some(word * 64 + bits.ilog2() as usize);
            }
            end = start;
        }
        None
    }

    /// The lowest free granule from `from` on, or the number of granules.
    fn next_free(&self, from: usize) -> usize {
        let mut start = from;
        while start < self.granules {
            let bits = !self.taken[start / 64] & (u64::MAX << (start % 64));
            if bits != 0 {
                return start / 64 * 64 + bits.trailing_zeros() as usize;
            }
            start = (start / 64 + 1) * 64;
        }
        self.granules
    }

    fn mark(&mut self, start: usize, count: usize, taken: bool) {
        let mut at = start;
        while at < start + count {
            let run = (64 - at % 64).min(start + count - at);
            let bits = mask(at % 64, run);
            let word = &mut self.taken[at / 64];
            *word = if taken { *word | bits } else { *word & !bits };
            at += run;
        }
    }
}

/// `count` ones from bit `from` on; together at most 64.
fn mask(from: usize, count: usize) -> u64 {
    debug_assert!(count > 0 && from + count <= 64);
    (u64::MAX >> (64 - count)) << from
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{Strategy, prop_oneof, proptest};

    /// The same by one bool a granule.
    struct Ledger {
        taken: Vec<bool>,
    }

    impl Ledger {
        fn take(&mut self, count: usize, align: usize) -> Option<usize> {
            let mut starts = (0..self.taken.len()).step_by(align);
            let start = starts.find(|&start| {
                self.taken.get(start..start + count).is_some_and(|run| run.iter().all(|taken| !taken))
            })?;
            self.taken[start..start + count].fill(true);
            Some(start)
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take { count: usize, align: usize },
        GiveBack { which: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1_usize..80, 0_u32..5).prop_map(|(count, shift)| Step::Take { count, align: 1 << shift }),
            (1_usize..4, 0_u32..2).prop_map(|(count, shift)| Step::Take { count, align: 1 << shift }),
            (0_usize..1000).prop_map(|which| Step::GiveBack { which }),
        ]
    }

    proptest! {
        #[test]
        fn the_bitmap_does_what_one_bool_a_granule_does(
            granules in 1_usize..400,
            steps in proptest::collection::vec(step(), 1..200),
        ) {
            let mut spans = Spans::new(granules);
            let mut ledger = Ledger { taken: vec![false; granules] };
            let mut runs = Vec::new();
            for step in steps {
                match step {
                    Step::Take { count, align } => {
                        let start = spans.take(count, align);
                        assert_eq!(start, ledger.take(count, align), "{count} granules aligned to {align}");
                        runs.extend(start.map(|start| (start, count)));
                    }
                    Step::GiveBack { which } if !runs.is_empty() => {
                        let (start, count) = runs.swap_remove(which % runs.len());
                        spans.give_back(start, count);
                        ledger.taken[start..start + count].fill(false);
                    }
                    Step::GiveBack { .. } => {}
                }
                assert_eq!(spans.free, ledger.taken.iter().filter(|taken| !**taken).count());
                assert_eq!(spans.is_empty(), runs.is_empty());
            }
        }
    }

    #[test]
    fn a_unit_is_filled_to_its_last_granule_and_no_further() {
        let mut spans = Spans::new(130);
        for granule in 0..130 {
            assert_eq!(spans.take(1, 1), Some(granule));
        }
        assert_eq!(spans.take(1, 1), None);
        spans.give_back(129, 1);
        assert_eq!(spans.take(2, 1), None);
        assert_eq!(spans.take(1, 1), Some(129));
    }
}
