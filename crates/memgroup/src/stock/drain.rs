//! Drain: empties the stocks of every slot of a group from the calling thread.
//!
//! No flag, no worker, no system call of its own, no slot left out. It makes one compare-and-swap for each word that holds bytes. When it returns,
//! the bytes are back in the counters. The kernel queues work on every CPU that holds stock and does not wait for it. Seed `000` moved
//! that to the draining CPU, under a lock of each stock. Here a stock has no lock.
//!
//! Drains of one hierarchy take turns with removals and refusals under the tree lock. So a refusal never overlooks bytes between a word
//! and the counters.

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::grace::{self, Section};
use memgroup_sync::interleave;
use memgroup_sync::spin::Wait;

use crate::base::mutation::{self, Mutation};
use crate::counter::chain;
use crate::state::stock_word::{self, Word};
use crate::stock::{WORD, update};
use crate::tree::node::{Node, mix};

/// How many slots ahead a word is prefetched. Otherwise words that other CPUs wrote last arrive one after the other. On a Cascade Lake
/// 128 of them took 5 us without prefetching, and 1.35 us with it, as long as that many bare swaps. With fewer slots nothing is
/// prefetched, and the line of an empty word stays with its owner.
const AHEAD: usize = 12;

/// The stock words of one group with their slots.
fn words<'s>(node: &'static Node, section: &'s Section) -> impl Iterator<Item = (usize, &'s AtomicU64)> {
    let slots = node.shared().source.slots();
    let ahead = if slots > AHEAD { AHEAD } else { slots };
    for slot in 0..if slots > AHEAD { AHEAD } else { 0 } {
        node.record.prefetch_write(section, slot);
    }
    node.shared().memory.admitted().filter_map(move |slot| {
        node.record.prefetch_write(section, slot + ahead);
        node.record.word(section, slot, WORD).map(|word| (slot, word))
    })
}

/// Updates each word of a group, and reports each word that was replaced.
fn update_all(
    node: &'static Node,
    next: impl Fn(Word) -> Option<Word>,
    mut replaced: impl FnMut(usize, Word),
) {
    for (slot, cell) in words(node, &grace::enter()) {
        if let Some(word) = update(cell, &next) {
            replaced(slot, word);
        }
    }
}

/// Drains one group's own stocks. The caller holds the tree lock. Returns the bytes that went back.
pub(crate) fn group(node: &'static Node) -> u64 {
    let mut taken = 0;
    let takes_attempts = mutation::active(Mutation::DrainTakesAttempts);
    let drained = |word: Word| if takes_attempts { word.drained().rested() } else { word.drained() };
    update_all(node, |word| (word.prepaid() > 0).then(|| drained(word)), |_, word| taken += word.prepaid());
    credit(node, taken)
}

/// Closes the stocks of one group: every word, empty and untouched ones too. Returns the bytes that went back.
pub(crate) fn close(node: &'static Node) -> u64 {
    let mut taken = 0;
    let skips_empty = mutation::active(Mutation::RefusalSkipsEmptyStocks);
    let closed = |word: Word| (!skips_empty || word.prepaid() > 0).then(|| word.closed());
    update_all(node, closed, |_, word| taken += word.prepaid());
    credit(node, taken)
}

/// Takes the attempts on one group's closed stocks, which are about to be left behind. The caller counts them. No flush is under way.
pub(crate) fn harvest(node: &'static Node) -> u64 {
    let mut attempts = 0;
    let taken = |word: Word| (word.attempts() > 0).then(|| word.harvested());
    update_all(node, taken, |_, word| attempts += word.attempts());
    attempts
}

/// Drops the attempts of a group before its node is given to another.
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
        cell.fetch_and(stock_word::OPEN, Ordering::AcqRel);
    }
}

/// Gives the caps of one group back to the budget. Its stocks are closed.
pub(crate) fn retire_caps(node: &'static Node) {
    let uncapped = |word: Word| (word.cap() > 0).then(|| word.capped(0));
    update_all(node, uncapped, |slot, word| node.shared().budget.give_back(slot, word.cap()));
}

/// Waits until no thread is between a word of `node` and the counters. Its words are closed, so none starts anew.
pub(crate) fn wait_settled(node: &'static Node) {
    if mutation::active(Mutation::RefusalIgnoresPending) {
        return;
    }
    for (_, cell) in words(node, &grace::enter()) {
        let mut wait = Wait::new();
        // ORDERING: Acquire; pairs with the Release in `end_pending`: with PENDING gone we see its changes to the counters.
        while Word(cell.load(Ordering::Acquire)).is_pending() {
            wait.wait();
        }
    }
}

fn credit(node: &'static Node, bytes: u64) -> u64 {
    interleave::point();
    chain::uncharge_held(node, bytes);
    bytes
}

/// The stock words as they are; plain loads.
fn looks(node: &'static Node, section: &Section) -> impl Iterator<Item = Word> {
    let cells = node.shared().memory.admitted().filter_map(|slot| node.record.word(section, slot, WORD));
    // ORDERING: Relaxed; reports, and a look from time to time.
    cells.map(|cell| Word(cell.load(Ordering::Relaxed)))
}

/// Prepaid bytes of one group.
pub(crate) fn prepaid(node: &'static Node) -> u64 {
    looks(node, &grace::enter()).map(Word::prepaid).sum()
}

/// A number that changes with the bytes in the stocks, and with no flush.
pub(crate) fn activity(node: &'static Node) -> u64 {
    looks(node, &grace::enter()).fold(0, |sum, word| mix(sum, word.stable()))
}

/// Charges tried on the stocks that no statistic has yet.
pub(crate) fn uncounted(node: &'static Node) -> u64 {
    looks(node, &grace::enter()).map(Word::attempts).sum()
}
