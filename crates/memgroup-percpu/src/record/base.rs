//! The word that stands for a block: its address, from which an addition leads to each word of it.

#![allow(unsafe_code)]

use core::ptr::{self, NonNull};

use memgroup_sync::atomic::AtomicU64;

use crate::arena::chunk::Block;
use crate::arena::os::Place;

pub(crate) fn of(block: Block) -> usize {
    block.place.address().as_ptr().expose_provenance()
}

pub(crate) fn block(base: usize, chunk: u32, at: u32, words: u32) -> Block {
    let address = NonNull::new(ptr::with_exposed_provenance_mut(base));
    let place = Place::new(address.expect("a linked block has an address"));
    Block { place, chunk, at, words }
}

/// # Safety
///
/// `base` came from `of` for a block that is not free, or was not when a section began that still
/// lasts; `slot` is admitted; `index` is within the block.
#[inline(always)]
pub(crate) unsafe fn word<'a>(base: usize, stride: usize, slot: usize, index: usize) -> &'a AtomicU64 {
    let word = base + slot * stride + index * size_of::<u64>();
    // SAFETY: within the chunk's mapping, aligned, and an AtomicU64, by the caller's promise.
    unsafe { &*ptr::with_exposed_provenance::<AtomicU64>(word) }
}
