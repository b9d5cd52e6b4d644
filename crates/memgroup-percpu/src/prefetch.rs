//! Hints to the processor that a line is about to be written.

#![allow(unsafe_code)]

/// Asks the processor for the lines of `value`, to write them; a hint.
#[inline]
pub fn prefetch<T>(value: &T) {
    const LINE: usize = 64;
    let first = core::ptr::from_ref(value).cast::<u8>();
    for offset in (0..size_of::<T>()).step_by(LINE) {
        prefetch_write(first.wrapping_add(offset));
    }
    if size_of::<T>() > LINE {
        prefetch_write(first.wrapping_add(size_of::<T>() - 1));
    }
}

/// `prefetchw`: the line comes with the right to write it. The standard library's intrinsic
/// becomes a prefetch for reading unless the build names a newer processor, and the line would
/// then travel twice. A processor without the instruction treats it as a no-op.
#[cfg(all(target_arch = "x86_64", not(any(miri, memgroup_loom))))]
#[inline]
pub(crate) fn prefetch_write(address: *const u8) {
    // SAFETY: a prefetch reads and writes nothing that the program can see, and never faults,
    // whatever the address.
    unsafe {
        core::arch::asm!("prefetchw byte ptr [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

#[cfg(not(all(target_arch = "x86_64", not(any(miri, memgroup_loom)))))]
#[inline]
pub(crate) fn prefetch_write(_: *const u8) {}
