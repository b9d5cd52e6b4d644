//! Stalls: the words that hold one group's pressure, which are zero until the first stall.
//! `observe::pressure` defines their meaning.
//!
//! - I1. `own` and `tally` are accessed only under the lock of the group's level
//!   (`Shared::stall_lock`), and `stalled` is written under it.

use memgroup_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use memgroup_sync::erasable;

/// The number of words in a tally.
pub(crate) const TALLY_WORDS: usize = 13;

erasable! {
    /// The stalls of one group and the groups below it.
    pub(crate) struct Stalls {
        tally: [AtomicU64; TALLY_WORDS],
        /// The number of threads that are stalled in the group or below it.
        pub(crate) stalled: AtomicU32,
        /// The number of threads that are stalled in the group itself.
        pub(crate) own: AtomicU32,
        /// The number of the record of a thread that works in the group or below it; 0 if none is
        /// known.
        pub(crate) witness: AtomicU32,
        /// The number of triggers.
        pub(crate) watches: AtomicU32,
    }
}

impl Stalls {
    pub(crate) fn tally(&self) -> [u64; TALLY_WORDS] {
        // ORDERING: Relaxed, here and in `set_tally`, because the lock orders the accesses (I1).
        std::array::from_fn(|at| self.tally[at].load(Ordering::Relaxed))
    }

    pub(crate) fn set_tally(&self, words: [u64; TALLY_WORDS]) {
        self.tally.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
    }

    /// Resets the words for a new group in the node. Words that are zero are not written to.
    pub(crate) fn reset(&self) {
        if self.tally() != [0; TALLY_WORDS] {
            self.set_tally([0; TALLY_WORDS]);
        }
        for word in [&self.stalled, &self.own, &self.witness] {
            // ORDERING: Relaxed, both, because no thread has a handle yet.
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
    }
}
