//! Which page has a key: a hash table, chained through the pages' headers.
//!
//! ```text
//!   buckets  [ - | • | - | • | .. ]      bucket = key modulo their number
//!                  ▼       ▼
//!                 page    page ──chain──▶ page
//! ```
//!
//! The keys of a cache are page numbers, mostly runs of them: taken as they are they spread better than any hash of them.
//!
//! - I1. A page of the table stands in the chain of its key's bucket, once; no two have the same key. It is live.
//! - I2. The number of buckets is a power of two, or there is none and no page either.
//! - I3. A table is used by the holder of the cache's lock, and nothing here allocates or frees: buckets are got before the lock
//!   is taken, and freed after it is released.

#![allow(unsafe_code)]

use super::array::Array;
use super::page::Pin;

/// Buckets of a table that gets its first ones.
const BUCKETS_MIN: u32 = 64;

/// The bucket of each page of a table: an array of chains.
pub(super) type Buckets = Array<Option<Pin>>;

/// Twice as many buckets as `now`; `None` when they are refused.
pub(super) fn more_buckets(now: u32) -> Option<Buckets> {
    Array::filled(now.checked_mul(2)?.max(BUCKETS_MIN), None)
}

/// The pages of a cache by key.
pub(super) struct Table {
    buckets: Buckets,
    pages: u32,
}

impl Table {
    /// A table without buckets.
    pub(super) const fn new() -> Table {
        Table { buckets: Array::EMPTY, pages: 0 }
    }

    #[inline]
    pub(super) fn pages(&self) -> u32 {
        self.pages
    }

    pub(super) fn buckets(&self) -> u32 {
        self.buckets.len() as u32
    }

    /// Whether more buckets are due.
    pub(super) fn is_full(&self) -> bool {
        self.pages >= self.buckets()
    }

    #[inline]
    fn bucket(&self, key: u32) -> usize {
        // With no buckets the result is out of range, as it has to be.
        key as usize & self.buckets.len().wrapping_sub(1)
    }

    /// The page with this key.
    #[inline]
    pub(super) fn find(&self, key: u32) -> Option<Pin> {
        let mut next = *self.buckets.get(self.bucket(key))?;
        while let Some(page) = next {
            // SAFETY: the page stands in the table (I1), whose lock is held (I3).
            let header = unsafe { page.header() };
            if header.key.get() == key {
                break;
            }
            next = header.chain.get();
        }
        next
    }

    /// Puts a page in under a key that no other page has.
    ///
    /// # Safety
    ///
    /// The page is live, stands in no table, and nobody uses it.
    ///
    /// # Panics
    ///
    /// When there is no bucket.
    pub(super) unsafe fn insert(&mut self, page: Pin, key: u32) {
        // SAFETY: the caller's word.
        unsafe { page.header() }.key.set(key);
        self.pages += 1;
        // SAFETY: the caller's word.
        unsafe { self.link(page, key) };
    }

    /// Takes a page out.
    ///
    /// # Safety
    ///
    /// The page stands in this table.
    pub(super) unsafe fn remove(&mut self, page: Pin) {
        // SAFETY: the caller's word.
        unsafe { self.unlink(page) };
        self.pages -= 1;
    }

    /// Gives a page another key, which no other page has.
    ///
    /// # Safety
    ///
    /// The page stands in this table.
    pub(super) unsafe fn rekey(&mut self, page: Pin, key: u32) {
        // SAFETY: the caller's word.
        unsafe { self.unlink(page) };
        // SAFETY: it stood in the table, so it is live.
        unsafe { page.header() }.key.set(key);
        // SAFETY: as above; it stands in no chain now.
        unsafe { self.link(page, key) };
    }

    /// # Safety
    ///
    /// The page is live, has this key, and stands in no chain.
    unsafe fn link(&mut self, page: Pin, key: u32) {
        let bucket = self.bucket(key);
        let first = self.buckets[bucket].replace(page);
        // SAFETY: the caller's word.
        unsafe { page.header() }.chain.set(first);
    }

    /// # Safety
    ///
    /// The page stands in this table.
    unsafe fn unlink(&mut self, page: Pin) {
        // SAFETY: the caller's word.
        let header = unsafe { page.header() };
        let (bucket, after) = (self.bucket(header.key.get()), header.chain.get());
        if self.buckets[bucket] == Some(page) {
            self.buckets[bucket] = after;
            return;
        }
        let mut before = self.buckets[bucket];
        while let Some(other) = before {
            // SAFETY: the page stands in the table (I1), whose lock is held (I3).
            let other = unsafe { other.header() };
            before = other.chain.get();
            if before == Some(page) {
                other.chain.set(after);
                return;
            }
        }
    }

    /// Moves the pages into more buckets; the old ones, which are the caller's to free.
    pub(super) fn move_into(&mut self, buckets: Buckets) -> Buckets {
        let old = std::mem::replace(&mut self.buckets, buckets);
        for &first in old.iter() {
            let mut next = first;
            while let Some(page) = next {
                // SAFETY: the page stands in the table (I1), whose lock is held (I3).
                let header = unsafe { page.header() };
                next = header.chain.get();
                // SAFETY: as above; its old chain is not used any more.
                unsafe { self.link(page, header.key.get()) };
            }
        }
        old
    }

    /// A page in the bucket with this number whose key is `limit` or more.
    pub(super) fn find_from(&self, bucket: u32, limit: u32) -> Option<Pin> {
        let mut next = *self.buckets.get(bucket as usize)?;
        while let Some(page) = next {
            // SAFETY: the page stands in the table (I1), whose lock is held (I3).
            let header = unsafe { page.header() };
            if header.key.get() >= limit {
                break;
            }
            next = header.chain.get();
        }
        next
    }

    /// The buckets that an empty table does not need.
    pub(super) fn vacate(&mut self) -> Option<Buckets> {
        (self.pages == 0).then(|| std::mem::replace(&mut self.buckets, Array::EMPTY))
    }
}
