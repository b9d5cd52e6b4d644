//! Models of objects with a copy for each slot, and of the slots that they use.

use std::sync::Arc;

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::thread;

use crate::{PerCpu, SlotSource, pin_virtual};

/// Two threads on `slots` slots run `add` twice each; returns the sum of the copies.
fn sum_after(slots: usize, add: fn(&AtomicU64)) -> u64 {
    let object = Arc::new(PerCpu::<AtomicU64>::new(slots));
    let source = SlotSource::virtual_slots(slots).unwrap();
    let threads = [0, 1].map(|slot| {
        let object = Arc::clone(&object);
        thread::spawn(move || {
            let _pinned = pin_virtual(slot);
            assert_eq!(source.current(), slot % slots, "a pin belongs to the model's thread");
            add(object.get(source.current()));
            add(object.get(source.current()));
        })
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // ORDERING: Relaxed; after the joins.
    object.iter().map(|copy| copy.load(Ordering::Relaxed)).sum()
}

fn add_by_rmw(copy: &AtomicU64) {
    // ORDERING: Relaxed; a read-modify-write loses nothing in any order.
    copy.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn loom_adds_on_own_and_on_shared_slots_are_conserved() {
    memgroup_sync::model(|| assert_eq!(sum_after(2, add_by_rmw), 4));
    memgroup_sync::model(|| assert_eq!(sum_after(1, add_by_rmw), 4));
}

/// The mutation: a load and a store instead of a read-modify-write, which is wrong as soon as a slot is shared.
#[test]
#[should_panic(expected = "4 adds are counted")]
fn loom_finds_the_add_that_is_lost_without_a_read_modify_write() {
    memgroup_sync::model(|| {
        // ORDERING: Relaxed; no order makes a load and a store one step.
        let sum = sum_after(1, |copy| copy.store(copy.load(Ordering::Relaxed) + 1, Ordering::Relaxed));
        assert!(sum == 4, "4 adds are counted, not {sum}");
    });
}

#[test]
fn loom_numbers_threads_anew_in_each_execution() {
    memgroup_sync::model(|| {
        let source = SlotSource::virtual_slots(3).unwrap();
        let mine = source.current();
        let other = thread::spawn(move || source.current()).join().unwrap();
        assert_eq!((mine, other), (0, 1));
    });
}
