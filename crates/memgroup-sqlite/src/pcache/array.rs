//! Arrays charged as all that SQLite allocates: what a cache's tables are made of.
//!
//! - I1. `at` is the start of a block from [`alloc::allocate`] that holds `len` values, all of them written; or `len` is 0.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::alloc;

/// A boxed slice in a charged block.
pub(super) struct Array<T: Copy> {
    at: NonNull<T>,
    len: usize,
}

// SAFETY: the array owns its block, and what it holds may be sent.
unsafe impl<T: Copy + Send> Send for Array<T> {}

impl<T: Copy> Array<T> {
    /// No values, and no block.
    pub(super) const EMPTY: Array<T> = Array { at: NonNull::dangling(), len: 0 };

    /// An array of `len` times `value`, charged to the group in force; `None` when there is no room, or `len` is 0.
    pub(super) fn filled(len: u32, value: T) -> Option<Array<T>> {
        const { assert!(align_of::<T>() <= align_of::<u64>(), "blocks are aligned to eight bytes") };
        let len = usize::try_from(len).ok()?;
        let bytes = c_int::try_from(len.checked_mul(size_of::<T>())?).ok().filter(|&bytes| bytes > 0)?;
        let at = alloc::allocate(bytes)?.cast::<T>();
        for index in 0..len {
            // SAFETY: the block is long enough for `len` values, aligned for them, and ours alone.
            let place = unsafe { at.add(index) };
            // SAFETY: as above.
            unsafe { place.write(value) };
        }
        Some(Array { at, len })
    }
}

impl<T: Copy> Deref for Array<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: I1; the borrow of the array is that of the slice.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl<T: Copy> DerefMut for Array<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: I1; the array is borrowed for this slice alone.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl<T: Copy> Drop for Array<T> {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the block is live (I1), and nobody has it after this.
            unsafe { alloc::release(self.at.cast::<c_void>()) };
        }
    }
}
