//! Models of the slots: bytes that leave a word leave it once, and none stays where it may not.

use std::sync::Arc;

use memgroup_sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use memgroup_sync::{keep, thread};

use crate::mutation::{self, Mutation};
use crate::records::{Record, Records};
use crate::slots::{Answer, Key, Put, Slots};

const GROUP: Key = Key::of(1);

/// A group of the engine: its usage, and whether it was removed.
struct Group {
    usage: AtomicU64,
    is_offline: AtomicBool,
}

impl Group {
    fn new() -> Group {
        Group { usage: AtomicU64::new(0), is_offline: AtomicBool::new(false) }
    }

    fn charge(&self, units: u64) {
        // ORDERING: AcqRel, as the engine's counter.
        self.usage.fetch_add(units, Ordering::AcqRel);
    }

    fn uncharge(&self, units: u64) {
        // ORDERING: AcqRel, as the engine's counter.
        let before = self.usage.fetch_sub(units, Ordering::AcqRel);
        assert!(before >= units, "more is uncharged than was charged");
    }

    fn usage(&self) -> u64 {
        // ORDERING: Acquire; after all threads are joined.
        self.usage.load(Ordering::Acquire)
    }

    fn may_hold(&self) -> bool {
        // ORDERING: SeqCst fence; `slots` E1, as in the engine's `Owner::may_hold`.
        fence(Ordering::SeqCst);
        // ORDERING: Acquire, as the engine's counter.
        !self.is_offline.load(Ordering::Acquire)
    }

    fn remove(&self) {
        // ORDERING: AcqRel, as the engine's mark.
        self.is_offline.swap(true, Ordering::AcqRel);
        // ORDERING: SeqCst fence; `slots` E1, as in the engine's `held_back::retire`.
        fence(Ordering::SeqCst);
    }

    /// Takes the held back bytes as a refusal does.
    fn collect(&self, record: &Record) {
        record.stop();
        // ORDERING: SeqCst fence; in place of the barrier on all processors (`records` E1).
        fence(Ordering::SeqCst);
        record.wait_idle();
        record.slots.visit(
            |_, units| if units > 0 { Answer::Empty } else { Answer::Keep },
            |_, units| self.uncharge(units),
        );
        record.go_on();
    }

    /// Holds back units that are charged, as `thread::hold` does.
    fn hold(&self, slots: &Slots, units: u64) {
        let looks_before = mutation::active(Mutation::OpensWithoutALook);
        if looks_before && !self.may_hold() {
            return self.uncharge(units);
        }
        assert_eq!(slots.open(0, GROUP, units), None);
        if !looks_before && !self.may_hold() {
            self.uncharge(slots.close(GROUP));
        }
    }

    /// Frees a block of so many units.
    fn free(&self, record: &Record, units: u64) {
        let slots = &record.slots;
        if record.put(GROUP, units) {
            return;
        }
        match slots.at(0).put(GROUP, units, 100) {
            Put::Kept => {}
            Put::Left(units) => self.uncharge(units),
            Put::NoSlot => self.hold(slots, units),
        }
    }

    /// Allocates a block of so many units.
    fn allocate(&self, record: &Record, units: u64) {
        if !record.take(GROUP, units) {
            self.charge(units);
        }
    }
}

fn held(slots: &Slots) -> u64 {
    let mut sum = 0;
    slots.visit(
        |_, units| {
            sum += units;
            Answer::Keep
        },
        |_, _| (),
    );
    sum
}

/// Two refusing threads meet the units that a third holds back.
fn two_refusers() {
    let shared = Arc::new((Group::new(), Record::new(true)));
    shared.0.charge(4);
    shared.0.hold(&shared.1.slots, 4);
    let refusers = [(); 2].map(|()| {
        let shared = Arc::clone(&shared);
        thread::spawn(move || shared.0.collect(&shared.1))
    });
    refusers.into_iter().for_each(|refuser| refuser.join().unwrap());
    assert_eq!(shared.0.usage() + held(&shared.1.slots), 0, "each unit is uncharged once");
}

