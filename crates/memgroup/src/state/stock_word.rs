//! The stock word: the prepaid bytes of one group in one slot, and the state of that stock.
//!
//! ```text
//!   63 ............ 26   25 .. 20   19     18        17       16     15     14 ..... 0
//!   bytes, signed        cap        OPEN   PENDING   LISTED   USED   FULL   attempts
//! ```
//!
//! - bytes: charged to the counters already, spent by `consume`, put back by `refill`. Both are one `fetch_add` that looks
//!   at the value it found. If a consume found too little, or a refill no room, its slow path corrects the word. So bytes
//!   may be below zero, or above the cap, while such a call is under way. They are the topmost field, where a borrow or a
//!   carry falls off.
//! - cap: the power of two up to which bytes may stay; that much is reserved in the slot's budget. 0: nothing reserved.
//! - OPEN: the stock may hold bytes up to its cap, and each level has granted it that (`stock::grant`). A word of zeros, on a page that
//!   the system has just backed, is not open.
//! - PENDING: one thread is between this word and the counters, with bytes that are in neither. One at a time. Only this thread opens
//!   the stock, and no other changes OPEN or the cap meanwhile.
//! - LISTED: the next flush of the statistics comes by for the attempts (`listed`). A consume that finds it missing sees to that.
//! - USED: a flush has taken attempts since the budget's clock last came by, which goes by attempts.
//! - attempts: consumes tried here since they were last harvested. A hit counts its attempt in the addition that it makes
//!   anyway, so the hit rate costs nothing. A hit is an attempt that was not a miss.
//! - FULL: half of the attempts' range is used; the next consume harvests them, the other half is left for
//!   consumes that come meanwhile.
//!
//! An addition needs no load before it, as a compare-and-swap does. A hit takes 5.9 against 9.8 ns on a Cascade Lake, 2.1
//! against 2.4 ns on a Zen 4. Words change only through the two additions and the transitions below.

use crate::base::mutation::{self, Mutation};

const ATTEMPT: u64 = 1;
const FULL: u64 = 1 << 15;
const ATTEMPTS: u64 = (1 << 16) - 1;
const USED: u64 = 1 << 16;
const LISTED: u64 = 1 << 17;
const PENDING: u64 = 1 << 18;
const OPEN: u64 = 1 << 19;
const CAP_SHIFT: u32 = 20;
/// Six bits, as many as the processor reads of a shift's count, so that the exponent needs no mask of its own.
const CAP: u64 = 0x3f << CAP_SHIFT;
const BYTES_SHIFT: u32 = 26;

/// The largest cap a word can hold, 8 MiB. A charge that a stock serves is at most half of it. So bytes have room for
/// 32,768 calls under way in one slot before they could overflow.
pub(crate) const LARGEST_CAP: u64 = 8 << 20;

/// The number that a consume adds to the word.
#[inline]
pub(crate) fn consume_delta(bytes: u64) -> u64 {
    ATTEMPT.wrapping_sub(bytes << BYTES_SHIFT)
}

/// The number that a refill adds to the word, and that a consume which found too little puts back.
#[inline]
pub(crate) fn refill_delta(bytes: u64) -> u64 {
    bytes << BYTES_SHIFT
}

/// One value of the stock word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) u64);

impl Word {
    /// Signed: below zero while consumes that found too little are under way.
    #[inline]
    pub(crate) fn bytes(self) -> i64 {
        (self.0 as i64) >> BYTES_SHIFT
    }

    /// Bytes that can be taken out.
    pub(crate) fn prepaid(self) -> u64 {
        self.bytes().max(0) as u64
    }

    pub(crate) fn is_pending(self) -> bool {
        self.0 & PENDING != 0
    }

    /// Whether the stock may hold bytes.
    pub(crate) fn is_open(self) -> bool {
        self.0 & OPEN != 0
    }

    /// Bytes that may stay in the stock now.
    pub(crate) fn room(self) -> u64 {
        if self.is_open() { self.cap() } else { 0 }
    }

    /// Bytes reserved in the slot's budget for this stock; its bytes stay within them.
    #[inline]
    pub(crate) fn cap(self) -> u64 {
        (1 << ((self.0 >> CAP_SHIFT) & 0x3f)) & !1
    }

    /// Consumes tried since the last harvest.
    pub(crate) fn attempts(self) -> u64 {
        self.0 & ATTEMPTS
    }

    /// Whether a consume that found this word has its bytes, with nothing left to do.
    #[inline]
    pub(crate) fn serves(self, bytes: u64) -> bool {
        // As `bytes() >= bytes`, without shifting them down: the fields below only add.
        self.0 as i64 >= (bytes << BYTES_SHIFT) as i64 && self.0 & (OPEN | LISTED | FULL) == OPEN | LISTED
    }

