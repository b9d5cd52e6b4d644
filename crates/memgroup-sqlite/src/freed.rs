//! What this thread frees of one group's memory while somebody counts it.
//!
//! SQLite does not say how much a call has freed: its own figure for the page cache is an estimate, which also drops
//! for pages that it only puts aside; and a group's usage moves with all its connections. So the blocks are counted
//! where they are freed.
//!
//! - I1. The cell holds a `Copy` value without a destructor, as in `shortage.rs`: it can be read at any moment of a
//!   thread's life.

use std::cell::Cell;

use memgroup::GroupId;

use crate::block::Header;

/// Bytes freed of the group since the counting began.
#[derive(Clone, Copy)]
struct Tally {
    owner: GroupId,
    bytes: u64,
}

thread_local! {
    static TALLY: Cell<Option<Tally>> = const { Cell::new(None) };
}

/// A block with this header is freed.
#[inline]
pub(crate) fn note(header: Header) {
    if TALLY.get().is_some() {
        add(header);
    }
}

#[cold]
fn add(header: Header) {
    if let Some(tally) = TALLY.get()
        && tally.owner == header.owner()
    {
        TALLY.set(Some(Tally { bytes: tally.bytes + header.charged_bytes(), ..tally }));
    }
}

/// Bytes of `owner` that this thread frees during `work`: exactly what is uncharged for it. Within another counting it counts in the
/// other's place.
pub(crate) fn during(owner: GroupId, work: impl FnOnce()) -> u64 {
    let before = TALLY.replace(Some(Tally { owner, bytes: 0 }));
    work();
    TALLY.replace(before).map_or(0, |tally| tally.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frees a block that cost its owner so much.
    fn free(owner: u32, charged_bytes: u32) {
        let size = charged_bytes - crate::block::HEADER_BYTES as u32;
        note(Header::new(GroupId::from_u32(owner), size));
    }

    #[test]
    fn a_counting_within_another_counts_its_own_and_the_other_goes_on() {
        let (outer, inner) = (GroupId::from_u32(1), GroupId::from_u32(2));
        free(1, 1000);
        let mut of_inner = 0;
        let of_outer = during(outer, || {
            free(1, 16);
            free(2, 2000);
            of_inner = during(inner, || {
                free(1, 4000);
                free(2, 32);
            });
            free(1, 64);
        });
        free(1, 1000);
        assert_eq!((of_outer, of_inner), (16 + 64, 32));
        assert!(TALLY.get().is_none(), "nobody counts any more");
    }
}
