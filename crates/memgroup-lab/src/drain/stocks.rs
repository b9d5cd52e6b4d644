//! A group with stock in every one of its virtual slots, and a timed drain of it.

use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::{Config, Group};
use memgroup_percpu::{PerCpu, pin_virtual};

use crate::Error;
use crate::harness::clock;
use crate::harness::machine::virtual_slots;
use crate::harness::os::prefetch_to_write;
use crate::harness::tree::{Tree, expect_bytes};

const PAGE_BYTES: u64 = 4096;

/// A group of some depth on so many virtual slots.
pub(super) struct Stocks {
    tree: Tree,
    slots: usize,
    /// Words of no group, for the bare swaps.
    bare: PerCpu<AtomicU64>,
}

impl Stocks {
    pub(super) fn new(slots: usize, depth: usize) -> Result<Stocks, Error> {
        let source = virtual_slots(slots)?;
        let tree = Tree::grow(Config::new().slots(source).depth_max(depth as u32), depth, 1)?;
        Ok(Stocks { tree, slots, bare: PerCpu::new(slots) })
    }

    fn group(&self) -> &Group {
        &self.tree.leaves[0]
    }

    /// Leaves stock in every slot, by a charge and its uncharge there; returns the bytes stocked.
    pub(super) fn fill(&self) -> Result<u64, Error> {
        for slot in 0..self.slots {
            let _pinned = pin_virtual(slot);
            drop(self.group().try_charge(PAGE_BYTES).map_err(|error| Error::Wrong(error.to_string()))?);
        }
        let stocked = self.group().stock().prepaid_bytes;
        let least = self.slots as u64 * PAGE_BYTES;
        if stocked < least {
            return Err(Error::Wrong(format!(
                "{} slots hold {stocked} bytes, at least {least} were put there",
                self.slots
            )));
        }
        Ok(stocked)
    }

    /// Drains, and returns the ticks it took and the bytes that came back.
    pub(super) fn timed_drain(&self) -> (u64, u64) {
        let begin = clock::now_ordered();
        let bytes = self.group().drain();
        (clock::now_ordered() - begin, bytes)
    }

    /// Writes a plain word in every slot; returns their sum.
    pub(super) fn fill_bare(&self) -> u64 {
        // ORDERING: Relaxed, here and below; whoever hands the words over publishes them.
        self.bare.iter().for_each(|word| word.store(PAGE_BYTES, Ordering::Relaxed));
        self.slots as u64 * PAGE_BYTES
    }

    /// Swaps every plain word for zero, each line asked for `ahead` slots before its turn; 0 asks for none.
    pub(super) fn timed_bare_swaps(&self, ahead: usize) -> (u64, u64) {
        let begin = clock::now_ordered();
        let mut bytes = 0;
        for slot in 0..self.slots {
            if ahead > 0 && slot + ahead < self.slots {
                prefetch_to_write(self.bare.get(slot + ahead));
            }
            // ORDERING: Relaxed; bare words that publish nothing.
            bytes += self.bare.get(slot).swap(0, Ordering::Relaxed);
        }
        (clock::now_ordered() - begin, bytes)
    }

    pub(super) fn drain(&self) -> u64 {
        self.group().drain()
    }

    /// A drain took `taken` of `stocked` bytes; nothing is charged, so nothing may be left at any level.
    pub(super) fn check_drained(&self, stocked: u64, taken: u64) -> Result<(), Error> {
        if taken != stocked {
            let path = self.group().path();
            return Err(Error::Wrong(format!("a drain of {path} took {taken} of {stocked} bytes")));
        }
        for group in self.tree.hierarchy.groups() {
            expect_bytes(&group, "usage after a drain", group.usage(), 0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_takes_the_stock_of_every_slot() {
        let stocks = Stocks::new(8, 3).unwrap();
        let stocked = stocks.fill().unwrap();
        let (_, taken) = stocks.timed_drain();
        stocks.check_drained(stocked, taken).unwrap();
        assert_eq!(stocks.drain(), 0);
    }

    #[test]
    fn bare_swaps_take_every_word() {
        let stocks = Stocks::new(8, 3).unwrap();
        for ahead in [0, 1, 3, 8, 9] {
            assert_eq!(stocks.fill_bare(), 8 * PAGE_BYTES);
            assert_eq!(stocks.timed_bare_swaps(ahead).1, 8 * PAGE_BYTES);
            assert_eq!(stocks.timed_bare_swaps(ahead).1, 0);
        }
    }

    #[test]
    fn bytes_left_in_a_slot_are_a_wrong_result() {
        let stocks = Stocks::new(2, 3).unwrap();
        let stocked = stocks.fill().unwrap();
        let error = stocks.check_drained(stocked, stocked).unwrap_err();
        assert!(error.to_string().contains("usage after a drain of /"), "{error}");
        let error = stocks.check_drained(stocked, 0).unwrap_err();
        assert!(error.to_string().contains("took 0 of"), "{error}");
    }
}
