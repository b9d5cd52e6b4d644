//! The cold half of a charge: the stock could not serve it.
//!
//! What the attempt subtracted is put back first. Then a miss buys a batch for itself and the charges to come, if the limits
//! leave room for one; else it charges exactly what was asked. The batch is taken between two marks: PENDING is set in
//! the word, the counters are charged, the surplus is deposited and PENDING cleared by one compare-and-swap. So there is
//! never a prepaid byte that a refuser can neither take nor wait for.

use memgroup_sync::interleave;

use super::word::Word;
use super::{Pending, Stock, budget, count, listed, next_cap, refill};
use crate::chain::{self, Refused, Until};
use crate::deny;
use crate::error::ChargeError;
use crate::high;
use crate::mutation::{self, Mutation};
use crate::node::Node;
use crate::refusal;
use crate::residence;

enum Purchase {
    /// The stock had enough after all; nothing was bought.
    Served,
    /// The charge and a batch were bought, so many bytes in all.
    Bought(u64),
    /// The charge is still to be made, exactly.
    Declined,
}

/// Charges `bytes` after an attempt on `stock`, which found `found`, did not serve them outright.
pub(crate) fn charge_miss(stock: Stock, bytes: u64, found: Word) -> Result<(), ChargeError> {
    let (node, slot) = (stock.node, stock.slot);
    interleave::point();
    if found.is_full() {
        harvest(&stock);
    }
    if !found.is_listed() {
        listed::list(&stock);
    }
    if found.covers(bytes) {
        return Ok(());
    }
    let owed = put_back(&stock, bytes);
    drop(stock);
    refill::repay(node, owed);
    charge_unserved(node, slot, bytes)
}

/// Charges `bytes` that no stock was tried for: they are none or too many, or there is no word to try.
#[cold]
#[inline(never)]
pub(crate) fn charge_untried(node: &'static Node, slot: usize, bytes: u64) -> Result<(), ChargeError> {
    if bytes == 0 {
        return charge_nothing(node);
    }
    deny::draw(node, bytes)?;
    if !node.shared.has_stock() {
        return charge_exact(node, Until::Top, bytes);
    }
    if node.stocks(bytes) && residence::make_word(node, slot) {
        return node.charge_at(slot, bytes);
    }
    count::charges(node, 1);
    charge_unserved(node, slot, bytes)
}

/// Charges `bytes` that the stock did not serve; their attempt is counted.
fn charge_unserved(node: &'static Node, slot: usize, bytes: u64) -> Result<(), ChargeError> {
    if buy(node, slot, bytes) { Ok(()) } else { charge_exact(node, Until::Top, bytes) }
}

/// Charges `bytes` of a charge that no stock was tried for; what becomes of a refusal `refused` says.
pub(crate) fn charge_unserved_or(
    node: &'static Node,
    bytes: u64,
    refused: impl FnOnce(Refused) -> Result<(), Refused>,
) -> Result<(), Refused> {
    let slot = node.source.current();
    count::charges(node, 1);
    // A word for the slot, if there can be one, before the batch is bought.
    let _has_word = node.stocks(bytes) && residence::make_word(node, slot);
    if !buy(node, slot, bytes) {
        chain::try_charge(node, Until::Top, bytes).or_else(refused)?;
        high::charged(node, Until::Top, bytes);
    }
    Ok(())
}

/// Charges `bytes` with a batch, or from the stock after all; whether it did.
fn buy(node: &'static Node, slot: usize, bytes: u64) -> bool {
    match buy_batch(node, slot, bytes) {
        Purchase::Served => true,
        Purchase::Bought(taken) => {
            count::miss(node);
            count::refill(node);
            high::charged(node, Until::Top, taken);
            true
        }
        Purchase::Declined => {
            count::miss(node);
            false
        }
    }
}

/// Charges exactly `bytes` to the counters; a refusal is final.
pub(crate) fn charge_exact(node: &'static Node, until: Until, bytes: u64) -> Result<(), ChargeError> {
    chain::try_charge(node, until, bytes).or_else(|refused| refusal::decide(node, until, bytes, refused))?;
    high::charged(node, until, bytes);
    Ok(())
}

