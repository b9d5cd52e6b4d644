//! Allocator: the methods that the program's collections call.
//!
//! ```text
//!   alloc ───▶ inner allocator ───▶ charge the current owner ───▶ header { owner }; a large block is charged first
//!   realloc ─▶ charge or uncharge the difference, to the owner in the header
//!   dealloc ─▶ uncharge the owner in the header, on any thread ───▶ inner allocator
//! ```
//!
//! - I1. For each group, the bytes charged through this file == the units of its live blocks * 16 +
//!   the bytes that slots hold back. A block is charged before the program gets it.
//! - I2. The owner of a block never changes. A block without an owner is charged to no group
//!   during its whole life.
//! - I3. Every method may be called at any time in a thread's life, even while the thread holds a
//!   lock of the engine.

#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{copy_nonoverlapping, null_mut};
use std::alloc::System;

use crate::block::{self, Whole};
use crate::thread::{self, Grown};

/// A global allocator that charges each block to the group in force on the thread that allocates
/// it, over any other allocator.
///
/// ```
/// use memgroup::{Config, Hierarchy, scope};
/// use memgroup_alloc::Allocator;
///
/// #[global_allocator]
/// static ALLOCATOR: Allocator = Allocator::system();
///
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let tenant = hierarchy.create("/tenant").unwrap();
/// let text = {
///     let _scope = scope::enter(&tenant);
///     "x".repeat(100_000)
/// };
/// assert!((100_008..100_032).contains(&tenant.usage_exact()));
/// drop(text);
/// assert_eq!(tenant.usage_exact(), 0);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator<A = System> {
    inner: A,
}

impl Allocator<System> {
    /// Over the system's allocator.
    pub const fn system() -> Allocator<System> {
        Allocator { inner: System }
    }
}

impl<A> Allocator<A> {
    /// Over `inner`.
    pub const fn over(inner: A) -> Allocator<A> {
        Allocator { inner }
    }

    /// The allocator below.
    pub const fn inner(&self) -> &A {
        &self.inner
    }
}

impl<A: GlobalAlloc> Allocator<A> {
    /// Makes a charged block from a block of the inner allocator, which `take` returns.
    ///
    /// # Safety
    /// The layout is not of size 0. `take` returns null or a fresh block of the layout that it
    /// gets.
    #[inline(always)]
    unsafe fn make(&self, layout: Layout, take: impl Fn(&A, Layout) -> *mut u8) -> *mut u8 {
        let Some(whole) = Whole::small(layout) else {
            // SAFETY: the caller's promise.
            return unsafe { self.make_unusual(layout, take) };
        };
        // A small block is never refused. Charging it after its memory was allocated takes the
        // fewest instructions.
        let base = take(&self.inner, whole.layout);
        if base.is_null() {
            return base;
        }
        let owner = thread::charge(whole.units());
        // SAFETY: the caller's promise.
        unsafe { whole.begin(base, owner) }
    }

    /// Does the work of `make` for a large block, which may be refused, and for one that is
    /// aligned to more than the header.
    ///
    /// # Safety
    /// As for `make`.
    #[inline(never)]
    unsafe fn make_unusual(&self, layout: Layout, take: impl Fn(&A, Layout) -> *mut u8) -> *mut u8 {
        let Some(whole) = Whole::of(layout) else { return null_mut() };
        let Ok(owner) = thread::charge_unless_refused(whole.units()) else { return null_mut() };
        let base = take(&self.inner, whole.layout);
        if base.is_null() {
            thread::take_back(owner, whole.units());
            return base;
        }
        // SAFETY: the caller's promise.
        unsafe { whole.begin(base, owner) }
    }

    /// Frees a block.
    ///
    /// # Safety
    /// The block is live, and `whole` is its whole. The caller gives it up.
    #[inline(always)]
    unsafe fn give_back(&self, block: *mut u8, whole: Whole) {
        // SAFETY: the caller's promise.
        if let Some(owner) = unsafe { block::owner(block) } {
            thread::uncharge(owner, whole.units());
        }
        // SAFETY: the caller's promise.
        let base = unsafe { whole.base(block) };
        // SAFETY: the caller's promise; the inner allocator made the block with this layout.
        unsafe { self.inner.dealloc(base, whole.layout) };
    }

    /// Does the work of `give_back` for a block that is not small.
    ///
    /// # Safety
    /// As for `dealloc`.
    #[inline(never)]
    unsafe fn give_back_unusual(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        let whole = unsafe { Whole::of_live(layout) };
        // SAFETY: the caller's promise.
        unsafe { self.give_back(block, whole) };
    }

