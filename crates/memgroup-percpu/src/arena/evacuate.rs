//! Moving blocks together, so that pages between survivors become empty.
//!
//! The arena offers a block and a place for it. The block's owner moves it, and frees the old block when no thread can reach
//! it any more. The emptiest chunk is the *victim*, which is invisible to allocation. Its blocks go, highest first, to the first
//! fit in the fullest other chunk with room. When none has room, they go lower within the victim.
//!
//! - I1. A block that is leaving is used, is not live, and has the owner `LEAVING`: it is not offered again.
//! - I2. A victim is left alone once its blocks would back as many pages as it has. It is then *compacted* until a block in it
//!   is freed, or a page's worth anywhere once no other victim is left.
//! - I3. Nothing is offered while the waste is at most half a page, or a twentieth of the live bytes. The waste is the size of the pages
//!   with live bytes, and of a page for each chunk more than needed, less the live bytes.
//! - B1. A victim that turns out not to be worth it was moved in part: at most as many bytes as its pages have.
//!
//! Each block moves to a fuller chunk or lower in its own, so that evacuation ends.

use crate::arena::block::{Block, LEAVING, NO_OWNER, Shape, Wait};
use crate::arena::chunk::{Chunk, State};
use crate::arena::chunks::{Chunks, DENSITIES, Placed, Request, density};
use crate::arena::page::GRANULE_BYTES;
use crate::bits;

/// A block that should be elsewhere. The move ends with `free(from)` once the owner uses `to`, or with `free(to)` if the
/// owner has freed `from` meanwhile.
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
    /// Blocks from here on were tried.
    below: u32,
    /// Pages it had live bytes on, and pages elsewhere that its blocks were the first on.
    pages: u32,
    backed: u32,
    /// No other chunk has room: its blocks go down within it.
    inward: bool,
}

/// How far evacuation has come.
#[derive(Debug, Default)]
pub(crate) struct Evacuation {
    victim: Option<Victim>,
    destination: Option<u32>,
}

impl Evacuation {
    /// Places the next block to move: its owner, the block, and its new place.
    pub(crate) fn next_move(&mut self, chunks: &mut Chunks) -> Option<(u32, Block, Placed)> {
        loop {
            let mut victim = match self.victim.take() {
                Some(victim) if is_held(chunks, victim.chunk) => victim,
                _ => choose_victim(chunks)?,
            };
            let chunk = chunks.chunk(victim.chunk);
            let Some((start, count, owner)) = next_block(chunk, victim.below) else {
                self.finish(chunks, victim.chunk);
                continue;
            };
            let place = chunk.region.at(start as usize * GRANULE_BYTES);
            let Some(placed) = self.place_away(chunks, &mut victim, start, count, owner) else {
                if victim.inward {
                    // A smaller block further down may still find a hole.
                    victim.below = start;
                    self.victim = Some(victim);
                } else {
                    self.turn_inward(chunks, victim);
                }
                continue;
            };
            victim.below = start;
            self.victim = Some(victim);
            return Some((owner, Block { place, chunk: victim.chunk, start, count }, placed));
        }
    }

    /// Places a block of the victim where it is better off.
    fn place_away(
        &mut self,
        chunks: &mut Chunks,
        victim: &mut Victim,
        start: u32,
        count: u32,
        owner: u32,
    ) -> Option<Placed> {
        let request = Request { shape: Shape { count, align: 1 }, owner, wait: Wait::May };
        let placed = if victim.inward {
            chunks.place_in(victim.chunk, &request, start)?
        } else {
            self.place_densely(chunks, victim.chunk, &request)?
        };
        victim.backed += chunks.chunk(placed.block.chunk).pages_of_one(placed.block.start, count);
        if victim.inward || victim.backed <= victim.pages {
            return Some(placed);
        }
        // As many pages would be backed as become empty (I2). The destination holds other blocks, so it is not vacant now.
        let vacant = chunks.undo(placed.block);
        debug_assert!(vacant.is_none(), "a destination holds live blocks");
        None
    }

