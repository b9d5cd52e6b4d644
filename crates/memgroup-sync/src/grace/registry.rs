//! The memory of the records.
//!
//! ```text
//!   FIRST (static, 64 records) ──next──▶ block (System, 64) ──next──▶ .. ──▶ null
//! ```
//!
//! - I1. Blocks are never freed and never move, so a record is `&'static`. Records are used again
//!   by later threads: there are as many blocks as the largest number of threads with records at
//!   one time needs.
//! - I2. Blocks come from `System`, not from the global allocator, which may call this.
//! - E1. append → scan: read-modify-writes on `next`. One of the two is first: either the scan
//!   sees the block, or the thread that appended it sees the unlinking before the scan. Loom:
//!   `loom_a_section_in_a_new_block_is_not_missed`.

#![allow(unsafe_code)]

use core::ptr::null_mut;

use super::reader::Reader;
use crate::atomic::{AtomicPtr, Ordering};
use crate::mutation::{Mutation, active};

/// Records in a block.
pub(super) const RECORDS: usize = if cfg!(memgroup_loom) { 4 } else { 64 };

#[cfg_attr(memgroup_loom, derive(Default))]
struct Block {
    readers: [Reader; RECORDS],
    next: AtomicPtr<Block>,
}

crate::global! {
    static FIRST: Block = Block::new();
}

impl Block {
    #[cfg(not(memgroup_loom))]
    const fn new() -> Self {
        Self { readers: [const { Reader::new(0) }; RECORDS], next: AtomicPtr::new(null_mut()) }
    }

    #[cfg(memgroup_loom)]
    fn new() -> Self {
        Self::default()
    }

    /// The block after this one.
    fn next(&self) -> Option<&'static Self> {
        let next = if active(Mutation::NextBlockIsLoaded) {
            // ORDERING: Acquire; the fault is that a load may miss the block.
            Err(self.next.load(Ordering::Acquire))
        } else {
            // ORDERING: AcqRel, Acquire; pairs with the exchange in `append` (E1). By a load the
            // scan could miss a block with a first section that misses the unlink. Acquire also
            // shows the block's words.
            self.next.compare_exchange(null_mut(), null_mut(), Ordering::AcqRel, Ordering::Acquire)
        };
        // SAFETY: null, or a block that `append` published, which is never freed (I1).
        unsafe { next.unwrap_or_else(|next| next).as_ref() }
    }

    /// Makes a block after this one, unless another thread was faster.
    #[cold]
    fn append(&self) -> &'static Self {
        let made = Self::make();
        // ORDERING: AcqRel, Acquire; pairs with `next` (E1). Release shows the zeroed words to a
        // thread that finds the block.
        let block = match self.next.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            Err(others) => {
                // SAFETY: made above, and never published.
                unsafe { Self::unmake(made) };
                others
            }
        };
        // SAFETY: published and never freed (I1).
        unsafe { &*block }
    }
}

#[cfg(not(memgroup_loom))]
impl Block {
    const LAYOUT: std::alloc::Layout = std::alloc::Layout::new::<Self>();

    /// Allocates a block of zeros, which are free records.
    fn make() -> *mut Self {
        use std::alloc::{GlobalAlloc, System, handle_alloc_error};

        // SAFETY: the layout's size is not zero.
        let made = unsafe { System.alloc_zeroed(Self::LAYOUT) }.cast::<Self>();
        if made.is_null() {
            handle_alloc_error(Self::LAYOUT);
        }
        made
    }

    /// # Safety
    ///
    /// The block is from `make`, and no other thread has it.
    unsafe fn unmake(made: *mut Self) {
        // SAFETY: allocated with this layout, by the caller's promise.
        unsafe { std::alloc::GlobalAlloc::dealloc(&std::alloc::System, made.cast(), Self::LAYOUT) }
    }
}

#[cfg(memgroup_loom)]
impl Block {
    fn make() -> *mut Self {
        core::ptr::from_ref(crate::keep(Box::new(Self::new()))).cast_mut()
    }

    /// Nothing: the execution keeps it.
    unsafe fn unmake(_: *mut Self) {}
}

/// Claims a free record for the calling thread.
pub(super) fn claim() -> &'static Reader {
    let owner = thread_id();
    let mut block: &'static Block = &FIRST;
    loop {
        if let Some(reader) = block.readers.iter().find(|reader| reader.claim(owner)) {
            return reader;
        }
        block = block.next().unwrap_or_else(|| block.append());
    }
}

/// Every record, free or not.
pub(super) fn readers() -> impl Iterator<Item = &'static Reader> {
    let first: &'static Block = &FIRST;
    core::iter::successors(Some(first), |block| block.next()).flat_map(|block| &block.readers)
}

/// The number by which the system knows the calling thread, never 0.
#[cfg(all(target_os = "linux", not(any(miri, memgroup_loom))))]
pub(crate) fn thread_id() -> u32 {
    // SAFETY: takes no argument and cannot fail.
    unsafe { libc::gettid() }.cast_unsigned()
}

/// A number other than 0 that stands for the thread: the system's is not known here.
#[cfg(not(all(target_os = "linux", not(any(miri, memgroup_loom)))))]
pub(crate) fn thread_id() -> u32 {
    use core::sync::atomic::{AtomicU32, Ordering};
    static DRAWN: AtomicU32 = AtomicU32::new(0);
    // ORDERING: Relaxed; only the number matters.
    DRAWN.fetch_add(1, Ordering::Relaxed) % (u32::MAX - 1) + 1
}
