//! The handle to one object with a copy on each slot.
//!
//! - I1. A handle owns one block of `arena`, from its birth to its drop. For each slot of the arena `base + slot * stride` is
//!   an aligned `T` within the chunk's mapping, and no other handle refers to it.
//! - I2. A chunk is mapped while a block in it is taken. The arena unmaps only empty chunks, and an arena with objects lives
//!   for ever (`&'static`).
//! - I3. No code forms a `&mut T`; a `T` changes through its atomics.
//! - I4. A `&T` of a slot is handed out only after the slot was admitted, so the arena clears the bytes written through it.
//!
//! loom's atomics are not bytes: under loom the copies are one boxed slice.

#![allow(unsafe_code)]

#[cfg(not(memgroup_loom))]
use core::{marker::PhantomData, ptr::NonNull};

use crate::arena::alloc::Arena;
#[cfg(not(memgroup_loom))]
use crate::arena::block::{NO_OWNER, Shape, Wait};
use crate::arena::out_of_memory::OutOfMemory;
use crate::arena::slot_set::SLOTS_MAX;
use crate::value::PerCpuValue;

#[cfg(all(test, memgroup_loom))]
mod loom;
#[cfg(all(test, not(memgroup_loom)))]
mod tests;

/// One object with a copy for each slot, all zero at birth.
///
/// Copies of different slots never share a cache line, nor a pair of lines that are fetched together. Copies of
/// different objects on the *same* slot lie densely: the words of eight groups fill one line of that slot. The memory of a
/// slot that never ran is never backed by a page: [`get`](Self::get) *admits* its slot, and the arena leaves all others
/// alone.
///
/// The handle is two words. [`get`](Self::get) finds the slot in the arena's set, one load, and computes an address.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_percpu::{PerCpu, SlotSource};
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// let source = SlotSource::detect();
/// let hits = PerCpu::<AtomicU64>::new(source.slots());
/// hits.get(source.current()).fetch_add(1, Ordering::Relaxed);
/// assert_eq!(hits.iter().map(|copy| copy.load(Ordering::Relaxed)).sum::<u64>(), 1);
/// # }
/// ```
pub struct PerCpu<T: PerCpuValue> {
    /// Slot 0's copy.
    #[cfg(not(memgroup_loom))]
    base: NonNull<T>,
    #[cfg(not(memgroup_loom))]
    owns: PhantomData<T>,
    #[cfg(memgroup_loom)]
    copies: Box<[T]>,
    arena: &'static Arena,
}

// SAFETY: the handle is the only owner of its copies (I1), and a `T` may be sent (`PerCpuValue: Send`).
unsafe impl<T: PerCpuValue> Send for PerCpu<T> {}
// SAFETY: a shared handle gives out `&T` only, and a `T` may be shared (`PerCpuValue: Sync`).
unsafe impl<T: PerCpuValue> Sync for PerCpu<T> {}

impl<T: PerCpuValue> PerCpu<T> {
    #[cfg(not(memgroup_loom))]
    const SHAPE: Shape = Shape::new(size_of::<T>(), align_of::<T>());

    /// Makes an object with `slots` copies, each zero.
    ///
    /// Takes the lock of the process's arena for this slot count ([`Arena::shared`]), and makes a system call where no memory
    /// is left over from before. A `T` larger than 64 KiB, or aligned to more than 128 bytes, does not compile.
    ///
    /// # Panics
    ///
    /// If `slots` is 0 or more than 8192. Where the system refuses memory, the process ends as for a `Box`;
    /// [`try_new`](Self::try_new) returns instead.
    pub fn new(slots: usize) -> Self {
        Self::try_new(slots)
            .unwrap_or_else(|_| std::alloc::handle_alloc_error(core::alloc::Layout::new::<T>()))
    }

    /// As [`new`](Self::new), with an error where the system refuses memory.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] if the system refuses address space or memory for another chunk of `slots` units.
    ///
    /// # Panics
    ///
    /// If `slots` is 0 or more than 8192.
    pub fn try_new(slots: usize) -> Result<Self, OutOfMemory> {
        match Arena::shared(slots) {
            Ok(arena) => Self::try_new_in(arena),
            Err(_) => panic!("a per-slot object needs from 1 to {SLOTS_MAX} slots, not {slots}"),
        }
    }

    /// As [`try_new`](Self::try_new), in an arena of the caller's, which lives as long as the process.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] as above.
    #[cfg(not(memgroup_loom))]
    pub fn try_new_in(arena: &'static Arena) -> Result<Self, OutOfMemory> {
        let base = arena.alloc(Self::SHAPE, NO_OWNER, Wait::May)?.place.address().cast();
        Ok(Self { base, owns: PhantomData, arena })
    }

    /// Never fails; the signature is the other build's.
    #[cfg(memgroup_loom)]
    pub fn try_new_in(arena: &'static Arena) -> Result<Self, OutOfMemory> {
        Ok(Self { copies: (0..arena.slots()).map(|_| T::zero()).collect(), arena })
    }

    /// The copy of `slot`.
    ///
    /// # Panics
    ///
    /// If `slot` is not below [`slots`](Self::slots).
    #[cfg(not(memgroup_loom))]
    #[inline]
    pub fn get(&self, slot: usize) -> &T {
        // A slot that does not exist is not admitted, so one test answers both.
        if !self.arena.slots.contains(slot) {
            self.admit(slot);
        }
        // SAFETY: the slot was admitted, so it is one of the arena's, and the address within the mapping (I1).
        let copy = unsafe { self.base.byte_add(slot * self.arena.stride_bytes()) };
        // SAFETY: a `T` is there, aligned, and valid from birth because zero bytes are (`PerCpuValue`). It stays for as
        // long as `self` is borrowed (I1, I2). No `&mut` to it exists (I3).
        unsafe { copy.as_ref() }
    }

    /// Admits no slot: a boxed copy costs the same whether its slot runs or not, and models are spared the word.
    #[cfg(memgroup_loom)]
    pub fn get(&self, slot: usize) -> &T {
        self.copies.get(slot).unwrap_or_else(|| slot_out_of_range(slot, self.slots()))
    }

    #[cfg(not(memgroup_loom))]
    #[cold]
    #[inline(never)]
    fn admit(&self, slot: usize) {
        if slot >= self.slots() {
            slot_out_of_range(slot, self.slots());
        }
        self.arena.admit(slot);
    }

    /// All copies, in the order of their slots. It admits every slot, because the caller may write through the references. A
    /// caller that only reads takes [`admitted`](Self::admitted).
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &T> + DoubleEndedIterator {
        (0..self.slots()).map(|slot| self.get(slot))
    }

    /// The copies of the slots that were admitted so far, with their slots. All others are zero.
    pub fn admitted(&self) -> impl Iterator<Item = (usize, &T)> {
        (0..self.slots())
            .filter(|&slot| cfg!(memgroup_loom) || self.arena.slots.contains(slot))
            .map(|slot| (slot, self.get(slot)))
    }

    /// How many copies there are.
    #[inline]
    pub fn slots(&self) -> usize {
        self.arena.slots()
    }
}

#[cfg(not(memgroup_loom))]
impl<T: PerCpuValue> Drop for PerCpu<T> {
    fn drop(&mut self) {
        self.arena.free_at(self.base.addr().get(), Self::SHAPE);
    }
}

#[cold]
#[inline(never)]
fn slot_out_of_range(slot: usize, slots: usize) -> ! {
    panic!("slot {slot} of a per-slot object with {slots} slots")
}
