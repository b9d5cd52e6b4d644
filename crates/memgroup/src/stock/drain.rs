//! Drain: empties the stocks of a group in every slot from the calling thread.
//!
//! A drain needs no flag, no worker and no system call of its own, and leaves out no open stock.
//! It makes one compare-and-swap for each open stock. When it returns, the bytes are back in the
//! counters. The kernel queues work on every CPU that holds stock and does not wait for it. Seed
//! `000` moved that to the draining CPU, under a lock of each stock. Here a stock has no lock.
//!
//! Drains do not exclude each other. The grant of a stock tells other threads that its bytes are
//! not back yet, until `grant::give_back`.

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::interleave;
use memgroup_sync::spin::Wait;

use crate::base::mutation::{self, Mutation};
use crate::counter::chain;
use crate::state::stock_word::Word;
use crate::stock::{exchange, grant};
use crate::tree::holders::HolderSlots;
use crate::tree::node::{Node, mix};

/// The number of slots by which prefetching is ahead. Without it, words that other CPUs wrote last
/// arrive one after the other. On a Cascade Lake 128 of them took 5 us without prefetching, and
/// 1.35 us with it, which is as long as that many bare swaps take. With fewer slots nothing is
/// prefetched, so the line of an empty word stays with its owner.
const AHEAD: usize = 12;

/// Returns the stock words of one group, with their slots: those slots of `within` that were ever
/// used. The caller is about to write to them.
fn words(node: &'static Node, within: HolderSlots) -> impl Iterator<Item = (usize, &'static AtomicU64)> {
    let stocks = &node.shared().stocks;
    let slots = stocks.used().filter(move |&slot| within.contains(slot));
    let mut ahead = slots.clone();
    let is_ahead = node.shared().source.slots() > AHEAD;
    if is_ahead {
        ahead.by_ref().take(AHEAD).for_each(|slot| node.stock.prefetch(slot));
    }
    slots.filter_map(move |slot| {
        if is_ahead {
            ahead.next().into_iter().for_each(|slot| node.stock.prefetch(slot));
        }
        Some((slot, node.stock.get(slot)?))
    })
}

/// The bytes that left a group's stocks, and the grants of those stocks. When this is dropped,
/// also in a panic, the grants are returned.
pub(crate) struct Taken {
    pub(crate) node: &'static Node,
    pub(crate) amount: Drained,
    grants: u64,
}

/// The amount that drains took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Drained {
    pub(crate) bytes: u64,
    /// The number of open stocks, with bytes or without.
    pub(crate) stocks: u64,
}

impl Drained {
    pub(crate) fn and(self, other: Drained) -> Drained {
        Drained { bytes: self.bytes + other.bytes, stocks: self.stocks + other.stocks }
    }
}

impl Taken {
    fn new(node: &'static Node) -> Taken {
        Taken { node, amount: Drained::default(), grants: 0 }
    }

    /// Makes the record of everything that one open stock had.
    pub(crate) fn from_word(node: &'static Node, word: Word) -> Taken {
        let mut taken = Taken::new(node);
        taken.add(word);
        taken
    }

    fn add(&mut self, word: Word) {
        self.amount = self.amount.and(Drained { bytes: word.stocked(), stocks: u64::from(word.is_open()) });
        self.grants += grant::of_cap(word.room());
    }

    /// Uncharges the bytes from the counters. The group then owes less, because bytes that are
    /// prepaid above `high` are owed as soon as they are bought.
    pub(crate) fn uncharged(mut self) -> Taken {
        if mutation::active(Mutation::GrantIsReturnedTooEarly) {
            grant::give_back(self.node, std::mem::take(&mut self.grants));
        }
        interleave::point();
        chain::uncharge_held(self.node, self.amount.bytes);
        self.node.rare().high.debt.lessen(self.amount.bytes);
        self
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        grant::give_back(self.node, self.grants);
    }
}

