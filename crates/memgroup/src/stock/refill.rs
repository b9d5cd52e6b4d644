//! The cold half of an uncharge: the stock had no room for what was just put into it.
//!
//! An uncharge that finds no stock starts one, so a thread that only frees batches too. Overflow returns one batch and
//! keeps one (hysteresis): the kernel empties the stock on overflow, and a free and an allocation at the edge
//! then walk the tree each time. Bytes between the word and the counters are marked PENDING, as in `consume`, or are the
//! caller's own, whose uncharge is under way.

use memgroup_sync::atomic::Ordering;
use memgroup_sync::interleave;

use super::word::Word;
use super::{Pending, budget, next_cap, withdraw_closed};
use crate::chain;
use crate::node::Node;

/// Uncharges `bytes` that the stock of `slot` did not take: they lie in the word, above its cap or in spite of its mark,
/// or (zero, or too many for a stock) nothing has been done yet.
#[cold]
#[inline(never)]
pub(crate) fn uncharge_miss(node: &'static Node, slot: usize, bytes: u64) {
    if bytes == 0 {
        node.unpin();
    } else if !node.stocks(bytes) {
        node.uncharge_counters(bytes);
    } else {
        trim(node, slot, bytes);
    }
}

/// After `bytes` were added to the word: takes them out again if it is closed, else brings it back within its cap, by a larger
/// cap or by returning a batch.
pub(super) fn trim(node: &'static Node, slot: usize, bytes: u64) {
    let shared = node.shared;
    let cell = node.stock.get(slot);
    loop {
        interleave::point();
        // ORDERING: Relaxed; the compare-and-swap below decides.
        let word = Word(cell.load(Ordering::Relaxed));
        if word.is_closed() {
            return withdraw_closed(node, slot, bytes);
        }
        if word.bytes() <= word.cap() as i64 {
            return;
        }
        let held = word.prepaid();
        let wanted = next_cap(word, bytes, shared.stock_cap_max).max(word.cap());
        let growth = wanted - word.cap();
        let grown = growth > 0 && held <= wanted && budget::reserve(node, slot, growth);
        let overflow = if grown {
            0
        } else if word.is_pending() {
            bytes.min(held)
        } else {
            held - word.cap() / 2
        };
        let next = if grown { word.capped(wanted) } else { word.less(overflow) }.harvested();
        let pending = !grown && !word.is_pending();
        let next = if pending { next.with_pending() } else { next };
        // ORDERING: AcqRel; with PENDING as in `consume::buy_batch`; Acquire for the bytes that leave.
        if cell.compare_exchange(word.0, next.0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            if grown {
                shared.budget.give_back(slot, growth);
            }
            continue;
        }
        node.stats.harvest(word.attempts());
        if pending {
            let _pending = Pending::begun(node, slot);
            node.stats.count_return();
            interleave::point();
            chain::uncharge_held(node, overflow);
        } else if overflow > 0 {
            node.uncharge_counters(overflow);
        }
        return;
    }
}
