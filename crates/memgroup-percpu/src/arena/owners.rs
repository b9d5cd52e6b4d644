//! The owners of the movable blocks of a chunk, by where the blocks begin.
//!
//! Blocks of 64 bytes and more begin at most one to a line of 64 bytes, so an entry a line is enough for them. The first
//! smaller block of a chunk makes a table with an entry for each granule.

use crate::arena::block::NO_OWNER;

/// Granules of a line.
const LINE: u32 = 8;

#[derive(Debug)]
pub(crate) struct Owners {
    lines: Box<[u32]>,
    granules: Box<[u32]>,
}

impl Owners {
    pub(crate) fn new(granules: u32) -> Self {
        Self { lines: vec![NO_OWNER; granules.div_ceil(LINE) as usize].into(), granules: Box::default() }
    }

    /// Whether a block of `count` granules can be entered without allocating.
    pub(crate) fn has_room_for(&self, count: u32) -> bool {
        count >= LINE || !self.granules.is_empty()
    }

    /// Makes room for blocks of `count` granules.
    pub(crate) fn make_room_for(&mut self, count: u32) {
        if !self.has_room_for(count) {
            self.granules = vec![NO_OWNER; self.lines.len() * LINE as usize].into();
        }
    }

    /// Enters a block, for which there is room.
    pub(crate) fn set(&mut self, start: u32, count: u32, owner: u32) {
        if count >= LINE {
            self.lines[(start / LINE) as usize] = owner;
        } else {
            self.granules[start as usize] = owner;
        }
    }

    /// The owner of a block that was entered.
    pub(crate) fn get(&self, start: u32, count: u32) -> u32 {
        if count >= LINE {
            self.lines[(start / LINE) as usize]
        } else {
            self.granules.get(start as usize).copied().unwrap_or(NO_OWNER)
        }
    }
}
