//! Bytes of some address ranges that the system has backed with memory, by its own account.
//!
//! - I1. A mapping of `/proc/self/smaps` that lies in the ranges counts as a whole. The kernel joins neighbouring mappings
//!   of one kind, so one may also reach beyond; of such a one the pages inside the ranges are counted by
//!   `/proc/self/pagemap`.
//! - I2. Pages that were moved to swap count.

use crate::harness::prelude::*;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Bit 63: the page is in memory. Bit 62: it is in swap.
const IN_MEMORY_OR_SWAP: u64 = 0b11 << 62;
const ENTRY_BYTES: usize = 8;

/// Bytes of `ranges` that are backed. The ranges may overlap and come in any order.
pub(super) fn resident_bytes(ranges: &[Range<usize>]) -> Result<u64> {
    const SMAPS: &str = "read /proc/self/smaps";
    let smaps = File::open("/proc/self/smaps").map_err(Error::system(SMAPS))?;
    let ranges = joined(ranges);
    let mut bytes = 0;
    for mapping in mappings(BufReader::new(smaps)).map_err(Error::system(SMAPS))? {
        let parts = ranges.iter().map(|range| common(range, &mapping.range));
        let inside: Vec<Range<usize>> = parts.filter(|part| !part.is_empty()).collect();
        if inside.iter().map(Range::len).sum::<usize>() == mapping.range.len() {
            bytes += mapping.backed_bytes;
        } else if mapping.backed_bytes > 0 {
            for part in inside {
                bytes += by_pagemap(&part).map_err(Error::system("read /proc/self/pagemap"))?;
            }
        }
    }
    Ok(bytes)
}

/// One entry of smaps.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mapping {
    range: Range<usize>,
    backed_bytes: u64,
}

fn mappings(smaps: impl BufRead) -> io::Result<Vec<Mapping>> {
    let mut found: Vec<Mapping> = Vec::new();
    for line in smaps.lines() {
        let line = line?;
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next(), found.last_mut()) {
            (Some("Rss:" | "Swap:"), Some(kib), Some(mapping)) => {
                mapping.backed_bytes += kib.parse::<u64>().map_err(io::Error::other)? << 10;
            }
            (Some(word), _, _) => {
                found.extend(range_of(word).map(|range| Mapping { range, backed_bytes: 0 }))
            }
            _ => {}
        }
    }
    Ok(found)
}

/// `5581e000-5582f000`; none for any other word.
fn range_of(word: &str) -> Option<Range<usize>> {
    let (begin, end) = word.split_once('-')?;
    Some(usize::from_str_radix(begin, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

fn by_pagemap(range: &Range<usize>) -> io::Result<u64> {
    let page = page_bytes();
    let (first, end) = (range.start / page, range.end.div_ceil(page));
    let mut entries = vec![0_u8; (end - first) * ENTRY_BYTES];
    File::open("/proc/self/pagemap")?.read_exact_at(&mut entries, (first * ENTRY_BYTES) as u64)?;
    let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
    let backed = entries.iter().filter(|&&entry| u64::from_ne_bytes(entry) & IN_MEMORY_OR_SWAP != 0).count();
    Ok((backed * page) as u64)
}

/// The same addresses, in order, none twice.
fn joined(ranges: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut sorted: Vec<Range<usize>> = ranges.iter().filter(|range| !range.is_empty()).cloned().collect();
    sorted.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<usize>> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

fn common(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let begin = one.start.max(other.start);
    begin..one.end.min(other.end).max(begin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::os::Mapping as Pages;

    #[test]
    fn counts_touched_pages_of_a_mapping_and_of_its_parts() {
        let page = page_bytes();
        let pages = Pages::new(64 * page).unwrap();
        let range = pages.range();
        assert_eq!(resident_bytes(std::slice::from_ref(&range)).unwrap(), 0);
        for index in [0, 3, 4, 40] {
            pages.touch(index * page);
        }
        assert_eq!(resident_bytes(std::slice::from_ref(&range)).unwrap(), 4 * page as u64);
        let lower = range.start..range.start + 32 * page;
        assert_eq!(resident_bytes(std::slice::from_ref(&lower)).unwrap(), 3 * page as u64);
        assert_eq!(resident_bytes(&[lower, range]).unwrap(), 4 * page as u64, "an address counts once");
        pages.discard().unwrap();
        assert_eq!(resident_bytes(&[pages.range()]).unwrap(), 0);
    }

    #[test]
    fn reads_smaps_by_its_ranges_and_sizes() {
        let text = "7f00000-7f03000 rw-p 00000000 00:00 0 \nSize:   12 kB\nRss:     8 kB\nSwap:    4 kB\n\
                    7f04000-7f05000 r--p 00000000 00:00 0  [anon]\nRss:     0 kB\nVmFlags: rd wr\n";
        assert_eq!(
            mappings(text.as_bytes()).unwrap(),
            [
                Mapping { range: 0x7f00000..0x7f03000, backed_bytes: 12 << 10 },
                Mapping { range: 0x7f04000..0x7f05000, backed_bytes: 0 }
            ]
        );
    }

    #[test]
    fn joins_ranges_that_touch() {
        assert_eq!(joined(&[10..20, 0..5, 5..8, 15..30, 40..40]), [0..8, 10..30]);
        assert!(common(&(0..5), &(5..8)).is_empty());
        assert_eq!(common(&(0..9), &(5..8)), 5..8);
    }
}
