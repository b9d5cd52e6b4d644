//! What people write by hand, measured beside ours: one shared counter, and a tree behind a mutex.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Error;
use crate::harness::window::Work;

const FAR_BYTES: u64 = 1 << 47;

/// One counter for everybody: no groups, no tree, a limit. As fast as a shared counter can be.
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

    /// Adds by compare-and-swap, as a word that must be looked at before it is changed has to.
    #[inline]
    fn swap_in(&self, bytes: u64) {
        // ORDERING: Relaxed; the compare-and-swap decides.
        let mut now = self.usage.load(Ordering::Relaxed);
        // ORDERING: AcqRel and Relaxed, as a stock's; here nothing hangs on it but the time.
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

/// A tree of counters behind one mutex: exact, simple, and a queue.
pub(super) struct MutexTree {
    nodes: Mutex<Vec<Node>>,
    first_leaf: usize,
}

struct Node {
    usage: u64,
    max: u64,
    parent: Option<usize>,
}

impl MutexTree {
    /// A chain of `depth` counters that ends in `leaves` counters side by side.
    pub(super) fn new(depth: usize, leaves: usize) -> MutexTree {
        let node = |parent| Node { usage: 0, max: FAR_BYTES, parent };
        let mut nodes: Vec<Node> = (0..depth - 1).map(|level: usize| node(level.checked_sub(1))).collect();
        let first_leaf = nodes.len();
        nodes.extend((0..leaves).map(|_| node(first_leaf.checked_sub(1))));
        MutexTree { nodes: Mutex::new(nodes), first_leaf }
    }

    /// Takes `bytes` at every level of a leaf, or nothing.
    pub(super) fn take(&self, leaf: usize, bytes: u64) -> bool {
        let mut nodes = self.nodes.lock().expect("no holder panics");
        let mut at = Some(self.first_leaf + leaf);
        while let Some(index) = at {
            if nodes[index].usage + bytes > nodes[index].max {
                return false;
            }
            at = nodes[index].parent;
        }
        at = Some(self.first_leaf + leaf);
        while let Some(index) = at {
            nodes[index].usage += bytes;
            at = nodes[index].parent;
        }
        true
    }

    pub(super) fn give(&self, leaf: usize, bytes: u64) {
        let mut nodes = self.nodes.lock().expect("no holder panics");
        let mut at = Some(self.first_leaf + leaf);
        while let Some(index) = at {
            nodes[index].usage -= bytes;
            at = nodes[index].parent;
        }
    }

    pub(super) fn usage(&self) -> u64 {
        self.nodes.lock().expect("no holder panics").iter().map(|node| node.usage).sum()
    }
}

/// Pairs on the shared counter.
pub(super) struct FlatPairs {
    pub(super) counter: FlatAtomic,
    pub(super) bytes: u64,
    pub(super) statistics: super::pair::Statistics,
}

impl Work for FlatPairs {
    fn batch(&self, _: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
        for _ in 0..count {
            if !self.counter.take(self.bytes) {
                return Err(super::pair::refused("the flat counter"));
            }
            self.statistics.count(self.bytes);
            self.counter.give(self.bytes);
            self.statistics.count(self.bytes);
        }
        Ok(count)
    }
}

/// Two compare-and-swaps on one word, and nothing else.
pub(super) struct BarePairs {
    pub(super) counter: FlatAtomic,
    pub(super) bytes: u64,
}

impl Work for BarePairs {
    fn batch(&self, _: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
        for _ in 0..count {
            self.counter.swap_in(self.bytes);
            self.counter.swap_in(self.bytes.wrapping_neg());
        }
        Ok(count)
    }
}

/// Pairs on the tree behind the mutex.
pub(super) struct MutexPairs {
    pub(super) tree: MutexTree,
    /// The leaves of each thread.
    pub(super) leaves: Vec<std::ops::Range<usize>>,
    pub(super) bytes: u64,
    pub(super) statistics: super::pair::Statistics,
}

impl Work for MutexPairs {
    fn batch(&self, thread: usize, cursor: &mut usize, count: u64) -> Result<u64, Error> {
        let leaves = &self.leaves[thread];
        let mut at = *cursor;
        for _ in 0..count {
            let leaf = leaves.start + at;
            if !self.tree.take(leaf, self.bytes) {
                return Err(super::pair::refused("the tree behind the mutex"));
            }
            self.statistics.count(self.bytes);
            self.tree.give(leaf, self.bytes);
            self.statistics.count(self.bytes);
            at = if leaf + 1 == leaves.end { 0 } else { at + 1 };
        }
        *cursor = at;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flat_counter_takes_up_to_its_limit_and_not_a_byte_more() {
        let counter = FlatAtomic { usage: AtomicU64::new(0), max: 10 };
        assert!(counter.take(10));
        assert!(!counter.take(1));
        assert_eq!(counter.usage(), 10);
        counter.give(10);
        assert_eq!(counter.usage(), 0);
    }

    #[test]
    fn bare_pairs_leave_nothing() {
        let pairs = BarePairs { counter: FlatAtomic::new(), bytes: 64 };
        assert_eq!(pairs.batch(0, &mut 0, 10).unwrap(), 10);
        assert_eq!(pairs.counter.usage(), 0);
        pairs.counter.swap_in(7);
        assert_eq!(pairs.counter.usage(), 7);
    }

    #[test]
    fn the_mutex_tree_moves_every_level_or_none() {
        let tree = MutexTree::new(3, 2);
        tree.nodes.lock().unwrap()[0].max = 15;
        assert!(tree.take(0, 10));
        assert_eq!(tree.usage(), 30, "three counters of ten bytes");
        assert!(!tree.take(1, 10), "the root refuses");
        assert_eq!(tree.usage(), 30);
        tree.give(0, 10);
        assert_eq!(tree.usage(), 0);
    }

    #[test]
    fn a_mutex_tree_of_depth_one_is_its_root() {
        let tree = MutexTree::new(1, 1);
        assert!(tree.take(0, 10));
        assert_eq!(tree.usage(), 10);
    }
}
