//! Models of hazard records: every interleaving of a few calls, with up to four preemptions (three
//! where three threads run). A value is written where it is made and written again where it is
//! dropped, through a checked cell: a use that races with either is found. Places are pinned by a
//! swap, which stands for the store and the withdrawal's barrier. Each fault of `mutation` must
//! make its model fail.

#![allow(unsafe_code)]
// loom's cells are shared by the threads of a model, which run in turns.
#![allow(clippy::arc_with_non_send_sync)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::record::{PinBy, Record};
use super::{Domain, Lease, Place, Withdrawn};
use crate::atomic::AtomicU32;
use crate::grace::{Evidence, epoch};
use crate::loom::cell::UnsafeCell;
use crate::loom::model::Builder;
use crate::mutation::{self, Mutation};
use crate::thread;

fn explore_up_to(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    crate::explore(&builder, move || {
        // Made by the first thread, so that no interleaving of its first use is explored.
        let _ = epoch::now();
        model();
    });
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    explore_up_to(4, model);
}

fn fails_with(fault: Mutation, model: impl FnOnce()) {
    mutation::with(fault, model);
}

struct Value(UnsafeCell<u64>);

// SAFETY: loom checks the accesses.
unsafe impl Sync for Value {}
// SAFETY: as above.
unsafe impl Send for Value {}

impl Value {
    fn new(written: u64) -> Box<Self> {
        let value = Box::new(Self(UnsafeCell::new(0)));
        // SAFETY: no other thread has it yet.
        value.0.with_mut(|value| unsafe { *value = written });
        value
    }

    fn read(&self) -> u64 {
        // SAFETY: loom checks that no other thread writes meanwhile.
        self.0.with(|value| unsafe { *value })
    }
}

/// Writes to a value that was given back, as its next owner may. Its memory is kept, so that a
/// fault becomes a race and not a crash.
fn overwrite(value: Box<Value>) {
    // SAFETY: loom checks that no other thread reads or writes meanwhile.
    value.0.with_mut(|value| unsafe { *value = 0 });
    crate::keep(value);
}

/// A domain and a place of it, for one execution.
#[derive(Clone, Copy)]
struct Field {
    domain: &'static Domain,
    place: &'static Place<Value>,
}

impl Field {
    fn empty() -> Self {
        let domain = crate::keep(Box::new(Domain::new()));
        Self { domain, place: crate::keep(Box::new(Place::empty(domain))) }
    }

    fn with(value: u64) -> Self {
        let field = Self::empty();
        field.place.put(Value::new(value));
        field
    }

    /// The value that one pin under the lease finds.
    fn visit(self, lease: &mut Lease) -> Option<u64> {
        lease.pin(self.place).map(|value| value.read())
    }

    /// The value that a walk with one pin finds.
    fn walk(self) -> Option<u64> {
        self.visit(&mut self.domain.lease())
    }

    fn withdraw(self) -> Withdrawn<Value> {
        self.place.withdraw().expect("a value")
    }

    fn on_another<R: 'static>(self, does: fn(Self) -> R) -> thread::JoinHandle<R> {
        thread::spawn(move || does(self))
    }
}

/// A pin beside a withdrawal that is waited for.
fn waited_for(walks: fn(Field) -> Option<u64>) {
    let field = Field::with(1);
    let other = field.on_another(walks);
    overwrite(field.withdraw().wait().expect("this thread has pinned nothing"));
    assert!(matches!(other.join().unwrap(), None | Some(1)));
}

fn one_pin() {
    waited_for(Field::walk);
}

#[test]
fn loom_a_pin_never_sees_a_value_that_was_given_back() {
    explore(one_pin);
}

#[test]
fn loom_a_pin_after_another_never_sees_a_value_that_was_given_back() {
    explore(|| {
        waited_for(|field| {
            let mut lease = field.domain.lease();
            let first = field.visit(&mut lease);
            field.visit(&mut lease).or(first)
        });
    });
}

