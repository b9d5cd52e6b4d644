//! Drain: empties the stocks of every slot of a group from the calling thread.
//!
//! No flag, no worker, no system call, no slot left out: one compare-and-swap for each word that holds bytes,
//! and when the call returns the bytes are back in the counters. The kernel queues work on every CPU that holds
//! stock and does not wait for it; seed `000` moved that to the draining CPU under a lock, here there is none.
//!
//! A compare-and-swap, never a blind swap: the word also holds marks and the cap, which must stay.
//!
//! Drains of one hierarchy take turns with removal and refusals under the tree lock, so that bytes between a word
//! and the counters are never overlooked by a refuser.

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::grace::{self, Section};
use memgroup_sync::interleave;
use memgroup_sync::spin::Wait;

use super::word::{self, Word};
use super::{WORD, count};
use crate::chain;
use crate::mutation::{self, Mutation};
use crate::node::{Node, mix};
use crate::tree::Tree;
use crate::wait;

/// How many slots ahead a word is asked for. Words that other CPUs wrote last come one after the other otherwise: 128 of them
/// took 5 us on a Cascade Lake, 1.35 us so, which is what as many bare swaps take there. Fewer ahead, or more than the
/// processor fetches at a time, are slower. With fewer slots nothing is asked for, and the line of an empty word
/// stays with its owner.
const AHEAD: usize = 12;

/// The stock words of one group with their slots, each asked for some slots ahead.
fn words<'s>(node: &'static Node, section: &'s Section) -> impl Iterator<Item = (usize, &'s AtomicU64)> {
    let slots = node.source.slots();
    let ahead = if slots > AHEAD { AHEAD } else { slots };
    for slot in 0..if slots > AHEAD { AHEAD } else { 0 } {
        node.record.prefetch_write(section, slot);
    }
    node.shared.memory.admitted().filter_map(move |slot| {
        node.record.prefetch_write(section, slot + ahead);
        node.record.word(section, slot, WORD).map(|word| (slot, word))
    })
}

/// Drains one group's own stocks; the caller holds the tree lock. Returns the bytes that went back.
pub(crate) fn group(node: &'static Node) -> u64 {
    let mut taken = 0;
    let section = grace::enter();
    for (_, cell) in words(node, &section) {
        // ORDERING: Relaxed; the compare-and-swap in `replace` decides.
        let mut word = Word(cell.load(Ordering::Relaxed));
        while word.prepaid() > 0 {
            let takes_attempts = mutation::active(Mutation::DrainTakesAttempts);
            let next = if takes_attempts { word.drained().rested() } else { word.drained() };
            match replace(cell, word, next) {
                Ok(()) => {
                    taken += word.prepaid();
                    if takes_attempts {
                        count::charges(node, word.attempts());
                    }
                    break;
                }
                Err(newer) => word = newer,
            }
        }
    }
    drop(section);
    credit(node, taken)
}

/// Drains every group of the subtree of `top`; returns the bytes that went back.
pub(crate) fn subtree(tree: &Tree, top: &'static Node) -> u64 {
    top.shared.subtree(tree, top).map(group).sum()
}

/// What a drain of many groups came to.
#[derive(Default)]
pub(crate) struct Drained {
    /// Bytes that went back.
    pub(crate) bytes: u64,
    /// Stocks that were looked at.
    pub(crate) stocks: u64,
}

/// Drains every group whose charges count in `top`.
pub(crate) fn counted_in(tree: &Tree, top: &'static Node) -> Drained {
    let slots = top.source.slots() as u64;
    top.shared.counted_in(tree, top).fold(Drained::default(), |drained, node| Drained {
        bytes: drained.bytes + group(node),
        stocks: drained.stocks + slots,
    })
}

/// Closes the stocks of one group: every word, empty and untouched ones too. Returns the bytes that went back.
pub(crate) fn close(node: &'static Node) -> u64 {
    let mut taken = 0;
    let section = grace::enter();
    for (_, cell) in words(node, &section) {
        // ORDERING: Relaxed; the compare-and-swap in `replace` decides.
        let mut word = Word(cell.load(Ordering::Relaxed));
        loop {
            if mutation::active(Mutation::RefusalSkipsEmptyStocks) && word.prepaid() == 0 {
                break;
            }
            match replace(cell, word, word.closed()) {
                Ok(()) => break,
                Err(newer) => word = newer,
            }
        }
        taken += word.prepaid();
    }
    drop(section);
    credit(node, taken)
}