    /// Whether the attempts are to be harvested.
    pub(crate) fn is_full(self) -> bool {
        self.0 & FULL != 0
    }

    pub(crate) fn is_listed(self) -> bool {
        self.0 & LISTED != 0
    }

    /// A flush will come by for the attempts.
    pub(crate) fn listed(self) -> Word {
        Word(self.0 | LISTED)
    }

    /// A flush takes the attempts: the next consume is to see to it that one comes by again.
    pub(crate) fn flushed(self) -> Word {
        let used = if self.attempts() > 0 { USED } else { 0 };
        Word(self.harvested().0 & !LISTED | used)
    }

    /// Whether consumes were tried since `rested`.
    pub(crate) fn is_used(self) -> bool {
        self.attempts() > 0 || self.0 & USED != 0
    }

    /// The budget's clock came by.
    pub(crate) fn rested(self) -> Word {
        Word(self.harvested().0 & !USED)
    }

    /// The same for two words that differ only in the fields that flushes and listings change.
    pub(crate) fn stable(self) -> u64 {
        self.0 & !(ATTEMPTS | LISTED | USED)
    }

    /// The bytes that are in the stock. Those above the cap are of calls under way, which take them out themselves.
    pub(crate) fn stocked(self) -> u64 {
        let most = if mutation::active(Mutation::DrainTakesAboveTheCap) { u64::MAX } else { self.room() };
        self.prepaid().min(most)
    }

    /// Whether a consume that found this word has its bytes; the attempts may have to be harvested.
    pub(crate) fn covers(self, bytes: u64) -> bool {
        self.bytes() >= bytes as i64 && self.is_open()
    }

    /// Whether a refill that found this word is done: the stock is open and its bytes stay within the cap.
    #[inline]
    pub(crate) fn takes(self, bytes: u64) -> bool {
        self.0 & OPEN != 0 && self.bytes() + bytes as i64 <= self.cap() as i64
    }

    fn with_bytes(self, bytes: i64) -> Word {
        Word((self.0 & !(!0 << BYTES_SHIFT)) | ((bytes as u64) << BYTES_SHIFT))
    }

    /// The same stock with its attempts taken.
    pub(crate) fn harvested(self) -> Word {
        Word(self.0 & !ATTEMPTS)
    }

    /// `bytes` leave the word.
    pub(crate) fn less(self, bytes: u64) -> Word {
        self.with_bytes(self.bytes() - bytes as i64)
    }

    /// Another cap, a power of two or 0.
    pub(crate) fn capped(self, cap: u64) -> Word {
        debug_assert!(cap <= LARGEST_CAP && (cap == 0 || cap.is_power_of_two()));
        let exponent = if cap == 0 { 0 } else { u64::from(cap.trailing_zeros()) };
        Word((self.0 & !CAP) | (exponent << CAP_SHIFT))
    }

    /// The caller goes to the counters with bytes that no word holds.
    pub(crate) fn with_pending(self) -> Word {
        debug_assert!(!self.is_pending());
        Word(self.0 | PENDING)
    }

    /// The caller is back from the counters and leaves `deposit` bytes here, if the stock is open and has room. With no deposit this is
    /// always possible.
    pub(crate) fn settled(self, deposit: u64) -> Option<Word> {
        let after = self.bytes() + deposit as i64;
        let fits = deposit == 0 || after <= self.room() as i64;
        fits.then(|| Word(self.0 & !PENDING).with_bytes(after))
    }

    /// The caller has a grant for the cap.
    pub(crate) fn opened(self, cap: u64) -> Word {
        Word(self.0 | OPEN).capped(cap)
    }

    /// The stocked bytes and the grant leave. The attempts stay, because a flush takes them. So do the marks, the cap, which is still
    /// reserved, and the bytes that calls under way have subtracted, or have added above the cap.
    pub(crate) fn drained(self) -> Word {
        Word(self.less(self.stocked()).0 & !OPEN)
    }

