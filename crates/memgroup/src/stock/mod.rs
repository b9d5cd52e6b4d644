#![doc = include_str!("../../docs/stock.md")]

pub(crate) mod budget;
pub(crate) mod closure;
pub(crate) mod consume;
pub(crate) mod drain;
pub(crate) mod listed;
pub(crate) mod refill;
mod stats;
pub(crate) mod word;

#[cfg(all(test, memgroup_loom))]
pub(crate) mod loom;

use core::ops::Deref;

use memgroup_percpu::{Access, Glance};
use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::interleave;

pub use self::stats::StockStats;
pub(crate) use self::stats::count;

use self::word::Word;
use crate::chain;
use crate::node::Node;

/// Where the stock word lies in a record: first.
pub(crate) const WORD: usize = 0;

/// The stock of one slot, held in a read section: while this lives its word is the group's, or closed for ever because the group's
/// record has moved on. Held for bounded steps only, never while a lock is waited for.
pub(crate) struct Stock<W = Access> {
    pub(crate) node: &'static Node,
    pub(crate) slot: usize,
    pub(crate) word: W,
}

impl Stock<Glance> {
    /// The stock of the slot that this thread is on, if there is nothing out of the ordinary on the way to it; else `enter`
    /// tells.
    #[inline(always)]
    pub(crate) fn glance(node: &'static Node) -> Option<Stock<Glance>> {
        let (slot, word) = node.record.glance_first(&node.source)?;
        Some(Stock { node, slot, word })
    }

    /// The same stock, for more than a glance.
    pub(crate) fn extend(self) -> Stock {
        Stock { node: self.node, slot: self.slot, word: self.word.extend() }
    }
}

impl<W: Deref<Target = AtomicU64>> Stock<W> {
    /// Tries to take `bytes`; what was found tells whether they were there.
    #[inline(always)]
    pub(crate) fn attempt(&self, bytes: u64) -> Word {
        // ORDERING: AcqRel; pairs with the Release of whoever put the bytes here: their charge to the counters precedes our
        // later uncharge, so no counter passes below zero. Release: as an RMW of the word it is ordered with the marks.
        Word(self.word.fetch_add(word::consume_delta(bytes), Ordering::AcqRel))
    }

    /// Puts `bytes` in; what was found tells whether they may stay.
    #[inline(always)]
    pub(crate) fn put(&self, bytes: u64) -> Word {
        // ORDERING: AcqRel; Release pairs with the Acquire of a drain or a consume: the bytes were charged before they
        // were put here.
        Word(self.word.fetch_add(word::refill_delta(bytes), Ordering::AcqRel))
    }
}

impl Stock {
    /// `None` where there is no word: the record is not there, or the slot was not admitted yet.
    #[inline(always)]
    pub(crate) fn enter(node: &'static Node, slot: usize) -> Option<Stock> {
        Some(Stock { node, slot, word: node.record.access_first(slot)? })
    }

    /// A look, for a compare-and-swap to decide.
    pub(crate) fn look(&self) -> Word {
        // ORDERING: Relaxed; `change` decides.
        Word(self.word.load(Ordering::Relaxed))
    }

    /// Replaces `seen` by `next`, or says what is there instead.
    pub(crate) fn change(&self, seen: Word, next: Word) -> Result<(), Word> {
        // ORDERING: AcqRel. Acquire pairs with the Release of whoever put bytes here: those that leave were charged before
        // they were put, so their uncharge follows. Release: a deposit or a mark is seen after what preceded it. As
        // RMWs on one word PENDING and CLOSED are ordered: one of the two sides sees the other (E2).
        self.word
            .compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Relaxed)
            .map(|_| ())
            .map_err(Word)
    }

    /// Spends prepaid bytes if the stock has them, without counting an attempt.
    pub(crate) fn spend(&self, bytes: u64) -> bool {
        let mut word = self.look();
        while word.covers(bytes) {
            match self.change(word, word.less(bytes)) {
                Ok(()) => return true,
                Err(newer) => word = newer,
            }
        }
        false
    }
}

/// A PENDING section: this thread is between the word of a stock and the counters. Ends when dropped, a panic included.
struct Pending<'s> {
    stock: &'s Stock,
}

impl Pending<'_> {
    /// The caller has set PENDING in the word.
    fn begun(stock: &Stock) -> Pending<'_> {
        Pending { stock }
    }

    /// Ends the section and leaves `deposit` bytes, which are charged to the counters, in the stock, or returns them to the
    /// counters when the stock has closed meanwhile.
    fn end(self, deposit: u64) {
        settle(self.stock, deposit);
        std::mem::forget(self);
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        settle(self.stock, 0);
    }
}

/// Clears PENDING, with a deposit or with its return.
fn settle(stock: &Stock, deposit: u64) {
    let mut deposit = deposit;
    let mut word = stock.look();
    loop {
        interleave::point();
        let Some(next) = word.settled(deposit) else {
            chain::uncharge_held(stock.node, deposit);
            deposit = 0;
            continue;
        };
        // The Release of the change pairs with the Acquire in `closure::wait_settled`: whoever sees PENDING gone sees what
        // we did to the counters.
        match stock.change(word, next) {
            Ok(()) => return,
            Err(newer) => word = newer,
        }
    }
}

/// After an addition of `bytes` to a word that is closed: takes as much out again, or what is there. The caller returns the bytes
/// to the counters when it has left the stock.
///
/// Why that leaves nothing behind: let H be what was charged and not spent in a closed word, so its bytes are H less
/// what consumes under way have subtracted. Whoever closes it takes all that is above zero, so H is at most the sum of what
/// calls under way added or subtracted; each call, when it is done, takes out its own part or all that shows, which keeps it
/// so; with the last call H is zero. Until then what shows, and what is hidden, is covered by calls under way (G1 in
/// `refusal`). In a record that was unlinked the last call ends before the grace period does.
#[must_use = "the bytes are to be returned to the counters"]
fn withdraw_closed(stock: &Stock, bytes: u64) -> u64 {
    loop {
        let word = stock.look();
        let part = bytes.min(word.prepaid());
        interleave::point();
        if part == 0 || !word.is_closed() {
            return 0;
        }
        if stock.change(word, word.less(part)).is_ok() {
            interleave::point();
            return part;
        }
    }
}

/// The cap a stock asks for next: room for two charges like this one at first, then twice what it has.
fn next_cap(word: Word, bytes: u64, cap_max: u64) -> u64 {
    const FIRST: u64 = 512;
    let fitting = (2 * bytes).next_power_of_two().max(FIRST);
    fitting.max(2 * word.cap()).min(cap_max)
}
