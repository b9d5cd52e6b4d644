//! The engine's own tests under a global allocator that charges a group: each thread of a test has
//! one in force, and all that it allocates outside of other scopes is charged. The process aborts
//! where the allocator is called while it charges or uncharges a block.
//!
//! Not here: the engine's tests that have programs of their own.
#![cfg(not(memgroup_loom))]
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::OnceLock;

use memgroup::{Config, Group, Hierarchy, SlotSource, block, scope};
use memgroup_alloc::Allocator;

#[path = "../../../memgroup/tests/engine/main.rs"]
mod engine;

/// The allocator, which gives each thread a group and detects nested calls.
struct Strict {
    charging: Allocator,
}

#[global_allocator]
static ALLOCATOR: Strict = Strict { charging: Allocator::system() };

static GROUP: OnceLock<(Hierarchy, Group)> = OnceLock::new();

std::thread_local! {
    static HAS_GROUP: Cell<bool> = const { Cell::new(false) };
    static IS_CHARGING: Cell<bool> = const { Cell::new(false) };
}

impl Strict {
    /// Gives this thread its group, and notes that a call begins.
    fn begin(&self) {
        if IS_CHARGING.replace(true) {
            abort_with("the allocator is called while it charges a block\n");
        }
        // SAFETY: takes no argument, and cannot fail.
        let process = unsafe { libc::getpid() };
        // SAFETY: as above.
        let is_first = process == unsafe { libc::gettid() };
        if !is_first && !block::is_inside() && !HAS_GROUP.replace(true) {
            IS_CHARGING.set(false);
            let (_, group) = GROUP.get_or_init(|| {
                // The choice of other slots starts a thread, which would wait for this call.
                let slots = SlotSource::virtual_slots(2).unwrap();
                let hierarchy = Hierarchy::new(Config::with_slots(slots)).unwrap();
                let group = hierarchy.create("/tests").unwrap();
                (hierarchy, group)
            });
            std::mem::forget(scope::enter(group));
            IS_CHARGING.set(true);
        }
    }
}

fn abort_with(text: &str) -> ! {
    // SAFETY: a text of this length.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    std::process::abort();
}

// SAFETY: that of the allocator within.
unsafe impl GlobalAlloc for Strict {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.begin();
        // SAFETY: the caller's promise.
        let block = unsafe { self.charging.alloc(layout) };
        IS_CHARGING.set(false);
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if IS_CHARGING.get() {
            // The last block of a removed group is freed. The engine then frees memory of its own,
            // which no group is charged for. SAFETY: the block is live, and its header is right
            // before it.
            let header = unsafe { block.cast::<*const ()>().sub(1) };
            // SAFETY: the header is the owner or null.
            if !unsafe { header.read() }.is_null() {
                abort_with("the engine frees a charged block while the allocator uncharges one\n");
            }
            // SAFETY: the caller's promise.
            return unsafe { self.charging.dealloc(block, layout) };
        }
        self.begin();
        // SAFETY: the caller's promise.
        unsafe { self.charging.dealloc(block, layout) };
        IS_CHARGING.set(false);
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.begin();
        // SAFETY: the caller's promise.
        let moved = unsafe { self.charging.realloc(block, layout, size) };
        IS_CHARGING.set(false);
        moved
    }
}

#[test]
fn the_tests_are_charged() {
    let before = block::current().expect("a group is in force");
    let block = vec![1_u8; 1 << 20];
    let (_, group) = GROUP.get().unwrap();
    assert!(group.usage_exact() >= 1 << 20);
    drop(block);
    assert_eq!(block::current(), Some(before));
}
