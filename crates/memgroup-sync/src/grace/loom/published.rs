//! Models of published values. A value is written where it is made and written again where it is dropped, through a checked
//! cell: who reads it in a race with either is found.

use super::*;
use crate::grace::{Attic, Published, Withdrawn, enter_briefly};

struct Value(UnsafeCell<u64>);

// SAFETY: loom checks the accesses.
unsafe impl Sync for Value {}

impl Value {
    fn new(written: u64) -> Box<Self> {
        let value = Box::new(Self(UnsafeCell::new(0)));
        // SAFETY: nobody else has it yet.
        value.0.with_mut(|value| unsafe { *value = written });
        value
    }

    fn read(&self) -> u64 {
        // SAFETY: loom checks that nobody writes meanwhile.
        self.0.with(|value| unsafe { *value })
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: loom checks that nobody reads or writes meanwhile.
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

/// Starts a thread that does `what` to the place.
fn on_another<R: 'static>(place: &Place, what: fn(&Published<Value>) -> R) -> thread::JoinHandle<R> {
    let place = Arc::clone(place);
    thread::spawn(move || what(&place))
}

/// What a section finds.
fn found(place: &Published<Value>) -> Option<u64> {
    let section = enter();
    let found = place.get(&section).map(Value::read);
    drop(section);
    found
}

/// What a brief section finds.
fn found_briefly(place: &Published<Value>) -> Option<u64> {
    drop(enter());
    let section = enter_briefly().expect("the thread is in no other brief section");
    let found = place.get_brief(&section).map(Value::read);
    drop(section);
    found
}

fn retired(withdrawn: Option<Withdrawn<Value>>) -> Attic<Value> {
    let mut attic = Attic::new();
    attic.retire(withdrawn.expect("a value"), 8);
    attic
}

fn withdrawn_beside(read: fn(&Published<Value>) -> Option<u64>) {
    let place = published(1);
    let other = on_another(&place, read);
    let mut attic = retired(place.withdraw());
    synchronize(Form::Quiet);
    attic.reclaim();
    assert!(attic.is_empty());
    assert!(matches!(other.join().unwrap(), None | Some(1)));
}

#[test]
fn loom_a_section_never_sees_a_value_that_was_freed() {
    explore(|| withdrawn_beside(found));
}

#[test]
fn loom_a_brief_section_never_sees_a_value_that_was_freed() {
    explore(|| withdrawn_beside(found_briefly));
}

fn fails_when_retiring_frees(read: fn(&Published<Value>) -> Option<u64>) {
    fails_with(Mutation::RetireFreesAtOnce, || explore(move || withdrawn_beside(read)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_value_that_is_freed_when_it_is_retired_is_caught() {
    fails_when_retiring_frees(found);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_value_that_is_freed_when_it_is_retired_is_caught_by_a_brief_section() {
    fails_when_retiring_frees(found_briefly);
}

/// The grace period is another thread's, and the attic does not wait for it.
fn reclaimed_while_another_waits() {
    let place = published(1);
    let other = on_another(&place, found);
    let writer = thread::spawn(|| synchronize(Form::Quiet));
    let mut attic = retired(place.publish(Value::new(2)));
    thread::yield_now();
    let reclaimed = attic.reclaim();
    assert_eq!(reclaimed + attic.len(), 1);
    assert!(matches!(other.join().unwrap(), Some(1 | 2)));
    writer.join().unwrap();
    synchronize(Form::Quiet);
    attic.reclaim();
    assert!(attic.is_empty());
}

#[test]
fn loom_an_attic_frees_after_a_grace_period_of_another_thread() {
    explore_up_to(2, reclaimed_while_another_waits);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_an_attic_that_believes_an_unfinished_grace_period_is_caught() {
    fails_with(Mutation::CompletedBeforeScan, || explore_up_to(2, reclaimed_while_another_waits));
}

/// The attic is dropped while sections may see its value.
fn dropped_while_another_waits() {
    let place = published(1);
    let other = on_another(&place, found);
    let writer = thread::spawn(|| synchronize(Form::Quiet));
    let attic = retired(place.withdraw());
    thread::yield_now();
    drop(attic);
    assert!(matches!(other.join().unwrap(), None | Some(1)));
    writer.join().unwrap();
}

#[test]
fn loom_an_attic_that_is_dropped_frees_nothing_that_a_section_sees() {
    explore_up_to(2, dropped_while_another_waits);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_dropped_attic_that_believes_an_unfinished_grace_period_is_caught() {
    fails_with(Mutation::CompletedBeforeScan, || explore_up_to(2, dropped_while_another_waits));
}

fn published_beside_a_section() {
    let place = empty();
    let other = on_another(&place, found);
    assert!(place.publish(Value::new(1)).is_none());
    assert!(matches!(other.join().unwrap(), None | Some(1)));
}

#[test]
fn loom_a_section_sees_the_whole_of_what_was_published() {
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

/// Two threads take out what is there; one of them has put it there.
fn taken_out_by(take: fn(&Published<Value>) -> Option<Withdrawn<Value>>) {
    let place = empty();
    let other = on_another(&place, |place| place.publish(Value::new(1)).map(|value| value.read()));
    let mine = take(&place);
    if let Some(mine) = mine {
        assert_eq!(mine.read(), 1);
        let mut attic = retired(Some(mine));
        synchronize(Form::Quiet);
        assert_eq!(attic.reclaim(), 1);
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
fn loom_who_takes_a_value_out_sees_the_whole_of_it() {
    explore(taken_out);
}

#[test]
fn loom_who_publishes_over_a_value_sees_the_whole_of_it() {
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
