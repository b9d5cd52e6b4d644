//! An address within a region.

use core::ptr::NonNull;

use memgroup_sync::atomic::{AtomicU64, Ordering};

/// The address of a byte in a region. Its user knows that the region lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(NonNull<u8>);

// SAFETY: an address; every access through it is atomic (I3 of the parent).
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Place {
    /// An address within a region, a multiple of 8.
    pub(crate) fn new(address: NonNull<u8>) -> Self {
        Self(address)
    }

    pub(crate) fn address(self) -> NonNull<u8> {
        self.0
    }

    /// The address as a number from which `words::word_at` and [`of_exposed`](Self::of_exposed)
    /// lead back to the memory.
    pub(crate) fn expose(self) -> usize {
        self.0.expose_provenance().get()
    }

    /// The place that [`expose`](Self::expose) turned into this number.
    pub(crate) fn of_exposed(number: usize) -> Self {
        let address = NonNull::new(core::ptr::with_exposed_provenance_mut(number));
        Self(address.expect("a place that was exposed has an address"))
    }

    /// The address as a number, to find its chunk by.
    pub(crate) fn number(self) -> usize {
        self.0.addr().get()
    }

    /// The word `offset` bytes further on.
    ///
    /// # Safety
    ///
    /// It lies within the region, at a multiple of 8, and the region stays mapped while the word
    /// is used.
    #[inline(always)]
    pub(crate) unsafe fn word(self, offset: usize) -> &'static AtomicU64 {
        // SAFETY: within the region, by the caller's promise.
        let address = unsafe { self.0.byte_add(offset) };
        // SAFETY: mapped and aligned by the caller's promise. All accesses to a region are atomic
        // (I3 of the parent), and every bit pattern is a word.
        unsafe { address.cast::<AtomicU64>().as_ref() }
    }

    /// Sets `bytes` from `offset` on to zero.
    ///
    /// # Safety
    ///
    /// As for `word`, for each of them.
    pub(crate) unsafe fn clear(self, offset: usize, bytes: usize) {
        for at in (offset..offset + bytes).step_by(8) {
            // SAFETY: passed on to the caller.
            let word = unsafe { self.word(at) };
            // ORDERING: Relaxed; the block's next user gets it through a lock or a later
            // publication.
            word.store(0, Ordering::Relaxed);
        }
    }
}
