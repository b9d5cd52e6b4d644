#![doc = include_str!("../../docs/stock.md")]

pub(crate) mod budget;
pub(crate) mod closure;
pub(crate) mod consume;
pub(crate) mod drain;
pub(crate) mod refill;
mod stats;
pub(crate) mod word;

#[cfg(all(test, memgroup_loom))]
mod loom;

use memgroup_sync::atomic::Ordering;
use memgroup_sync::interleave;

pub(crate) use self::stats::StockCounts;
pub use self::stats::StockStats;

use self::word::Word;
use crate::chain;
use crate::node::Node;

/// A PENDING section: this thread is between the word of `slot` and the counters. Ends when dropped, a panic included.
struct Pending {
    node: &'static Node,
    slot: usize,
}

impl Pending {
    /// The caller has set PENDING in the word.
    fn begun(node: &'static Node, slot: usize) -> Pending {
        Pending { node, slot }
    }

    /// Ends the section and leaves `deposit` bytes, which are charged to the counters, in the stock, or returns them to the
    /// counters when the stock has closed meanwhile.
    fn end(self, deposit: u64) {
        settle(self.node, self.slot, deposit);
        std::mem::forget(self);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        settle(self.node, self.slot, 0);
    }
}

/// Clears PENDING, with a deposit or with its return.
fn settle(node: &'static Node, slot: usize, deposit: u64) {
    let cell = node.stock.get(slot);
    let mut deposit = deposit;
    // ORDERING: Relaxed; the compare-and-swap below decides.
    let mut word = Word(cell.load(Ordering::Relaxed));
    loop {
        interleave::point();
        let Some(next) = word.settled(deposit) else {
            chain::uncharge_held(node, deposit);
            deposit = 0;
            continue;
        };
        // ORDERING: AcqRel; Release pairs with the Acquire in `closure::wait_settled`: whoever sees PENDING gone sees what
        // we did to the counters, and pairs with the Acquire of consume for the deposit.
        match cell.compare_exchange(word.0, next.0, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return,
            Err(newer) => word = Word(newer),
        }
    }
}

/// After an addition of `bytes` to a word that is closed: takes as much out again, or what is there, and returns it to the
/// counters.
///
/// Why that leaves nothing behind: let H be what was charged and not spent in a closed word, so its bytes are H less
/// what consumes under way have subtracted. Whoever closes it takes all that is above zero, so H is at most the sum of what
/// calls under way added or subtracted; each call, when it is done, takes out its own part or all that shows, which keeps it
/// so; with the last call H is zero. Until then what shows, and what is hidden, is covered by calls under way (G1 in
/// `refusal`).
fn withdraw_closed(node: &'static Node, slot: usize, bytes: u64) {
    let cell = node.stock.get(slot);
    loop {
        // ORDERING: Relaxed; the compare-and-swap below decides.
        let word = Word(cell.load(Ordering::Relaxed));
        let part = bytes.min(word.prepaid());
        interleave::point();
        if part == 0 || !word.is_closed() {
            return;
        }
        // ORDERING: AcqRel; Acquire for the bytes that leave, as in drain.
        if cell.compare_exchange(word.0, word.less(part).0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            interleave::point();
            return node.uncharge_counters(part);
        }
    }
}

/// The cap a stock asks for next: room for two charges like this one at first, then twice what it has.
fn next_cap(word: Word, bytes: u64, cap_max: u64) -> u64 {
    const FIRST: u64 = 512;
    let fitting = (2 * bytes).next_power_of_two().max(FIRST);
    fitting.max(2 * word.cap()).min(cap_max)
}
