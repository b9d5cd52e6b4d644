//! Models of marks: every interleaving of a few calls, with up to three preemptions. The oracle is what was added: it was collected, or
//! is marked so that the next collection finds it.

use std::sync::Arc;

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::{Mutex, keep, thread};

use super::{CHUNK, CLASSES, Marks, Scratch};
use crate::additive::{add, take};
use crate::models::explore;
use crate::mutation::{self, Mutation};

/// One counter for each number and row, and what was collected from them.
struct Stats {
    marks: &'static Marks,
    rows: usize,
    counters: Vec<AtomicU64>,
    /// Taken by collectors under their lock, and published.
    total: Mutex<i64>,
    published: AtomicU64,
}

impl Stats {
    /// Counters of `numbers` numbers in `rows` rows.
    fn new(numbers: usize, rows: usize) -> Arc<Stats> {
        let marks = keep(Box::new(Marks::new(rows, numbers as u32)));
        (0..numbers).step_by(CHUNK).for_each(|number| marks.provide(number as u32));
        let counters = (0..numbers * rows).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Stats { marks, rows, counters, total: Mutex::new(0), published: AtomicU64::new(0) })
    }

    fn counter(&self, number: u32, row: usize) -> &AtomicU64 {
        &self.counters[number as usize * self.rows + row]
    }

    /// Adds `delta` and sees to it that it is marked.
    fn update(&self, number: u32, row: usize, delta: i64) {
        assert!(add(self.counter(number, row), delta), "the counter lives");
        let mark = self.marks.of(number);
        if !mark.is_set(row) {
            mark.set(row);
        }
    }

    /// Collects what is wanted; the total so far.
    fn collect(&self, wanted: impl FnMut(u32) -> bool) -> i64 {
        let mut total = self.total.lock();
        self.marks.collect(&mut Scratch::new(self.rows), wanted, |number, rows| {
            *total += rows.map(|row| take(self.counter(number, row))).sum::<i64>();
            // ORDERING: Relaxed; the end of the collection publishes it.
            self.published.store(*total as u64, Ordering::Relaxed);
        });
        *total
    }

    fn collect_one(&self, number: u32) -> i64 {
        let mut total = self.total.lock();
        self.marks.collect_one(&mut Scratch::new(self.rows), number, |rows| {
            *total += rows.map(|row| take(self.counter(number, row))).sum::<i64>();
            // ORDERING: Relaxed; the end of the collection publishes it.
            self.published.store(*total as u64, Ordering::Relaxed);
        });
        *total
    }

    fn spawn(self: &Arc<Stats>, run: impl FnOnce(&Stats) + 'static) -> thread::JoinHandle<()> {
        let stats = Arc::clone(self);
        thread::spawn(move || run(&stats))
    }
}

/// What the first addition leaves to the second.
const FIRST: i64 = 1;
const SECOND: i64 = 16;
const BOTH: i64 = FIRST + SECOND;

/// The skip race: a mark is set, and an addition may rely on it, while it is collected.
fn an_addition_that_finds_a_mark() {
    let stats = Stats::new(1, 1);
    stats.update(0, 0, FIRST);
    let other = stats.spawn(|stats| stats.update(0, 0, SECOND));
    stats.collect(|_| true);
    other.join().unwrap();
    let total = stats.collect(|_| true);
    assert!(total == BOTH, "{BOTH} are collected, not {total}");
    assert!(stats.marks.is_clean(), "all that was marked is collected");
}

#[test]
fn loom_an_addition_is_collected_or_marked() {
    explore(3, an_addition_that_finds_a_mark);
}

#[test]
#[should_panic(expected = "17 are collected")]
fn loom_a_leaf_bit_that_is_cleared_late_is_caught() {
    mutation::with(Mutation::LeafIsClearedLate, || explore(3, an_addition_that_finds_a_mark));
}

/// The same, where the mark was set without an addition: what is taken first is zero.
fn an_addition_that_finds_a_mark_of_nothing() {
    let stats = Stats::new(1, 1);
    stats.marks.of(0).set(0);
    let other = stats.spawn(|stats| stats.update(0, 0, FIRST));
    stats.collect(|_| true);
    other.join().unwrap();
    let total = stats.collect(|_| true);
    assert!(total == FIRST, "{FIRST} is collected, not {total}");
}

#[test]
fn loom_an_addition_is_collected_or_marked_where_nothing_was_added_before() {
    explore(3, an_addition_that_finds_a_mark_of_nothing);
}

#[test]
#[should_panic(expected = "1 is collected")]
fn loom_a_zero_that_a_collector_does_not_take_is_caught() {
    mutation::with(Mutation::TakeSkipsZero, || explore(3, an_addition_that_finds_a_mark_of_nothing));
}

