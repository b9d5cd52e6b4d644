//! The word that stands for a block under loom, where memory has no addresses: the address of a
//! copy of the block that is kept.

#![allow(unsafe_code)]

use memgroup_sync::atomic::AtomicU64;

use crate::arena::chunk::Block;

pub(crate) fn of(block: Block) -> usize {
    core::ptr::from_ref(memgroup_sync::keep(Box::new(block))).expose_provenance()
}

pub(crate) fn block(base: usize, _chunk: u32, _at: u32, _words: u32) -> Block {
    assert!(base != 0, "the block of a record that never had one is looked for");
    // SAFETY: `base` came from `of`, which keeps the block that it points to.
    unsafe { *core::ptr::with_exposed_provenance::<Block>(base) }
}

/// # Safety
///
/// As in the other build.
pub(crate) unsafe fn word<'a>(base: usize, stride: usize, slot: usize, index: usize) -> &'a AtomicU64 {
    let block = block(base, 0, 0, 0);
    assert!(index < block.words as usize, "word {index} of a block of {} words is looked for", block.words);
    // SAFETY: passed on to the caller.
    unsafe { block.word(stride, slot, index) }
}
