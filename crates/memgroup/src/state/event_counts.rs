//! Event counts: the words that count one group's events, which are zero until the first event.

use memgroup_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use memgroup_sync::erasable;

/// The number of kinds of events (`counter::events`).
pub(crate) const KINDS: usize = 7;

erasable! {
    /// The counts of one group.
    pub(crate) struct EventCounts {
        pub(crate) local: [AtomicU64; KINDS],
        /// The events of the groups below.
        pub(crate) below: [AtomicU64; KINDS],
        /// The number of waits for this group's events, and of its callbacks.
        pub(crate) watched: AtomicU32,
    }
}

impl EventCounts {
    /// Counts one more watcher of the group's events.
    pub(crate) fn watch(&self) {
        // ORDERING: Relaxed, because the caller's fence follows (`observe::event` E1).
        self.watched.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn unwatch(&self) {
        // ORDERING: Relaxed, because an event that does not see this yet only takes the lock of the
        // waits in vain.
        self.watched.fetch_sub(1, Ordering::Relaxed);
    }

    /// Resets the counts for a new group in the node. No thread watches it, because a watcher
    /// holds the group. Words that are zero are not written to.
    pub(crate) fn reset(&self) {
        for count in self.local.iter().chain(&self.below) {
            // ORDERING: Relaxed, both, because no thread has a handle yet.
            if count.load(Ordering::Relaxed) != 0 {
                count.store(0, Ordering::Relaxed);
            }
        }
    }
}