#[test]
fn loom_two_refusers_take_one_delta_once() {
    memgroup_sync::model(two_refusers);
}

#[test]
#[should_panic(expected = "more is uncharged than was charged")]
fn loom_finds_the_delta_that_two_refusers_take() {
    mutation::with(Mutation::CollectsByStore, || memgroup_sync::model(two_refusers));
}

/// A thread frees a block of another thread, and allocates one, beside a refusing thread.
fn a_free_beside_a_refusal() {
    let shared = Arc::new((Group::new(), Record::new(true)));
    // A block of another thread, and units that this thread holds back.
    shared.0.charge(3 + 2);
    shared.0.hold(&shared.1.slots, 2);
    let refuser = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || shared.0.collect(&shared.1))
    };
    shared.0.free(&shared.1, 3);
    shared.0.allocate(&shared.1, 1);
    refuser.join().unwrap();
    assert_eq!(
        shared.0.usage(),
        1 + held(&shared.1.slots),
        "usage is that of the block and the held back units"
    );
}

#[test]
fn loom_a_free_beside_a_refusal_loses_no_unit() {
    memgroup_sync::model(a_free_beside_a_refusal);
}

#[test]
#[should_panic(expected = "usage is that of the block and the held back units")]
fn loom_finds_the_unit_that_a_free_puts_back_twice() {
    mutation::with(Mutation::PutsByStore, || memgroup_sync::model(a_free_beside_a_refusal));
}

#[test]
#[should_panic(expected = "usage is that of the block and the held back units")]
fn loom_finds_the_store_that_a_refusal_does_not_wait_for() {
    mutation::with(Mutation::StoresWithoutFence, || memgroup_sync::model(a_free_beside_a_refusal));
}

/// A thread frees a block into a slot that it opens, beside a removal.
fn a_free_beside_a_removal() {
    let shared = Arc::new((Group::new(), Record::new(true)));
    shared.0.charge(3);
    let remover = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            shared.0.remove();
            shared.0.uncharge(shared.1.slots.close(GROUP));
        })
    };
    shared.0.free(&shared.1, 3);
    remover.join().unwrap();
    assert_eq!(
        (shared.0.usage(), held(&shared.1.slots)),
        (0, 0),
        "no unit stays in the slot of a removed group"
    );
}

#[test]
fn loom_no_slot_stays_open_after_a_removal() {
    memgroup_sync::model(a_free_beside_a_removal);
}

#[test]
#[should_panic(expected = "no unit stays in the slot of a removed group")]
fn loom_finds_the_slot_that_stays_open_after_a_removal() {
    mutation::with(Mutation::OpensWithoutALook, || memgroup_sync::model(a_free_beside_a_removal));
}

/// A thread frees a block and ends, and another begins, beside a refusing thread.
fn a_thread_that_ends() {
    let shared = Arc::new((Group::new(), Records::new()));
    let make = || Some(keep(Box::new(Record::new(true))));
    shared.0.charge(3 + 2);
    let threads = [3, 2].map(|units| {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let record = shared.1.claim(make).unwrap();
            shared.0.free(record, units);
            record.give_back();
        })
    });
    shared.1.all().for_each(|record| shared.0.collect(record));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let held: u64 = shared.1.all().map(|record| held(&record.slots)).sum();
    assert_eq!(shared.0.usage(), held, "a record keeps the units of its thread");
}

#[test]
fn loom_a_thread_that_ends_loses_no_bytes() {
    memgroup_sync::model(a_thread_that_ends);
}

#[test]
#[should_panic(expected = "a record keeps the units of its thread")]
fn loom_finds_the_bytes_that_a_thread_loses_at_its_end() {
    mutation::with(Mutation::ClaimErases, || memgroup_sync::model(a_thread_that_ends));
}
