//! Counts of one group's events: words that are zero until the first event.

use memgroup_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use memgroup_sync::erasable;

/// The kinds of events (`counter::events`).
pub(crate) const KINDS: usize = 7;

erasable! {
    /// The counts of one group.
    pub(crate) struct EventCounts {
        pub(crate) local: [AtomicU64; KINDS],
        /// Of the groups below.
        pub(crate) below: [AtomicU64; KINDS],
        /// Waits for this group's events, and callbacks.
        pub(crate) watched: AtomicU32,
    }
}

impl EventCounts {
    /// Counts one more watcher of the group's events.
    pub(crate) fn watch(&self) {
        // ORDERING: Relaxed; before the caller's fence (`observe::event` E1).
        self.watched.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn unwatch(&self) {
        // ORDERING: Relaxed; an event that does not see it yet takes the lock of the waits in vain.
        self.watched.fetch_sub(1, Ordering::Relaxed);
    }

    /// For a new group in the node. No thread watches it: a watcher holds it. Words that are zero are not written.
    pub(crate) fn reset(&self) {
        for count in self.local.iter().chain(&self.below) {
            // ORDERING: Relaxed, both; no thread has a handle yet.
            if count.load(Ordering::Relaxed) != 0 {
                // ORDERING: as above.
                count.store(0, Ordering::Relaxed);
            }
        }
    }
}
