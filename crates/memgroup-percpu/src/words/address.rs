//! The number that stands for the word of a place on slot 0: its address.

#![allow(unsafe_code)]

use core::ptr;

use memgroup_sync::ADDRESS_BITS;
use memgroup_sync::atomic::AtomicU64;

use crate::arena::os::{Place, Region};

/// Returns whether addresses of the region leave room for the number of slots above them.
pub(crate) fn is_near(region: &Region) -> bool {
    (region.at(0).number() as u64) < (1 << ADDRESS_BITS) - (1 << 32)
}

/// Nothing: the words are there.
pub(crate) fn prepare(_region: &Region, _bytes: usize) {}

pub(crate) fn of(place: Place) -> u64 {
    place.address().as_ptr().expose_provenance() as u64
}

/// # Safety
///
/// `first` came from `of` for a word of a block that is never unmapped, and there is a word
/// `offset` bytes further on.
#[inline(always)]
pub(crate) unsafe fn word(first: u64, offset: usize) -> &'static AtomicU64 {
    let word = ptr::with_exposed_provenance::<AtomicU64>(first as usize + offset);
    // SAFETY: mapped for ever, aligned, and an `AtomicU64`, by the caller's promise.
    unsafe { &*word }
}
