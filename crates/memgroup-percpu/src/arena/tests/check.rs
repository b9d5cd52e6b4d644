//! The metadata of an arena, counted anew from its bitmaps, for tests.

use crate::arena::alloc::Arena;
use crate::arena::block::LEAVING;
use crate::arena::chunk::{Chunk, Page};
use crate::arena::chunks::Sums;
use crate::arena::hints::{BLOCK, Summary};
use crate::bits;

impl Arena {
    /// Panics where a count, hint or list disagrees with the bitmaps.
    pub(crate) fn check(&self) {
        let state = self.state.lock();
        let mut sums = Sums::default();
        for (id, chunk) in state.chunks.all() {
            chunk.check();
            sums.replace(Sums::default(), Sums::of(chunk));
            state.chunks.check_lists(id);
        }
        assert_eq!(sums, state.chunks.sums, "the sums are those of the chunks");
    }
}

impl Chunk {
    fn check(&self) {
        let all = self.geometry.granules();
        let used = bits::count(&self.used, 0, all);
        assert_eq!(self.free, all - used);
        assert_eq!(self.live + self.leaving, used);
        let mut pages = vec![Page::default(); self.pages.len()];
        let mut at = bits::next_set(&self.starts, 0, all);
        while at < all {
            let count = self.count_at(at);
            let owner = self.owner_of(at, count);
            for (page, from, to) in self.geometry.pages_of(at, at + count) {
                pages[page].used += to - from;
                pages[page].live += if owner == LEAVING { 0 } else { to - from };
            }
            at = bits::next_set(&self.starts, at + count, all);
        }
        for (page, counts) in pages.iter_mut().enumerate() {
            let granules = self.geometry.page_granules();
            counts.dirty = bits::count(&self.dirty, page as u32 * granules, (page as u32 + 1) * granules);
        }
        assert_eq!(*self.pages, *pages, "pages count as blocks and bits do");
        assert_eq!(self.empty_pages as usize, pages.iter().filter(|page| page.is_empty()).count());
        assert_eq!(self.live_pages as usize, pages.iter().filter(|page| page.live > 0).count());
        for word in 0..self.used.len() {
            assert_eq!(self.used[word] & self.dirty[word], 0, "dirty granules are free");
            assert_eq!(self.starts[word] & !self.used[word], 0, "a block begins in a used granule");
        }
        for (block, summary) in self.blocks.iter().enumerate() {
            assert_eq!(
                *summary,
                Summary::of(&self.used[block * BLOCK as usize / 64..][..BLOCK as usize / 64])
            );
        }
        let mut at = 0;
        while at < all {
            let start = bits::next_clear(&self.used, at, all);
            at = bits::next_set(&self.used, start, all);
            self.hints.check(start, at);
        }
    }
}
