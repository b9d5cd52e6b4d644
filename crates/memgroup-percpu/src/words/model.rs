//! The number that stands for the word of a place under loom, where memory has no addresses: the
//! address of a copy of the [`Place`] that is kept.

#![allow(unsafe_code)]

use core::ptr;

use memgroup_sync::atomic::AtomicU64;

use crate::arena::os::{Place, Region};
use crate::words::{PLACES, STRIDE, WORD_BYTES};

/// Words are made for so many slots; no model uses more.
const SLOTS: usize = 4;

pub(crate) fn is_near(_region: &Region) -> bool {
    true
}

/// Makes all words: their first use would be a write that is ordered against no other.
pub(crate) fn prepare(region: &Region, bytes: usize) {
    for offset in (0..bytes.min(SLOTS * STRIDE)).step_by(STRIDE) {
        for place in 0..PLACES as usize {
            // SAFETY: none is needed under loom.
            let _ = unsafe { region.at(offset).word(place * WORD_BYTES) };
        }
    }
}

pub(crate) fn of(place: Place) -> u64 {
    ptr::from_ref(memgroup_sync::keep(Box::new(place))).expose_provenance() as u64
}

/// # Safety
///
/// As in the other build.
pub(crate) unsafe fn word(first: u64, offset: usize) -> &'static AtomicU64 {
    // SAFETY: `first` came from `of`, which keeps the place.
    let place = unsafe { *ptr::with_exposed_provenance::<Place>(first as usize) };
    // SAFETY: passed on to the caller.
    unsafe { place.word(offset) }
}
