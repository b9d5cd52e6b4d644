//! The pages that SQLite let go last: on the way to the list of those that may go, and ready to be pinned again without
//! the cache's lock.
//!
//! ```text
//!   unpin ── offer ──▶ [ page | page | - | page ] ── claim: swap ──▶ pinned again, no lock taken
//!                                  │
//!                                  ├── lock held by the connection: take all ──▶ most recently used, in order
//!                                  └── lock held by who shrinks: take one, swap ──▶ freed, after all older ones are
//! ```
//!
//! A statement goes down the same few pages again and again: the first page of the file, a root, what lies under it. They
//! are found here, without looking into the table or the list.
//!
//! - I1. `keys` and `len` are the connection's: one thread at a time. No two of the first `len` places have the same key. A place with a page has the page's key; one
//!   whose page others have taken keeps it until all are taken, or it is claimed in vain.
//! - I2. A page stands in one place, and whoever swaps it out has it: `claim` by the connection, `take` by the holder of the lock.
//!   Loom: `loom_a_page_just_let_go_is_claimed_or_taken`.
//! - E1. Whoever takes a page sees what the connection did with it: the Release store of `offer` pairs with the Acquire swap of `take`.
//!   Loom: the same.

use std::ptr;

use memgroup_sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use memgroup_sync::interleave;

use super::page::{Header, Pin};
use crate::mutation::{self, Mutation};

/// Places: a power of two, by which an index is known to be one.
const PLACES: usize = 8;

/// No key of a page.
const NO_KEY: u32 = 0;

/// See the module.
#[derive(Default)]
pub(super) struct Front {
    len: AtomicU32,
    keys: [AtomicU32; PLACES],
    pages: [AtomicPtr<Header>; PLACES],
}

impl Front {
    /// For the connection: the page with this key, if it is here and nobody takes it first.
    #[inline]
    pub(super) fn claim(&self, key: u32) -> Option<Pin> {
        // ORDERING: Relaxed, here and for all of `keys` and `len`; one thread at a time uses the connection, and what hands it to
        // another orders the uses (I1).
        let len = self.len.load(Ordering::Relaxed) as usize;
        // A statement comes back to its pages in the reverse order of letting them go.
        // ORDERING: as above.
        let at = (0..len).rev().find(|&at| self.keys[at % PLACES].load(Ordering::Relaxed) == key)? % PLACES;
        if at + 1 == len {
            // ORDERING: Relaxed; as above.
            self.len.store(at as u32, Ordering::Relaxed);
        } else {
            // ORDERING: Relaxed; as above.
            self.keys[at].store(NO_KEY, Ordering::Relaxed);
        }
        interleave::point();
        Pin::from_pointer(self.swap_out(at))
    }

    #[inline]
    fn swap_out(&self, at: usize) -> *mut Header {
        if mutation::active(Mutation::ClaimByStore) {
            // ORDERING: as it is without the fault.
            let page = self.pages[at].load(Ordering::Relaxed);
            // ORDERING: as above.
            self.pages[at].store(ptr::null_mut(), Ordering::Relaxed);
            return page;
        }
        // ORDERING: Relaxed; what is found here the connection itself has stored. Of this swap and that of `take` one finds the page.
        self.pages[at].swap(ptr::null_mut(), Ordering::Relaxed)
    }

    /// For the connection: lets go of a page; false when there is no place.
    #[inline]
    pub(super) fn offer(&self, page: Pin, key: u32) -> bool {
        // ORDERING: Relaxed; as in `claim`.
        let len = self.len.load(Ordering::Relaxed) as usize;
        if len == PLACES {
            return false;
        }
        // ORDERING: Relaxed; as in `claim`.
        self.keys[len].store(key, Ordering::Relaxed);
        // ORDERING: Release; pairs with the Acquire swap in `take` (E1). Weaker, a page could be freed by another thread while what SQLite
        // wrote to it is still under way.
        let ordering =
            if mutation::active(Mutation::OfferRelaxed) { Ordering::Relaxed } else { Ordering::Release };
        if cfg!(memgroup_loom) {
            // A place is empty when it is stored to, and a swap of `take` that found it so comes before the store; loom lets it come
            // after, too, and then the page would be nobody's.
            self.pages[len].swap(page.as_pointer(), ordering);
        } else {
            self.pages[len].store(page.as_pointer(), ordering);
        }
        interleave::point();
        // ORDERING: Relaxed; as in `claim`.
        self.len.store(len as u32 + 1, Ordering::Relaxed);
        true
    }

    /// For the connection, which holds the cache's lock: all pages, in the order in which it let go of them. There is none here after it.
    #[inline]
    pub(super) fn take_all(&self, mut take: impl FnMut(Pin)) {
        // ORDERING: Relaxed; as in `claim`.
        let len = self.len.load(Ordering::Relaxed) as usize;
        for place in self.pages.iter().take(len) {
            // ORDERING: Relaxed; nobody else takes pages now, who does not hold the lock, and the connection stored them.
            let page = place.load(Ordering::Relaxed);
            // ORDERING: Relaxed; as above.
            place.store(ptr::null_mut(), Ordering::Relaxed);
            if let Some(page) = Pin::from_pointer(page) {
                take(page);
            }
        }
        // ORDERING: Relaxed; as in `claim`.
        self.len.store(0, Ordering::Relaxed);
    }

    /// For whoever holds the cache's lock: the page that was let go first.
    pub(super) fn take(&self) -> Option<Pin> {
        // ORDERING: Acquire; pairs with the Release store in `offer` (E1).
        self.pages.iter().find_map(|place| Pin::from_pointer(place.swap(ptr::null_mut(), Ordering::Acquire)))
    }

    /// For anybody: how many pages are here.
    pub(super) fn count(&self) -> u32 {
        // ORDERING: Relaxed; a figure that is out of date when it is read, and leads to nothing but an attempt.
        self.pages.iter().filter(|place| !place.load(Ordering::Relaxed).is_null()).count() as u32
    }
}
