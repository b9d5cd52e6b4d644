//! Stock: prepaid bytes of a group in each slot. See [`guide::stock`](crate::guide::stock).

pub(crate) mod drain;
pub(crate) mod grant;
pub(crate) mod listed;

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::grace::{self, BriefSection, Section};
use memgroup_sync::interleave;

use crate::base::mutation::{self, Mutation};
use crate::counter::chain;
use crate::state::stock_word::{self, Word};
use crate::stock::grant::Grant;
use crate::tree::node::Node;

/// The stock of one slot, in a read section. While this lives, its word is that of the node's
/// place. It must be held for a bounded number of steps only, and never while the thread waits for
/// a lock.
///
/// A hit needs no section, because its caller holds the group, by a handle or by the bytes that it
/// returns. An uncharge holds the group only until its addition. After that the place may have its
/// next group, or the memory of the words may have been given back to the system, so
/// [`again`](Stock::again) checks the node once more. A caller that does not hold the group at all
/// must be in a section of its own ([`Unheld`]).
pub(crate) struct Stock<S = Section> {
    pub(crate) node: &'static Node,
    pub(crate) slot: usize,
    pub(crate) word: &'static AtomicU64,
    _section: S,
}

impl Stock<()> {
    /// Returns the stock of this thread's slot if it can be reached without a call. Otherwise
    /// [`Stock::of`] decides.
    #[inline(always)]
    pub(crate) fn fast(node: &'static Node) -> Option<Stock<()>> {
        let (slot, word) = node.stock.get_current(&node.fast_slot)?;
        Some(Stock { node, slot, word, _section: () })
    }
}

impl<S> Stock<S> {
    /// Subtracts `bytes`. The word that is returned tells whether they were there.
    #[inline(always)]
    pub(crate) fn attempt(&self, bytes: u64) -> Word {
        // ORDERING: AcqRel. Acquire pairs with the Release of the thread that put the bytes here,
        // because their charge to the counters must precede our later uncharge. Otherwise a counter
        // could fall below zero. Release, as part of an RMW of the word, orders this with the
        // marks.
        Word(self.word.fetch_add(stock_word::consume_delta(bytes), Ordering::AcqRel))
    }

    /// Adds `bytes`. The word that is returned tells whether they may stay.
    #[inline(always)]
    pub(crate) fn put(&self, bytes: u64) -> Word {
        // ORDERING: AcqRel. Release pairs with the Acquire of a drain or a consume, which must come
        // after the charge of these bytes. Otherwise a counter could fall below zero.
        Word(self.word.fetch_add(stock_word::refill_delta(bytes), Ordering::AcqRel))
    }
}

impl Stock {
    /// Returns the stock in `slot`, or `None` if the node was given back.
    #[inline(always)]
    pub(crate) fn of(node: &'static Node, slot: usize) -> Option<Stock> {
        let section = grace::enter();
        let word = node.stock.get(slot)?;
        node.find_stocks()?.note(slot);
        Some(Stock { node, slot, word, _section: section })
    }

    /// Returns the stock with a word that the caller found before. The caller must hold the group,
    /// or have been in a section since.
    pub(crate) fn held(node: &'static Node, slot: usize, word: &'static AtomicU64) -> Stock {
        let section = grace::enter();
        node.find_stocks().into_iter().for_each(|stocks| stocks.note(slot));
        Stock { node, slot, word, _section: section }
    }

    /// Does the same for a caller that has not held the group since. Returns `None` if the node
    /// was given back in the meantime.
    pub(crate) fn again(node: &'static Node, slot: usize, word: &'static AtomicU64) -> Option<Stock> {
        let stock = Stock::held(node, slot, word);
        interleave::point();
        let is_found = node.stock.leads_to(slot, word);
        (is_found || mutation::active(Mutation::LateUnchargeTrustsItsWord)).then_some(stock)
    }

    /// Returns the word. Only a compare-and-swap can tell whether it is still the same.
    pub(crate) fn look(&self) -> Word {
        // ORDERING: Relaxed, because `change` decides.
        Word(self.word.load(Ordering::Relaxed))
    }

    /// Replaces `seen` by `next`. Returns whether the word was still `seen`.
    pub(crate) fn change(&self, seen: Word, next: Word) -> bool {
        exchange(self.word, seen, next).is_ok()
    }

    /// Replaces the word by the result of `next`; see [`update`].
    pub(crate) fn update(&self, next: impl FnMut(Word) -> Option<Word>) -> Option<Word> {
        update(self.word, next)
    }

    /// Spends prepaid bytes if the stock has them. Counts no attempt.
    pub(crate) fn spend(&self, bytes: u64) -> bool {
        self.update(|word| word.covers(bytes).then(|| word.less(bytes))).is_some()
    }
}

/// A section for a caller that holds no group. While it lives, the nodes that the caller finds are
/// not given back, and neither are their words.
pub(crate) struct Unheld {
    _brief: Option<BriefSection>,
    _section: Option<Section>,
}

