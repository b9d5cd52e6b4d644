//! Moving blocks together, so that pages between survivors become empty.
//!
//! The arena offers a block and a place for it. The block's owner moves it, and frees the old
//! block when no thread can reach it any more. The emptiest chunk is the *victim*, which is
//! invisible to allocation. Its blocks go, highest first, to the lowest free block of the fullest
//! other chunk. When no other chunk has a free block, they go down within the victim.
//!
//! - I1. A block that is leaving is used and not live, so it isn't offered again.
//! - I2. A victim is left alone once its blocks would back as many pages as it has. It is then
//!   *compacted* until a block in it is freed, or a page's worth anywhere once no other victim is
//!   left.
//! - I3. Nothing is offered while the waste is at most half a page, or a twentieth of the live
//!   bytes. The waste is the size of the pages with live bytes, and of a page for each chunk more
//!   than needed, less the live bytes.
//! - B1. A victim that turns out not to be worth it was moved in part: at most as many bytes as
//!   its pages have.
//!
//! Each block moves to a fuller chunk or lower in its own, so that evacuation ends.

use crate::arena::chunk::{Block, Chunk, State};
use crate::arena::chunks::{Chunks, Placed, density};
use crate::bits;

/// A block that should be elsewhere. The move ends with `free(from)` once the owner uses `to`, or
/// with `free(to)` if the owner has freed `from` meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) owner: u32,
    pub(crate) from: Block,
    pub(crate) to: Block,
}

/// The chunk that is being emptied.
#[derive(Clone, Copy, Debug)]
struct Victim {
    chunk: u32,
    /// Blocks from here on were offered.
    below: u32,
    /// Pages it had live blocks on, and pages elsewhere that its blocks were the first on.
    pages: u32,
    backed: u32,
    /// No other chunk has a free block: the blocks go down within the victim.
    inward: bool,
}

/// How far evacuation has come.
#[derive(Debug, Default)]
pub(crate) struct Evacuation {
    victim: Option<Victim>,
}

impl Evacuation {
    /// Places the next block to move: its owner, the block, and its new place.
    pub(crate) fn next_move(&mut self, chunks: &mut Chunks) -> Option<(u32, Block, Placed)> {
        loop {
            let is_held = |id| chunks.get(id).is_some_and(|chunk: &Chunk| chunk.state == State::Evacuating);
            let mut victim = match self.victim.take().filter(|victim| is_held(victim.chunk)) {
                Some(victim) => victim,
                None => choose_victim(chunks)?,
            };
            let chunk = chunks.chunk(victim.chunk);
            if let Some((at, owner)) = chunk.live_below(victim.below) {
                if let Some(placed) = place_away(chunks, &mut victim, at, owner) {
                    victim.below = at;
                    self.victim = Some(victim);
                    return Some((owner, chunks.block(victim.chunk, at), placed));
                }
                let chunk = chunks.chunk(victim.chunk);
                if !victim.inward && !is_compact(chunk) {
                    let below = chunk.geometry.blocks;
                    self.victim = Some(Victim { inward: true, below, ..victim });
                    continue;
                }
            }
            // The victim is opened again if live blocks stay in it.
            chunks.change(victim.chunk, |chunk| {
                if chunk.live > 0 {
                    chunk.compacted = true;
                    chunk.reopen();
                }
            });
        }
    }
}

/// Places a block of the victim where it is better off.
fn place_away(chunks: &mut Chunks, victim: &mut Victim, at: u32, owner: u32) -> Option<Placed> {
    if victim.inward {
        return chunks.place_in(victim.chunk, owner, at);
    }
    let fullest = chunks.fullest(density(chunks.chunk(victim.chunk)))?;
    let placed = chunks.place_in(fullest, owner, u32::MAX)?;
    victim.backed += chunks.chunk(fullest).pages_of_one(placed.block.at);
    if victim.backed <= victim.pages {
        return Some(placed);
    }
    // As many pages would be backed as become empty (I2).
    chunks.undo(placed.block);
    None
}

/// Holds the emptiest chunk, if enough bytes are wasted (I3).
fn choose_victim(chunks: &mut Chunks) -> Option<Victim> {
    if chunks.waste_bytes() == 0 {
        return None;
    }
    let id = chunks.emptiest()?;
    let (below, pages) = chunks.change(id, |chunk| {
        (chunk.state, chunk.cursor) = (State::Evacuating, None);
        (chunk.geometry.blocks, chunk.live_pages)
    });
    Some(Victim { chunk: id, below, pages, backed: 0, inward: false })
}

/// Returns whether no page would become empty if the blocks went down within their chunk. The last
/// eighth of a page doesn't count as compact, because the shift of a unit puts it onto the next
/// page.
fn is_compact(chunk: &Chunk) -> bool {
    let (geometry, page) = (&chunk.geometry, chunk.geometry.page_bytes);
    let needed = geometry.pages_for(chunk.live);
    let end = bits::end_of_previous_set(&chunk.used, 0, geometry.blocks);
    end == geometry.blocks - chunk.free
        || chunk.live_pages <= needed
            && end as usize * geometry.block_bytes <= needed as usize * page - page / 8
}
