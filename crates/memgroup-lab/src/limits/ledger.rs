//! The accounts that are compared: the engine with and without the stock, a tree of compare-and-swaps, and a tree behind a mutex.
//!
//! ```text
//!   root ── level1 ── ... ── parent ──┬── leaf 0: holds `held` bytes from the start
//!                                     └── leaf 1 ...
//! ```
//!
//! - I1. Each account has the same levels and limits, and no leaf but those that the load charges is ever charged.
//! - I2. At the end every level of every account is at zero.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::{Charge, Config, Group};
use memgroup_percpu::SlotSource;

use crate::harness::prelude::*;

const ROOM: &str = "a charge that fills a group up to its limit";

/// The groups of a case, and their limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Counters from a leaf to the root, both included.
    pub(super) levels: usize,
    pub(super) leaves: usize,
    /// Limits of leaf 0 and of the parent of all leaves. Every other level has one that is never reached.
    pub(super) leaf_max: u64,
    pub(super) parent_max: u64,
    pub(super) leaf_high: Option<u64>,
    pub(super) parent_high: Option<u64>,
    /// Bytes that leaf 0 holds from the start.
    pub(super) held: u64,
    /// The engine's budget for prepaid bytes of a slot, where it is not the default.
    pub(super) budget: Option<u64>,
}

impl Shape {
    /// So many leaves below four levels, without a limit that is ever reached.
    pub(super) const fn leaves(leaves: usize) -> Shape {
        Shape {
            levels: super::LEVELS,
            leaves,
            leaf_max: FAR_BYTES,
            parent_max: FAR_BYTES,
            leaf_high: None,
            parent_high: None,
            held: 0,
            budget: None,
        }
    }
}

/// The four accounts, in the order of a table's columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Engine,
    /// The engine with the stock's cap at zero: every level, each time.
    NoStock,
    Cas,
    Mutex,
}

impl Kind {
    pub(super) const ALL: [Kind; 4] = [Kind::Engine, Kind::NoStock, Kind::Cas, Kind::Mutex];

    pub(super) fn name(self) -> &'static str {
        ["memgroup", "stock off", "CAS tree", "mutex tree"][self as usize]
    }
}

/// An account of some groups.
pub(super) trait Ledger: Send + Sync + 'static {
    /// Proof of a charge.
    type Held: Send + 'static;

    /// Charges `bytes` to a leaf and all levels above it, or none.
    fn charge(&self, leaf: usize, bytes: u64) -> Option<Self::Held>;

    fn free(&self, held: Self::Held);

    /// Charges served by the stock, all charges, and prepaid bytes so far; zeros where there is no stock.
    fn served(&self) -> Served;

    /// Frees the bytes held from the start. Then nothing is charged at any level (I2).
    fn end(&self) -> Result<()>;
}

/// Sums over all leaves.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Served {
    pub(super) hits: u64,
    pub(super) charges: u64,
    pub(super) prepaid_bytes: u64,
}

/// Groups of the engine.
pub(super) struct Engine {
    pub(super) fixture: Fixture,
    held: Mutex<Option<Charge>>,
}

impl Engine {
    pub(super) fn build(shape: Shape, stock: bool, slots: SlotSource) -> Result<Engine> {
        let mut config = Config::with_slots(slots).groups_max((shape.leaves + shape.levels + 8) as u32);
        if let Some(budget) = shape.budget {
            config = config.stock_budget_bytes(budget);
        }
        let config = if stock { config } else { config.stock_cap_bytes(0) };
        let fixture = Fixture::chain(config, shape.levels, shape.leaves)?;
        let leaf = &fixture.leaves[0];
        limit(leaf, shape.leaf_max)?;
        limit(&fixture.parent, shape.parent_max)?;
        let held = match shape.held {
            0 => None,
            bytes => Some(leaf.try_charge(bytes).or_wrong(ROOM)?),
        };
        leaf.set_high(shape.leaf_high).set_up("high")?;
        fixture.parent.set_high(shape.parent_high).set_up("high")?;
        Ok(Engine { fixture, held: Mutex::new(held) })
    }
}