/// Counts the attempts on one group's closed stocks, which are about to be left behind; no flush is under way.
pub(crate) fn harvest(node: &'static Node) {
    let mut attempts = 0;
    for (_, cell) in words(node, &grace::enter()) {
        // ORDERING: Relaxed; the compare-and-swap in `replace` decides.
        let mut word = Word(cell.load(Ordering::Relaxed));
        while word.attempts() > 0 {
            match replace(cell, word, word.harvested()) {
                Ok(()) => {
                    attempts += word.attempts();
                    break;
                }
                Err(newer) => word = newer,
            }
        }
    }
    count::charges(node, attempts);
}

/// Drops the attempts that were made on a group whose place is given to another.
pub(crate) fn forget_attempts(node: &'static Node) {
    for (_, cell) in words(node, &grace::enter()) {
        // ORDERING: AcqRel RMW, as every change of the word.
        cell.fetch_and(Word(u64::MAX).stable(), Ordering::AcqRel);
    }
}

/// Opens the stocks of one group again.
pub(crate) fn reopen(node: &'static Node) {
    for (_, cell) in words(node, &grace::enter()) {
        // ORDERING: AcqRel RMW; ordered with the next PENDING or CLOSED on this word.
        cell.fetch_and(word::OPEN, Ordering::AcqRel);
    }
}

/// Gives the caps of one group, whose stocks are closed, back to the budget.
pub(crate) fn retire_caps(node: &'static Node) {
    for (slot, cell) in words(node, &grace::enter()) {
        // ORDERING: Relaxed; the compare-and-swap in `replace` decides.
        let mut word = Word(cell.load(Ordering::Relaxed));
        while word.cap() > 0 {
            debug_assert!(word.is_closed());
            match replace(cell, word, word.capped(0)) {
                Ok(()) => {
                    node.shared.budget.give_back(slot, word.cap());
                    break;
                }
                Err(newer) => word = newer,
            }
        }
    }
}

/// Waits until no thread is between a word of `node` and the counters. Its words are closed, so none starts anew.
pub(crate) fn wait_settled(node: &'static Node) {
    if mutation::active(Mutation::RefusalIgnoresPending) {
        return;
    }
    for (_, cell) in words(node, &grace::enter()) {
        let mut wait = Wait::new();
        // ORDERING: Acquire; pairs with the Release in `settle`: with PENDING gone we see what it did to the counters.
        while Word(cell.load(Ordering::Acquire)).is_pending() {
            wait.wait();
        }
    }
}

fn replace(cell: &AtomicU64, word: Word, next: Word) -> Result<(), Word> {
    interleave::point();
    if mutation::active(Mutation::DrainSwapsBlindly) {
        // ORDERING: AcqRel, as below (a mutation for the models only).
        cell.swap(next.0, Ordering::AcqRel);
        return Ok(());
    }
    // ORDERING: AcqRel. Acquire pairs with the Release of refill and settle: the bytes we take were charged before, so our
    // uncharge follows. Release: CLOSED is seen by whoever finds it after what was drained here.
    cell.compare_exchange(word.0, next.0, Ordering::AcqRel, Ordering::Relaxed).map(|_| ()).map_err(Word)
}

fn credit(node: &'static Node, bytes: u64) -> u64 {
    interleave::point();
    chain::uncharge_held(node, bytes);
    if bytes > 0 {
        // What a call under way has put into a stock that is closed is room for those because of whom it is closed.
        wait::serve_chain(node);
    }
    count::drain(node, bytes);
    bytes
}

/// Prepaid bytes of one group; plain loads.
pub(crate) fn prepaid(node: &'static Node) -> u64 {
    let mut sum = 0;
    let section = grace::enter();
    for slot in node.shared.memory.admitted() {
        let Some(cell) = node.record.word(&section, slot, WORD) else { break };
        // ORDERING: Relaxed; a report.
        sum += Word(cell.load(Ordering::Relaxed)).prepaid();
    }
    sum
}

/// A number that changes with what the stocks hold, and with no flush; plain loads.
pub(crate) fn activity(node: &'static Node) -> u64 {
    let section = grace::enter();
    let cells = node.shared.memory.admitted().filter_map(|slot| node.record.word(&section, slot, WORD));
    // ORDERING: Relaxed; a look from time to time.
    cells.fold(0, |sum, cell| mix(sum, Word(cell.load(Ordering::Relaxed)).stable()))
}

/// Charges tried on the stocks that no statistic has yet; plain loads.
pub(crate) fn uncounted(node: &'static Node) -> u64 {
    let section = grace::enter();
    let cells = node.shared.memory.admitted().filter_map(|slot| node.record.word(&section, slot, WORD));
    // ORDERING: Relaxed, as in `activity`.
    cells.map(|cell| Word(cell.load(Ordering::Relaxed)).attempts()).sum()
}
