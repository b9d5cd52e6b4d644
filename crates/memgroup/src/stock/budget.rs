//! Budget: how much all groups together may prepay in one slot.
//!
//! A stock reserves its cap here before it holds a byte, and keeps it until it is evicted or its group removed, so the
//! prepaid total of a slot never exceeds the budget. (A drain takes the bytes and leaves the cap: giving that back would
//! touch a second remote line for every slot.) The reserve moves on misses only. When nothing is left, a clock hand visits a
//! few of the slot's stocks: one that served charges since the last visit is spared (its attempts are harvested), one
//! that served none is returned to the counters and its reserve passed on.
//!
//! - I1. Σ bytes of a slot's words ≤ Σ caps of its words ≤ `reserved` of the slot ≤ budget.
//! - P1. A miss visits two stocks at the most and takes no lock. More would lap the hand within one round of many busy groups, and
//!   spare none of them.

use memgroup_percpu::{OutOfMemory, PerCpu};
use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::interleave;

use super::{Stock, count};
use crate::chain;
use crate::group::GroupId;
use crate::node::Node;

const VISITS: u32 = 2;

/// The reserves of every slot of one hierarchy.
pub(crate) struct Budget {
    reserved: PerCpu<AtomicU64>,
    hand: PerCpu<AtomicU64>,
    limit_bytes: u64,
}

impl Budget {
    pub(crate) fn new(slots: usize, limit_bytes: u64) -> Result<Budget, OutOfMemory> {
        Ok(Budget { reserved: PerCpu::try_new(slots)?, hand: PerCpu::try_new(slots)?, limit_bytes })
    }

    /// Takes `bytes` out of the slot's budget, all or nothing.
    pub(crate) fn reserve(&self, slot: usize, bytes: u64) -> bool {
        let reserved = self.reserved.get(slot);
        // ORDERING: Relaxed throughout; the sum alone matters, every change is an RMW on it (I1).
        reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
                now.checked_add(bytes).filter(|&sum| sum <= self.limit_bytes)
            })
            .is_ok()
    }

    pub(crate) fn give_back(&self, slot: usize, bytes: u64) {
        if bytes > 0 {
            // ORDERING: Relaxed, as in `reserve`.
            let before = self.reserved.get(slot).fetch_sub(bytes, Ordering::Relaxed);
            debug_assert!(before >= bytes);
        }
    }

    /// Bytes reserved now, slot by slot.
    pub(crate) fn reserved(&self) -> impl Iterator<Item = u64> + '_ {
        // ORDERING: Relaxed; a report.
        self.reserved.iter().map(|reserved| reserved.load(Ordering::Relaxed))
    }
}

/// Takes `bytes` out of the budget of `slot` for `node`, if need be from stocks of others that lie idle there.
pub(crate) fn reserve(node: &'static Node, slot: usize, bytes: u64) -> bool {
    let budget = &node.shared.budget;
    budget.reserve(slot, bytes) || (evict_idle(node, slot, bytes) && budget.reserve(slot, bytes))
}

/// Moves the slot's clock hand until `wanted` bytes of reserve came back or its visits are used up.
#[cold]
fn evict_idle(asking: &'static Node, slot: usize, wanted: u64) -> bool {
    let shared = asking.shared;
    let groups = u64::from(shared.places());
    let mut freed = 0;
    for _ in 0..u64::from(VISITS).min(groups) {
        // ORDERING: Relaxed; where the hand stands is a matter of fairness only.
        let at = shared.budget.hand.get(slot).fetch_add(1, Ordering::Relaxed) % groups;
        if let Some(node) = shared.node(GroupId(at as u32)).filter(|node| !std::ptr::eq(*node, asking)) {
            freed += visit(node, slot);
        }
        if freed >= wanted {
            return true;
        }
    }
    freed > 0
}

/// One stock under the hand: spared and harvested if it was used, else returned. Returns the reserve given back.
pub(super) fn visit(node: &'static Node, slot: usize) -> u64 {
    let Some(stock) = Stock::enter(node, slot) else { return 0 };
    let word = stock.look();
    if word.cap() == 0 || word.is_pending() || word.is_closed() {
        return 0;
    }
    let spared = word.is_used();
    let next = if spared { word.rested() } else { word.retired() };
    // One attempt: a word that moves is not idle.
    if stock.change(word, next.with_pending()).is_err() {
        return 0;
    }
    // The node cannot be released under us: PENDING holds off removal's last look.
    let pending = super::Pending::begun(&stock);
    count::charges(node, word.attempts());
    interleave::point();
    if spared {
        return 0;
    }
    count::drain(node, word.prepaid());
    chain::uncharge_held(node, word.prepaid());
    drop(pending);
    node.shared.budget.give_back(slot, word.cap());
    word.cap()
}
