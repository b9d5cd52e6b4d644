//! The pages that SQLite unpinned last. The connection can pin them again without the cache's lock,
//! the table or the list.
//!
//! ```text
//!   unpin ── offer ──▶ [ page | page | - | page ] ── claim: swap ──▶ pinned again, without the lock
//!                                  │
//!                                  ├── connection, with the lock: take all ──▶ most recently used in the list, in order
//!                                  └── shrinking thread, with the lock: take one, swap ──▶ freed, after all older pages
//! ```
//!
//! Successive statements visit the same few pages: the first page of the file, the root of a tree,
//! the pages below it.
//!
//! - I1. `keys` and `len` are the connection's: one thread at a time uses them. No two of the first
//!   `len` slots have the same key. A slot with a page has the page's key. If another thread took
//!   the page, the slot keeps the key until all slots are emptied, or a claim of it fails.
//! - I2. A page is in one slot, and the thread that swaps it out has it: the connection in `claim`,
//!   or the holder of the lock in `take`. Loom: `loom_a_recent_page_is_claimed_or_taken_once`.
//! - E1. The connection's writes to a page → the thread that takes it: the Release store of `offer`
//!   pairs with the Acquire swap of `take`. Loom: the same.

use std::ptr;

use memgroup_sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use memgroup_sync::interleave;

use super::page::{Header, PagePtr};
use crate::mutation::{self, Mutation};

/// Slots. A power of two, so that `% SLOTS` is in range without a check.
const SLOTS: usize = 8;

/// The key of no page.
const NO_KEY: u32 = 0;

/// The pages that SQLite unpinned last.
#[derive(Default)]
pub(super) struct RecentPages {
    len: AtomicU32,
    keys: [AtomicU32; SLOTS],
    pages: [AtomicPtr<Header>; SLOTS],
}

impl RecentPages {
    /// For the connection: takes the page with this key, unless it is not here or another thread
    /// took it first.
    #[inline]
    pub(super) fn claim(&self, key: u32) -> Option<PagePtr> {
        // ORDERING: Relaxed, here and for all of `keys` and `len`, because one thread at a time
        // uses them, and handing the connection to another thread orders the uses (I1).
        let len = self.len.load(Ordering::Relaxed) as usize;
        // A statement returns to its pages in the reverse order of unpinning them.
        let at = (0..len).rev().find(|&at| self.keys[at % SLOTS].load(Ordering::Relaxed) == key)? % SLOTS;
        if at + 1 == len {
            self.len.store(at as u32, Ordering::Relaxed);
        } else {
            self.keys[at].store(NO_KEY, Ordering::Relaxed);
        }
        interleave::point();
        if mutation::active(Mutation::ClaimByLoad) {
            // ORDERING: as without the fault.
            return PagePtr::from_ptr(self.pages[at].load(Ordering::Relaxed));
        }
        // ORDERING: Relaxed; the connection stored the page itself. Of this swap and the one in
        // `take`, one finds the page.
        PagePtr::from_ptr(self.pages[at].swap(ptr::null_mut(), Ordering::Relaxed))
    }

    /// For the connection: puts an unpinned page into a free slot; false when there is none.
    #[inline]
    pub(super) fn offer(&self, page: PagePtr, key: u32) -> bool {
        // ORDERING: Relaxed; as in `claim`.
        let len = self.len.load(Ordering::Relaxed) as usize;
        if len == SLOTS {
            return false;
        }
        // ORDERING: Relaxed; as in `claim`.
        self.keys[len].store(key, Ordering::Relaxed);
        // ORDERING: Release; pairs with the Acquire swap in `take` (E1). With a weaker ordering,
        // another thread could free a page before SQLite's writes to it are done.
        let ordering = mutation::weakened(Mutation::OfferRelaxed, Ordering::Release);
        #[cfg(not(memgroup_loom))]
        self.pages[len].store(page.as_ptr(), ordering);
        // ORDERING: that of the store. The slot is empty, so a swap of `take` that found it empty
        // precedes the store. Loom also orders that swap after a plain store, and the page would be
        // lost.
        #[cfg(memgroup_loom)]
        self.pages[len].swap(page.as_ptr(), ordering);
        interleave::point();
        // ORDERING: Relaxed; as in `claim`.
        self.len.store(len as u32 + 1, Ordering::Relaxed);
        true
    }

    /// For the connection with the cache's lock: takes all pages, in the order of their unpinning.
    #[inline]
    pub(super) fn take_all(&self, mut take: impl FnMut(PagePtr)) {
        // ORDERING: Relaxed; as in `claim`.
        let len = self.len.load(Ordering::Relaxed) as usize;
        for slot in self.pages.iter().take(len) {
            // ORDERING: Relaxed; only a holder of the lock takes pages, and the connection stored
            // them.
            let page = slot.load(Ordering::Relaxed);
            // ORDERING: Relaxed, because only the connection stores pages, and only a holder of the
            // lock takes them.
            slot.store(ptr::null_mut(), Ordering::Relaxed);
            if let Some(page) = PagePtr::from_ptr(page) {
                take(page);
            }
        }
        // ORDERING: Relaxed; as in `claim`.
        self.len.store(0, Ordering::Relaxed);
    }

    /// For any holder of the cache's lock: takes the page that was unpinned first.
    pub(super) fn take(&self) -> Option<PagePtr> {
        // ORDERING: Acquire; pairs with the Release store in `offer` (E1).
        self.pages.iter().find_map(|slot| PagePtr::from_ptr(slot.swap(ptr::null_mut(), Ordering::Acquire)))
    }

    /// For any thread: the number of pages here, which may be out of date.
    pub(super) fn count(&self) -> u32 {
        // ORDERING: Relaxed, because a stale count causes at most a futile attempt.
        self.pages.iter().filter(|slot| !slot.load(Ordering::Relaxed).is_null()).count() as u32
    }
}