    /// Drained, and its cap given up too.
    pub(crate) fn retired(self) -> Word {
        self.drained().capped(0)
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::state::stock_word::{ATTEMPTS, FULL, LARGEST_CAP, OPEN, Word, consume_delta, refill_delta};

    /// An open stock with attempts that the next flush takes.
    fn stock(bytes: i64, cap: u64) -> Word {
        Word(OPEN).capped(cap).with_bytes(bytes).listed()
    }

    fn consume(word: Word, bytes: u64) -> Word {
        Word(word.0.wrapping_add(consume_delta(bytes)))
    }

    fn refill(word: Word, bytes: u64) -> Word {
        Word(word.0.wrapping_add(refill_delta(bytes)))
    }

    #[test]
    fn a_consume_and_its_undoing_leave_only_the_attempt() {
        for (bytes, charge) in [(100, 40), (100, 150), (0, LARGEST_CAP), (-5000, 1)] {
            let before = stock(bytes, 128);
            let tried = consume(before, charge);
            assert_eq!(tried.bytes(), bytes - charge as i64);
            let after = refill(tried, charge);
            assert_eq!((after.attempts(), after.harvested()), (1, before));
            assert_eq!(before.serves(charge), bytes >= charge as i64);
        }
    }

    #[test]
    fn a_refill_is_done_where_it_stays_within_the_cap() {
        let word = stock(100, 128);
        assert!(word.takes(28) && !word.takes(29));
        assert!(stock(-50, 128).takes(178) && !stock(-50, 128).takes(179));
        assert!(!stock(0, 0).takes(1), "no cap, no stock");
        assert!(!Word(word.0 & !OPEN).takes(1));
    }

    #[test]
    fn words_that_are_not_open_serve_no_charge_and_full_ones_ask_for_a_harvest() {
        let word = stock(1 << 20, 1 << 21);
        let unopened = Word(word.0 & !OPEN);
        assert!(!unopened.serves(1) && !unopened.covers(1));
        let full = Word(word.0 | FULL);
        assert!(!full.serves(1) && full.covers(1) && full.takes(1));
        assert!(word.with_pending().serves(1) && word.with_pending().takes(1));
    }

    #[test]
    fn an_unlisted_word_serves_no_charge_until_it_is_listed() {
        let word = consume(stock(100, 128), 40);
        let flushed = word.flushed();
        assert!(word.serves(1) && !flushed.serves(1) && flushed.covers(1) && flushed.takes(1));
        assert_eq!((flushed.attempts(), flushed.is_listed(), flushed.is_used()), (0, false, true));
        assert!(!flushed.rested().is_used(), "the clock came by");
        assert!(!stock(100, 128).flushed().is_used(), "a flush without attempts is no use");
        assert_eq!(flushed.listed().stable(), word.stable(), "flushes and listings are no change");
        assert_ne!(consume(word, 1).stable(), word.stable());
        assert_eq!((flushed.bytes(), flushed.cap()), (60, 128));
    }

    #[test]
    fn attempts_have_as_much_room_again_when_they_are_full() {
        let mut word = stock(8, 8);
        for _ in 0..FULL {
            assert!(word.serves(8));
            word = refill(consume(word, 8), 8);
        }
        assert!(!word.serves(8) && word.covers(8));
        for _ in 0..FULL - 1 {
            word = refill(consume(word, 8), 8);
        }
        assert_eq!((word.attempts(), word.bytes(), word.cap()), (ATTEMPTS, 8, 8));
        assert!(!word.is_pending());
    }

    #[test]
    fn draining_keeps_attempts_marks_cap_and_debts_of_calls() {
        let tried = consume(stock(7, 8), 1).listed();
        for left in [tried.drained(), tried.retired()] {
            assert_eq!(
                (left.attempts(), left.is_listed(), left.bytes(), left.is_open()),
                (1, true, 0, false)
            );
        }
        let drained = stock(7, 8).drained();
        assert_eq!((drained.cap(), drained.room(), drained.retired().cap()), (8, 0, 0));
        let overfull = stock(20, 8);
        assert_eq!((overfull.stocked(), overfull.drained().bytes()), (8, 12), "the rest is a call's own");
        assert_eq!((overfull.drained().stocked(), overfull.drained().retired().bytes()), (0, 12));
        let owing = stock(-50, 128);
        assert_eq!((owing.prepaid(), owing.drained().bytes(), owing.retired().bytes()), (0, -50, -50));
        assert_eq!(drained.opened(8), stock(0, 8));
    }

    #[test]
    fn a_deposit_must_fit_the_cap_of_a_stock_that_is_open() {
        let word = stock(4, 8).with_pending();
        assert_eq!(word.settled(4).unwrap().bytes(), 8);
        assert_eq!(word.settled(5), None);
        assert_eq!(word.drained().settled(1), None);
        assert_eq!(word.opened(16).settled(5).unwrap().bytes(), 9);
        assert!(!word.drained().settled(0).unwrap().is_pending());
        assert_eq!(stock(-3, 8).with_pending().settled(8).unwrap().bytes(), 5);
    }
}
