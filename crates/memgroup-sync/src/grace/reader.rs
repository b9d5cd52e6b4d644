//! A thread's record: how its owner enters and leaves sections on it.
//!
//! ```text
//!   128 bytes   brief     0, or the clock as the brief section found it, with ACTIVE
//!               word      0, or the clock as the outermost of the other sections found it, with ACTIVE
//!               nested    sections inside the outermost one; ON_LOAN: the record goes back when the last one ends
//!               swapped   the clock as the thread last entered by a swap
//!               owner     the owner's thread id, 0: free
//!               noted     the word that a waiting writer saw, and the time of that
//! ```
//!
//! - I1. `brief`, `word`, `nested` and `swapped` are written by the owner alone: its thread, or a
//!   signal handler on it, which leaves them as it found them. A scan reads; its exchanges change
//!   no value.
//! - I2. `word` keeps the epoch of the outermost section until the last section on the record
//!   ends, in whatever order they are dropped: a nested section is covered by the older epoch,
//!   never the other way round.
//! - I3. A record with `owner` 0 has `brief`, `word` and `nested` 0.
//! - I4. Records live for ever (see `registry`), so a section refers to its own by a plain
//!   reference.
//! - I5. A brief section begins where `brief` is 0 and ends by storing 0 there. It shares nothing
//!   with the sections around it, so its end reads nothing.
//! - E1. leave → scan: Release → Acquire on `word`. Loom:
//!   `loom_a_reader_never_sees_memory_that_is_used_again`.
//! - E2. give back → claim: Release → Acquire on `owner`. Loom:
//!   `loom_a_record_that_changes_hands_is_one_threads_at_a_time`.

use core::sync::atomic::compiler_fence;

use super::epoch::{self, SWAP};
use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::interleave;
use crate::mutation::{Mutation, active};

/// In `nested`: the thread has ended, or is ending, and the record goes back when its last section
/// is over.
const ON_LOAN: u64 = 1 << 63;

/// One thread's record, in lines of its own.
#[derive(Debug)]
#[cfg_attr(memgroup_loom, derive(Default))]
#[repr(align(128))]
pub(super) struct Reader {
    pub(super) brief: AtomicU64,
    pub(super) word: AtomicU64,
    nested: AtomicU64,
    pub(super) swapped: AtomicU64,
    pub(super) owner: AtomicU32,
    pub(super) noted_word: AtomicU64,
    pub(super) noted_at: AtomicU64,
}

impl Reader {
    /// A free record, with this word of a brief section.
    #[cfg(not(memgroup_loom))]
    pub(super) const fn new(brief: u64) -> Self {
        Self {
            brief: AtomicU64::new(brief),
            word: AtomicU64::new(0),
            nested: AtomicU64::new(0),
            swapped: AtomicU64::new(0),
            owner: AtomicU32::new(0),
            noted_word: AtomicU64::new(0),
            noted_at: AtomicU64::new(0),
        }
    }

