//! Stalls: the words of one group's pressure, which are zero until the first stall. `observe::pressure` gives them their meaning.
//!
//! - I1. `own` and `tally` are used under the lock of the group's level (`Shared::stall_lock`). `stalled` is written under it.

use memgroup_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use memgroup_sync::erasable;

/// Words of a tally.
pub(crate) const TALLY_WORDS: usize = 13;

erasable! {
    /// The stalls of one group and below.
    pub(crate) struct Stalls {
        tally: [AtomicU64; TALLY_WORDS],
        /// Threads stalled in the group and below.
        pub(crate) stalled: AtomicU32,
        /// Threads stalled in the group itself.
        pub(crate) own: AtomicU32,
        /// The number of the record of a thread at work in the group or below; 0 where none is known.
        pub(crate) witness: AtomicU32,
        /// The number of triggers.
        pub(crate) watches: AtomicU32,
    }
}

impl Stalls {
    pub(crate) fn tally(&self) -> [u64; TALLY_WORDS] {
        // ORDERING: Relaxed; under the lock (I1).
        std::array::from_fn(|at| self.tally[at].load(Ordering::Relaxed))
    }

    pub(crate) fn set_tally(&self, words: [u64; TALLY_WORDS]) {
        // ORDERING: Relaxed; as in `tally`.
        self.tally.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
    }

    /// For a new group in the node. Words that are zero are not written.
    pub(crate) fn reset(&self) {
        if self.tally() != [0; TALLY_WORDS] {
            self.set_tally([0; TALLY_WORDS]);
        }
        for word in [&self.stalled, &self.own, &self.witness] {
            // ORDERING: Relaxed, both; no thread has a handle yet.
            if word.load(Ordering::Relaxed) != 0 {
                // ORDERING: as above.
                word.store(0, Ordering::Relaxed);
            }
        }
    }
}
