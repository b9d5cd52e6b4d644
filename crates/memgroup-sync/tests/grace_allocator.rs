//! Sections inside the global allocator: entering one calls it for nothing, even the first on a
//! thread.

#![cfg(not(any(miri, memgroup_loom)))]
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use memgroup_sync::grace::{self, Form};

/// Enters a section for each call, as an engine that accounts for the program's memory does.
struct Entering;

thread_local! {
    static ENTERING: Cell<bool> = const { Cell::new(false) };
}

/// Calls of the allocator that `enter` makes.
static CALLS_WITHIN: AtomicUsize = AtomicUsize::new(0);

fn in_section<R>(call: impl FnOnce() -> R) -> R {
    if ENTERING.replace(true) {
        // ORDERING: Relaxed; counts.
        CALLS_WITHIN.fetch_add(1, Ordering::Relaxed);
        return call();
    }
    let section = grace::enter();
    ENTERING.set(false);
    let result = call();
    ENTERING.set(true);
    drop(section);
    ENTERING.set(false);
    result
}

// SAFETY: hands every call on to `System`.
unsafe impl GlobalAlloc for Entering {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller's.
        in_section(|| unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller's.
        in_section(|| unsafe { System.dealloc(block, layout) });
    }
}

#[global_allocator]
static ALLOCATOR: Entering = Entering;

#[test]
fn an_allocator_may_enter_sections_on_threads_that_come_and_go() {
    // More at a time than one block of records serves, so that blocks are made too.
    for _ in 0..3 {
        let threads: Vec<_> = (0..150).map(|at| std::thread::spawn(move || vec![at; 1000].len())).collect();
        grace::synchronize(Form::Expedited);
        assert!(threads.into_iter().all(|thread| thread.join().unwrap() == 1000));
    }
    grace::synchronize(Form::Quiet);
    // ORDERING: Relaxed; the threads are joined.
    assert_eq!(CALLS_WITHIN.load(Ordering::Relaxed), 0);
}
