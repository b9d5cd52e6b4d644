//! Sections in a signal handler, begun anywhere in a section of the thread that it interrupts.

#![cfg(all(target_os = "linux", not(any(miri, memgroup_loom))))]
#![allow(unsafe_code)]

use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use memgroup_sync::grace::{self, Form};

const POISON: u64 = u64::MAX;

/// The cell that is linked; the other one is poisoned.
static LINKED: AtomicUsize = AtomicUsize::new(0);
static CELLS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(POISON)];
static POISONED: AtomicUsize = AtomicUsize::new(0);
static HANDLED: AtomicUsize = AtomicUsize::new(0);
static OVER: AtomicBool = AtomicBool::new(false);

/// One section that reads the linked cell.
fn read() {
    let _section = grace::enter();
    // ORDERING: Acquire; pairs with the Release of the writer that linked the cell.
    let cell = &CELLS[LINKED.load(Ordering::Acquire)];
    // ORDERING: Relaxed; a word that the section protects, and a count.
    let poisoned = (0..20).any(|_| cell.load(Ordering::Relaxed) == POISON);
    POISONED.fetch_add(usize::from(poisoned), Ordering::Relaxed);
}

extern "C" fn handle(_: libc::c_int) {
    read();
    // ORDERING: Relaxed; a count.
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

fn over() -> bool {
    // ORDERING: Relaxed; a flag that ends the loops.
    OVER.load(Ordering::Relaxed)
}

#[test]
fn a_handler_leaves_the_section_that_it_interrupts_as_it_found_it() {
    let handler: extern "C" fn(libc::c_int) = handle;
    // SAFETY: the handler enters a section, on a thread that has entered one before, and counts.
    let before = unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    assert_ne!(before, libc::SIG_ERR);
    let (entered, has_entered) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        read();
        entered.send(()).unwrap();
        while !over() {
            read();
        }
    });
    has_entered.recv().unwrap();
    let thread = reader.as_pthread_t();
    let signals = std::thread::spawn(move || {
        while !over() {
            // SAFETY: the thread runs, or is not joined yet.
            assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
            std::thread::sleep(Duration::from_micros(20));
        }
    });
    let begun = Instant::now();
    let mut grace_periods = 0;
    while begun.elapsed() < Duration::from_secs(1) {
        let (old, new) = (grace_periods % 2, (grace_periods + 1) % 2);
        // ORDERING: Relaxed; published by the store of the link.
        CELLS[new].store(0, Ordering::Relaxed);
        // ORDERING: Release; pairs with the Acquire in `read`.
        LINKED.store(new, Ordering::Release);
        grace::synchronize(Form::Expedited);
        // ORDERING: Relaxed; no thread reads the old cell any more.
        CELLS[old].store(POISON, Ordering::Relaxed);
        grace_periods += 1;
    }
    // ORDERING: Relaxed; the threads are joined before the counts are read.
    OVER.store(true, Ordering::Relaxed);
    signals.join().unwrap();
    reader.join().unwrap();
    // ORDERING: Relaxed, as above.
    let (handled, poisoned) = (HANDLED.load(Ordering::Relaxed), POISONED.load(Ordering::Relaxed));
    println!("{grace_periods} grace periods, {handled} signals");
    assert!(grace_periods > 100 && handled > 100);
    assert_eq!(poisoned, 0);
    assert!(grace::stallers(Duration::ZERO).is_empty(), "every section is over");
}
