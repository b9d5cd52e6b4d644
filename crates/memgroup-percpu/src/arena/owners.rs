//! Who owns the movable blocks of a chunk, by where they begin.
//!
//! Blocks of 64 bytes and more begin at most one to a line of 64 bytes, so an entry a line is enough for them. The first
//! smaller block of a chunk makes a table with an entry for each granule.

use crate::arena::block::{NO_OWNER, Shape};

/// Granules of a line.
const LINE: u32 = 8;

#[derive(Debug)]
pub(crate) struct Owners {
    lines: Box<[u32]>,
    /// Alignment of the block that begins in a line, as a power of two in granules.
    aligns: Box<[u8]>,
    granules: Box<[u32]>,
}

impl Owners {
    pub(crate) fn new(granules: u32) -> Self {
        let lines = granules.div_ceil(LINE) as usize;
        Self { lines: vec![NO_OWNER; lines].into(), aligns: vec![0; lines].into(), granules: Box::default() }
    }

    /// Whether a block of this shape can be entered without allocating.
    pub(crate) fn has_room_for(&self, shape: Shape) -> bool {
        shape.count >= LINE || !self.granules.is_empty()
    }

    /// Makes room for blocks of this shape.
    pub(crate) fn make_room_for(&mut self, shape: Shape) {
        if !self.has_room_for(shape) {
            self.granules = vec![NO_OWNER; self.lines.len() * LINE as usize].into();
        }
    }

    /// Enters a block, for which there is room.
    pub(crate) fn set(&mut self, start: u32, shape: Shape, owner: u32) {
        if shape.count >= LINE {
            self.lines[(start / LINE) as usize] = owner;
            self.aligns[(start / LINE) as usize] = shape.align.trailing_zeros() as u8;
        } else {
            self.granules[start as usize] = owner;
            // A block of one granule is aligned to one: a size is a multiple of the alignment.
            if shape.count > 1 {
                self.granules[start as usize + 1] = shape.align;
            }
        }
    }

    /// The owner and shape of a block that was entered.
    pub(crate) fn get(&self, start: u32, count: u32) -> (u32, Shape) {
        let line = (start / LINE) as usize;
        let (owner, align) = if count >= LINE {
            (self.lines[line], 1 << self.aligns[line])
        } else if self.granules.is_empty() {
            (NO_OWNER, 1)
        } else {
            (self.granules[start as usize], if count > 1 { self.granules[start as usize + 1] } else { 1 })
        };
        (owner, Shape { count, align })
    }
}
