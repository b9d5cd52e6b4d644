//! Models of the slots: bytes that leave a word leave it once, and no bytes stay where they must
//! not.

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

    /// Takes the held back bytes as a refusal does, by `barrier`.
    fn collect(&self, records: &Records, barrier: impl FnOnce() -> bool) -> bool {
        records.collect(None, |_, _| Answer::Empty, |_, units| self.uncharge(units), barrier)
    }

    /// Takes them as a removal does, which disturbs no thread.
    fn retire(&self, records: &Records) {
        self.remove();
        let no_barrier = || unreachable!("a removal makes no barrier");
        records.collect(None, |_, _| Answer::CloseSoon, |_, units| self.uncharge(units), no_barrier);
    }

    /// Holds back units that are charged, as `thread::hold` does.
    fn hold(&self, slots: &Slots, units: u64) {
        let looks_before = mutation::active(Mutation::OpensWithoutALook);
        if looks_before && !self.may_hold() {
            return self.uncharge(units);
        }
        assert_eq!(slots.open(0, GROUP, units).left, None);
        if !looks_before && !self.may_hold() {
            self.uncharge(slots.close(GROUP));
        }
    }

    /// As `thread::settle` does.
    fn settle(&self, record: &Record) {
        let ask = |_, _| if self.may_hold() { Answer::Keep } else { Answer::Close };
        record.settle(ask, |_, units| self.uncharge(units));
    }

    /// Frees a block of `units` units.
    fn free(&self, record: &Record, units: u64) {
        let slots = &record.slots;
        if record.put(GROUP, units) {
            return;
        }
        let put = if record.is_due() { Put::NoSlot } else { slots.at(0).put(GROUP, units, 100) };
        match put {
            Put::Kept => {}
            Put::Left(units) => self.uncharge(units),
            Put::NoSlot => {
                self.settle(record);
                self.hold(slots, units);
            }
        }
    }

    /// Allocates a block of `units` units.
    fn allocate(&self, record: &Record, units: u64) {
        if !record.take(GROUP, units) {
            self.settle(record);
            self.charge(units);
        }
    }

    /// Frees a block that no slot holds back, as `thread::uncharge_slowly` does.
    fn free_large(&self, record: &Record, units: u64) {
        self.settle(record);
        self.uncharge(units);
    }

    /// The thread of the record ends.
    fn end(&self, record: &Record) {
        while !record.give_back() {
            self.settle(record);
        }
    }
}

/// Replaces the barrier on all processors (`records` E1).
fn barrier() -> bool {
    // ORDERING: SeqCst fence, as the owner's in a model.
    fence(Ordering::SeqCst);
    true
}

/// A group, and the records of the threads.
struct Shared {
    group: Group,
    records: Records,
}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared { group: Group::new(), records: Records::new() })
    }

    fn record(&self) -> &'static Record {
        self.records.claim(|| Some(keep(Box::new(Record::new(true))))).unwrap()
    }

    fn held(&self) -> u64 {
        self.records.all().map(|record| held(&record.slots)).sum()
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
    let shared = Shared::new();
    let record = shared.record();
    shared.group.charge(4);
    shared.group.hold(&record.slots, 4);
    let refusers = [(); 2].map(|()| {
        let shared = Arc::clone(&shared);
        thread::spawn(move || shared.group.collect(&shared.records, barrier))
    });
    refusers.into_iter().for_each(|refuser| _ = refuser.join().unwrap());
    assert_eq!(shared.group.usage() + shared.held(), 0, "each unit is uncharged once");
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

/// A thread frees a block of another thread and allocates one, while another thread is refused.
fn a_free_beside_a_refusal() {
    let shared = Shared::new();
    let (group, record) = (&shared.group, shared.record());
    // A block of another thread, and units that this thread holds back.
    group.charge(3 + 2);
    group.hold(&record.slots, 2);
    let refuser = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || shared.group.collect(&shared.records, barrier))
    };
    group.free(record, 3);
    group.allocate(record, 1);
    refuser.join().unwrap();
    assert_eq!(group.usage(), 1 + shared.held(), "usage is that of the block and the held back units");
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

#[test]
#[should_panic(expected = "usage is that of the block and the held back units")]
fn loom_finds_the_refusal_without_a_barrier() {
    mutation::with(Mutation::CollectsWithoutBarrier, || memgroup_sync::model(a_free_beside_a_refusal));
}

#[test]
#[should_panic(expected = "usage is that of the block and the held back units")]
fn loom_finds_the_refusal_that_does_not_wait_for_a_thread_between_two_stores() {
    mutation::with(Mutation::CollectsWithoutWaiting, || memgroup_sync::model(a_free_beside_a_refusal));
}