    /// Takes a free record for the thread `owner`, which is not 0.
    pub(super) fn claim(&self, owner: u32) -> bool {
        // ORDERING: Relaxed; a hint, the exchange decides.
        if self.owner.load(Ordering::Relaxed) != 0 {
            return false;
        }
        interleave::point();
        if active(Mutation::ClaimByStore) {
            // ORDERING: Release; the fault is that two threads can both have seen it free.
            self.owner.store(owner, Ordering::Release);
            return true;
        }
        // ORDERING: Acquire; pairs with the Release in `give_back` (E2), without it the words of
        // the last owner could be read. Release only continues the chain that a scan's exchange
        // begins.
        self.owner.compare_exchange(0, owner, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn give_back(&self) {
        // ORDERING: Relaxed; the owner's own word (I1), published by the store below.
        self.nested.store(0, Ordering::Relaxed);
        // ORDERING: Release; pairs with the exchange in `claim` (E2): the next owner finds `word`
        // and `nested` at 0.
        let order = if active(Mutation::GiveBackRelaxed) { Ordering::Relaxed } else { Ordering::Release };
        self.owner.store(0, order);
    }

    /// Returns whether a section other than a brief one is in force; asked by the owner.
    #[inline(always)]
    pub(super) fn is_active(&self) -> bool {
        // ORDERING: Relaxed; the owner reads its own word (I1).
        self.word.load(Ordering::Relaxed) != 0
    }

    /// Returns whether a brief section is in force; asked by the owner.
    #[inline(always)]
    pub(super) fn is_in_brief(&self) -> bool {
        // ORDERING: Relaxed; the owner reads its own word (I1).
        self.brief.load(Ordering::Relaxed) != 0
    }

    /// Begins a section that [`end`](Self::end) ends.
    #[inline(always)]
    pub(super) fn begin(&self) {
        if self.is_active() {
            return self.begin_nested();
        }
        let clock = epoch::now();
        interleave::point();
        if clock & SWAP != 0 && !active(Mutation::EnterByStore) {
            self.begin_by_swap(clock);
        } else {
            enter_by_store(&self.word, clock);
        }
    }

    /// Begins a section that [`end_brief`](Self::end_brief) ends; `false` if there is one already,
    /// or sections are entered by a swap.
    #[inline(always)]
    pub(super) fn begin_brief(&self) -> bool {
        if self.is_in_brief() {
            return false;
        }
        let clock = epoch::now();
        interleave::point();
        if clock & SWAP != 0 && !active(Mutation::EnterByStore) {
            if !cfg!(memgroup_loom) {
                return false;
            }
            // ORDERING: AcqRel; a model's stand-in for the store below and the writer's barrier, as
            // in `begin_by_swap`.
            self.brief.swap(clock, Ordering::AcqRel);
        } else {
            enter_by_store(&self.brief, clock);
        }
        true
    }

    #[inline(always)]
    pub(super) fn end_brief(&self) {
        interleave::point();
        leave(&self.brief);
    }

    #[cold]
    #[inline(never)]
    fn begin_by_swap(&self, clock: u64) {
        // ORDERING: Release; pairs with the Acquire in `entered_by_swap_since`: a scan that finds
        // it (lost barrier) knows that the sections entered by a store are over. Weaker, a
        // processor could show it before the word of such a section. No model shows that: loom has
        // the stores of a word in the order in which they ran, so the scan's exchange finds the
        // last one, and acquires its writes.
        self.swapped.store(clock, Ordering::Release);
        // ORDERING: AcqRel; pairs with the scan's exchange of this word. One of the two is first:
        // either the scan sees this section, or this section sees the unlinking before the scan.
        // Weaker, both could miss.
        self.word.swap(clock, Ordering::AcqRel);
    }

    #[cold]
    #[inline(never)]
    fn begin_nested(&self) {
        if active(Mutation::NestedTakesNewEpoch) {
            // ORDERING: AcqRel, as in `begin`; the fault is the epoch.
            self.word.swap(epoch::now(), Ordering::AcqRel);
        }
        // ORDERING: Relaxed; the owner's own word (I1).
        let nested = self.nested.load(Ordering::Relaxed);
        // ORDERING: Relaxed, as above. A signal between the two leaves the word as it found it.
        self.nested.store(nested + 1, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn end(&self) {
        interleave::point();
        // ORDERING: Relaxed; the owner's own word (I1).
        if self.nested.load(Ordering::Relaxed) == 0 || active(Mutation::NestedLeaveIsLast) {
            leave(&self.word);
        } else {
            self.end_nested();
        }
    }

    #[cold]
    #[inline(never)]
    fn end_nested(&self) {
        // ORDERING: Relaxed; the owner's own word (I1).
        let nested = self.nested.load(Ordering::Relaxed);
        if nested == ON_LOAN {
            leave(&self.word);
            self.give_back();
        } else {
            // ORDERING: Relaxed, as above.
            self.nested.store(nested - 1, Ordering::Relaxed);
        }
    }

    /// Gives the record back with the end of its last section, at once if there is none. A record
    /// with a brief section that outlives the thread, in another thread-local, does not go back.
    pub(super) fn give_back_after_last_section(&self) {
        if self.is_in_brief() {
            return;
        }
        if self.is_active() {
            // ORDERING: Relaxed; the owner's own word (I1).
            let nested = self.nested.load(Ordering::Relaxed);
            // ORDERING: Relaxed, as above.
            self.nested.store(nested | ON_LOAN, Ordering::Relaxed);
        } else {
            self.give_back();
        }
    }
}

#[cfg(all(test, memgroup_loom))]
impl Reader {
    pub(super) fn is_free(&self) -> bool {
        // ORDERING: Relaxed; at rest, after the joins.
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        // ORDERING: Relaxed, as above.
        self.owner.load(Ordering::Relaxed) == 0
            && [&self.brief, &self.word, &self.nested].iter().all(|at| word(at) == 0)
    }
}

/// Enters a section on one of the two words, while the clock does not ask for a swap.
#[inline(always)]
fn enter_by_store(word: &AtomicU64, clock: u64) {
    // ORDERING: Release; pairs with the scan's Acquire: a scan that sees this section knows that
    // the one before it on this word is over. The barrier makes it visible before the section's
    // loads.
    word.store(clock, Ordering::Release);
    // The barrier on the writer's side orders the processor; this orders the compiler.
    compiler_fence(Ordering::SeqCst);
}

/// Leaves a section: its word becomes 0.
#[inline(always)]
fn leave(word: &AtomicU64) {
    // ORDERING: Release; pairs with the scan's Acquire (E1). Weaker, memory could be reused before
    // the section's last access to it.
    let order = if active(Mutation::LeaveRelaxed) { Ordering::Relaxed } else { Ordering::Release };
    #[cfg(memgroup_loom)]
    if !leaves_as_shipped() {
        // ORDERING: that of the store below.
        word.swap(0, order);
        return;
    }
    word.store(0, order);
}

/// Returns whether a model's sections leave by a store, as they do outside models. To loom a store
/// and another thread's exchange that the storing thread did not see have no order, so a wait for
/// the store need not end: a model that waits has its sections leave by an exchange.
#[cfg(memgroup_loom)]
fn leaves_as_shipped() -> bool {
    #[cfg(test)]
    return super::loom::LEAVES_AS_SHIPPED.get();
    #[cfg(not(test))]
    false
}
