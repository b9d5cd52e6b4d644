//! The metadata of an arena, counted anew from its bitmaps, for tests.

use crate::arena::alloc::Arena;
use crate::arena::chunk::{Chunk, Page};
use crate::arena::chunks::Sums;
use crate::bits;

impl Arena {
    /// Panics where a count or list disagrees with the bitmaps.
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
        let mut pages = vec![Page::default(); self.pages.len()];
        let (mut used, mut live) = (0, 0);
        for at in 0..self.geometry.blocks {
            let (is_used, is_dirty) = (bits::is_set(&self.used, at), bits::is_set(&self.dirty, at));
            let is_live = is_used && self.live_below(at + 1).is_some_and(|(found, _)| found == at);
            assert!(!is_used || !is_dirty, "dirty blocks are free");
            (used, live) = (used + u32::from(is_used), live + u32::from(is_live));
            if is_used || is_dirty {
                for page in &mut pages[self.geometry.pages_of(at)] {
                    page.used += u32::from(is_used);
                    page.live += u32::from(is_live);
                    page.dirty += u32::from(is_dirty);
                }
            }
        }
        assert_eq!((self.free, self.live), (self.geometry.blocks - used, live));
        assert_eq!(*self.pages, *pages, "pages count as bits do");
        assert_eq!(self.empty_pages as usize, pages.iter().filter(|page| page.is_empty()).count());
        assert_eq!(self.live_pages as usize, pages.iter().filter(|page| page.live > 0).count());
        assert!(self.lowest <= bits::next_clear(&self.used, 0, self.geometry.blocks));
    }
}
