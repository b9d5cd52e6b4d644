//! Refill: an uncharge for which the stock had no room returns a batch.
//!
//! An uncharge that finds no stock starts one, so a thread that only frees batches too. Overflow returns one batch and
//! keeps one (hysteresis). The kernel empties the stock on overflow; a free and an allocation at the edge then walk the
//! tree each time. Bytes between the word and the counters are marked PENDING, as in `batch`, or are the caller's own,
//! which is uncharging them.

use memgroup_sync::interleave;

use crate::base::mutation::{self, Mutation};
use crate::charge::evict;
use crate::control::aftermath;
use crate::counter::chain;
use crate::state::stats::builtin::memory;
use crate::state::stock_word::Word;
use crate::stats::update::count;
use crate::stock::grant::{self, Grant};
use crate::stock::{Pending, Stock, next_cap, withdraw};
use crate::tree::handle::Group;
use crate::tree::node::Node;

/// Uncharges `bytes`, which lie in the stock by now, above its cap or in spite of its mark.
pub(crate) fn uncharge_miss(stock: Stock, bytes: u64) {
    let node = stock.node;
    let owed = trim(&stock, bytes);
    drop(stock);
    repay(node, owed);
}

/// Uncharges `bytes` for a thread whose slot the fast path did not try.
pub(crate) fn uncharge(node: &'static Node, bytes: u64) {
    if node.stocks(bytes) {
        uncharge_in_slot(node, node.shared().source.current(), bytes);
    } else {
        uncharge_past_stock(node, bytes);
    }
}

/// Uncharges `bytes` into the stock of `slot`, if the group has one there.
pub(crate) fn uncharge_in_slot(node: &'static Node, slot: usize, bytes: u64) {
    if node.stocks(bytes)
        && let Some(stock) = Stock::of(node, slot)
    {
        if !stock.put(bytes).takes(bytes) {
            uncharge_miss(stock, bytes);
        }
    } else {
        uncharge_past_stock(node, bytes);
    }
}

fn uncharge_past_stock(node: &'static Node, bytes: u64) {
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

/// After `bytes` were added to the word: brings it back within its cap, by opening the stock, by a larger cap or by returning a batch.
/// Returns the bytes that the caller returns to the counters itself.
#[must_use = "the bytes are to be returned to the counters"]
pub(crate) fn trim(stock: &Stock, bytes: u64) -> u64 {
    let node = stock.node;
    loop {
        interleave::point();
        let word = stock.look();
        let (room, held) = (word.room(), word.prepaid());
        if word.bytes() <= room as i64 {
            return 0;
        }
        let takes_own = !word.is_open() || word.is_pending();
        if takes_own && (word.is_pending() || grant::is_barred(node)) {
            return withdraw(stock, bytes);
        }
        // In hand: the group is held by them. Beside the caller's own no more than the grant has room for: others may be above the cap too, and
        // return before these bytes do.
        let all = mutation::active(Mutation::OverflowTakesAll);
        let most = if all { held } else { bytes + room / 2 };
        let overflow = most.min(held - room / 2);
        if !stock.change(word, word.less(overflow).with_pending()) {
            continue;
        }
        let pending = Pending::begun(stock);
        interleave::point();
        let cap = next_cap(word, bytes, node.shared().stock_cap_max()).max(word.cap());
        if held <= cap
            && let Some(grant) = reserve(&pending, word, cap)
        {
            if !pending.open(grant, cap, overflow) {
                node.shared().budget.give_back(stock.slot, cap - word.cap());
            }
        } else if takes_own {
            drop(pending);
            return overflow;
        } else {
            // The open stock holds off removal, and with it the release of the node that is counted for.
            count(node, memory::STOCK_RETURNS, 1);
            interleave::point();
            chain::uncharge_held(node, overflow);
            aftermath::fallen(node);
        }
        return 0;
    }
}

/// Takes a larger cap out of the budget, and gets a grant for it that every level lets pass.
fn reserve(pending: &Pending<'_>, word: Word, cap: u64) -> Option<Grant> {
    let &Stock { node, slot, .. } = pending.stock;
    if cap == word.room() || !evict::reserve(pending.stock, word, cap) {
        return None;
    }
    let grant = Grant::announce(pending, word, cap);
    if grant.passes() {
        return Some(grant);
    }
    node.shared().budget.give_back(slot, cap - word.cap());
    None
}
