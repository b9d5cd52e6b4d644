//! Blocks: the program's allocator. It charges blocks to groups in the processes that ask for it,
//! and is the system's in all others.
//!
//! - I1. A process decides at its first block, and once: a block is freed by the allocator that
//!   made it.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU8, Ordering};

use memgroup_alloc::Allocator;

/// Variable of the environment with which a process of this program charges its blocks.
pub(crate) const CHARGED: &str = "MEMGROUP_CHARGE_BLOCKS";
/// The same for the system.
const NAME: &std::ffi::CStr = c"MEMGROUP_CHARGE_BLOCKS";

const UNDECIDED: u8 = 0;
const PLAIN: u8 = 1;
const CHARGING: u8 = 2;

#[global_allocator]
static BLOCKS: Blocks = Blocks { mode: AtomicU8::new(UNDECIDED), charging: Allocator::system() };

/// Allocator that charges, or does not, as the environment says.
struct Blocks {
    mode: AtomicU8,
    charging: Allocator,
}

impl Blocks {
    #[inline(always)]
    fn charges(&self) -> bool {
        // ORDERING: Relaxed; every thread decides the same (I1).
        match self.mode.load(Ordering::Relaxed) {
            UNDECIDED => self.decide(),
            mode => mode == CHARGING,
        }
    }

    #[cold]
    fn decide(&self) -> bool {
        // SAFETY: the name ends with a zero. The first block is allocated before `main`, when no other
        // thread changes the environment.
        let value = unsafe { libc::getenv(NAME.as_ptr()) };
        let mode = if value.is_null() { PLAIN } else { CHARGING };
        // ORDERING: Relaxed, as above.
        self.mode.store(mode, Ordering::Relaxed);
        mode == CHARGING
    }
}

// SAFETY: each method hands its arguments to one of two allocators, and to the same one for all of
// a block's life (I1).
unsafe impl GlobalAlloc for Blocks {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        if self.charges() { unsafe { self.charging.alloc(layout) } } else { unsafe { System.alloc(layout) } }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if self.charges() {
            // SAFETY: the caller's promise.
            unsafe { self.charging.alloc_zeroed(layout) }
        } else {
            // SAFETY: as above.
            unsafe { System.alloc_zeroed(layout) }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if self.charges() {
            // SAFETY: the caller's promise; the same allocator made the block (I1).
            unsafe { self.charging.dealloc(block, layout) }
        } else {
            // SAFETY: as above.
            unsafe { System.dealloc(block, layout) }
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if self.charges() {
            // SAFETY: the caller's promise; the same allocator made the block (I1).
            unsafe { self.charging.realloc(block, layout, size) }
        } else {
            // SAFETY: as above.
            unsafe { System.realloc(block, layout, size) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCKS, CHARGED, NAME};

    #[test]
    fn is_the_systems_allocator_unless_asked() {
        assert_eq!(NAME.to_str(), Ok(CHARGED));
        assert!(!BLOCKS.charges());
    }
}