/// Returns the word of a stock when no thread is between it and the counters. Waits only for
/// threads that are in the middle of a few instructions, as long as `waits_for` returns `true`.
fn settled(cell: &AtomicU64, mut waits_for: impl FnMut(Word) -> bool) -> Word {
    let mut wait = Wait::new();
    loop {
        // ORDERING: Acquire pairs with the Release in `end_pending`: when PENDING is gone, we see
        // its changes to the counters. Weaker, a refusal could be decided without them.
        let word = Word(cell.load(Ordering::Acquire));
        if !word.is_pending() || !waits_for(word) || mutation::active(Mutation::RefusalIgnoresPending) {
            return word;
        }
        wait.wait();
    }
}

/// Empties the group's open stocks, which are no longer open afterwards. When it returns, the
/// bytes are back in the counters. The caller must hold the group.
pub(crate) fn empty(node: &'static Node) -> Taken {
    let mut taken = Taken::new(node);
    let slots = node.take_slots();
    let takes_attempts = mutation::active(Mutation::DrainTakesAttempts);
    let drained = |word: Word| if takes_attempts { word.drained().rested() } else { word.drained() };
    for (slot, cell) in words(node, slots) {
        loop {
            let word = settled(cell, Word::is_open);
            let is_skipped = mutation::active(Mutation::RefusalSkipsEmptyStocks) && word.prepaid() == 0;
            if !word.is_open() || is_skipped {
                if word.is_pending() || is_skipped {
                    // The thread with PENDING may still open it.
                    node.put_slot(slot);
                }
                break;
            }
            if exchange(cell, word, drained(word)).is_ok() {
                taken.add(word);
                break;
            }
        }
    }
    taken.uncharged()
}

/// Empties the group's stocks in all slots and returns their caps to the budget. No stock of the
/// group can be opened at the same time, because each level's word bars it. Waits for all threads
/// that are between a word and the counters. The caller must hold the group.
///
/// A word that is retired already stays as it is. A thread that was about to open the stock had
/// either set PENDING before the level's word was barred, and then we see that, or it finds the
/// bar.
pub(crate) fn retire(node: &'static Node) -> Taken {
    let mut taken = Taken::new(node);
    for (slot, cell) in words(node, HolderSlots::ALL) {
        loop {
            let word = settled(cell, |_| !mutation::active(Mutation::RetireIgnoresPending));
            if word == word.retired() {
                break;
            }
            if exchange(cell, word, word.retired()).is_ok() {
                taken.add(word);
                node.shared().budget.give_back(slot, word.cap());
                break;
            }
        }
    }
    taken.uncharged()
}

/// Waits until no grant is left in the group. No stock may be opened in it at the same time.
pub(crate) fn wait_returned(node: &'static Node) {
    let mut wait = Wait::new();
    while node.counter.prepaid_most() > 0 {
        wait.wait();
    }
}

/// Returns the stock words as they are, by plain loads.
fn loaded_words(node: &'static Node) -> impl Iterator<Item = Word> {
    let cells = node.shared().stocks.used().filter_map(|slot| node.stock.get(slot));
    // ORDERING: Relaxed, because these are for reports, and for checks that are repeated from time
    // to time.
    cells.map(|cell| Word(cell.load(Ordering::Relaxed)))
}

/// Returns the prepaid bytes of one group.
pub(crate) fn prepaid(node: &'static Node) -> u64 {
    loaded_words(node).map(Word::prepaid).sum()
}

/// Returns whether a stock of the group is open, with bytes or without.
pub(crate) fn has_open(node: &'static Node) -> bool {
    loaded_words(node).any(Word::is_open)
}

/// Returns a number that changes with the bytes in the stocks, but not with a flush.
pub(crate) fn activity(node: &'static Node) -> u64 {
    loaded_words(node).fold(0, |sum, word| mix(sum, word.stable()))
}

/// Returns the number of charges that were tried on the stocks and are in no statistic yet.
pub(crate) fn uncounted(node: &'static Node) -> u64 {
    loaded_words(node).map(Word::attempts).sum()
}
