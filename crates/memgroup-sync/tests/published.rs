//! Published values with real threads and real memory: a section reads the whole value, and each
//! value is dropped once, after the last section that may have seen it.

#![cfg(not(memgroup_loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use memgroup_sync::grace::{self, DeferredFree, Form, Published};
use memgroup_sync::interleave;

/// A number twice, on a heap of its own, which counts its drops.
struct Tracked {
    number: usize,
    again: Box<usize>,
    drops: Arc<AtomicUsize>,
}

impl Tracked {
    fn is_whole(&self) -> bool {
        self.number == *self.again
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.number = usize::MAX;
        // ORDERING: Relaxed; read after a join, or by the thread that drops.
        self.drops.fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes values and counts how many of them were dropped.
#[derive(Default)]
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn value(&self, number: usize) -> Box<Tracked> {
        Box::new(Tracked { number, again: Box::new(number), drops: Arc::clone(&self.0) })
    }

    fn dropped(&self) -> usize {
        // ORDERING: Relaxed; read after a join, or by the thread that drops.
        self.0.load(Ordering::Relaxed)
    }
}

fn number(place: &Published<Tracked>) -> Option<usize> {
    let section = grace::enter();
    place.get(&section).map(|value| value.number)
}

#[test]
fn an_empty_place_has_nothing_to_get_and_nothing_to_withdraw() {
    let place = Published::<Tracked>::empty();
    assert_eq!(number(&place), None);
    assert!(place.withdraw().is_none());
    assert_eq!(size_of_val(&place), size_of::<usize>());
}

#[test]
fn finds_a_published_value_and_drops_it_once() {
    let counted = Counted::default();
    let place = Published::empty();
    assert!(place.publish(counted.value(7)).is_none());
    assert_eq!(number(&place), Some(7));
    assert_eq!(counted.dropped(), 0);
    drop(place);
    assert_eq!(counted.dropped(), 1);
}

#[test]
fn a_withdrawn_value_is_read_as_long_as_the_section_lasts() {
    let counted = Counted::default();
    let place = Published::empty();
    assert!(place.publish(counted.value(7)).is_none());
    let mut deferred = DeferredFree::new();

    let section = grace::enter();
    let value = place.get(&section).expect("a value");
    let withdrawn = place.withdraw().expect("a value");
    assert_eq!(withdrawn.number, 7, "who withdraws it reads it as well");
    assert!(place.get(&section).is_none());
    deferred.retire(withdrawn, 100);
    // Grace periods of others end meanwhile, and none of them counts.
    let waited = std::thread::spawn(|| grace::synchronize_until(Form::Expedited, std::time::Instant::now()));
    assert!(waited.join().unwrap().is_err());
    assert_eq!(deferred.reclaim(), 0);
    assert_eq!((deferred.len(), deferred.bytes(), deferred.is_empty()), (1, 100, false));
    assert!(value.is_whole() && value.number == 7);
    drop(section);

    grace::synchronize(Form::Expedited);
    assert_eq!((deferred.reclaim(), counted.dropped()), (1, 1));
    assert_eq!((deferred.len(), deferred.bytes(), deferred.is_empty()), (0, 0, true));
}

#[test]
fn an_deferred_free_frees_after_a_grace_period_and_not_before() {
    let counted = Counted::default();
    let place = Published::empty();
    let mut deferred = DeferredFree::new();
    // A section keeps grace periods of other tests from being over.
    let section = grace::enter();
    for number in 0..3 {
        if let Some(old) = place.publish(counted.value(number)) {
            deferred.retire(old, 10);
        }
    }
    assert_eq!((deferred.reclaim(), deferred.len(), deferred.bytes(), counted.dropped()), (0, 2, 20, 0));
    drop(section);
    grace::synchronize(Form::Quiet);
    let section = grace::enter();
    deferred.retire(place.withdraw().expect("the last value"), 10);
    assert_eq!((deferred.reclaim(), deferred.len(), deferred.bytes(), counted.dropped()), (2, 1, 10, 2));
    drop(section);
    grace::synchronize(Form::Quiet);
    assert_eq!((deferred.reclaim(), deferred.len(), deferred.bytes(), counted.dropped()), (1, 0, 0, 3));
}

#[test]
fn publishing_over_a_value_hands_it_out_and_leaves_the_new_one() {
    let counted = Counted::default();
    let place = Published::empty();
    assert!(place.publish(counted.value(1)).is_none());
    let old = place.publish(counted.value(2)).expect("the first value");
    assert_eq!((old.number, number(&place)), (1, Some(2)));
    let mut deferred = DeferredFree::new();
    deferred.retire(old, 1);
    drop(place);
    assert_eq!(counted.dropped(), 1, "the second, with its place");
    grace::synchronize(Form::Expedited);
    assert_eq!((deferred.reclaim(), counted.dropped()), (1, 2));
}

#[test]
#[cfg_attr(miri, ignore = "leaks on purpose")]
fn a_withdrawn_value_that_no_deferred_free_takes_leaks() {
    let counted = Counted::default();
    let place = Published::empty();
    assert!(place.publish(counted.value(1)).is_none());
    drop(place.withdraw());
    drop(place);
    grace::synchronize(Form::Expedited);
    assert_eq!(counted.dropped(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "leaks on purpose")]
fn frees_the_reclaimable_when_dropped_and_leaks_the_rest() {
    let counted = Counted::default();
    let place = Published::empty();
    let mut deferred = DeferredFree::new();
    assert!(place.publish(counted.value(1)).is_none());
    deferred.retire(place.publish(counted.value(2)).expect("the first value"), 1);
    grace::synchronize(Form::Expedited);
    let section = grace::enter();
    deferred.retire(place.withdraw().expect("the second value"), 1);
    drop(deferred);
    assert_eq!(counted.dropped(), 1, "the first; a section might see the second");
    drop(section);
}

#[test]
fn an_deferred_free_counts_bytes_up_to_the_most_there_are() {
    let counted = Counted::default();
    let mut deferred = DeferredFree::new();
    let section = grace::enter();
    for _ in 0..2 {
        let place = Published::empty();
        assert!(place.publish(counted.value(1)).is_none());
        deferred.retire(place.withdraw().expect("a value"), usize::MAX);
    }
    assert_eq!((deferred.len(), deferred.bytes()), (2, usize::MAX));
    drop(section);
    grace::synchronize(Form::Expedited);
    assert_eq!((deferred.reclaim(), deferred.bytes(), counted.dropped()), (2, 0, 2));
}

#[test]
fn a_drop_that_panics_costs_one_value_and_no_other() {
    struct Panics(Arc<AtomicUsize>);
    impl Drop for Panics {
        fn drop(&mut self) {
            // ORDERING: Relaxed; one thread.
            assert!(self.0.fetch_add(1, Ordering::Relaxed) > 0, "the first drop");
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let place = Published::empty();
    let mut deferred = DeferredFree::new();
    for _ in 0..2 {
        assert!(place.publish(Box::new(Panics(Arc::clone(&drops)))).is_none());
        deferred.retire(place.withdraw().expect("a value"), 1);
    }
    grace::synchronize(Form::Expedited);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| deferred.reclaim()));
    assert!(caught.is_err());
    assert_eq!((deferred.len(), deferred.bytes()), (1, 1));
    assert_eq!(deferred.reclaim(), 1);
    // ORDERING: Relaxed; one thread.
    assert_eq!(drops.load(Ordering::Relaxed), 2);
}

/// Reads until told to stop, and then once more; how many values were not whole, and how many were
/// found.
fn read(place: &Published<Tracked>, over: &AtomicBool) -> (usize, usize) {
    let (mut torn, mut found) = (0, 0);
    loop {
        // ORDERING: Acquire; pairs with the Release below: the last section finds the last writes.
        let last = over.load(Ordering::Acquire);
        let section = grace::enter();
        if let Some(value) = place.get(&section) {
            interleave::point();
            torn += usize::from(!value.is_whole());
            found += 1;
        }
        if last {
            return (torn, found);
        }
    }
}

/// Publishes and withdraws `values` values, and withdraws no last one; how many its `DeferredFree`
/// freed.
fn write(place: &Published<Tracked>, counted: &Counted, values: usize) -> usize {
    assert!(values % 3 != 1, "the last call publishes");
    let mut deferred = DeferredFree::new();
    let mut freed = 0;
    for number in 0..values {
        let old = place.publish(counted.value(number));
        let taken = if number % 3 == 0 { place.withdraw() } else { None };
        for withdrawn in old.into_iter().chain(taken) {
            interleave::point();
            assert!(withdrawn.is_whole());
            deferred.retire(withdrawn, size_of::<Tracked>());
        }
        if number % 8 == 0 {
            grace::synchronize(Form::Expedited);
        }
        freed += deferred.reclaim();
    }
    grace::synchronize(Form::Quiet);
    freed += deferred.reclaim();
    assert!(deferred.is_empty());
    freed
}

#[test]
fn shows_whole_values_beside_writers_and_drops_each_once() {
    const VALUES: usize = if cfg!(miri) { 41 } else { 20_000 };
    let counted = Counted::default();
    let place = Published::empty();
    let over = AtomicBool::new(false);
    let freed: usize = std::thread::scope(|threads| {
        let readers = [(); 2].map(|()| threads.spawn(|| read(&place, &over)));
        let writers = [(); 2].map(|()| threads.spawn(|| write(&place, &counted, VALUES)));
        let freed = writers.map(|writer| writer.join().unwrap()).iter().sum();
        // ORDERING: Release; pairs with the Acquire in `read`.
        over.store(true, Ordering::Release);
        for (torn, found) in readers.map(|reader| reader.join().unwrap()) {
            assert_eq!(torn, 0, "of {found} values");
            assert!(found > 0, "the last value stays");
        }
        freed
    });
    assert_eq!((counted.dropped(), freed), (freed, 2 * VALUES - 1));
    drop(place);
    assert_eq!(counted.dropped(), 2 * VALUES);
}

#[test]
fn is_send_and_sync_if_its_value_is() {
    fn sent<T: Send>() {}
    fn shared<T: Sync>() {}
    sent::<Published<Tracked>>();
    shared::<Published<Tracked>>();
    sent::<DeferredFree<Tracked>>();
    // Readers of one thread only: the place may still change threads.
    sent::<Published<std::cell::Cell<u8>>>();
}
