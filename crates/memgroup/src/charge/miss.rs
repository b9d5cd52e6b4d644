//! Miss: a charge that the stock did not serve outright.
//!
//! An attempt that found too few bytes is undone: the bytes that it subtracted are put back. Then
//! the slow path makes the charge.

use memgroup_sync::interleave;

use crate::base::effort::{Means, Poll};
use crate::base::mutation::{self, Mutation};
use crate::charge::refill;
use crate::charge::slow::{Ask, charge_slow_path};
use crate::control::fault_injection;
use crate::counter::chain::Until;
use crate::state::stats::builtin::memory;
use crate::state::stock_word::Word;
use crate::stats::update::count;
use crate::stock::{Stock, listed};
use crate::tree::error::ChargeError;
use crate::tree::node::Node;

/// Charges `bytes` for a thread whose slot the fast path did not try.
#[inline(never)]
pub(crate) fn charge(node: &'static Node, bytes: u64, means: Means) -> Result<(), ChargeError> {
    if node.shared().has_stock() {
        charge_in_slot(node, node.shared().source.current(), bytes, means)
    } else {
        charge_past_stock(node, bytes, means, None)
    }
}

/// Charges `bytes` from the stock of `slot`, or on the slow path if the stock doesn't have them.
pub(crate) fn charge_in_slot(
    node: &'static Node,
    slot: usize,
    bytes: u64,
    means: Means,
) -> Result<(), ChargeError> {
    if node.stocks(bytes)
        && let Some(stock) = Stock::of(node, slot)
    {
        let found = stock.attempt(bytes);
        return if found.serves(bytes) { Ok(()) } else { charge_miss(stock, bytes, found, means) };
    }
    charge_past_stock(node, bytes, means, Some(slot))
}

/// Charges `bytes` on the slow path. If there is a slot, the charge may buy a batch for its stock
/// there.
pub(crate) fn charge_past_stock(
    node: &'static Node,
    bytes: u64,
    means: Means,
    slot: Option<usize>,
) -> Result<(), ChargeError> {
    if bytes == 0 {
        return charge_nothing(node);
    }
    node.count_exact();
    if means.poll != Poll::Again {
        fault_injection::draw(node, bytes)?;
    }
    if slot.is_some() {
        count(node, memory::CHARGES, 1);
    }
    charge_slow_path(node, Ask { means, prepays: slot, ..Ask::exact(bytes, Until::Top) })
}

/// Charges `bytes` after an attempt on `stock` found the word `found` and was not served outright.
/// The attempt is already counted.
pub(crate) fn charge_miss(stock: Stock, bytes: u64, found: Word, means: Means) -> Result<(), ChargeError> {
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
    charge_slow_path(node, Ask { means, prepays: Some(slot), ..Ask::exact(bytes, Until::Top) })
}

/// Makes a charge of zero bytes, which keeps its group as a handle does.
#[cold]
#[inline(never)]
fn charge_nothing(node: &'static Node) -> Result<(), ChargeError> {
    let seen = node.counter.read();
    if seen.offline {
        return Err(ChargeError::of(node, seen, 0));
    }
    node.pin();
    Ok(())
}

/// Takes the attempts out of a word that has no room to count more, whether the stock is open or
/// not.
fn harvest(stock: &Stock) {
    if let Some(word) = stock.update(|word| word.is_full().then(|| word.harvested())) {
        count(stock.node, memory::CHARGES, word.attempts());
    }
}

/// Undoes the subtraction of an attempt that was not served. As after any addition, the stock may
/// have been drained since, or filled up by threads that did not see the hidden bytes. Returns the
/// bytes that the caller must return to the counters.
fn put_back(stock: &Stock, bytes: u64) -> u64 {
    if stock.put(bytes).takes(bytes) || mutation::active(Mutation::UndoneAttemptIgnoresClosed) {
        0
    } else {
        refill::trim(stock, bytes)
    }
}
