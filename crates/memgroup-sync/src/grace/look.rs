//! A writer's look at a record: may a section that was begun before an epoch still be in force on it?
//!
//! - I1. The proof is looked at before the words, and `brief` before `word` (`reader` I5).
//! - B1. A look errs on one side only: it may find a section that is over by now.

use super::epoch::Epoch;
use super::reader::Reader;
use crate::atomic::{AtomicU64, Ordering};
use crate::interleave;
use crate::mutation::{Mutation, active};

/// What a scan may believe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// Every running thread executed a barrier since the epoch was made: loads.
    Loads,
    /// Readers enter by a swap: exchanges of the words.
    Exchanges,
    /// As `Exchanges`, of records that are known to have left their last section that was entered by a store.
    Proofs {
        /// The epoch from which every section is entered by a swap.
        since: Epoch,
    },
}

/// What a scan found in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// No section that was begun before the epoch.
    Nothing,
    /// A section with this word.
    Section(u64),
    /// The thread may be in a section that is not visible; it has not entered by a swap yet.
    Unproven,
}

impl Reader {
    /// Whether a section that was begun before `target` was made may still be in force on this record.
    pub(super) fn look(&self, target: Epoch, evidence: Evidence) -> Found {
        // The proof first, the word after it: a section that is entered by a store before the proof is over by then.
        let proven = match evidence {
            Evidence::Proofs { since } => {
                self.entered_by_swap_since(since) || active(Mutation::LostBarrierNeedsNoProof)
            }
            Evidence::Loads | Evidence::Exchanges => true,
        };
        interleave::point();
        // The brief one first, because a section may go from there to the other (I5).
        let (first, second) = if active(Mutation::ScanLooksAtWordFirst) {
            (&self.word, &self.brief)
        } else {
            (&self.brief, &self.word)
        };
        let words = [found_in(first, evidence), found_in(second, evidence)];
        match words.into_iter().find(|&word| word != 0 && word < target.0) {
            Some(word) => Found::Section(word),
            None if words == [0, 0] && !proven => Found::Unproven,
            None => Found::Nothing,
        }
    }

    /// The older of the sections in force, 0 if there is none: for people.
    pub(super) fn oldest(&self) -> u64 {
        // ORDERING: Acquire, both; who reads the owner next reads the one that wrote the word, or a later one.
        let words = [self.brief.load(Ordering::Acquire), self.word.load(Ordering::Acquire)];
        words.into_iter().filter(|&word| word != 0).min().unwrap_or(0)
    }

    /// A look that decides nothing and takes the line from nobody: whether another `look` is worth it.
    pub(super) fn still_holds(&self, word: u64) -> bool {
        // ORDERING: Relaxed, both; it decides nothing, a `look` follows that has the order needed.
        self.brief.load(Ordering::Relaxed) == word || self.word.load(Ordering::Relaxed) == word
    }

    fn entered_by_swap_since(&self, since: Epoch) -> bool {
        // ORDERING: Acquire; pairs with the Release store in `begin`: earlier sections of this owner are over.
        if self.swapped.load(Ordering::Acquire) >= since.0 {
            return true;
        }
        // ORDERING: AcqRel; Acquire pairs with the Release of `give_back`: the last owner's sections are over. Release
        // pairs with `claim`: who claims after this sees the clock, and swaps. By a load a claim could slip between.
        self.owner.compare_exchange(0, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// What stands in one of the two words, for a scan that may believe `evidence`.
fn found_in(word: &AtomicU64, evidence: Evidence) -> u64 {
    if evidence == Evidence::Loads || active(Mutation::ScanByLoads) {
        // ORDERING: Acquire; pairs with the Release in `leave` (E1). That a section cannot hide is the barrier's work.
        word.load(Ordering::Acquire)
    } else {
        // ORDERING: AcqRel; pairs with the swap in `begin_by_swap` and, Acquire, with `leave` (E1). By a load this
        // scan and a section could each miss the other.
        word.fetch_or(0, Ordering::AcqRel)
    }
}
