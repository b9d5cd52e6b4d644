//! The cold half of an uncharge: the stock had no room for what was just put into it.
//!
//! An uncharge that finds no stock starts one, so a thread that only frees batches too. Overflow returns one batch and
//! keeps one (hysteresis): the kernel empties the stock on overflow, and a free and an allocation at the edge
//! then walk the tree each time. Bytes between the word and the counters are marked PENDING, as in `consume`, or are the
//! caller's own, whose uncharge is under way.

use memgroup_sync::interleave;

use super::{Pending, Stock, budget, count, next_cap, withdraw_closed};
use crate::chain;
use crate::node::Node;
use crate::residence;

/// Uncharges `bytes`, which lie in the stock by now, above its cap or in spite of its mark.
pub(crate) fn uncharge_miss(stock: Stock, bytes: u64) {
    let node = stock.node;
    let owed = trim(&stock, bytes);
    drop(stock);
    repay(node, owed);
}

/// Uncharges `bytes` that were put into no stock: they are none or too many, or there is no word.
#[cold]
#[inline(never)]
pub(crate) fn uncharge_untried(node: &'static Node, slot: usize, bytes: u64) {
    if bytes == 0 {
        node.unpin();
    } else if node.stocks(bytes) && residence::admit(node, slot) {
        node.uncharge_at(slot, bytes);
    } else {
        node.uncharge_counters(bytes);
    }
}

/// Returns to the counters what was taken out of a stock that has been left.
pub(super) fn repay(node: &'static Node, bytes: u64) {
    if bytes > 0 {
        node.uncharge_counters(bytes);
    }
}

/// After `bytes` were added to the word: takes them out again if it is closed, else brings it back within its cap, by a larger
/// cap or by returning a batch. Returns what the caller is to return to the counters itself.
#[must_use = "the bytes are to be returned to the counters"]
pub(super) fn trim(stock: &Stock, bytes: u64) -> u64 {
    let (node, slot) = (stock.node, stock.slot);
    let shared = node.shared;
    loop {
        interleave::point();
        let word = stock.look();
        if word.is_closed() {
            return withdraw_closed(stock, bytes);
        }
        if word.bytes() <= word.cap() as i64 {
            return 0;
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
        let next = if grown { word.capped(wanted) } else { word.less(overflow) };
        let pending = !grown && !word.is_pending();
        let next = if pending { next.with_pending() } else { next };
        if stock.change(word, next).is_err() {
            if grown {
                shared.budget.give_back(slot, growth);
            }
            continue;
        }
        if pending {
            // PENDING holds off removal, and with it the release of the node that is counted for.
            let _pending = Pending::begun(stock);
            count::one_return(node);
            interleave::point();
            chain::uncharge_held(node, overflow);
            return 0;
        }
        return overflow;
    }
}