/// The same, but the barrier is lost. Later the thread has seen that, and its bytes can be taken
/// without one.
fn a_free_beside_a_refusal_without_the_barrier() {
    let shared = Shared::new();
    let (group, record) = (&shared.group, shared.record());
    group.charge(3 + 2 + 1);
    group.hold(&record.slots, 2);
    let refuser = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || shared.group.collect(&shared.records, || false))
    };
    group.free(record, 3);
    refuser.join().unwrap();
    assert_eq!(group.usage(), 1 + shared.held(), "usage is that of the block and the held back units");
    group.free(record, 1);
    group.collect(&shared.records, || unreachable!("the thread makes no store any more"));
    assert_eq!((group.usage(), shared.held()), (0, 0), "nothing stays");
}

#[test]
fn loom_a_refusal_without_the_barrier_loses_no_unit() {
    memgroup_sync::model(a_free_beside_a_refusal_without_the_barrier);
}

#[test]
#[should_panic(expected = "usage is that of the block and the held back units")]
fn loom_finds_the_refusal_that_takes_bytes_of_a_thread_that_may_store() {
    mutation::with(Mutation::CollectsUnproven, || {
        memgroup_sync::model(a_free_beside_a_refusal_without_the_barrier);
    });
}

/// The barrier is lost while another thread holds back units and frees only large blocks.
fn large_blocks_without_the_barrier() {
    let shared = Shared::new();
    let (group, record) = (&shared.group, shared.record());
    group.charge(2 + 100 + 100);
    group.hold(&record.slots, 2);
    let refuser = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || shared.group.collect(&shared.records, || false))
    };
    group.free_large(record, 100);
    refuser.join().unwrap();
    group.free_large(record, 100);
    assert!(group.collect(&shared.records, || false), "the thread has proved that it makes no store");
    assert_eq!((group.usage(), shared.held()), (0, 0), "nothing stays");
}

#[test]
fn loom_a_thread_without_small_blocks_keeps_no_unit() {
    memgroup_sync::model(large_blocks_without_the_barrier);
}

#[test]
#[should_panic(expected = "the thread has proved that it makes no store")]
fn loom_finds_the_settlement_that_proves_nothing() {
    mutation::with(Mutation::SettlesWithoutProof, || {
        memgroup_sync::model(large_blocks_without_the_barrier);
    });
}

/// A thread frees a block into a slot that it opens, during a removal.
fn a_free_beside_a_removal() {
    let shared = Shared::new();
    let (group, record) = (&shared.group, shared.record());
    group.charge(3 + 2);
    let remover = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || shared.group.retire(&shared.records))
    };
    group.free(record, 3);
    remover.join().unwrap();
    // The thread's next block.
    group.free(record, 2);
    assert_eq!((group.usage(), shared.held()), (0, 0), "no unit stays in the slot of a removed group");
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

/// A removal marks a record that is marked already, while its thread settles it.
fn a_removal_beside_a_settlement() {
    let shared = Shared::new();
    let (group, record) = (&shared.group, shared.record());
    group.charge(3 + 2);
    group.hold(&record.slots, 3);
    record.mark_due();
    let remover = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || shared.group.retire(&shared.records))
    };
    group.settle(record);
    remover.join().unwrap();
    group.free(record, 2);
    assert_eq!((group.usage(), shared.held()), (0, 0), "no unit stays in the slot of a removed group");
}

#[test]
fn loom_a_marked_record_is_settled_by_its_thread() {
    memgroup_sync::model(a_removal_beside_a_settlement);
}

#[test]
#[should_panic(expected = "no unit stays in the slot of a removed group")]
fn loom_finds_the_mark_that_is_taken_after_the_look() {
    mutation::with(Mutation::LooksBeforeTheMark, || memgroup_sync::model(a_removal_beside_a_settlement));
}

/// A thread ends during a removal, so nothing is left to act on a mark.
fn the_end_of_a_thread_beside_a_removal() {
    let shared = Shared::new();
    let (group, record) = (&shared.group, shared.record());
    group.charge(2);
    group.hold(&record.slots, 2);
    let remover = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || shared.group.retire(&shared.records))
    };
    group.end(record);
    remover.join().unwrap();
    assert_eq!((group.usage(), shared.held()), (0, 0), "no unit stays in the slot of a removed group");
}

#[test]
fn loom_a_removal_beside_the_end_of_a_thread_leaves_nothing() {
    memgroup_sync::model(the_end_of_a_thread_beside_a_removal);
}

#[test]
#[should_panic(expected = "no unit stays in the slot of a removed group")]
fn loom_finds_the_thread_that_ends_although_its_record_is_marked() {
    mutation::with(Mutation::EndsWhileDue, || memgroup_sync::model(the_end_of_a_thread_beside_a_removal));
}

/// A thread frees a block and ends, and another begins, while a third is refused.
fn a_thread_that_ends() {
    let shared = Shared::new();
    shared.group.charge(3 + 2);
    let threads = [3, 2].map(|units| {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let record = shared.record();
            shared.group.free(record, units);
            shared.group.end(record);
        })
    });
    shared.group.collect(&shared.records, barrier);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(shared.group.usage(), shared.held(), "a record keeps the units of its thread");
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