/// Numbers that share upper bits with number 1: its word; its class of chunks; its row alone.
const OF_THE_WORD: u32 = 0;
const OF_THE_CLASS: u32 = (CHUNK * CLASSES) as u32;
const OF_THE_ROW: u32 = CHUNK as u32;

/// Number 1 is marked in row 0 while what is marked beside it is collected.
fn a_mark_beside(neighbour: u32, row: usize) {
    let stats = Stats::new(CHUNK * CLASSES + 1, row + 1);
    stats.update(neighbour, row, FIRST);
    let other = stats.spawn(|stats| stats.update(1, 0, SECOND));
    stats.collect(|_| true);
    other.join().unwrap();
    let total = stats.collect(|_| true);
    assert!(total == BOTH, "{BOTH} are collected, not {total}");
}

#[test]
fn loom_a_mark_beside_one_of_its_word_is_not_lost() {
    explore(3, || a_mark_beside(OF_THE_WORD, 0));
}

#[test]
fn loom_a_mark_beside_one_of_its_class_is_not_lost() {
    explore(3, || a_mark_beside(OF_THE_CLASS, 0));
}

#[test]
fn loom_a_mark_beside_one_of_its_row_is_not_lost() {
    explore(3, || a_mark_beside(OF_THE_ROW, 0));
}

#[test]
fn loom_a_mark_beside_one_of_another_row_is_not_lost() {
    explore(3, || a_mark_beside(1, 1));
}

#[test]
#[should_panic(expected = "17 are collected")]
fn loom_markers_that_are_not_counted_are_caught() {
    mutation::with(Mutation::MarkersAreNotCounted, || explore(3, || a_mark_beside(OF_THE_WORD, 0)));
}

#[test]
#[should_panic(expected = "17 are collected")]
fn loom_markers_that_are_read_before_the_summary_is_cleared_are_caught() {
    mutation::with(Mutation::MarkersAreReadEarly, || explore(3, || a_mark_beside(OF_THE_WORD, 0)));
}

#[test]
#[should_panic(expected = "17 are collected")]
fn loom_markers_that_are_read_only_after_the_summary_is_cleared_are_caught() {
    mutation::with(Mutation::MarkersAreReadLate, || explore(3, || a_mark_beside(OF_THE_CLASS, 0)));
}

#[test]
#[should_panic(expected = "17 are collected")]
fn loom_markers_that_are_read_by_a_load_are_caught() {
    mutation::with(Mutation::MarkersAreReadByLoad, || explore(3, || a_mark_beside(OF_THE_WORD, 0)));
}

/// A thread adds, and at once collects what it added; another one is in the middle of setting the mark that it may have found.
fn who_added_collects(collect: fn(&Stats) -> i64) {
    let stats = Stats::new(1, 1);
    let other = stats.spawn(|stats| stats.update(0, 0, FIRST));
    stats.update(0, 0, SECOND);
    let total = collect(&stats);
    assert!(total & SECOND != 0, "a thread collects what it added, not {total}");
    other.join().unwrap();
    let total = stats.collect(|_| true);
    assert!(total == BOTH, "{BOTH} are collected, not {total}");
}

fn all(stats: &Stats) -> i64 {
    stats.collect(|_| true)
}

fn one(stats: &Stats) -> i64 {
    stats.collect_one(0)
}

#[test]
fn loom_who_finds_a_mark_can_collect_at_once() {
    explore(3, || who_added_collects(all));
}

#[test]
fn loom_who_finds_a_mark_can_collect_its_number_at_once() {
    explore(3, || who_added_collects(one));
}

#[test]
#[should_panic(expected = "a thread collects what it added")]
fn loom_a_leaf_bit_before_its_upper_bits_is_caught() {
    mutation::with(Mutation::LeafBeforeUpperBits, || explore(3, || who_added_collects(all)));
}

#[test]
#[should_panic(expected = "a thread collects what it added")]
fn loom_a_leaf_bit_before_its_upper_bits_is_caught_where_one_number_is_collected() {
    mutation::with(Mutation::LeafBeforeUpperBits, || explore(3, || who_added_collects(one)));
}

/// The same while a third thread collects: it may have cleared the upper bits before the mark was there.
fn who_added_collects_after_another_collector() {
    let stats = Stats::new(1, 1);
    let marker = stats.spawn(|stats| stats.update(0, 0, FIRST));
    let collector = stats.spawn(|stats| _ = stats.collect(|_| true));
    stats.update(0, 0, SECOND);
    let total = stats.collect(|_| true);
    assert!(total & SECOND != 0, "a thread collects what it added, not {total}");
    marker.join().unwrap();
    collector.join().unwrap();
    let total = stats.collect(|_| true);
    assert!(total == BOTH, "{BOTH} are collected, not {total}");
}

