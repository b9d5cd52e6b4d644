//! The pages of a cache by key: a hash table, chained through the pages' headers.
//!
//! ```text
//!   buckets  [ - | • | - | • | .. ]      bucket = key modulo their number
//!                  ▼       ▼
//!                 page    page ──chain──▶ page
//! ```
//!
//! The keys are page numbers, mostly consecutive ones. Unhashed, they spread over the buckets more
//! evenly than any hash of them.
//!
//! - I1. A page of the table is live, and in the chain of its key's bucket once. No two pages have
//!   the same key.
//! - I2. The number of buckets is a power of two; or there is no bucket and no page.
//! - I3. The holder of the cache's lock uses the table. Its methods neither allocate nor free:
//!   buckets are allocated before the lock is taken, and freed after it is released.
//! - I4. [`Buckets::at`] is the start of a block from [`alloc::allocate`], which is charged like
//!   all memory of SQLite, with `len` initialised buckets; or `len` is 0.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::page::PagePtr;
use crate::alloc;

/// The pages of a cache by key.
pub(super) struct Table {
    buckets: Buckets,
    pub(super) pages: u32,
}

impl Table {
    /// A table without buckets.
    pub(super) const fn new() -> Table {
        Table { buckets: Buckets::EMPTY, pages: 0 }
    }

    pub(super) fn buckets(&self) -> u32 {
        self.buckets.len() as u32
    }

    #[inline]
    fn bucket(&self, key: u32) -> usize {
        // Without buckets the result is out of range, as it must be.
        key as usize & self.buckets.len().wrapping_sub(1)
    }

    /// The page with this key.
    #[inline]
    pub(super) fn find(&self, key: u32) -> Option<PagePtr> {
        self.find_in(self.bucket(key), |of_page| of_page == key)
    }

    /// A page in this bucket with a key of `limit` or more.
    pub(super) fn find_from(&self, bucket: u32, limit: u32) -> Option<PagePtr> {
        self.find_in(bucket as usize, |of_page| of_page >= limit)
    }

    #[inline]
    fn find_in(&self, bucket: usize, is_wanted: impl Fn(u32) -> bool) -> Option<PagePtr> {
        let mut next = *self.buckets.get(bucket)?;
        while let Some(page) = next {
            // SAFETY: the page is in the table (I1), and the lock is held (I3).
            let header = unsafe { page.header() };
            if is_wanted(header.key.get()) {
                break;
            }
            next = header.chain.get();
        }
        next
    }

    /// Inserts a page under a key that no other page has.
    ///
    /// # Safety
    ///
    /// The page is live and in no chain, and only the caller uses it.
    ///
    /// # Panics
    ///
    /// When there is no bucket.
    pub(super) unsafe fn insert(&mut self, page: PagePtr, key: u32) {
        let bucket = self.bucket(key);
        // SAFETY: the caller's promise.
        let header = unsafe { page.header() };
        header.key.set(key);
        header.chain.set(self.buckets[bucket].replace(page));
        self.pages += 1;
    }

    /// Removes a page.
    ///
    /// # Safety
    ///
    /// The page is in this table.
    pub(super) unsafe fn remove(&mut self, page: PagePtr) {
        // SAFETY: the caller's promise.
        let header = unsafe { page.header() };
        let (bucket, after) = (self.bucket(header.key.get()), header.chain.get());
        self.pages -= 1;
        let mut before = self.buckets[bucket];
        if before == Some(page) {
            self.buckets[bucket] = after;
            return;
        }
        while let Some(other) = before {
            // SAFETY: the page is in the table (I1), and the lock is held (I3).
            let other = unsafe { other.header() };
            before = other.chain.get();
            if before == Some(page) {
                other.chain.set(after);
                return;
            }
        }
    }

    /// Moves the pages into more buckets. Returns the old ones, for the caller to free.
    pub(super) fn move_into(&mut self, buckets: Buckets) -> Buckets {
        let old = std::mem::replace(&mut self.buckets, buckets);
        self.pages = 0;
        for &first in old.iter() {
            let mut next = first;
            while let Some(page) = next {
                // SAFETY: the page is in the table (I1), and the lock is held (I3).
                let header = unsafe { page.header() };
                next = header.chain.get();
                // SAFETY: the page is in the table (I1), and the lock is held (I3); the chains of
                // the old buckets are no longer used.
                unsafe { self.insert(page, header.key.get()) };
            }
        }
        old
    }

    /// Takes the buckets of an empty table.
    pub(super) fn take_buckets(&mut self) -> Option<Buckets> {
        (self.pages == 0).then(|| std::mem::replace(&mut self.buckets, Buckets::EMPTY))
    }
}

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
        // SAFETY: I4; the slice borrows the buckets.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl DerefMut for Buckets {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Bucket] {
        // SAFETY: I4; the slice borrows the buckets exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Drop for Buckets {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the block is live (I4), and not used after this.
            unsafe { alloc::release(self.at.cast::<c_void>()) };
        }
    }
}
