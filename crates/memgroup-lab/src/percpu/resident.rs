//! Bytes of some address ranges that the system has backed with memory, by its own account.
//!
//! - I1. Each page counts by its own entry of `/proc/self/pagemap`. The list of mappings (`smaps`) has no account of a range: the kernel
//!   joins neighbouring mappings, and shows one twice that another thread's memory joins while the list is read.
//! - I2. Pages that were moved to swap count.

use crate::harness::prelude::*;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Bit 63: the page is in memory. Bit 62: it is in swap.
const IN_MEMORY_OR_SWAP: u64 = 0b11 << 62;
const ENTRY_BYTES: usize = 8;
/// Entries that are read at once.
const ENTRIES: usize = 8192;

/// Bytes of `ranges` that are backed.
pub(super) fn resident_bytes(ranges: &[Range<usize>]) -> Result<u64> {
    backed_pages(ranges)
        .map(|pages| (pages * page_bytes()) as u64)
        .map_err(Error::system("read /proc/self/pagemap"))
}

fn backed_pages(ranges: &[Range<usize>]) -> io::Result<usize> {
    let (pagemap, page) = (File::open("/proc/self/pagemap")?, page_bytes());
    let mut bytes = vec![0_u8; ENTRIES * ENTRY_BYTES];
    let mut backed = 0;
    for range in ranges {
        let (first, end) = (range.start / page, range.end.div_ceil(page));
        for first in (first..end).step_by(ENTRIES) {
            let part = &mut bytes[..ENTRIES.min(end - first) * ENTRY_BYTES];
            pagemap.read_exact_at(part, (first * ENTRY_BYTES) as u64)?;
            let (entries, _) = part.as_chunks::<ENTRY_BYTES>();
            backed +=
                entries.iter().filter(|&&entry| u64::from_ne_bytes(entry) & IN_MEMORY_OR_SWAP != 0).count();
        }
    }
    Ok(backed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::os::Mapping;

    #[test]
    fn counts_touched_pages_of_a_mapping_and_of_its_parts() {
        let page = page_bytes();
        let pages = Mapping::new(3 * ENTRIES * page).unwrap();
        let range = pages.range();
        assert_eq!(resident_bytes(std::slice::from_ref(&range)).unwrap(), 0);
        for index in [0, 3, ENTRIES - 1, ENTRIES, 3 * ENTRIES - 1] {
            pages.touch(index * page);
        }
        assert_eq!(resident_bytes(std::slice::from_ref(&range)).unwrap(), 5 * page as u64);
        let middle = range.start + (ENTRIES + 1) * page;
        let parts = [range.start..middle, middle..range.end];
        assert_eq!(resident_bytes(&parts[..1]).unwrap(), 4 * page as u64);
        assert_eq!(resident_bytes(&parts).unwrap(), 5 * page as u64);
        pages.discard().unwrap();
        assert_eq!(resident_bytes(&[pages.range()]).unwrap(), 0);
    }
}
