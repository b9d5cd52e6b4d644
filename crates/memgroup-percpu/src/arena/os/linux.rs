//! Regions that are mappings.

use core::ops::Range;
use core::ptr::NonNull;
use std::sync::OnceLock;

use super::{Call, Place, Refused, permitted};

/// The system's page.
pub(crate) fn page_bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    // SAFETY: the call has no preconditions.
    *BYTES.get_or_init(|| usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096))
}

/// Address space that the system backs page by page when it is written.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    bytes: usize,
    /// The mapping around it, larger where the page asked for is larger than the system's.
    mapping: (usize, usize),
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
        let slack = if page > page_bytes() { page } else { 0 };
        let length = bytes.checked_add(slack).ok_or(Refused)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that
        // exists.
        let address = unsafe { libc::mmap(core::ptr::null_mut(), length, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(Refused);
        }
        // A huge page would back many slots for the first byte of one. The advice may be refused:
        // it only saves. SAFETY: the range was mapped just now.
        unsafe { libc::madvise(address, length, libc::MADV_NOHUGEPAGE) };
        let shift = address.addr().next_multiple_of(page.max(1)) - address.addr();
        // SAFETY: the shift is at most the slack, so the address lies within the mapping.
        let base = NonNull::new(unsafe { address.cast::<u8>().add(shift) }).ok_or(Refused)?;
        Ok(Self { base, bytes, mapping: (shift, length) })
    }

    /// The byte at `offset`.
    pub(crate) fn at(&self, offset: usize) -> Place {
        assert!(offset < self.bytes, "offset {offset} of a region of {} bytes", self.bytes);
        // SAFETY: the offset is within the region.
        Place::new(unsafe { self.base.add(offset) })
    }

    /// Gives the pages of `range` back: they read as zero from now on (I2).
    pub(crate) fn discard(&self, range: Range<usize>) -> Result<(), Refused> {
        permitted(Call::Discard)?;
        assert!(range.end <= self.bytes, "a range up to {} of a region of {} bytes", range.end, self.bytes);
        if range.is_empty() {
            return Ok(());
        }
        let address = self.at(range.start).address().as_ptr().cast();
        // SAFETY: the range lies within this mapping. Pages that vanish read as zero, and words are
        // atomics for which zero is a value (I2, I3 of the parent).
        match unsafe { libc::madvise(address, range.len(), libc::MADV_DONTNEED) } {
            0 => Ok(()),
            _ => Err(Refused),
        }
    }

    /// How many bytes of `range` are backed, as the system reports.
    pub(crate) fn resident_bytes(&self, range: Range<usize>) -> Result<usize, Refused> {
        const PAGES: usize = 4096;
        permitted(Call::Resident)?;
        let (mut pages, page) = ([0_u8; PAGES], page_bytes());
        let mut sum = 0;
        for start in range.clone().step_by(PAGES * page) {
            let bytes = (range.end - start).min(PAGES * page);
            let address = self.at(start).address().as_ptr().cast();
            // SAFETY: mincore writes one byte a page into `pages`, which is long enough, and reads
            // nothing of the range.
            if unsafe { libc::mincore(address, bytes, pages.as_mut_ptr()) } != 0 {
                return Err(Refused);
            }
            sum += pages[..bytes.div_ceil(page)].iter().filter(|&page| page & 1 != 0).count() * page;
        }
        Ok(sum)
    }

    #[cfg(test)]
    pub(crate) fn addresses(&self) -> Range<usize> {
        self.base.addr().get()..self.base.addr().get() + self.bytes
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let (shift, length) = self.mapping;
        // SAFETY: the mapping began `shift` bytes before the base (`map`).
        let address = unsafe { self.base.as_ptr().sub(shift) };
        // SAFETY: the whole mapping is this region's; its owner vouches on drop that no thread uses
        // a place in it any more.
        let answer = unsafe { libc::munmap(address.cast(), length) };
        debug_assert_eq!(answer, 0, "munmap of a whole mapping fails only for a bad range");
    }
}
