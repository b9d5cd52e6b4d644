//! Mistakes of a user change no figures but those of its own groups.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use memgroup::scope;

use super::{MILLI, busy, full_us, hierarchy, some_us};

#[test]
fn a_panic_ends_the_stalls_that_it_unwinds() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _outer = group.stall();
        let _inner = group.stall();
        busy(MILLI);
        panic!("while it is stalled");
    }));
    assert!(panicked.is_err());
    let total = some_us(&group);
    assert!(total >= 1000);
    busy(MILLI);
    assert_eq!(some_us(&group), total);
}

#[test]
fn more_threads_than_a_few_take_records_and_leave_them() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    for _ in 0..3 {
        let all = std::sync::Barrier::new(101);
        std::thread::scope(|threads| {
            for _ in 0..100 {
                threads.spawn(|| {
                    let _scope = scope::enter(&group);
                    all.wait();
                    all.wait();
                });
            }
            all.wait();
            let _stall = group.stall();
            let before = full_us(&group);
            busy(MILLI);
            let after = full_us(&group);
            all.wait();
            assert_eq!(after, before, "a hundred are at work");
        });
        let _stall = group.stall();
        let before = full_us(&group);
        busy(MILLI);
        assert!(full_us(&group) >= before + 990, "none is left");
    }
}

/// Enters a scope and stalls while the thread ends, before or after the engine's own thread-locals
/// have ended.
struct Late(std::cell::RefCell<Option<memgroup::Group>>);

impl Drop for Late {
    fn drop(&mut self) {
        if let Some(group) = self.0.take() {
            let _scope = scope::enter(&group);
            let _stall = group.stall();
            busy(MILLI);
        }
    }
}

std::thread_local! {
    static EARLY: Late = const { Late(std::cell::RefCell::new(None)) };
    static LATE: Late = const { Late(std::cell::RefCell::new(None)) };
}

#[test]
fn leaves_nothing_of_the_stalls_of_a_thread_that_ends() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    std::thread::scope(|threads| {
        let ends = threads.spawn(|| {
            // Destructors run in the reverse order of the first use, or in that order: one is on
            // either side.
            EARLY.with(|early| early.0.replace(Some(group.clone())));
            drop(scope::enter(&group));
            LATE.with(|late| late.0.replace(Some(group.clone())));
        });
        // The scope waits for the closure alone, a join for the thread.
        ends.join().unwrap();
    });
    let total = some_us(&group);
    assert!(total >= 2000, "both stalls");
    let _stall = group.stall();
    let before = full_us(&group);
    busy(MILLI);
    assert!(full_us(&group) >= before + 990, "none is at work");
}

#[test]
fn ends_a_wait_with_the_longest_deadline_when_it_fires() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    let trigger = group.add_pressure_trigger("some 5000 500000".parse().unwrap());
    let _stall = group.stall();
    let mut years = Duration::from_secs(u64::MAX);
    let deadline = loop {
        match std::time::Instant::now().checked_add(years) {
            Some(deadline) => break deadline,
            None => years /= 2,
        }
    };
    assert!(trigger.wait(deadline));
}
