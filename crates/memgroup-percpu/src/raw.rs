//! The memory under [`PerCpu`](crate::PerCpu): one block of an arena, seen as a `T` on each slot.
//!
//! - I1. `Copies` owns one block of `arena`, from `PerCpu`'s birth to its drop: for each slot of the arena
//!   `base + slot * stride` is a `T`, aligned and within the chunk's mapping, that nobody else refers to.
//! - I2. A chunk is mapped while a block in it is taken: the arena unmaps only chunks that hold none, and an arena with
//!   objects lives for ever (`&'static`).
//! - I3. Nothing forms a `&mut T`; a `T` changes through its atomics.
//! - I4. A `&T` of a slot is handed out only after the slot was admitted, so the arena clears what was written through it.

#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ptr::NonNull;

use crate::arena::Arena;
use crate::arena::block::{NO_OWNER, Shape, Wait};
use crate::arena::out_of_memory::OutOfMemory;
use crate::percpu::slot_out_of_range;
use crate::value::PerCpuValue;

/// The address of slot 0's copy, and the arena that knows how to get from there to the others.
pub(crate) struct Copies<T: PerCpuValue> {
    base: NonNull<T>,
    arena: &'static Arena,
    owns: PhantomData<T>,
}

// SAFETY: the handle is the only owner of its copies (I1), and a `T` may be sent (`PerCpuValue: Send`).
unsafe impl<T: PerCpuValue> Send for Copies<T> {}
// SAFETY: a shared handle gives out `&T` only, and a `T` may be shared (`PerCpuValue: Sync`).
unsafe impl<T: PerCpuValue> Sync for Copies<T> {}

impl<T: PerCpuValue> Copies<T> {
    const SHAPE: Shape = Shape::of::<T>();

    pub(crate) fn new(arena: &'static Arena) -> Result<Self, OutOfMemory> {
        let base = arena.alloc(Self::SHAPE, NO_OWNER, Wait::May)?.address().cast();
        Ok(Self { base, arena, owns: PhantomData })
    }

    #[inline]
    #[track_caller]
    pub(crate) fn get(&self, slot: usize) -> &T {
        // A slot that is not there is not admitted, so one test answers both.
        if !self.is_admitted(slot) {
            self.admit(slot);
        }
        // SAFETY: the slot was admitted, so it is one of the arena's, and the address within the mapping (I1).
        let copy = unsafe { self.base.byte_add(slot * self.arena.stride_of(Self::SHAPE)) };
        // SAFETY: a `T` is there, aligned, valid from birth because zero bytes are (`PerCpuValue`), and it stays for as
        // long as `self` is borrowed (I1, I2); no `&mut` to it exists (I3).
        unsafe { copy.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn is_admitted(&self, slot: usize) -> bool {
        self.arena.is_admitted(slot)
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn admit(&self, slot: usize) {
        if slot >= self.slots() {
            slot_out_of_range(slot, self.slots());
        }
        self.arena.admit(slot);
    }

    /// Asks for the line of a copy to be written; a hint, and nothing for a slot that never ran or is not there.
    #[inline]
    pub(crate) fn prefetch_write(&self, slot: usize) {
        if self.is_admitted(slot) {
            // SAFETY: the slot was admitted, so the address lies within the chunk's mapping (I1).
            let copy = unsafe { self.base.byte_add(slot * self.arena.stride_of(Self::SHAPE)) };
            prefetch_write(copy.as_ptr().cast());
        }
    }

    #[inline]
    pub(crate) fn slots(&self) -> usize {
        self.arena.slots()
    }

    pub(crate) fn arena(&self) -> &'static Arena {
        self.arena
    }
}

/// `prefetchw`: the line comes with the right to write it. The intrinsic of the standard library becomes a prefetch for
/// reading unless the build names a newer processor, and the line would then travel twice. A processor without the
/// instruction takes it for a no-op.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(crate) fn prefetch_write(address: *const u8) {
    // SAFETY: a prefetch reads and writes nothing the program can see and never faults, whatever the address.
    unsafe {
        core::arch::asm!("prefetchw byte ptr [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
pub(crate) fn prefetch_write(_: *const u8) {}

impl<T: PerCpuValue> Drop for Copies<T> {
    fn drop(&mut self) {
        self.arena.free_at(self.base.addr().get(), Self::SHAPE);
    }
}
