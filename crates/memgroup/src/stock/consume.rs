//! The cold half of a charge: the stock could not serve it.
//!
//! What the attempt subtracted is put back first. Then a miss buys a batch for itself and the charges to come, if the limits
//! leave room for one; else it charges exactly what was asked. The batch is taken between two marks: PENDING is set in
//! the word, the counters are charged, the surplus is deposited and PENDING cleared by one compare-and-swap. So there is
//! never a prepaid byte that a refuser can neither take nor wait for.

use memgroup_sync::atomic::Ordering;
use memgroup_sync::interleave;

use super::word::{self, Word};
use super::{Pending, budget, next_cap, refill};
use crate::chain::{self, Until};
use crate::error::ChargeError;
use crate::mutation::{self, Mutation};
use crate::node::{Consumed, Node};
use crate::refusal;

enum Purchase {
    /// The stock had enough after all; nothing was bought.
    Served,
    /// The charge and a batch were bought.
    Bought,
    /// The charge is still to be made, exactly.
    Declined,
}

/// Charges `bytes` that the stock of `slot` did not serve.
#[cold]
#[inline(never)]
pub(crate) fn charge_miss(
    node: &'static Node,
    slot: usize,
    bytes: u64,
    consumed: Consumed,
) -> Result<(), ChargeError> {
    if bytes == 0 {
        return charge_nothing(node);
    }
    interleave::point();
    match consumed {
        Consumed::Served => return Ok(()),
        Consumed::Tried(found) => {
            if found.is_full() {
                harvest(node, slot);
            }
            if found.covers(bytes) {
                return Ok(());
            }
            put_back(node, slot, bytes);
        }
        Consumed::NotTried if !node.shared.has_stock() => return charge_exact(node, Until::Top, bytes),
        Consumed::NotTried => node.stats.harvest(1),
    }
    match buy_batch(node, slot, bytes) {
        Purchase::Served => Ok(()),
        Purchase::Bought => {
            node.stats.count_miss();
            node.stats.count_refill();
            Ok(())
        }
        Purchase::Declined => {
            node.stats.count_miss();
            charge_exact(node, Until::Top, bytes)
        }
    }
}

/// Charges exactly `bytes` to the counters; a refusal is final.
pub(crate) fn charge_exact(node: &'static Node, until: Until, bytes: u64) -> Result<(), ChargeError> {
    chain::try_charge(node, until, bytes).or_else(|refused| refusal::decide(node, until, bytes, refused))
}

/// Spends what is prepaid in this thread's slot, for a charge that has other ways if there is too little.
pub(crate) fn consume_prepaid(node: &'static Node, bytes: u64) -> bool {
    let cell = node.stock.get(node.source.current());
    // ORDERING: Relaxed; the compare-and-swap below decides.
    let mut word = Word(cell.load(Ordering::Relaxed));
    while node.stocks(bytes) && word.covers(bytes) {
        // ORDERING: AcqRel, as in `Node::consume`.
        match cell.compare_exchange(word.0, word.less(bytes).0, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => {
                node.stats.harvest(1);
                return true;
            }
            Err(newer) => word = Word(newer),
        }
    }
    false
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
fn harvest(node: &'static Node, slot: usize) {
    let cell = node.stock.get(slot);
    // ORDERING: Relaxed; the compare-and-swap below decides.
    let mut word = Word(cell.load(Ordering::Relaxed));
    while word.is_full() {
        // ORDERING: AcqRel, as every RMW of the word.
        match cell.compare_exchange(word.0, word.harvested().0, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return node.stats.harvest(word.attempts()),
            Err(newer) => word = Word(newer),
        }
    }
}

/// Undoes the subtraction of an attempt that was not served. Like a refill, it may find the stock closed meanwhile, or filled
/// up by others who did not see what the attempt hid.
fn put_back(node: &'static Node, slot: usize, bytes: u64) {
    // ORDERING: AcqRel, as in `Node::refill`.
    let found = Word(node.stock.get(slot).fetch_add(word::refill_delta(bytes), Ordering::AcqRel));
    if !found.takes(bytes) && !mutation::active(Mutation::UndoneAttemptIgnoresClosed) {
        refill::trim(node, slot, bytes);
    }
}

/// What the chain's headroom lets one slot prepay: all slots together at most half of it.
fn share_of_headroom(node: &'static Node, bytes: u64) -> u64 {
    chain::headroom(node).saturating_sub(bytes) / (2 * node.source.slots() as u64)
}

fn buy_batch(node: &'static Node, slot: usize, bytes: u64) -> Purchase {
    let shared = node.shared;
    let cell = node.stock.get(slot);
    if !node.stocks(bytes) {
        return Purchase::Declined;
    }
    // ORDERING: Relaxed; the compare-and-swap below decides.
    let mut word = Word(cell.load(Ordering::Relaxed));
    loop {
        if word.covers(bytes) {
            // ORDERING: AcqRel, as in `Node::consume`.
            match cell.compare_exchange(word.0, word.less(bytes).0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Purchase::Served,
                Err(newer) => {
                    word = Word(newer);
                    continue;
                }
            }
        }
        if word.is_closed() || word.is_pending() {
            return Purchase::Declined;
        }
        interleave::point();
        let share = share_of_headroom(node, bytes);
        if share < bytes {
            // Near the limit batches are exact.
            return Purchase::Declined;
        }
        let wanted = next_cap(word, bytes, shared.stock_cap_max).min((2 * share).next_power_of_two());
        let cap = reserve_up_to(node, slot, word, wanted);
        let surplus = (cap / 2).min(share);
        let next = word.harvested().capped(cap).with_pending();
        // ORDERING: AcqRel; as an RMW it is ordered with the refuser's: either it sees PENDING, or we see CLOSED.
        let marked = surplus >= bytes
            && cell.compare_exchange(word.0, next.0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if marked {
            node.stats.harvest(word.attempts());
            return charge_batch(node, slot, bytes, surplus);
        }
        shared.budget.give_back(slot, cap - word.cap());
        if surplus < bytes {
            return Purchase::Declined;
        }
        // ORDERING: Relaxed; as above.
        word = Word(cell.load(Ordering::Relaxed));
    }
}

/// The cap this stock may have: `wanted` if the slot's budget has it, else the one it has.
fn reserve_up_to(node: &'static Node, slot: usize, word: Word, wanted: u64) -> u64 {
    if wanted > word.cap() && budget::reserve(node, slot, wanted - word.cap()) { wanted } else { word.cap() }
}

/// Charges the counters for `bytes` and `surplus` together; PENDING is set and is cleared here.
fn charge_batch(node: &'static Node, slot: usize, bytes: u64, surplus: u64) -> Purchase {
    let pending = Pending::begun(node, slot);
    if mutation::active(Mutation::DepositBeforeCharge) {
        pending.end(surplus);
        return match chain::try_charge(node, Until::Top, bytes + surplus) {
            Ok(()) => Purchase::Bought,
            Err(_) => Purchase::Declined,
        };
    }
    interleave::point();
    let bought = chain::try_charge(node, Until::Top, bytes + surplus).is_ok();
    interleave::point();
    pending.end(if bought { surplus } else { 0 });
    if bought { Purchase::Bought } else { Purchase::Declined }
}
