//! Refill: an uncharge for which the stock had no room returns a batch.
//!
//! An uncharge that finds no stock starts one, so a thread that only frees batches too. Overflow returns one batch and
//! keeps one (hysteresis). The kernel empties the stock on overflow; a free and an allocation at the edge then walk the
//! tree each time. Bytes between the word and the counters are marked PENDING, as in `batch`, or are the caller's own,
//! which is uncharging them.

use memgroup_sync::interleave;

use crate::charge::evict;
use crate::control::aftermath;
use crate::counter::chain;
use crate::lifecycle::residence;
use crate::state::stats::builtin::memory;
use crate::stats::update::count;
use crate::stock::{Pending, Stock, next_cap, withdraw_closed};
use crate::tree::handle::Group;
use crate::tree::node::Node;

/// Uncharges `bytes`, which lie in the stock by now, above its cap or in spite of its mark.
pub(crate) fn uncharge_miss(stock: Stock, bytes: u64) {
    let node = stock.node;
    let owed = trim(&stock, bytes);
    drop(stock);
    repay(node, owed);
}

/// Uncharges `bytes` on `slot`, which the fast path did not try.
pub(crate) fn uncharge_in_slot(node: &'static Node, slot: usize, bytes: u64) {
    if node.stocks(bytes) {
        let admitted = || if residence::admit(node, slot) { Stock::enter(node, slot) } else { None };
        if let Some(stock) = Stock::enter(node, slot).or_else(admitted) {
            if !stock.put(bytes).takes(bytes) {
                uncharge_miss(stock, bytes);
            }
            return;
        }
    }
    if bytes == 0 {
        drop(Group::adopted(node));
    } else {
        aftermath::uncharge_counters(node, bytes);
    }
}

/// Returns bytes to the counters that were taken out of a stock.
pub(crate) fn repay(node: &'static Node, bytes: u64) {
    if bytes > 0 {
        aftermath::uncharge_counters(node, bytes);
    }
}

/// After `bytes` were added to the word: takes them out again if the word is closed. Else it brings the word back within its cap, by a
/// larger cap or by returning a batch. Returns the bytes that the caller returns to the counters itself.
#[must_use = "the bytes are to be returned to the counters"]
pub(crate) fn trim(stock: &Stock, bytes: u64) -> u64 {
    let (node, slot) = (stock.node, stock.slot);
    let shared = node.shared();
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
        let grown = growth > 0 && held <= wanted && evict::reserve(node, slot, growth);
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
        if !stock.change(word, next) {
            if grown {
                shared.budget.give_back(slot, growth);
            }
            continue;
        }
        if pending {
            // PENDING holds off removal, and with it the release of the node that is counted for.
            let _pending = Pending::begun(stock);
            count(node, memory::STOCK_RETURNS, 1);
            interleave::point();
            chain::uncharge_held(node, overflow);
            aftermath::fallen(node);
            return 0;
        }
        return overflow;
    }
}
