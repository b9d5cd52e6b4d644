//! Moving blocks together, so that pages fall empty between which survivors lie.
//!
//! The arena says which block should go where; who owns the block moves it, and frees the old one when nobody can reach it
//! any more. The emptiest chunk is the *victim*: it is invisible to allocation, and its blocks go, highest first, to the
//! first fit in the fullest other chunk with room. When none has room, they go lower within the victim.
//!
//! - I1. A block that is leaving is used, is not live, and has the owner [`LEAVING`]: it is not offered again.
//! - I2. A victim is left alone once its blocks would back as many pages as it has: it is *settled* until something is
//!   freed in it, or a page's worth anywhere once no other victim is left.
//! - I3. Nothing is offered while the waste is small: the pages with live bytes, and one for each chunk beyond those that
//!   are needed, exceed the live bytes by half a page or a twentieth of them.
//! - B1. A victim that turns out not to be worth it was moved in part: at most as many bytes as its pages have.
//!
//! Each block moves to a fuller chunk or lower in its own, so that evacuation ends.

use crate::arena::bits;
use crate::arena::block::{Block, GRANULE_BYTES, LEAVING, NO_OWNER, Shape, Wait};
use crate::arena::chunk::{Chunk, State};
use crate::arena::chunks::{Chunks, DENSITIES, Placed};
use crate::arena::page::Kind;
use crate::arena::{Arena, Locked};

/// A block that should be somewhere else. Ends with `free(from)` once the owner uses `to`; with `cancel_move` if the owner
/// does not want to; with `free(to)` if it has freed `from` meanwhile.
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
    /// Blocks from here on were looked at.
    below: u32,
    /// Pages it had live bytes on, and pages that its blocks were the first on elsewhere.
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

impl Arena {
    /// The next block to move, placed and cleared already; `None` when nothing more is gained.
    pub(crate) fn begin_move(&self) -> Option<Move> {
        let mut state = self.state.lock();
        let (owner, from, placed) = state.next_move()?;
        if !self.back_placed(&mut state, placed) {
            state.cancel(owner, from);
            let vacant = state.chunks.undo(placed.block);
            drop(state);
            self.unmap(vacant);
            return None;
        }
        drop(state);
        Some(Move { owner, from, to: self.cleared(placed) })
    }

    /// The block is on its way back: it is used until it is freed, but not live, and is not moved any more.
    pub(crate) fn leave(&self, block: Block) {
        let mut state = self.state.lock();
        state.chunks.change(block.chunk, |chunk| {
            let (owner, shape) = chunk.owner_of(block.start, block.count);
            if owner != LEAVING && owner != NO_OWNER {
                chunk.set_owner(block.start, shape, LEAVING);
                chunk.set_leaving(block.start, block.count, true);
            }
        });
    }

    /// The owner does not move its block: `to` is free again, `from` an ordinary block. Its chunk is not evacuated again
    /// before something is freed there.
    pub(crate) fn cancel_move(&self, aborted: Move) {
        let mut state = self.state.lock();
        state.cancel(aborted.owner, aborted.from);
        let vacant = state.chunks.undo(aborted.to);
        drop(state);
        self.unmap(vacant);
    }
}

impl Locked {
    fn next_move(&mut self) -> Option<(u32, Block, Placed)> {
        loop {
            let mut victim = match self.evacuation.victim.take() {
                Some(victim) if self.is_held(victim.chunk) => victim,
                _ => self.choose_victim()?,
            };
            let Some((start, owner, shape)) = next_block(self.chunks.chunk(victim.chunk), victim.below)
            else {
                self.settle(victim.chunk);
                continue;
            };
            let Some(placed) = self.place_away(&mut victim, start, shape, owner) else {
                if victim.inward {
                    // A smaller block further down may still find a hole.
                    victim.below = start;
                    self.evacuation.victim = Some(victim);
                } else {
                    self.turn_inward(victim);
                }
                continue;
            };
            let from = self.leave(victim.chunk, start, shape);
            victim.below = start;
            self.evacuation.victim = Some(victim);
            return Some((owner, from, placed));
        }
    }

    /// Whether the chunk is still there and still held for evacuation.
    fn is_held(&self, id: u32) -> bool {
        self.chunks.get(id).is_some_and(|chunk| chunk.state == State::Evacuating)
    }

    /// The emptiest chunk of a kind in which too much lies waste (I3).
    fn choose_victim(&mut self) -> Option<Victim> {
        let id = [Kind::Coloured, Kind::Plain]
            .into_iter()
            .find_map(|kind| (self.chunks.waste_bytes(kind) > 0).then(|| self.chunks.emptiest(kind))?)?;
        let (below, pages) = self.chunks.change(id, |chunk| {
            (chunk.state, chunk.cursor) = (State::Evacuating, None);
            (chunk.geometry.granules(), chunk.live_pages)
        });
        Some(Victim { chunk: id, below, pages, backed: 0, inward: false })
    }