#[test]
fn loom_who_finds_a_mark_can_collect_at_once_after_another_collector() {
    explore(3, who_added_collects_after_another_collector);
}

#[test]
#[should_panic(expected = "are collected")]
fn loom_markers_that_are_not_counted_are_caught_beside_another_collector() {
    mutation::with(Mutation::MarkersAreNotCounted, || explore(3, who_added_collects_after_another_collector));
}

/// One of two numbers is wanted by a collector; the other stays marked for the next.
fn what_is_not_wanted(unwanted: u32) {
    let stats = Stats::new(CHUNK * CLASSES + 1, 1);
    stats.update(unwanted, 0, FIRST);
    let other = stats.spawn(|stats| stats.update(1, 0, SECOND));
    let total = stats.collect(|number| number == 1);
    assert!(total & FIRST == 0, "it is not wanted, and in {total}");
    other.join().unwrap();
    let total = stats.collect(|_| true);
    assert!(total == BOTH, "{BOTH} are collected, not {total}");
}

#[test]
fn loom_what_is_not_wanted_in_a_word_stays_marked() {
    explore(3, || what_is_not_wanted(OF_THE_WORD));
}

#[test]
fn loom_what_is_not_wanted_in_a_class_stays_marked() {
    explore(3, || what_is_not_wanted(OF_THE_CLASS));
}

#[test]
#[should_panic(expected = "17 are collected")]
fn loom_what_is_left_without_upper_bits_is_caught() {
    mutation::with(Mutation::LeftIsNotSetAgain, || explore(3, || what_is_not_wanted(OF_THE_WORD)));
}

/// A thread adds, and looks whether all is clean while another one collects; what looks clean is in the published total.
fn who_added_looks(clean: fn(&Stats) -> bool, wanted: fn(u32) -> bool) {
    let stats = Stats::new(1, 1);
    let other = stats.spawn(move |stats| _ = stats.collect(wanted));
    stats.update(0, 0, FIRST);
    if clean(&stats) {
        // ORDERING: Relaxed; after the Acquire in `clean`.
        let published = stats.published.load(Ordering::Relaxed);
        assert!(published == FIRST as u64, "what looks clean is published, not {published}");
    }
    other.join().unwrap();
    let total = stats.collect(|_| true);
    assert!(total == FIRST, "{FIRST} is collected, not {total}");
}

/// The same beside a thread that is in the middle of setting the mark.
fn who_added_looks_beside_a_marker(clean: fn(&Stats) -> bool) {
    let stats = Stats::new(1, 1);
    let marker = stats.spawn(|stats| stats.update(0, 0, FIRST));
    let collector = stats.spawn(|stats| _ = stats.collect(|_| true));
    stats.update(0, 0, SECOND);
    if clean(&stats) {
        // ORDERING: Relaxed; after the Acquire in `clean`.
        let published = stats.published.load(Ordering::Relaxed);
        assert!(published as i64 & SECOND != 0, "what looks clean is published, not {published}");
    }
    marker.join().unwrap();
    collector.join().unwrap();
    let total = stats.collect(|_| true);
    assert!(total == BOTH, "{BOTH} are collected, not {total}");
}

fn whole(stats: &Stats) -> bool {
    stats.marks.is_clean()
}

fn number(stats: &Stats) -> bool {
    stats.marks.of(0).is_settled()
}

#[test]
fn loom_what_looks_clean_is_published() {
    explore(3, || who_added_looks(whole, |_| true));
    explore(3, || who_added_looks(whole, |_| false));
}

#[test]
fn loom_what_looks_settled_is_published() {
    explore(3, || who_added_looks(number, |_| true));
    explore(3, || who_added_looks(number, |_| false));
}

#[test]
fn loom_what_looks_clean_beside_a_marker_is_published() {
    explore(3, || who_added_looks_beside_a_marker(whole));
}

#[test]
fn loom_what_looks_settled_beside_a_marker_is_published() {
    explore(3, || who_added_looks_beside_a_marker(number));
}

#[test]
#[should_panic(expected = "what looks clean is published")]
fn loom_a_look_that_is_not_repeated_is_caught() {
    mutation::with(Mutation::CleanWithoutSecondLook, || explore(3, || who_added_looks(whole, |_| false)));
}

#[test]
#[should_panic(expected = "what looks clean is published")]
fn loom_a_look_at_one_number_that_is_not_repeated_is_caught() {
    mutation::with(Mutation::CleanWithoutSecondLook, || explore(3, || who_added_looks(number, |_| true)));
}
