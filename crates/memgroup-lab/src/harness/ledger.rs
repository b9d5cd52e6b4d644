//! The accounts that are compared: groups of the engine, and a tree of compare-and-swaps.
//!
//! ```text
//!   root ── level1 ── parent ──┬── leaf 0: holds `held` bytes from the start
//!                              └── leaf 1 ...
//! ```
//!
//! - I1. Both accounts have the same levels and limits.
//! - I2. At the end every level of every account is at zero.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::{Charge, Config};

use crate::harness::prelude::*;

const ROOM: &str = "a charge that fills a group up to its limit";

/// The groups of a row, and their limits. Every level without one here has a limit that is never
/// reached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Counters from a leaf to the root, both included.
    pub(crate) levels: usize,
    pub(crate) leaves: usize,
    pub(crate) leaf_max: u64,
    pub(crate) parent_max: u64,
    /// Bytes that leaf 0 holds from the start.
    pub(crate) held: u64,
}

impl Shape {
    /// So many leaves below four levels, without a limit that is ever reached.
    pub(crate) const fn leaves(leaves: usize) -> Shape {
        Shape { levels: 4, leaves, leaf_max: FAR_BYTES, parent_max: FAR_BYTES, held: 0 }
    }

    /// The limit and the parent of each level: the chain from the root, which is its own parent,
    /// then the leaves.
    fn levels(self) -> impl Iterator<Item = (u64, usize)> {
        let chain = self.levels - 1;
        (0..chain + self.leaves).map(move |level| {
            let max = match level {
                level if level == chain => self.leaf_max,
                level if level + 1 == chain => self.parent_max,
                _ => FAR_BYTES,
            };
            (max, level.min(chain).saturating_sub(1))
        })
    }
}

/// An account of some groups.
pub(crate) trait Ledger: Send + Sync + 'static {
    /// Proof of a charge.
    type Held: Send + 'static;

    /// Charges `bytes` to a leaf and all levels above it, or to none.
    fn charge(&self, leaf: usize, bytes: u64) -> Option<Self::Held>;

    fn free(&self, held: Self::Held);

    /// Frees the bytes held from the start. Then nothing is charged at any level (I2).
    fn end(&self) -> Result<()>;
}

/// Groups of the engine.
pub(crate) struct Engine {
    pub(crate) fixture: Fixture,
    held: Mutex<Option<Charge>>,
}

impl Engine {
    pub(crate) fn build(config: Config, shape: Shape) -> Result<Engine> {
        let config = config.groups_max((shape.leaves + shape.levels + 8) as u32);
        let fixture = Fixture::chain(config, shape.levels, shape.leaves)?;
        let leaf = &fixture.leaves[0];
        limit(leaf, shape.leaf_max)?;
        limit(&fixture.parent, shape.parent_max)?;
        let held = if shape.held > 0 { Some(leaf.try_charge(shape.held).or_wrong(ROOM)?) } else { None };
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

    fn end(&self) -> Result<()> {
        drop(lock(&self.held).take());
        self.fixture.check_empty()
    }
}

/// A charge of the control.
pub(crate) struct Ticket {
    leaf: usize,
    bytes: u64,
}

/// One compare-and-swap a level up under the limit, one subtraction a level to free.
pub(crate) struct CasTree {
    levels: Vec<CasLevel>,
    first_leaf: usize,
    held: u64,
}

/// A counter on a line of its own.
#[repr(align(64))]
pub(crate) struct CasLevel {
    usage: AtomicU64,
    max: u64,
    parent: usize,
}

// ORDERING: Relaxed, in all of the control: it is a bare sum that publishes nothing.
impl CasLevel {
    pub(crate) fn new(max: u64, parent: usize) -> CasLevel {
        CasLevel { usage: AtomicU64::new(0), max, parent }
    }

    #[inline(always)]
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let more = |usage| Some(usage + bytes).filter(|&more| more <= self.max);
        // ORDERING: Relaxed, in this block; the counter publishes no other memory, and the update
        // is atomic, so the limit holds. `usage` is read after the threads were joined.
        self.usage.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    #[inline(always)]
    pub(crate) fn give(&self, bytes: u64) {
        self.usage.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn usage(&self) -> u64 {
        self.usage.load(Ordering::Relaxed)
    }
}

impl CasTree {
    pub(crate) fn build(shape: Shape) -> Result<CasTree> {
        let levels = shape.levels().map(|(max, parent)| CasLevel::new(max, parent)).collect();
        let tree = CasTree { levels, first_leaf: shape.levels - 1, held: shape.held };
        ensure(tree.charge(0, shape.held).is_some(), || ROOM.to_owned())?;
        Ok(tree)
    }

    /// Gives bytes back from a leaf up to the level `top`; up to and with the root if there is
    /// none.
    #[inline(always)]
    fn give(&self, leaf: usize, top: Option<usize>, bytes: u64) {
        let mut at = self.first_leaf + leaf;
        while Some(at) != top {
            self.levels[at].give(bytes);
            if at == 0 {
                return;
            }
            at = self.levels[at].parent;
        }
    }
}

impl Ledger for CasTree {
    type Held = Ticket;

    #[inline(always)]
    fn charge(&self, leaf: usize, bytes: u64) -> Option<Ticket> {
        let mut at = self.first_leaf + leaf;
        while self.levels[at].take(bytes) {
            if at == 0 {
                return Some(Ticket { leaf, bytes });
            }
            at = self.levels[at].parent;
        }
        self.give(leaf, Some(at), bytes);
        None
    }

    #[inline(always)]
    fn free(&self, held: Ticket) {
        self.give(held.leaf, None, held.bytes);
    }

    fn end(&self) -> Result<()> {
        self.give(0, None, self.held);
        expect("bytes left in the CAS tree", self.levels.iter().map(CasLevel::usage).sum(), 0)
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
        ledger.free(first);
        ledger.free(second);
        ledger.end().unwrap();
    }

    #[test]
    fn keeps_the_limits_of_leaf_and_parent_in_both() {
        keeps_both_limits(&Engine::build(Config::new(), SHAPE).unwrap());
        keeps_both_limits(&Engine::build(Config::new().stock_cap_bytes(0), SHAPE).unwrap());
        keeps_both_limits(&CasTree::build(SHAPE).unwrap());
    }

    #[test]
    fn fails_when_a_charge_is_left() {
        let (engine, cas) = (Engine::build(Config::new(), SHAPE).unwrap(), CasTree::build(SHAPE).unwrap());
        let _left = (engine.charge(1, 10).unwrap(), cas.charge(1, 10).unwrap());
        assert!(engine.end().is_err() && cas.end().is_err());
    }
}
