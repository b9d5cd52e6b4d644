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

use memgroup_sync::atomic::Ordering;
use memgroup_sync::interleave;

use super::word::{self, Word};
use crate::chain;
use crate::mutation::{self, Mutation};
use crate::node::Node;
use crate::tree::Tree;

/// How many slots ahead a word is asked for. Words that other CPUs wrote last come one after the other otherwise: 128 of them
/// took 5 us on a Cascade Lake, 1.35 us so, which is what as many bare swaps take there. Fewer ahead, or more than the
/// processor fetches at a time, are slower. With fewer slots nothing is asked for, and the line of an empty word
/// stays with its owner.
const AHEAD: usize = 12;

/// Asks for the first words of a long row; the loop that follows asks for the others.
fn ask_ahead(node: &Node) {
    if node.stock.slots() > AHEAD {
        for slot in 0..AHEAD {
            node.stock.prefetch_write(slot);
        }
    }
}

/// What a pass over the words of one group took out of them.
#[derive(Default)]
struct Taken {
    bytes: u64,
    attempts: u64,
}

/// Drains one group's own stocks; the caller holds the tree lock. Returns the bytes that went back.
pub(crate) fn group(node: &'static Node) -> u64 {
    let mut taken = Taken::default();
    ask_ahead(node);
    for slot in 0..node.stock.slots() {
        node.stock.prefetch_write(slot + AHEAD);
        // ORDERING: Relaxed; the compare-and-swap in `replace` decides.
        let mut word = Word(node.stock.get(slot).load(Ordering::Relaxed));
        while word.prepaid() > 0 {
            match replace(node, slot, word, word.drained()) {
                Ok(()) => {
                    taken.bytes += word.prepaid();
                    taken.attempts += word.attempts();
                    break;
                }
                Err(newer) => word = newer,
            }
        }
    }
    credit(node, &taken)
}

/// Drains every group of the subtree of `top`; returns the bytes that went back.
pub(crate) fn subtree(tree: &Tree, top: &'static Node) -> u64 {
    top.shared.subtree(tree, top).map(group).sum()
}

/// Drains every group whose charges count in `top`; returns the bytes that went back.
pub(crate) fn counted_in(tree: &Tree, top: &'static Node) -> u64 {
    top.shared.counted_in(tree, top).map(group).sum()
}

/// Closes the stocks of one group: every word, empty and untouched ones too. Returns the bytes that went back.
pub(crate) fn close(node: &'static Node) -> u64 {
    let mut taken = Taken::default();
    ask_ahead(node);
    for slot in 0..node.stock.slots() {
        node.stock.prefetch_write(slot + AHEAD);
        // ORDERING: Relaxed; the compare-and-swap in `replace` decides.
        let mut word = Word(node.stock.get(slot).load(Ordering::Relaxed));
        loop {
            if mutation::active(Mutation::RefusalSkipsEmptyStocks) && word.prepaid() == 0 {
                break;
            }
            match replace(node, slot, word, word.closed()) {
                Ok(()) => break,
                Err(newer) => word = newer,
            }
        }
        taken.bytes += word.prepaid();
        taken.attempts += word.attempts();
    }
    credit(node, &taken)
}

/// Drops the attempts that were made on a group whose place is given to another.
pub(crate) fn forget_attempts(node: &Node) {
    for slot in 0..node.stock.slots() {
        // ORDERING: AcqRel RMW, as every change of the word.
        node.stock.get(slot).fetch_and(Word(u64::MAX).harvested().0, Ordering::AcqRel);
    }
}

/// Opens the stocks of one group again.
pub(crate) fn reopen(node: &Node) {
    for slot in 0..node.stock.slots() {
        // ORDERING: AcqRel RMW; ordered with the next PENDING or CLOSED on this word.
        node.stock.get(slot).fetch_and(word::OPEN, Ordering::AcqRel);
    }
}

/// Gives the caps of one group, whose stocks are closed, back to the budget.
pub(crate) fn retire_caps(node: &'static Node) {
    for slot in 0..node.stock.slots() {
        // ORDERING: Relaxed; the compare-and-swap in `replace` decides.
        let mut word = Word(node.stock.get(slot).load(Ordering::Relaxed));
        while word.cap() > 0 {
            debug_assert!(word.is_closed());
            match replace(node, slot, word, word.capped(0)) {
                Ok(()) => {
                    node.shared.budget.give_back(slot, word.cap());
                    break;
                }
                Err(newer) => word = newer,
            }
        }
    }
}

fn replace(node: &Node, slot: usize, word: Word, next: Word) -> Result<(), Word> {
    let cell = node.stock.get(slot);
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

fn credit(node: &'static Node, taken: &Taken) -> u64 {
    interleave::point();
    chain::uncharge_held(node, taken.bytes);
    node.stats.harvest(taken.attempts);
    node.stats.count_drain(taken.bytes);
    taken.bytes
}

/// Prepaid bytes and unharvested attempts of one group's words; plain loads.
pub(crate) fn peek(node: &Node) -> (u64, u64) {
    let mut sums = (0, 0);
    for slot in 0..node.stock.slots() {
        // ORDERING: Relaxed; a report.
        let word = Word(node.stock.get(slot).load(Ordering::Relaxed));
        sums.0 += word.prepaid();
        sums.1 += word.attempts();
    }
    sums
}
