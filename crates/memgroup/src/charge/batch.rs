//! Batch: a charge that the stock did not serve buys a batch for itself and for later charges, if
//! the limits leave room for one.
//!
//! It sets PENDING in the word, charges the counters, and then deposits the surplus and clears
//! PENDING by one compare-and-swap. So a thread that is about to refuse a charge can always take a
//! prepaid byte, or wait for it.

use memgroup_sync::interleave;

use crate::base::effort::Effort;
use crate::base::mutation::{self, Mutation};
use crate::charge::evict;
use crate::control::{aftermath, high};
use crate::counter::chain::{self, Climb, Until};
use crate::state::counter::Purpose;
use crate::state::stats::builtin::memory;
use crate::state::stock_word::Word;
use crate::stats::update::count;
use crate::stock::grant::{self, Grant};
use crate::stock::{Pending, Stock, next_cap};
use crate::tree::node::Node;

/// The most that one slot prepays above `high`: little compared with the debt that makes a thread
/// wait, and enough for small charges.
const ABOVE_HIGH: u64 = 64 << 10;

enum Purchase {
    /// The stock had enough after all, so nothing was bought.
    Served,
    /// The charge and a batch were bought: this many bytes in all.
    Bought(u64),
    /// Nothing was bought. The charge must still be made exactly.
    Declined,
}

/// Buys a batch that includes `bytes`, or spends prepaid bytes after all. Returns whether the
/// charge is made.
pub(crate) fn buy(node: &'static Node, slot: usize, bytes: u64, effort: Effort) -> bool {
    let purchase = buy_batch(node, slot, bytes);
    if let Purchase::Served = purchase {
        return true;
    }
    count(node, memory::STOCK_MISSES, 1);
    let Purchase::Bought(taken) = purchase else { return false };
    count(node, memory::STOCK_REFILLS, 1);
    high::after_charge(node, Until::Top, taken, effort);
    true
}

/// Returns the part of the chain's headroom that one slot may prepay. All slots together may
/// prepay at most half of it.
fn share_of_headroom(node: &'static Node, bytes: u64) -> u64 {
    let slots = 2 * node.shared().source.slots() as u64;
    chain::headroom_to_prepay(node, bytes + slots * ABOVE_HIGH).saturating_sub(bytes) / slots
}

fn buy_batch(node: &'static Node, slot: usize, bytes: u64) -> Purchase {
    let shared = node.shared();
    if !node.stocks(bytes) {
        return Purchase::Declined;
    }
    let Some(stock) = Stock::of(node, slot) else {
        return Purchase::Declined;
    };
    loop {
        if stock.spend(bytes) {
            return Purchase::Served;
        }
        let word = stock.look();
        if word.is_pending() {
            return Purchase::Declined;
        }
        let is_barred = grant::is_barred(node);
        if is_barred && !word.is_open() {
            node.back_off(evict::REFUSED);
            return Purchase::Declined;
        }
        interleave::point();
        let share = share_of_headroom(node, bytes);
        if share < bytes {
            // Near a limit charges are exact.
            return Purchase::Declined;
        }
        let wanted = next_cap(word, bytes, shared.stock_cap_max()).min((2 * share).next_power_of_two());
        let cap =
            if wanted > word.room() && is_barred { word.room() } else { reserve_up_to(&stock, word, wanted) };
        let surplus = (cap / 2).min(share);
        if surplus >= bytes && stock.change(word, word.with_pending()) {
            return charge_batch(&stock, word, cap, Batch { bytes, surplus });
        }
        shared.budget.give_back(slot, cap.saturating_sub(word.cap()));
        if surplus < bytes {
            return Purchase::Declined;
        }
    }
}

/// Returns the cap that this stock may have: `wanted` if the slot's budget and the shares above
/// leave enough, or the one that it has.
fn reserve_up_to(stock: &Stock, word: Word, wanted: u64) -> u64 {
    if wanted > word.cap() && evict::reserve(stock, word, wanted) {
        return wanted;
    }
    let is_granted = word.is_open() || (word.cap() > 0 && evict::reserve(stock, word, word.cap()));
    if is_granted { word.cap() } else { 0 }
}

/// The bytes of a charge, and those that are prepaid with it.
struct Batch {
    bytes: u64,
    surplus: u64,
}

/// Charges the counters for a batch. PENDING must be set, and is cleared here. If `cap` is more
/// than the word's room, the stock gets it as its cap.
fn charge_batch(stock: &Stock, word: Word, cap: u64, Batch { bytes, surplus }: Batch) -> Purchase {
    let node = stock.node;
    let pending = Pending::begun(stock);
    let grant = (cap > word.room()).then(|| Grant::announce(&pending, word, cap));
    let purpose = if grant.is_some() { Purpose::Grant } else { Purpose::Charge };
    let climb = Climb { purpose, ..Climb::to(Until::Top) };
    let buy = || {
        chain::look_for_room(node, Until::Top, bytes + surplus)
            .and_then(|()| aftermath::charge(node, bytes + surplus, climb))
    };
    if mutation::active(Mutation::DepositBeforeCharge) {
        end(pending, grant, cap, surplus);
        return if buy().is_ok() { Purchase::Bought(bytes + surplus) } else { Purchase::Declined };
    }
    interleave::point();
    let bought = buy().is_ok();
    interleave::point();
    if !(bought && end(pending, grant, cap, surplus)) {
        node.shared().budget.give_back(stock.slot, cap.saturating_sub(word.cap()));
    }
    if bought { Purchase::Bought(bytes + surplus) } else { Purchase::Declined }
}

/// Leaves the surplus of a batch in the stock, with a larger cap if there is a grant for it.
/// Returns whether the stock has that cap now.
fn end(pending: Pending<'_>, grant: Option<Grant>, cap: u64, surplus: u64) -> bool {
    match grant {
        Some(grant) => pending.open(grant, cap, surplus),
        None => {
            pending.end(surplus);
            true
        }
    }
}