    /// Places a block of the victim where it is better off.
    fn place_away(&mut self, victim: &mut Victim, start: u32, shape: Shape, owner: u32) -> Option<Placed> {
        let placed = if victim.inward {
            self.chunks.place_in(victim.chunk, shape, owner, Wait::May, start)?
        } else {
            self.place_densely(victim.chunk, shape, owner)?
        };
        victim.backed += self.chunks.chunk(placed.block.chunk).pages_of_one(placed.block.start, shape.count);
        if victim.inward || victim.backed <= victim.pages {
            return Some(placed);
        }
        // As many pages would be backed as fall empty (I2). The destination holds others, so it is not vacant now.
        let vacant = self.chunks.undo(placed.block);
        debug_assert!(vacant.is_none(), "a destination holds live blocks");
        None
    }

    /// The first fit in the fullest chunk with room.
    fn place_densely(&mut self, victim: u32, shape: Shape, owner: u32) -> Option<Placed> {
        let kind = shape.kind();
        let fits = |chunks: &Chunks, id: u32| {
            chunks.get(id).is_some_and(|chunk| {
                chunk.longest() >= shape.count
                    && chunk.live > 0
                    && chunk.geometry.kind == kind
                    && matches!(chunk.state, State::Open { .. })
            })
        };
        if let Some(id) = self.evacuation.destination
            && fits(&self.chunks, id)
            && let Some(placed) = self.chunks.place_in(id, shape, owner, Wait::May, u32::MAX)
        {
            return Some(placed);
        }
        let emptiest = self.chunks.density_of(victim);
        for density in (emptiest..DENSITIES).rev() {
            let mut candidate = self.chunks.first_of_density(kind, density);
            while let Some(id) = candidate {
                candidate = self.chunks.next_of_density(id);
                if fits(&self.chunks, id)
                    && let Some(placed) = self.chunks.place_in(id, shape, owner, Wait::May, u32::MAX)
                {
                    self.evacuation.destination = Some(id);
                    return Some(placed);
                }
            }
        }
        None
    }

    /// No other chunk has room: the blocks go down within the victim, if that leaves pages empty.
    fn turn_inward(&mut self, victim: Victim) {
        let chunk = self.chunks.chunk(victim.chunk);
        if is_compact(chunk) {
            self.settle(victim.chunk);
        } else {
            self.evacuation.victim =
                Some(Victim { inward: true, below: chunk.geometry.granules(), ..victim });
        }
    }

    /// Ends the evacuation of a chunk. It is opened again if something stays in it.
    fn settle(&mut self, id: u32) {
        self.evacuation.victim = None;
        if self.chunks.chunk(id).live > 0 {
            self.chunks.settle(id);
        }
    }

    /// The block at `start` is leaving.
    fn leave(&mut self, id: u32, start: u32, shape: Shape) -> Block {
        self.chunks.change(id, |chunk| {
            chunk.set_owner(start, shape, LEAVING);
            chunk.set_leaving(start, shape.count, true);
            Block::new(chunk.region.at(start as usize * GRANULE_BYTES), id, start, shape.count)
        })
    }

    /// The block stays after all, if it is still there: its owner may have freed it meanwhile, and its chunk may be gone.
    fn cancel(&mut self, owner: u32, from: Block) {
        if self.chunks.get(from.chunk).is_none() {
            return;
        }
        self.chunks.change(from.chunk, |chunk| {
            let begins = bits::is_set(&chunk.starts, from.start) && chunk.count_at(from.start) == from.count;
            let (present, shape) = chunk.owner_of(from.start, from.count);
            // An owner that freed its block and got the same place again has one that is not leaving.
            if begins && present == LEAVING {
                chunk.set_owner(from.start, shape, owner);
                chunk.set_leaving(from.start, from.count, false);
            }
        });
        if self.is_held(from.chunk) {
            self.settle(from.chunk);
        }
    }
}

/// Whether blocks that go down within their chunk would leave no page empty. The last eighth of a page does not count as
/// compact: the shift of a unit puts it onto the next page.
fn is_compact(chunk: &Chunk) -> bool {
    let page = chunk.geometry.page_granules();
    let (used, needed) = (chunk.live + chunk.leaving, chunk.live.div_ceil(page));
    let end = bits::end_of_previous_set(&chunk.used, 0, chunk.geometry.granules());
    end == used || chunk.live_pages <= needed && end <= needed * page - page / 8
}

/// The highest block of a chunk that begins below `below` and can be moved.
fn next_block(chunk: &Chunk, below: u32) -> Option<(u32, u32, Shape)> {
    let mut end = below;
    loop {
        end = bits::end_of_previous_set(&chunk.starts, 0, end);
        let start = end.checked_sub(1)?;
        let (owner, shape) = chunk.owner_of(start, chunk.count_at(start));
        if owner != NO_OWNER && owner != LEAVING {
            return Some((start, owner, shape));
        }
        end = start;
    }
}