    /// Copies a block that cannot grow in place, and frees the old one.
    ///
    /// # Safety
    /// As for `realloc`.
    #[cold]
    unsafe fn move_to(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Ok(new_layout) = Layout::from_size_align(size, layout.align()) else { return null_mut() };
        // SAFETY: the caller's layouts are not of size 0.
        let moved = unsafe { self.alloc(new_layout) };
        if !moved.is_null() {
            // SAFETY: both blocks are live, at least this long, and distinct.
            unsafe { copy_nonoverlapping(block, moved, layout.size().min(size)) };
            // SAFETY: the caller's promise: the old block is given up.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }
}

// The methods are never inlined. In drop glue they displace more code than the call costs: parsing
// JSON took 1.37 of the bare time, and takes 1.09.
//
// SAFETY: blocks come from the inner allocator, with room for the header before the program's
// part. The prefix keeps the alignment of that part. No method unwinds: panics of the engine abort
// (`thread` I4).
unsafe impl<A: GlobalAlloc> GlobalAlloc for Allocator<A> {
    #[inline(never)]
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one argument covers them all")]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the whole layout is not of size 0, and the inner allocator's block is fresh.
        unsafe { self.make(layout, |inner, whole| inner.alloc(whole)) }
    }

    #[inline(never)]
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one argument covers them all")]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        unsafe { self.make(layout, |inner, whole| inner.alloc_zeroed(whole)) }
    }

    #[inline(never)]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match Whole::small(layout) {
            // SAFETY: the caller's promise: a live block of this layout, which was made with it.
            Some(whole) => unsafe { self.give_back(block, whole) },
            // SAFETY: the caller's promise: a live block of this layout, which was made with it.
            None => unsafe { self.give_back_unusual(block, layout) },
        }
    }

    #[inline(never)]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise, as in `dealloc`.
        let whole = unsafe { Whole::of_live(layout) };
        let Some(new) = Whole::resized(layout, size) else { return null_mut() };
        let (before, after) = (whole.units(), new.units());
        // SAFETY: the caller's promise, as in `dealloc`.
        let owner = unsafe { block::owner(block) };
        if let Some(owner) = owner.filter(|_| after > before) {
            match thread::grow(owner, after - before, after) {
                Grown::Charged => {}
                Grown::Refused => return null_mut(),
                // SAFETY: the caller's promise.
                Grown::NotHere => return unsafe { self.move_to(block, layout, size) },
            }
        }
        // SAFETY: the caller's promise.
        let base = unsafe { whole.base(block) };
        // SAFETY: the caller's promise; `new` has the same alignment, and its size is not 0. The
        // header and the program's bytes move together.
        let moved = unsafe { self.inner.realloc(base, whole.layout, new.layout.size()) };
        if let Some(owner) = owner {
            match moved.is_null() {
                true if after > before => thread::uncharge(owner, after - before),
                false if after < before => thread::uncharge(owner, before - after),
                _ => {}
            }
        }
        if moved.is_null() {
            return moved;
        }
        // SAFETY: the block has the new layout, and the program's part has the same distance from
        // the start as before.
        unsafe { moved.add(new.prefix) }
    }
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, Hierarchy, scope};

    use super::*;

    /// Not as the global allocator: under Miri's default rules (Stacked Borrows) a box may not be
    /// freed by a header before its bytes.
    #[test]
    fn a_block_keeps_its_bytes_and_its_charge_as_it_grows_and_shrinks() {
        let hierarchy = Hierarchy::new(Config::new().groups_max(16)).unwrap();
        let tenant = hierarchy.create("/tenant").unwrap();
        let allocator = Allocator::system();
        for align in [8, 64] {
            let layout = |size| Layout::from_size_align(size, align).unwrap();
            let scope = scope::enter(&tenant);
            // SAFETY: the layout is not of size 0.
            let mut block = unsafe { allocator.alloc(layout(100)) };
            drop(scope);
            let mut size = 100;
            for next in [101, 2000, 70_000, 300] {
                // SAFETY: a live block of this many bytes.
                unsafe { block.write_bytes(7, size) };
                // SAFETY: a live block of this layout.
                block = unsafe { allocator.realloc(block, layout(size), next) };
                // SAFETY: the bytes that were written above, and moved.
                let kept = unsafe { std::slice::from_raw_parts(block, size.min(next)) };
                assert!(kept.iter().all(|byte| *byte == 7));
                size = next;
                assert_eq!(tenant.usage_exact(), (size + align).next_multiple_of(16) as u64);
            }
            // SAFETY: a live block of this layout, which is given up.
            unsafe { allocator.dealloc(block, layout(size)) };
            assert_eq!(tenant.usage_exact(), 0);
        }
    }
}
