//! The accounts that the stock is compared with: one shared counter, and a tree behind a mutex; and the statistics beside them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use memgroup_percpu::{PerCpu, SlotSource};

use crate::harness::prelude::*;

/// A count per slot, changed at every charge and uncharge like the kernel's mod_state; or nothing.
pub(super) struct Statistics {
    counts: Option<PerCpu<AtomicU64>>,
    slots: SlotSource,
}

impl Statistics {
    pub(super) fn new(wanted: bool, slots: SlotSource) -> Statistics {
        Statistics { counts: wanted.then(|| PerCpu::new(slots.slots())), slots }
    }

    #[inline]
    pub(super) fn count(&self, bytes: u64) {
        if let Some(counts) = &self.counts {
            // ORDERING: Relaxed; a statistic orders nothing.
            counts.get(self.slots.current()).fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The counts of all slots are the bytes that the pairs added, or there are none.
    pub(super) fn check(&self, right: u64) -> Result<()> {
        let Some(counts) = &self.counts else { return Ok(()) };
        // ORDERING: Relaxed; the windows are over.
        let sum: u64 = counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        expect("the statistics of the pairs", sum, right)
    }
}

/// One counter with a limit for all threads: the fastest that a shared counter can be.
#[repr(align(128))]
pub(super) struct FlatAtomic {
    usage: AtomicU64,
    max: u64,
}

impl FlatAtomic {
    pub(super) fn new() -> FlatAtomic {
        FlatAtomic { usage: AtomicU64::new(0), max: FAR_BYTES }
    }

    /// Takes `bytes`, or nothing.
    #[inline]
    pub(super) fn take(&self, bytes: u64) -> bool {
        // ORDERING: Relaxed, here and in `give`: the counter publishes nothing but itself.
        let before = self.usage.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes <= self.max {
            return true;
        }
        // ORDERING: Relaxed; the control is a bare sum that publishes nothing.
        self.usage.fetch_sub(bytes, Ordering::Relaxed);
        false
    }

    #[inline]
    pub(super) fn give(&self, bytes: u64) {
        self.usage.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Adds by compare-and-swap, as a stock that reads its word before it changes it must.
    #[inline]
    pub(super) fn swap_in(&self, bytes: u64) {
        // ORDERING: Relaxed; the compare-and-swap decides.
        let mut now = self.usage.load(Ordering::Relaxed);
        // ORDERING: AcqRel and Relaxed, as a stock's; here only the time matters.
        while let Err(newer) =
            self.usage.compare_exchange(now, now.wrapping_add(bytes), Ordering::AcqRel, Ordering::Relaxed)
        {
            now = newer;
        }
    }

    pub(super) fn usage(&self) -> u64 {
        // ORDERING: Relaxed; read at rest.
        self.usage.load(Ordering::Relaxed)
    }
}

/// A tree of counters behind one mutex: exact and simple, and all threads queue for it.
pub(super) struct MutexTree {
    /// The usage of each counter of the chain, then of each leaf.
    usage: Mutex<Vec<u64>>,
    chain: usize,
    max: u64,
}

impl MutexTree {
    /// A chain of `depth` counters that ends in `leaves` counters side by side.
    pub(super) fn new(depth: usize, leaves: usize) -> MutexTree {
        let chain = depth - 1;
        MutexTree { usage: Mutex::new(vec![0; chain + leaves]), chain, max: FAR_BYTES }
    }

    /// The counters of a leaf, from the root down.
    fn levels(&self, leaf: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.chain).chain([self.chain + leaf])
    }

    /// Takes `bytes` at every level of a leaf, or nothing.
    pub(super) fn take(&self, leaf: usize, bytes: u64) -> bool {
        let mut usage = lock(&self.usage);
        if self.levels(leaf).any(|level| usage[level] + bytes > self.max) {
            return false;
        }
        self.levels(leaf).for_each(|level| usage[level] += bytes);
        true
    }

    pub(super) fn give(&self, leaf: usize, bytes: u64) {
        let mut usage = lock(&self.usage);
        self.levels(leaf).for_each(|level| usage[level] -= bytes);
    }

    pub(super) fn usage(&self) -> u64 {
        lock(&self.usage).iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_up_to_the_flat_limit_and_not_a_byte_more() {
        let counter = FlatAtomic { usage: AtomicU64::new(0), max: 10 };
        assert!(counter.take(10));
        assert!(!counter.take(1));
        assert_eq!(counter.usage(), 10);
        counter.give(10);
        assert_eq!(counter.usage(), 0);
    }

    #[test]
    fn moves_every_level_of_the_mutex_tree_or_none() {
        let tree = MutexTree { max: 15, ..MutexTree::new(3, 2) };
        assert!(tree.take(0, 10));
        assert_eq!(tree.usage(), 30, "three counters of ten bytes");
        assert!(!tree.take(1, 10), "the root refuses");
        assert_eq!(tree.usage(), 30);
        tree.give(0, 10);
        assert_eq!(tree.usage(), 0);
    }

    #[test]
    fn makes_a_mutex_tree_of_depth_one_of_its_root() {
        let tree = MutexTree::new(1, 1);
        assert!(tree.take(0, 10));
        assert_eq!(tree.usage(), 10);
    }
}