impl Unheld {
    #[inline(always)]
    pub(crate) fn begin() -> Unheld {
        if mutation::active(Mutation::UnheldChargeHasNoSection) {
            return Unheld { _brief: None, _section: None };
        }
        let brief = grace::enter_briefly();
        Unheld { _section: brief.is_none().then(grace::enter), _brief: brief }
    }
}

/// Replaces a stock word by the result of `next`, by a compare-and-swap that is repeated until no
/// other thread came in between. Returns the word that was replaced, or `None` if `next` leaves it
/// as it is. It is never a blind swap, because marks, cap and attempts share the word.
pub(crate) fn update(cell: &AtomicU64, mut next: impl FnMut(Word) -> Option<Word>) -> Option<Word> {
    // ORDERING: Relaxed, because the compare-and-swap decides.
    let mut word = Word(cell.load(Ordering::Relaxed));
    loop {
        interleave::point();
        match exchange(cell, word, next(word)?) {
            Ok(()) => return Some(word),
            Err(newer) => word = newer,
        }
    }
}

fn exchange(cell: &AtomicU64, seen: Word, next: Word) -> Result<(), Word> {
    if mutation::active(Mutation::DrainSwapsBlindly) && next.prepaid() == 0 {
        cell.swap(next.0, Ordering::AcqRel);
        return Ok(());
    }
    // ORDERING: AcqRel. Acquire pairs with the Release of the thread that put bytes here: they were
    // charged before, so our uncharge follows their charge. Release: a deposit or a mark is seen
    // only after the steps that preceded it. PENDING and the end of OPEN are ordered by RMWs on one
    // word, so one of the two sides sees the other (E2).
    cell.compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Relaxed).map(|_| ()).map_err(Word)
}

/// A PENDING section: this thread is between the word of a stock and the counters. It ends when
/// this is dropped, also in a panic.
pub(crate) struct Pending<'s> {
    pub(crate) stock: &'s Stock,
}

impl Pending<'_> {
    /// Begins the section. The caller must have set PENDING in the word.
    pub(crate) fn begun(stock: &Stock) -> Pending<'_> {
        Pending { stock }
    }

    /// Ends the section: gives the stock the cap that `grant` is for, which must be reserved in
    /// the budget, and leaves `deposit` bytes in it. Returns whether it could. If not, the
    /// section ends as by [`end`](Self::end), and the grant is returned.
    pub(crate) fn open(self, grant: Grant, cap: u64, deposit: u64) -> bool {
        let is_open = self.stock.update(|word| word.opened(cap).settled(deposit)).is_some();
        if is_open {
            grant.keep();
            std::mem::forget(self);
        } else {
            self.end(deposit);
        }
        is_open
    }

    /// Ends the section and leaves `deposit` bytes, which are charged to the counters, in the
    /// stock. They go back to the counters if the stock has no room for them.
    pub(crate) fn end(self, deposit: u64) {
        end_pending(self.stock, deposit);
        std::mem::forget(self);
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        end_pending(self.stock, 0);
    }
}

/// Clears PENDING, and leaves the deposit in the stock or uncharges it. The Release of the update
/// pairs with the Acquire in `drain::settled`: a thread that sees PENDING gone sees this thread's
/// changes to the counters.
fn end_pending(stock: &Stock, deposit: u64) {
    if stock.update(|word| word.settled(deposit)).is_none() {
        chain::uncharge_held(stock.node, deposit);
        stock.update(|word| word.settled(0));
    }
}

/// Takes out again what was added to a word that has no room for it: `bytes`, or as many as there
/// are. The caller must return them to the counters when it has left the stock.
///
/// Why this leaves nothing behind: let H be the bytes that were charged and not spent in a word
/// that is not open. The word shows H less the bytes that consumes under way have subtracted. The
/// draining thread takes all bytes from zero to the cap. Those above the cap were added by calls
/// under way. So H is at most the sum of the bytes that calls under way added or subtracted. Each
/// call, when it is done, takes out its own part or all that the word shows. So the bound stays
/// true, and with the last call H is zero. Until then calls under way account for the bytes that
/// the word shows and for the hidden ones (G1).
///
/// A call may end when its group is gone and the place has the next one. Then it takes bytes of a
/// call that is under way there, and that call takes less.
#[must_use = "the caller must return the bytes to the counters"]
pub(crate) fn withdraw(stock: &Stock, bytes: u64) -> u64 {
    let part = |word: Word| if word.bytes() <= word.room() as i64 { 0 } else { bytes.min(word.prepaid()) };
    let found = stock.update(|word| (part(word) > 0).then(|| word.less(part(word))));
    interleave::point();
    found.map_or(0, part)
}

/// Returns the cap that a stock asks for next: at first enough for two charges like this one, then
/// twice the one it has. A stock that was drained asks for its old cap. `cap_max` does not apply
/// to charges that need more.
pub(crate) fn next_cap(word: Word, bytes: u64, cap_max: u64) -> u64 {
    const FIRST: u64 = 512;
    let fitting = (2 * bytes).next_power_of_two().max(FIRST);
    let more = if word.is_open() { 2 * word.cap() } else { word.cap() };
    fitting.max(more.min(cap_max))
}
