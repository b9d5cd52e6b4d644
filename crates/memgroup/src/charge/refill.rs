//! Refill: an uncharge that takes the stock above its cap returns a batch.
//!
//! An uncharge that finds no stock opens one, so a thread that only frees batches, too. Overflow
//! returns one batch and keeps one (hysteresis). The kernel empties the stock on overflow, so that
//! a free and an allocation at the edge walk the tree each time. Bytes between the word and the
//! counters are marked PENDING, as in `batch`, or they are the caller's own, which it is
//! uncharging.

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

/// Uncharges `bytes` that were already put into the stock, although it is above its cap now or has
/// a mark that closes it.
pub(crate) fn uncharge_miss(stock: Stock, bytes: u64) {
    let node = stock.node;
    let owed = trim(&stock, bytes);
    drop(stock);
    repay(node, owed);
}

/// Uncharges `bytes` for a thread whose slot the fast path did not try.
#[inline(always)]
pub(crate) fn uncharge(node: &'static Node, bytes: u64) {
    if node.stocks(bytes) {
        uncharge_in_slot(node, node.shared().source.current(), bytes);
    } else {
        uncharge_past_stock(node, bytes);
    }
}

/// Uncharges `bytes` into the stock of `slot`, if the group has one there.
#[inline(never)]
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

/// Returns bytes that were taken out of a stock to the counters.
pub(crate) fn repay(node: &'static Node, bytes: u64) {
    if bytes > 0 {
        aftermath::uncharge_counters(node, bytes);
    }
}

/// Brings the word back within its cap after `bytes` were added to it: opens the stock, raises the
/// cap or returns a batch. Returns the bytes that the caller must return to the counters itself.
#[must_use = "the bytes must be returned to the counters"]
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
        // The caller takes these bytes into its own hands, and they hold the group. Besides its own
        // it takes no more than the grant has room for, because other threads' bytes may be above
        // the cap, too, and these threads may return before these bytes do.
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
            // The open stock keeps removal waiting, and with it the release of the node that is
            // counted for.
            count(node, memory::STOCK_RETURNS, 1);
            interleave::point();
            chain::uncharge_held(node, overflow);
            aftermath::fallen(node);
        }
        return 0;
    }
}

/// Takes a larger cap out of the budget, and announces a grant for it. Returns `None` if the
/// budget leaves no room or a level doesn't let the grant pass.
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