/// Spends what is prepaid in this thread's slot, for a charge that has other ways if there is too little.
pub(crate) fn consume_prepaid(node: &'static Node, bytes: u64) -> bool {
    let spent = node.stocks(bytes)
        && Stock::enter(node, node.source.current()).is_some_and(|stock| stock.spend(bytes));
    if spent {
        count::charges(node, 1);
    }
    spent
}

/// A charge of zero bytes keeps its group as a handle does.
fn charge_nothing(node: &'static Node) -> Result<(), ChargeError> {
    let seen = node.counter.read();
    if seen.offline {
        return Err(ChargeError::of(node, seen, 0));
    }
    node.pin();
    Ok(())
}

/// Takes the attempts out of a word that is full of them, be it closed or not.
fn harvest(stock: &Stock) {
    let mut word = stock.look();
    while word.is_full() {
        match stock.change(word, word.harvested()) {
            Ok(()) => return count::charges(stock.node, word.attempts()),
            Err(newer) => word = newer,
        }
    }
}

/// Undoes the subtraction of an attempt that was not served. Like a refill, it may find the stock closed meanwhile, or filled
/// up by others who did not see what the attempt hid. Returns what the caller is to return to the counters.
fn put_back(stock: &Stock, bytes: u64) -> u64 {
    if stock.put(bytes).takes(bytes) || mutation::active(Mutation::UndoneAttemptIgnoresClosed) {
        0
    } else {
        refill::trim(stock, bytes)
    }
}

/// What the chain's headroom lets one slot prepay: all slots together at most half of it.
fn share_of_headroom(node: &'static Node, bytes: u64) -> u64 {
    chain::headroom_to_prepay(node).saturating_sub(bytes) / (2 * node.source.slots() as u64)
}

fn buy_batch(node: &'static Node, slot: usize, bytes: u64) -> Purchase {
    let shared = node.shared;
    if !node.stocks(bytes) {
        return Purchase::Declined;
    }
    let Some(stock) = Stock::enter(node, slot) else {
        return Purchase::Declined;
    };
    loop {
        if stock.spend(bytes) {
            return Purchase::Served;
        }
        let word = stock.look();
        if word.is_closed() || word.is_pending() {
            return Purchase::Declined;
        }
        interleave::point();
        let share = share_of_headroom(node, bytes);
        if share < bytes {
            // Near a limit batches are exact.
            return Purchase::Declined;
        }
        let wanted = next_cap(word, bytes, shared.stock_cap_max).min((2 * share).next_power_of_two());
        let cap = reserve_up_to(&stock, word, wanted);
        let surplus = (cap / 2).min(share);
        let next = word.capped(cap).with_pending();
        if surplus >= bytes && stock.change(word, next).is_ok() {
            return charge_batch(&stock, bytes, surplus);
        }
        shared.budget.give_back(slot, cap - word.cap());
        if surplus < bytes {
            return Purchase::Declined;
        }
    }
}

/// The cap this stock may have: `wanted` if the slot's budget has it, else the one it has.
fn reserve_up_to(stock: &Stock, word: Word, wanted: u64) -> u64 {
    let grows = wanted > word.cap() && budget::reserve(stock.node, stock.slot, wanted - word.cap());
    if grows { wanted } else { word.cap() }
}

/// Charges the counters for `bytes` and `surplus` together; PENDING is set and is cleared here.
fn charge_batch(stock: &Stock, bytes: u64, surplus: u64) -> Purchase {
    let node = stock.node;
    let pending = Pending::begun(stock);
    if mutation::active(Mutation::DepositBeforeCharge) {
        pending.end(surplus);
        return match chain::try_charge(node, Until::Top, bytes + surplus) {
            Ok(()) => Purchase::Bought(bytes + surplus),
            Err(_) => Purchase::Declined,
        };
    }
    interleave::point();
    let bought = chain::try_charge(node, Until::Top, bytes + surplus).is_ok();
    interleave::point();
    pending.end(if bought { surplus } else { 0 });
    if bought { Purchase::Bought(bytes + surplus) } else { Purchase::Declined }
}