impl Ledger for Engine {
    type Held = Charge;

    #[inline(always)]
    fn charge(&self, leaf: usize, bytes: u64) -> Option<Charge> {
        self.fixture.leaves[leaf].try_charge(bytes).ok()
    }

    #[inline(always)]
    fn free(&self, held: Charge) {
        drop(held);
    }

    fn served(&self) -> Served {
        let mut served = Served::default();
        for seen in self.fixture.leaves.iter().map(Group::stock) {
            served.hits += seen.hits;
            served.charges += seen.hits + seen.misses;
            served.prepaid_bytes += seen.prepaid_bytes;
        }
        served
    }

    fn end(&self) -> Result<()> {
        drop(lock(&self.held).take());
        self.fixture.check_empty()
    }
}

/// A charge of a control.
pub(super) struct Ticket {
    leaf: usize,
    bytes: u64,
}

/// One compare-and-swap a level up under the limit, one subtraction a level to free. Each level has a line of its own.
pub(super) struct CasTree {
    levels: Vec<CasLevel>,
    first_leaf: usize,
    held: u64,
}

#[repr(align(64))]
pub(super) struct CasLevel {
    usage: AtomicU64,
    max: u64,
    parent: usize,
}

impl CasLevel {
    /// A level without a parent of its own.
    pub(super) fn new(max: u64) -> CasLevel {
        CasLevel { usage: AtomicU64::new(0), max, parent: 0 }
    }

