//! The bucket array of a page table, in a block charged like all memory of SQLite.
//!
//! - I1. `at` is the start of a block from [`alloc::allocate`] with `len` initialised buckets; or
//!   `len` is 0.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::page::PagePtr;
use crate::alloc;

/// Buckets of a table that gets its first ones.
const BUCKETS_MIN: u32 = 64;

/// The first page of a bucket's chain.
type Bucket = Option<PagePtr>;

/// A boxed slice of buckets in a charged block.
pub(super) struct Buckets {
    at: NonNull<Bucket>,
    len: usize,
}

// SAFETY: the buckets own their block, and a `PagePtr` may be sent.
unsafe impl Send for Buckets {}

impl Buckets {
    /// No buckets, and no block.
    pub(super) const EMPTY: Buckets = Buckets { at: NonNull::dangling(), len: 0 };

    /// Twice as many empty buckets as `now`, charged to the current group; `None` when that is
    /// refused.
    pub(super) fn double(now: u32) -> Option<Buckets> {
        const { assert!(align_of::<Bucket>() <= align_of::<u64>(), "blocks are aligned to eight bytes") };
        let len = now.checked_mul(2)?.max(BUCKETS_MIN) as usize;
        let bytes = c_int::try_from(len.checked_mul(size_of::<Bucket>())?).ok()?;
        let at = alloc::allocate(bytes)?.cast::<Bucket>();
        for index in 0..len {
            // SAFETY: the block is long enough for `len` buckets and aligned for them; only this
            // thread has it.
            unsafe { at.as_ptr().wrapping_add(index).write(None) };
        }
        Some(Buckets { at, len })
    }
}

impl Deref for Buckets {
    type Target = [Bucket];

    #[inline]
    fn deref(&self) -> &[Bucket] {
        // SAFETY: I1; the slice borrows the buckets.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl DerefMut for Buckets {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Bucket] {
        // SAFETY: I1; the slice borrows the buckets exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Drop for Buckets {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the block is live (I1), and not used after this.
            unsafe { alloc::release(self.at.cast::<c_void>()) };
        }
    }
}
