//! Blocks: the program's allocator. It charges blocks to groups in a process whose environment asks
//! for that, and is the system's in all others.
//!
//! - I1. A process decides once, at its first block, so a block is freed by the allocator that made
//!   it.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU8, Ordering};

use memgroup_alloc::Allocator;

/// The environment variable with which a process of this program charges its blocks.
pub(crate) const CHARGED: &str = "MEMGROUP_CHARGE_BLOCKS";
/// The same name for the system.
const NAME: &std::ffi::CStr = c"MEMGROUP_CHARGE_BLOCKS";

const UNDECIDED: u8 = 0;
const PLAIN: u8 = 1;
const CHARGING: u8 = 2;

#[global_allocator]
static BLOCKS: Blocks = Blocks { mode: AtomicU8::new(UNDECIDED), charging: Allocator::system() };

/// An allocator that charges, or does not, as the environment says.
struct Blocks {
    mode: AtomicU8,
    charging: Allocator,
}

impl Blocks {
    /// The allocator of this process.
    #[inline]
    fn chosen(&self) -> &dyn GlobalAlloc {
        // ORDERING: Relaxed, here and in `decide`, because every thread decides the same (I1).
        let mode = match self.mode.load(Ordering::Relaxed) {
            UNDECIDED => self.decide(),
            mode => mode,
        };
        if mode == CHARGING { &self.charging } else { &System }
    }

    #[cold]
    fn decide(&self) -> u8 {
        // SAFETY: the name ends with a zero. The first block is allocated before `main`, when no
        // other thread changes the environment.
        let value = unsafe { libc::getenv(NAME.as_ptr()) };
        let mode = if value.is_null() { PLAIN } else { CHARGING };
        self.mode.store(mode, Ordering::Relaxed);
        mode
    }
}

// SAFETY: each method hands its arguments to one of two allocators, and to the same one for all of
// a block's life (I1).
unsafe impl GlobalAlloc for Blocks {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.chosen().alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.chosen().alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise; the same allocator made the block (I1).
        unsafe { self.chosen().dealloc(block, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise; the same allocator made the block (I1).
        unsafe { self.chosen().realloc(block, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::{BLOCKS, CHARGED, NAME, PLAIN};

    #[test]
    fn is_the_systems_allocator_unless_asked() {
        assert_eq!(NAME.to_str(), Ok(CHARGED));
        // ORDERING: Relaxed, because this thread has allocated, so it has decided.
        assert_eq!(BLOCKS.mode.load(Ordering::Relaxed), PLAIN);
    }
}
