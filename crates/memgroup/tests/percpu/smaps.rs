//! The system's own figures about ranges of addresses.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;

use memgroup::Hierarchy;

/// Bytes of the hierarchy's per-CPU memory that have pages. The list of mappings does not tell:
/// the system merges neighbouring mappings, and does not count pages there that were only read.
pub(crate) fn resident_bytes(hierarchy: &Hierarchy) -> u64 {
    hierarchy.percpu_ranges().iter().map(present_bytes).sum()
}

/// Bytes of a range that have pages.
pub(crate) fn present_bytes(range: &Range<usize>) -> u64 {
    const PAGE: usize = 4096;
    const PRESENT: u64 = 1 << 63;
    let mut file = File::open("/proc/self/pagemap").expect("Linux has the map of pages");
    let (first, pages) = (range.start / PAGE, range.len() / PAGE);
    file.seek(SeekFrom::Start(first as u64 * 8)).unwrap();
    let mut words = vec![0; pages * 8];
    file.read_exact(&mut words).unwrap();
    let present = words.as_chunks().0.iter().filter(|&&word| u64::from_ne_bytes(word) & PRESENT != 0).count();
    (present * PAGE) as u64
}
