//! Fast: a charge or an uncharge that the stock of this thread's slot serves.
//!
//! Nothing is called on the way to the atomic addition, because a value that lives across a call
//! is pushed onto the stack when the function begins, and an atomic addition waits for every store
//! before it. Nothing is loaded after the addition, because a load would wait for it in turn.
//! There is no read section either: the word never moves, and the caller holds the group by its
//! handle or by the bytes that it returns (`stock::Stock` has the exceptions).

use memgroup_sync::atomic::AtomicU64;

use crate::base::effort::Means;
use crate::charge::{miss, refill};
use crate::state::stock_word::Word;
use crate::stock::{Stock, Unheld};
use crate::tree::error::ChargeError;
use crate::tree::node::Node;

impl Node {
    /// Charges `bytes` from the stock, or on the slow path if the stock doesn't have them.
    #[inline(always)]
    pub(crate) fn charge(&'static self, bytes: u64) -> Result<(), ChargeError> {
        self.charge_by(bytes, Means::PLAIN)
    }

    /// Does the same. If the stock doesn't serve the charge, it's made by `means`.
    #[inline(always)]
    pub(crate) fn charge_by(&'static self, bytes: u64, means: Means) -> Result<(), ChargeError> {
        let (mut slot, mut tried, mut found) = (0, None, Word(0));
        if self.stocks(bytes)
            && let Some(stock) = Stock::fast(self)
        {
            found = stock.attempt(bytes);
            if found.serves(bytes) {
                return Ok(());
            }
            (slot, tried) = (stock.slot, Some(stock.word));
        }
        self.charge_slowly(bytes, means, slot, tried, found)
    }

    /// Does the same for a caller that doesn't hold the group. `unheld` must exist since before
    /// the caller found the group.
    #[inline(always)]
    pub(crate) fn charge_unheld(
        &'static self,
        unheld: Unheld,
        bytes: u64,
        means: Means,
    ) -> Result<(), ChargeError> {
        if self.stocks(bytes)
            && let Some(stock) = Stock::fast(self)
        {
            let found = stock.attempt(bytes);
            if found.serves(bytes) {
                return Ok(());
            }
            return self.charge_unheld_slowly(unheld, bytes, means, stock.slot, stock.word, found);
        }
        drop(unheld);
        self.charge_slowly(bytes, means, 0, None, Word(0))
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn charge_unheld_slowly(
        &'static self,
        unheld: Unheld,
        bytes: u64,
        means: Means,
        slot: usize,
        word: &'static AtomicU64,
        found: Word,
    ) -> Result<(), ChargeError> {
        let stock = Stock::held(self, slot, word);
        drop(unheld);
        miss::charge_miss(stock, bytes, found, means)
    }

    /// The part of a charge that is not a hit, in one function so that little code is inlined into
    /// callers. If there is a word, the attempt on it was already made.
    #[cold]
    #[inline(never)]
    fn charge_slowly(
        &'static self,
        bytes: u64,
        means: Means,
        slot: usize,
        tried: Option<&'static AtomicU64>,
        found: Word,
    ) -> Result<(), ChargeError> {
        match tried {
            Some(word) => miss::charge_miss(Stock::held(self, slot, word), bytes, found, means),
            None if self.shared().has_stock() => miss::charge(self, bytes, means),
            None => miss::charge_past_stock(self, bytes, means, None),
        }
    }

    /// Uncharges `bytes` into the stock, or on the slow path if the stock doesn't take them.
    #[inline(always)]
    pub(crate) fn uncharge(&'static self, bytes: u64) {
        let (mut slot, mut put) = (0, None);
        if self.stocks(bytes)
            && let Some(stock) = Stock::fast(self)
        {
            if stock.put(bytes).takes(bytes) {
                return;
            }
            (slot, put) = (stock.slot, Some(stock.word));
        }
        self.uncharge_slowly(bytes, slot, put);
    }

    /// The part of an uncharge that is not a hit, in one function as `charge_slowly`. If there is
    /// a word, the bytes are already in it.
    #[cold]
    #[inline(never)]
    pub(crate) fn uncharge_slowly(&'static self, bytes: u64, slot: usize, put: Option<&'static AtomicU64>) {
        match put {
            // If the node was given back, another thread has already returned the bytes to the
            // counters.
            Some(word) => {
                let stock = Stock::again(self, slot, word);
                stock.into_iter().for_each(|stock| refill::uncharge_miss(stock, bytes));
            }
            None => refill::uncharge(self, bytes),
        }
    }
}
