//! Models of published values. A value is written where it is made and written again where it is
//! dropped, through a checked cell: loom finds a read in a race with either.

use super::*;
use crate::grace::{DeferredFree, Published, Withdrawn};

struct Value(UnsafeCell<u64>);

// SAFETY: loom checks the accesses.
unsafe impl Sync for Value {}

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

impl Drop for Value {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: loom checks that no other thread reads or writes meanwhile.
            self.0.with_mut(|value| unsafe { *value = 0 });
        }
    }
}

type Place = Arc<Published<Value>>;

fn empty() -> Place {
    Arc::new(Published::empty())
}

fn published(value: u64) -> Place {
    let place = empty();
    assert!(place.publish(Value::new(value)).is_none(), "it was empty");
    place
}

/// Starts a thread that runs `act` on the place.
fn on_another<R: 'static>(place: &Place, act: fn(&Published<Value>) -> R) -> thread::JoinHandle<R> {
    let place = Arc::clone(place);
    thread::spawn(move || act(&place))
}

/// The value that a section finds.
fn found(place: &Published<Value>) -> Option<u64> {
    let section = enter();
    let found = place.get(&section).map(Value::read);
    drop(section);
    found
}

fn retired(withdrawn: Option<Withdrawn<Value>>) -> DeferredFree<Value> {
    let mut deferred = DeferredFree::new();
    deferred.retire(withdrawn.expect("a value"), 8);
    deferred
}

fn withdrawn_beside_a_section() {
    let place = published(1);
    let other = on_another(&place, found);
    let mut deferred = retired(place.withdraw());
    synchronize(Form::Quiet);
    deferred.reclaim();
    assert!(deferred.is_empty());
    assert!(matches!(other.join().unwrap(), None | Some(1)));
}

#[test]
fn loom_a_section_never_sees_a_value_that_was_freed() {
    explore(withdrawn_beside_a_section);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_value_that_is_freed_when_it_is_retired_is_caught() {
    fails_with(Mutation::RetireFreesAtOnce, || explore(withdrawn_beside_a_section));
}

/// The grace period is another thread's, which the `DeferredFree` does not wait for.
fn reclaimed_while_another_waits() {
    let place = published(1);
    let other = on_another(&place, found);
    let writer = thread::spawn(|| synchronize(Form::Quiet));
    let mut deferred = retired(place.publish(Value::new(2)));
    thread::yield_now();
    let reclaimed = deferred.reclaim();
    assert_eq!(reclaimed + deferred.len(), 1);
    assert!(matches!(other.join().unwrap(), Some(1 | 2)));
    writer.join().unwrap();
    synchronize(Form::Quiet);
    deferred.reclaim();
    assert!(deferred.is_empty());
}

#[test]
fn loom_a_deferred_free_follows_another_threads_grace_period() {
    explore_up_to(2, reclaimed_while_another_waits);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_deferred_free_before_its_grace_period_is_caught() {
    fails_with(Mutation::CompletedBeforeScan, || explore_up_to(2, reclaimed_while_another_waits));
}

/// The `DeferredFree` is dropped while sections may see its value.
fn dropped_while_another_waits() {
    let place = published(1);
    let other = on_another(&place, found);
    let writer = thread::spawn(|| synchronize(Form::Quiet));
    let deferred = retired(place.withdraw());
    thread::yield_now();
    drop(deferred);
    assert!(matches!(other.join().unwrap(), None | Some(1)));
    writer.join().unwrap();
}

#[test]
fn loom_a_dropped_deferred_free_frees_nothing_in_use() {
    explore_up_to(2, dropped_while_another_waits);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_dropped_deferred_free_without_a_grace_period_is_caught() {
    fails_with(Mutation::CompletedBeforeScan, || explore_up_to(2, dropped_while_another_waits));
}

fn published_beside_a_section() {
    let place = empty();
    let other = on_another(&place, found);
    assert!(place.publish(Value::new(1)).is_none());
    assert!(matches!(other.join().unwrap(), None | Some(1)));
}

#[test]
fn loom_a_section_sees_the_whole_of_a_published_value() {
    explore(published_beside_a_section);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_value_that_is_published_by_no_release_is_caught() {
    fails_with(Mutation::PublishRelaxed, || explore(published_beside_a_section));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_pointer_that_is_followed_without_an_acquire_is_caught() {
    fails_with(Mutation::GetRelaxed, || explore(published_beside_a_section));
}

/// Two threads take out the value; one of them has put it there.
fn taken_out_by(take: fn(&Published<Value>) -> Option<Withdrawn<Value>>) {
    let place = empty();
    let other = on_another(&place, |place| place.publish(Value::new(1)).map(|value| value.read()));
    let mine = take(&place);
    if let Some(mine) = mine {
        assert_eq!(mine.read(), 1);
        let mut deferred = retired(Some(mine));
        synchronize(Form::Quiet);
        assert_eq!(deferred.reclaim(), 1);
    }
    assert!(matches!(other.join().unwrap(), None | Some(2)));
}

fn taken_out() {
    taken_out_by(Published::withdraw);
}

fn published_over() {
    taken_out_by(|place| place.publish(Value::new(2)));
}

#[test]
fn loom_a_withdrawn_value_is_seen_whole() {
    explore(taken_out);
}

#[test]
fn loom_a_replaced_value_is_seen_whole() {
    explore(published_over);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_value_that_is_withdrawn_without_an_acquire_is_caught() {
    fails_with(Mutation::TakeRelaxed, || explore(taken_out));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_value_that_is_replaced_without_an_acquire_is_caught() {
    fails_with(Mutation::TakeRelaxed, || explore(published_over));
}

/// Two threads withdraw; nothing is freed here, so that the fault is no more than counted.
fn withdrawn_by_two() {
    let place = published(1);
    let other = on_another(&place, |place| place.withdraw().is_some());
    let mine = place.withdraw().is_some();
    let others = other.join().unwrap();
    assert!(mine != others, "one of two withdraws the value");
}

#[test]
fn loom_a_value_is_withdrawn_by_one() {
    explore(withdrawn_by_two);
}

#[test]
#[should_panic(expected = "one of two withdraws the value")]
fn loom_a_value_that_is_taken_out_by_a_load_and_a_store_is_caught() {
    fails_with(Mutation::TakeByStore, || explore(withdrawn_by_two));
}
