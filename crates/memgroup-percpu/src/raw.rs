//! The memory under [`PerCpu`](crate::PerCpu): mappings, and addresses within them.
//!
//! - I1. `Copies` owns one run of granules in a chunk of `slots` units, from `PerCpu`'s birth to its drop: for each slot
//!   below `slots`, `base + slot * stride` is a `T`, aligned and within the chunk's mapping, that nobody else refers to.
//! - I2. A mapping lives while a run in it is taken: the pool unmaps only chunks that hold no object.
//! - I3. Nothing forms a `&mut T`; a `T` changes through its atomics, or in `drop`, which has the only handle.

#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ptr::NonNull;

use crate::percpu::slot_out_of_range;
use crate::pool::{self, STRIDE_BYTES, Shape};
use crate::value::PerCpuValue;

/// The address of slot 0's copy, and how to get from there to the others.
pub(crate) struct Copies<T: PerCpuValue> {
    base: NonNull<T>,
    stride: u32,
    slots: u32,
    owns: PhantomData<T>,
}

// SAFETY: the handle is the only owner of its copies (I1), and a `T` may be sent (`PerCpuValue: Send`).
unsafe impl<T: PerCpuValue> Send for Copies<T> {}
// SAFETY: a shared handle gives out `&T` only, and a `T` may be shared (`PerCpuValue: Sync`).
unsafe impl<T: PerCpuValue> Sync for Copies<T> {}

impl<T: PerCpuValue> Copies<T> {
    const SHAPE: Shape = Shape::of::<T>();

    pub(crate) fn new(slots: u32) -> Option<Self> {
        let base = pool::take(slots, Self::SHAPE)?.cast();
        Some(Self { base, stride: STRIDE_BYTES as u32, slots, owns: PhantomData })
    }

    #[inline]
    #[track_caller]
    pub(crate) fn get(&self, slot: usize) -> &T {
        if slot >= self.slots() {
            slot_out_of_range(slot, self.slots());
        }
        // SAFETY: the slot is below `slots`, so the address lies within the chunk's mapping (I1).
        let copy = unsafe { self.base.byte_add(slot * self.stride as usize) };
        // SAFETY: a `T` is there, aligned, valid from birth because zero bytes are (`PerCpuValue`), and it stays for as
        // long as `self` is borrowed (I1, I2); no `&mut` to it exists (I3).
        unsafe { copy.as_ref() }
    }

    /// Asks for the line of a copy to be written; a hint, and nothing for a slot that is not there.
    #[inline]
    pub(crate) fn prefetch_write(&self, slot: usize) {
        if slot < self.slots() {
            // SAFETY: the slot is below `slots`, so the address lies within the chunk's mapping (I1).
            let copy = unsafe { self.base.byte_add(slot * self.stride as usize) };
            prefetch_write(copy.as_ptr().cast());
        }
    }

    #[inline]
    pub(crate) fn slots(&self) -> usize {
        self.slots as usize
    }
}

/// `prefetchw`: the line comes with the right to write it. The intrinsic of the standard library becomes a prefetch for
/// reading unless the build names a newer processor, and the line would then travel twice. A processor without the
/// instruction takes it for a no-op.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn prefetch_write(address: *const u8) {
    // SAFETY: a prefetch reads and writes nothing the program can see and never faults, whatever the address.
    unsafe {
        core::arch::asm!("prefetchw byte ptr [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
fn prefetch_write(_: *const u8) {}

impl<T: PerCpuValue> Drop for Copies<T> {
    fn drop(&mut self) {
        for slot in 0..self.slots() {
            // SAFETY: the slot is below `slots`, so the address lies within the chunk's mapping (I1).
            let copy = unsafe { self.base.byte_add(slot * self.stride as usize) };
            // SAFETY: these are the bytes of one `T` without padding (`PerCpuValue`), and nobody else refers to them:
            // `&mut self` is the only handle (I1).
            let bytes =
                unsafe { core::slice::from_raw_parts_mut(copy.as_ptr().cast::<u8>(), size_of::<T>()) };
            // Reading a page that was never written does not back it with memory; writing zeros would.
            if bytes.iter().any(|&byte| byte != 0) {
                bytes.fill(0);
            }
        }
        pool::give_back(self.slots, self.base.cast(), Self::SHAPE);
    }
}

/// Zeroed memory that the system backs with a page when it is first written.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is an address range that this value owns; unmapping works from any thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Page-aligned, so to at least 128 bytes. `None` if the system refuses.
    pub(crate) fn new_zeroed(bytes: usize) -> Option<Self> {
        Some(Self { base: map(bytes)?, bytes })
    }

    pub(crate) fn address(&self) -> usize {
        self.base.addr().get()
    }

    /// The byte at `offset`, which is within the mapping.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.bytes, "offset {offset} of a mapping of {} bytes", self.bytes);
        // SAFETY: the offset is within the mapping.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range came from `map` with this length, and whoever drops a mapping vouches that no object is
        // left in it (I2).
        unsafe { unmap(self.base, self.bytes) }
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
fn map(bytes: usize) -> Option<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
    let base = unsafe { libc::mmap(core::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return None;
    }
    // A huge page would back many slots at once for the first byte of one. The advice may be refused: it only saves.
    // SAFETY: the range was mapped just now.
    unsafe { libc::madvise(base, bytes, libc::MADV_NOHUGEPAGE) };
    NonNull::new(base.cast())
}

#[cfg(all(target_os = "linux", not(miri)))]
unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller owns the range and nothing refers to it any more.
    let answer = unsafe { libc::munmap(base.as_ptr().cast(), bytes) };
    debug_assert_eq!(answer, 0, "munmap of a whole mapping fails only for a bad range");
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn layout(bytes: usize) -> core::alloc::Layout {
    core::alloc::Layout::from_size_align(bytes, pool::ALIGN_MAX)
        .unwrap_or_else(|_| unreachable!("a chunk of {bytes} bytes exceeds the address space"))
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn map(bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: a chunk has at least one unit, so the size is not zero.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout(bytes)) })
}

#[cfg(not(all(target_os = "linux", not(miri))))]
unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
    // SAFETY: the range came from `alloc_zeroed` with this layout, and nothing refers to it any more.
    unsafe { std::alloc::dealloc(base.as_ptr(), layout(bytes)) }
}
