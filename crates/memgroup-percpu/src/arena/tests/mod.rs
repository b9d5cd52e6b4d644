//! Tests of the arena as a whole, one file for each property.

#![allow(unsafe_code)]

mod evacuation;
mod failures;
mod model;
mod soak;
#[cfg(all(target_os = "linux", not(miri)))]
mod truth;

use memgroup_sync::atomic::Ordering;
use xtask::Watchdog;

use crate::arena::alloc::Arena;
use crate::arena::chunk::Block;
use crate::arena::config::ArenaConfig;
use crate::arena::page::PageSize;

/// As many words as the per-CPU records of one kernel group: 2,704 bytes.
pub(crate) const GROUP: usize = 338;

/// A generator of numbers, from a seed that the test prints.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

pub(crate) fn arena(slots: usize, page: PageSize, words: usize) -> Arena {
    let config = ArenaConfig::new(slots).page(page).float_bytes(0);
    Arena::new(config, words).expect("the slots and the page are right")
}

/// A block with the number of its owner in every word, on every admitted slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marked {
    pub(crate) block: Block,
    pub(crate) mark: u32,
}

impl Marked {
    /// Allocates a block, which is zero on all admitted slots, and marks it there.
    pub(crate) fn new(arena: &Arena, owner: u32) -> Self {
        loop {
            if let Some(block) = arena.alloc(owner) {
                return Self::mark(arena, block, owner + 1);
            }
            arena.provide(1).expect("the system has memory");
        }
    }

    pub(crate) fn mark(arena: &Arena, block: Block, mark: u32) -> Self {
        let marked = Self { block, mark };
        marked.each_word(arena, |slot, word, value| {
            assert_eq!(
                value.swap(u64::from(mark), Ordering::Relaxed),
                0,
                "word {word} on slot {slot} is zero"
            );
        });
        marked
    }

    /// Panics where another block's user changed a word.
    pub(crate) fn check(&self, arena: &Arena, admitted_before: &[usize]) {
        self.each_word(arena, |slot, word, value| {
            let expected = if admitted_before.contains(&slot) { u64::from(self.mark) } else { 0 };
            assert_eq!(value.load(Ordering::Relaxed), expected, "word {word} of {self:?} on slot {slot}");
        });
    }

    pub(crate) fn free(self, arena: &Arena) {
        arena.free(self.block);
    }

    fn each_word(
        &self,
        arena: &Arena,
        mut each: impl FnMut(usize, usize, &memgroup_sync::atomic::AtomicU64),
    ) {
        for slot in arena.slots.iter() {
            for word in 0..self.block.words as usize {
                // SAFETY: the slot is admitted, the word within the block, and the block not free.
                each(slot, word, unsafe { self.block.word(arena.geometry.stride, slot, word) });
            }
        }
    }
}

/// Makes every move that the arena offers; returns the bytes that were moved on one slot.
pub(crate) fn move_all(arena: &Arena, blocks: &mut std::collections::BTreeMap<u32, Marked>) -> u64 {
    let _watchdog = Watchdog::over("the moves of an evacuation");
    let mut moves = 0;
    while let Some(offer) = arena.begin_move() {
        moves += 1;
        assert!(moves <= 2 * blocks.len(), "more moves than blocks need");
        let old = blocks[&offer.owner];
        assert_eq!(old.block, offer.from, "an owner's block is offered as the arena gave it");
        blocks.insert(offer.owner, Marked::mark(arena, offer.to, old.mark));
        arena.free(offer.from);
    }
    (moves * arena.geometry.block_bytes) as u64
}

pub(crate) fn depopulate_all(arena: &Arena) -> u64 {
    let _watchdog = Watchdog::over("a depopulation");
    let mut bytes = 0;
    loop {
        let done = arena.depopulate_now(usize::MAX);
        assert!(done.pages <= 64);
        bytes += done.bytes;
        if !done.more {
            return bytes;
        }
    }
}
