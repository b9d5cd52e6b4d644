//! A writer's scan of a record: may a section that was begun before an epoch still be in force on
//! it?
//!
//! - I1. The proof is read before the words.
//! - B1. A scan errs on one side only: it may report a section that is over by now.

use super::epoch::Epoch;
use super::evidence::Evidence;
use super::reader::Reader;
use crate::atomic::{AtomicU64, Ordering};
use crate::interleave;
use crate::mutation::{Mutation, active};

/// The answer of a scan about one record.
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
    /// Returns whether a section that was begun before `target` was made may still be in force on
    /// this record.
    pub(super) fn scan(&self, target: Epoch, evidence: Evidence) -> Found {
        // The proof first, the words after it: a section that is entered by a store before the
        // proof is over by then.
        let proven = match evidence {
            Evidence::Proofs { since } => {
                self.entered_by_swap_since(since) || active(Mutation::LostBarrierNeedsNoProof)
            }
            Evidence::Loads | Evidence::Exchanges => true,
        };
        interleave::point();
        let words = [&self.brief, &self.word].map(|word| read(word, evidence));
        match words.into_iter().find(|&word| word != 0 && word < target.0) {
            Some(word) => Found::Section(word),
            // Also if a word is of a newer section: an older brief one, entered by a store, may
            // have become visible only after its word was read.
            None if !proven => Found::Unproven,
            None => Found::Nothing,
        }
    }

    /// The older of the sections in force, 0 if there is none; for reports.
    pub(super) fn oldest(&self) -> u64 {
        // ORDERING: Acquire, both; a thread that reads the owner next reads the one that wrote the
        // word, or a later one.
        let words = [self.brief.load(Ordering::Acquire), self.word.load(Ordering::Acquire)];
        words.into_iter().filter(|&word| word != 0).min().unwrap_or(0)
    }

    /// Returns whether a word still has this value: a hint that takes the line from no reader, and
    /// that a `scan` follows.
    pub(super) fn still_holds(&self, word: u64) -> bool {
        // ORDERING: Relaxed, both; it decides nothing, the `scan` that follows has the order
        // needed.
        self.brief.load(Ordering::Relaxed) == word || self.word.load(Ordering::Relaxed) == word
    }

    fn entered_by_swap_since(&self, since: Epoch) -> bool {
        // ORDERING: Acquire; pairs with the Release store in `begin`: earlier sections of this
        // owner are over.
        if self.swapped.load(Ordering::Acquire) >= since.0 {
            return true;
        }
        // ORDERING: AcqRel; Acquire pairs with the Release of `give_back`: the last owner's
        // sections are over. Release pairs with `claim`: a thread that claims after this sees the
        // clock, and swaps. By a load a claim could slip between.
        self.owner.compare_exchange(0, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// Reads one of the two words as `evidence` requires.
fn read(word: &AtomicU64, evidence: Evidence) -> u64 {
    if evidence == Evidence::Loads || active(Mutation::ScanByLoads) {
        // ORDERING: Acquire; pairs with the Release in `leave` (E1). That a section cannot hide is
        // the barrier's work.
        word.load(Ordering::Acquire)
    } else {
        // ORDERING: AcqRel; pairs with the swap in `begin_by_swap` and, Acquire, with `leave` (E1).
        // By a load this scan and a section could each miss the other.
        word.fetch_or(0, Ordering::AcqRel)
    }
}