    /// Places a block at the first fit in the fullest chunk with room.
    fn place_densely(&mut self, chunks: &mut Chunks, victim: u32, request: &Request) -> Option<Placed> {
        if let Some(id) = self.destination
            && let Some(placed) = place_beside_others(chunks, id, request)
        {
            return Some(placed);
        }
        for density in (density(chunks.chunk(victim))..DENSITIES).rev() {
            let mut candidate = chunks.first_of_density(density);
            while let Some(id) = candidate {
                candidate = chunks.next_of_density(id);
                if let Some(placed) = place_beside_others(chunks, id, request) {
                    self.destination = Some(id);
                    return Some(placed);
                }
            }
        }
        None
    }

    /// No other chunk has room: the blocks go down within the victim, if that leaves pages empty.
    fn turn_inward(&mut self, chunks: &mut Chunks, victim: Victim) {
        let chunk = chunks.chunk(victim.chunk);
        if is_compact(chunk) {
            self.finish(chunks, victim.chunk);
        } else {
            self.victim = Some(Victim { inward: true, below: chunk.geometry.granules(), ..victim });
        }
    }

    /// Ends the evacuation of a chunk, which is opened again if live blocks stay in it.
    fn finish(&mut self, chunks: &mut Chunks, id: u32) {
        self.victim = None;
        if chunks.chunk(id).live > 0 {
            chunks.mark_compacted(id);
        }
    }

    /// Takes back the place of a block that does not move after all, and leaves its chunk alone. Returns a chunk to unmap.
    pub(crate) fn give_up(&mut self, chunks: &mut Chunks, from: Block, to: Block) -> Option<Box<Chunk>> {
        let vacant = chunks.undo(to);
        if is_held(chunks, from.chunk) {
            self.finish(chunks, from.chunk);
        }
        vacant
    }
}

/// Whether the chunk is still there and still held for evacuation.
fn is_held(chunks: &Chunks, id: u32) -> bool {
    chunks.get(id).is_some_and(|chunk| chunk.state == State::Evacuating)
}

/// Holds the emptiest chunk, if enough bytes are wasted (I3).
fn choose_victim(chunks: &mut Chunks) -> Option<Victim> {
    if chunks.waste_bytes() == 0 {
        return None;
    }
    let id = chunks.emptiest()?;
    let (below, pages) = chunks.change(id, |chunk| {
        (chunk.state, chunk.cursor) = (State::Evacuating, None);
        (chunk.geometry.granules(), chunk.live_pages)
    });
    Some(Victim { chunk: id, below, pages, backed: 0, inward: false })
}

/// Places a block in an open chunk that holds live blocks.
fn place_beside_others(chunks: &mut Chunks, id: u32, request: &Request) -> Option<Placed> {
    let chunk = chunks.get(id)?;
    let fits = chunk.hints.longest >= request.shape.count
        && chunk.live > 0
        && matches!(chunk.state, State::Open { .. });
    if fits { chunks.place_in(id, request, u32::MAX) } else { None }
}

/// Whether blocks that go down within their chunk would leave no page empty. The last eighth of a page does not count as
/// compact, because the shift of a unit puts it onto the next page.
fn is_compact(chunk: &Chunk) -> bool {
    let page = chunk.geometry.page_granules();
    let (used, needed) = (chunk.live + chunk.leaving, chunk.live.div_ceil(page));
    let end = bits::end_of_previous_set(&chunk.used, 0, chunk.geometry.granules());
    end == used || chunk.live_pages <= needed && end <= needed * page - page / 8
}

/// The highest block of a chunk that begins below `below` and can be moved: its start, size and owner.
fn next_block(chunk: &Chunk, below: u32) -> Option<(u32, u32, u32)> {
    let mut end = below;
    loop {
        end = bits::end_of_previous_set(&chunk.starts, 0, end);
        let start = end.checked_sub(1)?;
        let count = chunk.count_at(start);
        let owner = chunk.owner_of(start, count);
        if ![LEAVING, NO_OWNER].contains(&owner) {
            return Some((start, count, owner));
        }
        end = start;
    }
}