    pub(super) fn usage(&self) -> u64 {
        // ORDERING: Relaxed; a sum of moving numbers.
        self.usage.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn take(&self, bytes: u64) -> bool {
        // ORDERING: Relaxed, here and below: the control is a bare sum that publishes nothing.
        let mut usage = self.usage.load(Ordering::Relaxed);
        loop {
            if usage + bytes > self.max {
                return false;
            }
            // ORDERING: Relaxed, as above.
            match self.usage.compare_exchange_weak(usage, usage + bytes, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(newer) => usage = newer,
            }
        }
    }

    #[inline(always)]
    pub(super) fn give(&self, bytes: u64) {
        // ORDERING: Relaxed, as above.
        self.usage.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The limit and the parent of each level: the chain from the root, which is its own parent, then the leaves.
fn levels(shape: Shape) -> impl Iterator<Item = (u64, usize)> {
    let chain = shape.levels - 1;
    (0..chain + shape.leaves).map(move |level| {
        let max = match level {
            level if level == chain => shape.leaf_max,
            level if level + 1 == chain => shape.parent_max,
            _ => FAR_BYTES,
        };
        (max, level.min(chain).saturating_sub(1))
    })
}

impl CasTree {
    pub(super) fn build(shape: Shape) -> Result<CasTree> {
        let levels = levels(shape).map(|(max, parent)| CasLevel { parent, ..CasLevel::new(max) });
        let tree = CasTree { levels: levels.collect(), first_leaf: shape.levels - 1, held: shape.held };
        ensure(tree.charge(0, shape.held).is_some(), || ROOM.to_owned())?;
        Ok(tree)
    }
}

impl Ledger for CasTree {
    type Held = Ticket;

    #[inline(always)]
    fn charge(&self, leaf: usize, bytes: u64) -> Option<Ticket> {
        let mut at = self.first_leaf + leaf;
        loop {
            let level = &self.levels[at];
            if !level.take(bytes) {
                let mut below = self.first_leaf + leaf;
                while below != at {
                    self.levels[below].give(bytes);
                    below = self.levels[below].parent;
                }
                return None;
            }
            if at == 0 {
                return Some(Ticket { leaf, bytes });
            }
            at = level.parent;
        }
    }

    #[inline(always)]
    fn free(&self, held: Ticket) {
        let mut at = self.first_leaf + held.leaf;
        loop {
            let level = &self.levels[at];
            level.give(held.bytes);
            if at == 0 {
                return;
            }
            at = level.parent;
        }
    }

    fn served(&self) -> Served {
        Served::default()
    }

    fn end(&self) -> Result<()> {
        self.free(Ticket { leaf: 0, bytes: self.held });
        let left: u64 = self.levels.iter().map(CasLevel::usage).sum();
        expect("bytes left in the CAS tree", left, 0)
    }
}

/// The same levels behind one mutex.
pub(super) struct MutexTree {
    levels: Mutex<Vec<MutexLevel>>,
    first_leaf: usize,
    held: u64,
}

struct MutexLevel {
    usage: u64,
    max: u64,
    parent: usize,
}

/// Applies `change` to each level from a leaf to the root, until it returns false; the level at which it did.
fn climb(levels: &mut [MutexLevel], leaf: usize, change: impl Fn(&mut MutexLevel) -> bool) -> Option<usize> {
    let mut at = leaf;
    loop {
        let level = &mut levels[at];
        if !change(level) {
            return Some(at);
        }
        if at == 0 {
            return None;
        }
        at = level.parent;
    }
}

impl MutexTree {
    pub(super) fn build(shape: Shape) -> Result<MutexTree> {
        let levels = levels(shape).map(|(max, parent)| MutexLevel { usage: 0, max, parent }).collect();
        let tree = MutexTree { levels: Mutex::new(levels), first_leaf: shape.levels - 1, held: shape.held };
        ensure(tree.charge(0, shape.held).is_some(), || ROOM.to_owned())?;
        Ok(tree)
    }
}

impl Ledger for MutexTree {
    type Held = Ticket;

    #[inline(always)]
    fn charge(&self, leaf: usize, bytes: u64) -> Option<Ticket> {
        let (mut levels, first) = (lock(&self.levels), self.first_leaf + leaf);
        if climb(&mut levels, first, |level| level.usage + bytes <= level.max).is_some() {
            return None;
        }
        climb(&mut levels, first, |level| {
            level.usage += bytes;
            true
        });
        Some(Ticket { leaf, bytes })
    }

    #[inline(always)]
    fn free(&self, held: Ticket) {
        climb(&mut lock(&self.levels), self.first_leaf + held.leaf, |level| {
            level.usage -= held.bytes;
            true
        });
    }

    fn served(&self) -> Served {
        Served::default()
    }

    fn end(&self) -> Result<()> {
        self.free(Ticket { leaf: 0, bytes: self.held });
        let left: u64 = lock(&self.levels).iter().map(|level| level.usage).sum();
        expect("bytes left in the mutex tree", left, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { leaf_max: 100, parent_max: 150, held: 40, ..Shape::leaves(2) };

    /// Leaf 0 has 100 bytes, of which 40 are held; its parent 150.
    fn keeps_both_limits(ledger: &impl Ledger) {
        assert!(ledger.charge(0, 61).is_none(), "above the leaf's limit");
        let first = ledger.charge(0, 60).expect("up to the leaf's limit");
        assert!(ledger.charge(1, 51).is_none(), "above the parent's limit");
        let second = ledger.charge(1, 50).expect("up to the parent's limit");
        assert!(ledger.charge(1, 1).is_none(), "the parent is full");
        assert!(ledger.end().is_err(), "two charges are left");
        ledger.free(first);
        ledger.free(second);
    }

    #[test]
    fn keeps_the_limits_of_leaf_and_parent_in_all_trees() {
        for stock in [true, false] {
            keeps_both_limits(&Engine::build(SHAPE, stock, SlotSource::detect()).unwrap());
        }
        keeps_both_limits(&CasTree::build(SHAPE).unwrap());
        keeps_both_limits(&MutexTree::build(SHAPE).unwrap());
    }

    #[test]
    fn ends_at_zero_when_all_is_freed() {
        let (cas, mutex) = (CasTree::build(SHAPE).unwrap(), MutexTree::build(SHAPE).unwrap());
        cas.end().unwrap();
        mutex.end().unwrap();
        Engine::build(SHAPE, true, SlotSource::detect()).unwrap().end().unwrap();
    }

    #[test]
    fn gives_each_level_of_the_cas_tree_a_line() {
        assert_eq!(align_of::<CasLevel>(), 64);
    }
}