#[test]
fn loom_a_pin_of_a_second_lease_never_sees_a_value_that_was_given_back() {
    explore(|| waited_for(|field| field.walk().or(field.walk())));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_pin_by_a_store_without_a_barrier_is_caught() {
    fails_with(Mutation::PinByStore, || explore(one_pin));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_scan_of_pins_by_loads_without_a_barrier_is_caught() {
    fails_with(Mutation::PinsAreScannedByLoads, || explore(one_pin));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_pin_that_ends_without_publishing_is_caught() {
    fails_with(Mutation::UnpinRelaxed, || explore(one_pin));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_wait_that_assumes_no_user_is_caught() {
    fails_with(Mutation::WaitAssumesNoUser, || explore(one_pin));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_claim_without_a_fence_is_caught() {
    fails_with(Mutation::LeaseClaimsWithoutFence, || explore(one_pin));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_withdrawal_without_a_fence_is_caught() {
    fails_with(Mutation::WithdrawsWithoutFence, || explore(one_pin));
}

/// Withdraws and detaches beside walks; the closure has run once when all walks are over.
fn detached_beside(walkers: usize, walks: fn(Field) -> Option<u64>) {
    let field = Field::with(1);
    let others: Vec<_> = (0..walkers).map(|_| field.on_another(walks)).collect();
    let done = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&done);
    field.withdraw().detach(move |value| {
        overwrite(value);
        // ORDERING: Relaxed; threads of a model take turns.
        counts.fetch_add(1, Ordering::Relaxed);
    });
    for other in others {
        assert!(matches!(other.join().unwrap(), None | Some(1)));
    }
    // ORDERING: Relaxed; as above.
    assert!(done.load(Ordering::Relaxed) == 1, "a detached closure runs once");
    assert!(!field.place.is_taken(), "the place is vacant");
}

fn detached() {
    detached_beside(1, Field::walk);
}

fn detached_beside_two() {
    detached_beside(2, Field::walk);
}

#[test]
fn loom_a_detached_value_runs_once_and_after_the_last_pin() {
    explore(detached);
}

#[test]
fn loom_a_detached_value_runs_after_two_pins_in_a_row() {
    explore(|| {
        detached_beside(1, |field| {
            let mut lease = field.domain.lease();
            let first = field.visit(&mut lease);
            field.visit(&mut lease).or(first)
        });
    });
}

#[test]
fn loom_a_detached_value_runs_after_the_last_of_two_users() {
    explore_up_to(3, detached_beside_two);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_detached_value_that_runs_at_once_is_caught() {
    fails_with(Mutation::DetachRunsAtOnce, || explore(detached));
}

#[test]
#[should_panic(expected = "a detached closure runs once")]
fn loom_a_detached_value_that_no_thread_finds_is_caught() {
    fails_with(Mutation::DetachScansFirst, || explore(detached));
}

#[test]
#[should_panic(expected = "a detached closure runs once")]
fn loom_a_pin_that_ends_by_a_store_without_a_barrier_is_caught() {
    fails_with(Mutation::UnpinByStore, || explore(detached));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_departure_that_an_earlier_user_ends_is_caught() {
    fails_with(Mutation::DepartureIgnoresOthers, || explore_up_to(3, detached_beside_two));
}

#[test]
fn loom_two_pins_and_a_withdrawal_that_is_waited_for() {
    explore_up_to(3, || {
        let field = Field::with(1);
        let others = [(); 2].map(|()| field.on_another(Field::walk));
        overwrite(field.withdraw().wait().expect("this thread has pinned nothing"));
        for other in others {
            assert!(matches!(other.join().unwrap(), None | Some(1)));
        }
    });
}

/// A walk with a long use of one place, which then pins another, beside a withdrawal of one of
/// them.
fn long_use(is_withdrawn: fn(Field, Field) -> Field) {
    let first = Field::with(1);
    let second = Field { place: crate::keep(Box::new(Place::empty(first.domain))), ..first };
    second.place.put(Value::new(2));
    let walk = thread::spawn(move || {
        let mut lease = first.domain.lease();
        let one = lease.pin(first.place).map(|value| value.long_use(Value::read));
        (one, second.visit(&mut lease))
    });
    overwrite(is_withdrawn(first, second).withdraw().wait().expect("this thread has pinned nothing"));
    assert!(matches!(walk.join().unwrap(), (None | Some(1), None | Some(2))));
}

#[test]
fn loom_a_walk_after_a_long_use_sees_no_value_given_back() {
    explore(|| long_use(|_, second| second));
}

#[test]
fn loom_a_long_use_never_sees_its_value_given_back() {
    explore(|| long_use(|first, _| first));
}

#[test]
fn loom_a_detached_value_runs_after_a_long_use() {
    explore(|| {
        detached_beside(1, |field| {
            field.domain.lease().pin(field.place).map(|value| value.long_use(Value::read))
        });
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_long_use_that_ends_without_a_fence_is_caught() {
    fails_with(Mutation::LongUseEndsWithoutFence, || explore(|| long_use(|_, second| second)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_long_use_that_hides_its_pin_is_caught() {
    fails_with(Mutation::LongUseRelaxed, || explore(|| long_use(|first, _| first)));
}

/// The place is used for a second value while the other thread walks.
fn used_again() {
    let field = Field::with(1);
    let other = field.on_another(|field| {
        let mut lease = field.domain.lease();
        (field.visit(&mut lease), field.visit(&mut lease))
    });
    overwrite(field.withdraw().wait().expect("this thread has pinned nothing"));
    field.place.put(Value::new(2));
    let found = other.join().unwrap();
    assert!(
        !matches!(found, (Some(2), Some(1) | None) | (None, Some(1))),
        "in the order they were put: {found:?}"
    );
    assert_eq!(field.withdraw().wait().expect("this thread has pinned nothing").read(), 2);
}

#[test]
fn loom_a_place_that_is_used_again_shows_the_whole_new_value() {
    explore(used_again);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_value_that_is_put_without_a_release_is_caught() {
    fails_with(Mutation::PutRelaxed, || explore(used_again));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_pin_that_follows_without_an_acquire_is_caught() {
    fails_with(Mutation::PinFollowsRelaxed, || explore(used_again));
}

/// A value that another thread has put is withdrawn and read here.
fn put_by_another() {
    let field = Field::empty();
    let other = field.on_another(|field| field.place.put(Value::new(1)));
    if let Some(withdrawn) = field.place.withdraw() {
        assert_eq!(withdrawn.wait().expect("this thread has pinned nothing").read(), 1);
    }
    // A value that was put after the withdrawal stays in the place, and goes with the execution.
    other.join().unwrap();
}

#[test]
fn loom_a_withdrawn_value_is_seen_whole() {
    explore(put_by_another);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_value_that_is_withdrawn_without_a_fence_is_caught() {
    fails_with(Mutation::WithdrawsWithoutFence, || explore(put_by_another));
}

/// Threads that claim, use and give back records, each with a scratch cell that only the lease's
/// owner may touch.
fn records_change_hands() {
    let field = Field::empty();
    let scratch: Arc<[UnsafeCell<u64>; 2]> = Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]);
    let threads = [(); 2].map(|()| {
        let scratch = Arc::clone(&scratch);
        thread::spawn(move || {
            let lease = field.domain.lease();
            let at = field.domain.records().position(|record| lease.is_on(record)).expect("a record");
            // SAFETY: loom checks that no other thread touches it meanwhile.
            scratch[at].with_mut(|uses| unsafe { *uses += 1 });
            drop(lease);
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
    // SAFETY: both threads are joined.
    let uses: u64 = scratch.iter().map(|uses| uses.with(|uses| unsafe { *uses })).sum();
    assert_eq!(uses, 2);
    assert_eq!(field.domain.evidence(|| Evidence::Loads), None, "each record was given back");
}

#[test]
fn loom_a_record_has_one_lease_at_a_time() {
    explore(records_change_hands);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_lease_that_is_claimed_by_a_store_is_caught() {
    fails_with(Mutation::LeaseClaimsByStore, || explore(records_change_hands));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_lease_that_ends_without_publishing_is_caught() {
    fails_with(Mutation::LeaseEndsRelaxed, || explore(records_change_hands));
}

/// More leases than a chunk has records: a withdrawal finds those in a chunk that is new.
#[test]
fn loom_a_lease_in_a_new_chunk_is_not_missed() {
    explore_up_to(3, || {
        waited_for(|field| {
            let _others = [field.domain.lease(), field.domain.lease()];
            field.walk()
        });
    });
}

/// Places were pinned by a store; now the barrier is lost.
fn the_barrier_is_lost() {
    epoch::let_readers_store();
    let field = Field::with(1);
    let other = field.on_another(Field::walk);
    epoch::lose_the_barrier();
    let done = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&done);
    field.withdraw().detach(move |value| {
        overwrite(value);
        // ORDERING: Relaxed; threads of a model take turns.
        counts.fetch_add(1, Ordering::Relaxed);
    });
    assert!(matches!(other.join().unwrap(), None | Some(1)));
    // ORDERING: Relaxed; as above.
    assert!(done.load(Ordering::Relaxed) == 1, "a detached closure runs once");
}

#[test]
fn loom_a_lease_that_ends_ends_deferred_departures() {
    explore(the_barrier_is_lost);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_lost_barrier_without_proofs_is_caught_by_a_pin() {
    fails_with(Mutation::LostBarrierNeedsNoProof, || explore(the_barrier_is_lost));
}

#[test]
#[should_panic(expected = "a detached closure runs once")]
fn loom_a_lease_that_ends_by_a_store_is_caught() {
    fails_with(Mutation::LeaseEndsByStore, || explore(the_barrier_is_lost));
}

/// A place is withdrawn from, and vacated, beside a thread that may find it vacant.
fn vacated() {
    let field = Field::with(1);
    let before = Arc::new(UnsafeCell::new(0));
    let written = Arc::clone(&before);
    let other = thread::spawn(move || {
        // After the withdrawal, whose fence would publish it.
        let withdrawn = field.withdraw();
        // SAFETY: loom checks that no other thread touches it meanwhile.
        written.with_mut(|value| unsafe { *value = 1 });
        overwrite(withdrawn.wait().expect("this thread has pinned nothing"));
    });
    if !field.place.is_taken() {
        // SAFETY: as above.
        before.with(|value| assert_eq!(unsafe { *value }, 1));
        field.place.put(Value::new(2));
    }
    other.join().unwrap();
}

#[test]
fn loom_a_place_found_vacant_shows_the_end_of_the_last_use() {
    explore(vacated);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_place_that_is_vacated_without_publishing_is_caught() {
    fails_with(Mutation::VacateRelaxed, || explore(vacated));
}

/// Something is withdrawn by a flag, and the threads that use places are listed, beside a walk.
fn users_are_listed() {
    let field = Field::with(1);
    let (gone, used) = (Arc::new(AtomicU32::new(0)), Arc::new(UnsafeCell::new(0)));
    let (is_gone, uses) = (Arc::clone(&gone), Arc::clone(&used));
    let other = thread::spawn(move || {
        let mut lease = field.domain.lease();
        let pinned = lease.pin(field.place);
        // ORDERING: Relaxed; the model is about the list.
        if is_gone.load(Ordering::Relaxed) == 0 {
            // SAFETY: loom checks that no other thread writes meanwhile.
            uses.with(|value| assert_eq!(unsafe { *value }, 0));
        }
        drop(pinned);
    });
    // ORDERING: Relaxed; as above.
    gone.store(1, Ordering::Relaxed);
    if field.domain.users().is_empty() {
        // SAFETY: loom checks that no other thread reads meanwhile.
        used.with_mut(|value| unsafe { *value = 1 });
    }
    other.join().unwrap();
}

#[test]
fn loom_a_thread_that_is_not_listed_sees_the_writes_before() {
    explore(users_are_listed);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_list_of_users_without_a_fence_is_caught() {
    fails_with(Mutation::UsersWithoutFence, || explore(users_are_listed));
}

/// A record pins one place after another by stores, beside a scan that finds the second pin.
fn one_pin_after_another() {
    let record = crate::keep(Box::new(Record::default()));
    let value = Arc::new(UnsafeCell::new(0));
    let used = Arc::clone(&value);
    let other = thread::spawn(move || {
        record.claim(1).expect("the record is free");
        record.pin(8, PinBy::Store);
        // SAFETY: loom checks that no other thread writes meanwhile.
        used.with(|value| assert_eq!(unsafe { *value }, 0));
        record.unpin(PinBy::Store);
        record.pin(16, PinBy::Store);
    });
    if record.scan(Evidence::Loads, 2).0 == 16 {
        // SAFETY: loom checks that no other thread reads meanwhile.
        value.with_mut(|value| unsafe { *value = 1 });
    }
    other.join().unwrap();
}

#[test]
fn loom_a_pin_by_a_store_ends_the_one_before() {
    explore(one_pin_after_another);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_pin_by_a_store_that_publishes_nothing_is_caught() {
    fails_with(Mutation::NextPinRelaxed, || explore(one_pin_after_another));
}
