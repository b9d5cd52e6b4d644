//! A count of the bytes that this thread frees for one group.
//!
//! SQLite does not say how many bytes a call has freed. Its figure for the page cache is an estimate, which also drops for pages that
//! SQLite keeps for later. A group's usage moves with all its connections. So blocks are counted where they are freed.
//!
//! - I1. The cell holds a `Copy` value without a destructor. It can be read and written at any time in a thread's life.

use std::cell::Cell;

use memgroup::GroupId;

use crate::block::Header;

thread_local! {
    /// The group that is counted, and its bytes freed since the count began.
    static COUNT: Cell<Option<(GroupId, u64)>> = const { Cell::new(None) };
}

/// Counts a block with this header as freed.
#[inline]
pub(crate) fn add(header: Header) {
    if let Some((owner, bytes)) = COUNT.get()
        && owner.node() == header.owner
    {
        COUNT.set(Some((owner, bytes + header.charged_bytes())));
    }
}

/// Bytes of `owner` that this thread frees during `work`: exactly the bytes uncharged for it. An outer count does not count during an inner one.
pub(crate) fn count(owner: GroupId, work: impl FnOnce()) -> u64 {
    let outer = COUNT.replace(Some((owner, 0)));
    work();
    COUNT.replace(outer).map_or(0, |(_, bytes)| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frees a block that cost its owner so many bytes.
    fn free(owner: u32, charged_bytes: u32) {
        let size = charged_bytes - crate::block::HEADER_BYTES as u32;
        add(Header { owner, size });
    }

    #[test]
    fn counts_for_the_innermost_count_only() {
        let (outer, inner) = (GroupId::from_u128(1), GroupId::from_u128(2));
        free(1, 1000);
        let mut of_inner = 0;
        let of_outer = count(outer, || {
            free(1, 16);
            free(2, 2000);
            of_inner = count(inner, || {
                free(1, 4000);
                free(2, 32);
            });
            free(1, 64);
        });
        free(1, 1000);
        assert_eq!((of_outer, of_inner), (16 + 64, 32));
        assert!(COUNT.get().is_none(), "the count has ended");
    }
}
