//! Drain: empties the stocks of every slot of a group from the calling thread.
//!
//! No flag, no worker, no system call of its own, no open stock left out. It makes one compare-and-swap for each open stock. When it returns,
//! the bytes are back in the counters. The kernel queues work on every CPU that holds stock and does not wait for it. Seed `000` moved
//! that to the draining CPU, under a lock of each stock. Here a stock has no lock.
//!
//! Drains take no turns: the grant of a stock tells others that its bytes are not back yet, until `grant::give_back`.

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::interleave;
use memgroup_sync::spin::Wait;

use crate::base::mutation::{self, Mutation};
use crate::counter::chain;
use crate::state::stock_word::Word;
use crate::stock::{exchange, grant};
use crate::tree::holders::HolderSlots;
use crate::tree::node::{Node, mix};

/// How many slots ahead a word is prefetched. Otherwise words that other CPUs wrote last arrive one after the other. On a Cascade Lake
/// 128 of them took 5 us without prefetching, and 1.35 us with it, as long as that many bare swaps. With fewer slots nothing is
/// prefetched, and the line of an empty word stays with its owner.
const AHEAD: usize = 12;

/// The stock words of one group on those slots of `within` that were ever used, with their slots. They are about to be written to.
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

/// Bytes that left a group's stocks, and the grants of those stocks. When this is dropped, the grants go back, also in a panic.
pub(crate) struct Taken {
    pub(crate) node: &'static Node,
    pub(crate) amount: Drained,
    grants: u64,
}

/// The amount that drains took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Drained {
    pub(crate) bytes: u64,
    /// Open stocks, with bytes or without.
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

    /// All that one open stock had.
    pub(crate) fn from_word(node: &'static Node, word: Word) -> Taken {
        let mut taken = Taken::new(node);
        taken.add(word);
        taken
    }

    fn add(&mut self, word: Word) {
        self.amount = self.amount.and(Drained { bytes: word.stocked(), stocks: u64::from(word.is_open()) });
        self.grants += grant::of_cap(word.room());
    }

    /// The bytes go back to the counters. The group owes less by them: bytes prepaid above `high` are owed when they are bought.
    pub(crate) fn uncharged(mut self) -> Taken {
        if mutation::active(Mutation::GrantIsReturnedTooEarly) {
            grant::give_back(self.node, std::mem::take(&mut self.grants));
        }
        interleave::point();
        chain::uncharge_held(self.node, self.amount.bytes);
        self.node.high.debt.lessen(self.amount.bytes);
        self
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        grant::give_back(self.node, self.grants);
    }
}

/// The word of a stock when no thread is between it and the counters. Waits for threads between two of their instructions.
fn settled(cell: &AtomicU64, mut waits_for: impl FnMut(Word) -> bool) -> Word {
    let mut wait = Wait::new();
    loop {
        // ORDERING: Acquire; pairs with the Release in `end_pending`: with PENDING gone we see its changes to the counters.
        let word = Word(cell.load(Ordering::Acquire));
        if !word.is_pending() || !waits_for(word) || mutation::active(Mutation::RefusalIgnoresPending) {
            return word;
        }
        wait.wait();
    }
}

/// Empties the group's open stocks, which are then not open any more. The bytes are back in the counters. The caller holds the group.
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
                    // It may be opened yet.
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

/// Empties the group's stocks on all slots and gives their caps back to the budget. No stock of the group can be opened meanwhile: each
/// level's word bars it. Waits for all threads that are between a word and the counters. The caller holds the group.
///
/// A word that looks like this already stays as it is. A thread that was about to open the stock had set PENDING before the level's
/// word was barred, so we see that, or it finds the bar.
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

/// Waits until no grant is left in the group. No stock can be opened in it meanwhile.
pub(crate) fn wait_returned(node: &'static Node) {
    let mut wait = Wait::new();
    while node.counter.prepaid_most() > 0 {
        wait.wait();
    }
}

/// The stock words as they are; plain loads.
fn looks(node: &'static Node) -> impl Iterator<Item = Word> {
    let cells = node.shared().stocks.used().filter_map(|slot| node.stock.get(slot));
    // ORDERING: Relaxed; reports, and a look from time to time.
    cells.map(|cell| Word(cell.load(Ordering::Relaxed)))
}

/// Prepaid bytes of one group.
pub(crate) fn prepaid(node: &'static Node) -> u64 {
    looks(node).map(Word::prepaid).sum()
}

/// Whether a stock of the group is open, with bytes or without.
pub(crate) fn has_open(node: &'static Node) -> bool {
    looks(node).any(Word::is_open)
}

/// A number that changes with the bytes in the stocks, and with no flush.
pub(crate) fn activity(node: &'static Node) -> u64 {
    looks(node).fold(0, |sum, word| mix(sum, word.stable()))
}

/// Charges tried on the stocks that no statistic has yet.
pub(crate) fn uncounted(node: &'static Node) -> u64 {
    looks(node).map(Word::attempts).sum()
}
