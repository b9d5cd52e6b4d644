//! The system's own figures about ranges of addresses.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;

use memgroup::Hierarchy;

/// Bytes of the hierarchy's per-CPU memory that are resident by the list of mappings. The system merges neighbouring mappings, so
/// pages of others that are in one line with them are taken off.
pub(crate) fn resident_bytes(hierarchy: &Hierarchy) -> u64 {
    let mut ranges = hierarchy.percpu_ranges();
    ranges.sort_by_key(|range| range.start);
    let text = std::fs::read_to_string("/proc/self/smaps").expect("Linux has the list");
    let (mut mapping, mut sum) = (0..0, 0);
    for line in text.lines() {
        if let Some(found) = range_of(line) {
            mapping = found;
        } else if let Some(rest) = line.strip_prefix("Rss:")
            && ranges.iter().any(|range| range.start < mapping.end && mapping.start < range.end)
        {
            let kib: u64 = rest.trim().trim_end_matches(" kB").parse().expect("a number");
            sum += (kib << 10) - beside(&mapping, &ranges).iter().map(present_bytes).sum::<u64>();
        }
    }
    sum
}

fn range_of(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

/// The parts of a mapping that are in none of the sorted ranges.
fn beside(mapping: &Range<usize>, ranges: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut rest = Vec::new();
    let mut at = mapping.start;
    for range in ranges.iter().filter(|range| range.start < mapping.end && mapping.start < range.end) {
        rest.push(at..range.start.max(at));
        at = at.max(range.end);
    }
    rest.push(at..mapping.end.max(at));
    rest
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
