//! Regions that are allocations, where there is no `madvise`.

use core::alloc::Layout;
use core::ops::Range;
use core::ptr::NonNull;

use super::{Call, Place, Refused, permitted};

/// The size that stands for the system's page.
pub(crate) fn page_bytes() -> usize {
    4096
}

/// Zeroed memory.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a region is an address range that this value owns; every access to it is atomic (I3 of
// the parent).
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// `bytes` of zeros that begin on a multiple of `page`.
    pub(crate) fn map(bytes: usize, page: usize) -> Result<Self, Refused> {
        permitted(Call::Map)?;
        let layout = Layout::from_size_align(bytes, page).map_err(|_| Refused)?;
        // SAFETY: a chunk has at least one unit, so the size is not zero.
        let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or(Refused)?;
        Ok(Self { base, layout })
    }

    /// The byte at `offset`.
    pub(crate) fn at(&self, offset: usize) -> Place {
        assert!(offset < self.layout.size(), "offset {offset} of a region of {} bytes", self.layout.size());
        // SAFETY: the offset is within the region.
        Place::new(unsafe { self.base.add(offset) })
    }

    /// Sets `range` to zero.
    pub(crate) fn discard(&self, range: Range<usize>) -> Result<(), Refused> {
        permitted(Call::Discard)?;
        if !range.is_empty() {
            // SAFETY: the range lies within this region, which lives.
            unsafe { self.at(range.start).clear(0, range.len()) };
        }
        Ok(())
    }

    /// All of it.
    pub(crate) fn resident_bytes(&self, range: Range<usize>) -> Result<usize, Refused> {
        permitted(Call::Resident)?;
        Ok(range.len())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the memory came from `alloc_zeroed` with this layout; the region's owner vouches
        // on drop that no thread uses a place in it any more.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) }
    }
}
