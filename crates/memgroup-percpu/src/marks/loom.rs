//! Models of marks: every interleaving of a few calls, with up to three preemptions. The oracle:
//! each addition was collected, or is marked so that the next collection finds it.

use std::sync::Arc;

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::{Mutex, keep, thread};

use super::{BITS, CHUNK, CLASSES, Marks, Piece, Rows, Scratch};
use crate::additive::{add, take};
use crate::models::explore;
use crate::mutation::{self, Mutation};

/// One counter for each number and row, and the total collected from them.
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

    /// Adds `delta`, and sets the mark if it is not set.
    fn update(&self, number: u32, row: usize, delta: i64) {
        assert!(add(self.counter(number, row), delta), "the counter lives");
        let mark = self.marks.of(number);
        if !mark.is_set(row) {
            mark.set(row);
        }
    }

    /// Collects the wanted numbers; returns the total so far.
    fn collect(&self, wanted: impl FnMut(u32) -> bool) -> i64 {
        let mut total = self.total.lock();
        let deliver = |number, rows: Rows<'_>| self.deliver(&mut total, number, rows);
        self.marks.collect(&mut Scratch::new(self.rows), wanted, deliver, || ());
        *total
    }

    /// Collects all numbers in pieces of one mark, and frees the lock between two pieces; returns
    /// the total after the last one.
    fn collect_in_pieces(&self) -> i64 {
        let mut from = 0;
        loop {
            let mut total = self.total.lock();
            let deliver = |number, rows: Rows<'_>| self.deliver(&mut total, number, rows);
            let piece = Piece { from, marks_max: 1 };
            match self.marks.collect_piece(&mut Scratch::new(self.rows), piece, |_| true, deliver, || ()) {
                Some(next) => from = next,
                None => return *total,
            }
        }
    }

    fn collect_one(&self, number: u32) -> i64 {
        let mut total = self.total.lock();
        let deliver = |rows: Rows<'_>| self.deliver(&mut total, number, rows);
        self.marks.collect_one(&mut Scratch::new(self.rows), number, deliver, || ());
        *total
    }

    fn deliver(&self, total: &mut i64, number: u32, rows: Rows<'_>) {
        *total += rows.map(|row| take(self.counter(number, row))).sum::<i64>();
        // ORDERING: Relaxed; the end of the collection publishes it.
        self.published.store(*total as u64, Ordering::Relaxed);
    }

    fn spawn(self: &Arc<Stats>, run: impl FnOnce(&Stats) + 'static) -> thread::JoinHandle<()> {
        let stats = Arc::clone(self);
        thread::spawn(move || run(&stats))
    }
}

/// An addition that relies on the mark of the first.
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

/// The same, where the mark was set without an addition: the first value taken is zero.
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
fn loom_a_first_addition_is_collected_or_marked() {
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

/// Number 1 is marked in row 0 while a mark beside it is collected.
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
fn loom_markers_read_before_the_summary_is_cleared_are_caught() {
    mutation::with(Mutation::MarkersAreReadEarly, || explore(3, || a_mark_beside(OF_THE_WORD, 0)));
}

#[test]
#[should_panic(expected = "17 are collected")]
fn loom_markers_read_only_after_the_summary_is_clear_are_caught() {
    mutation::with(Mutation::MarkersAreReadLate, || explore(3, || a_mark_beside(OF_THE_CLASS, 0)));
}

#[test]
#[should_panic(expected = "17 are collected")]
fn loom_markers_that_are_read_by_a_load_are_caught() {
    mutation::with(Mutation::MarkersAreReadByLoad, || explore(3, || a_mark_beside(OF_THE_WORD, 0)));
}

/// A thread adds, and collects at once; another one is in the middle of setting the mark that it
/// may have found.
fn an_adder_collects(collect: fn(&Stats) -> i64) {
    let stats = Stats::new(1, 1);
    let other = stats.spawn(|stats| stats.update(0, 0, FIRST));
    stats.update(0, 0, SECOND);
    let total = collect(&stats);
    assert!(total & SECOND != 0, "a thread collects its own additions, not {total}");
    other.join().unwrap();
    let total = stats.collect(|_| true);
    assert!(total == BOTH, "{BOTH} are collected, not {total}");
}

fn all(stats: &Stats) -> i64 {
    stats.collect(|_| true)
}

fn in_pieces(stats: &Stats) -> i64 {
    stats.collect_in_pieces()
}

fn one(stats: &Stats) -> i64 {
    stats.collect_one(0)
}

#[test]
fn loom_a_mark_that_is_found_can_be_collected_at_once() {
    explore(3, || an_adder_collects(all));
}

#[test]
fn loom_a_number_that_is_found_can_be_collected_at_once() {
    explore(3, || an_adder_collects(one));
}

#[test]
#[should_panic(expected = "a thread collects its own additions")]
fn loom_a_leaf_bit_before_its_upper_bits_is_caught() {
    mutation::with(Mutation::LeafBeforeUpperBits, || explore(3, || an_adder_collects(all)));
}

#[test]
#[should_panic(expected = "a thread collects its own additions")]
fn loom_a_number_with_a_leaf_bit_before_upper_bits_is_caught() {
    mutation::with(Mutation::LeafBeforeUpperBits, || explore(3, || an_adder_collects(one)));
}

/// The same while a third thread collects: it may have cleared the upper bits before the mark was
/// there.
fn an_adder_collects_after_another_collector() {
    let stats = Stats::new(1, 1);
    let marker = stats.spawn(|stats| stats.update(0, 0, FIRST));
    let collector = stats.spawn(|stats| _ = stats.collect(|_| true));
    stats.update(0, 0, SECOND);
    let total = stats.collect(|_| true);
    assert!(total & SECOND != 0, "a thread collects its own additions, not {total}");
    marker.join().unwrap();
    collector.join().unwrap();
    let total = stats.collect(|_| true);
    assert!(total == BOTH, "{BOTH} are collected, not {total}");
}

#[test]
fn loom_a_mark_that_is_found_can_be_collected_beside_another() {
    explore(3, an_adder_collects_after_another_collector);
}

#[test]
#[should_panic(expected = "are collected")]
fn loom_markers_not_counted_are_caught_with_two_collectors() {
    mutation::with(Mutation::MarkersAreNotCounted, || explore(3, an_adder_collects_after_another_collector));
}

/// Number 1 is marked while number 0 and another one are collected in pieces, one number each.
fn a_mark_beside_pieces(other: u32) {
    const THIRD: i64 = 256;
    let stats = Stats::new(2 * CHUNK, 1);
    stats.update(0, 0, FIRST);
    stats.update(other, 0, THIRD);
    let marker = stats.spawn(|stats| stats.update(1, 0, SECOND));
    let total = stats.collect_in_pieces();
    assert!(
        total & (FIRST + THIRD) == FIRST + THIRD,
        "pieces collect all that was marked before, not {total}"
    );
    marker.join().unwrap();
    let total = stats.collect(|_| true);
    assert!(total == BOTH + THIRD, "{} are collected, not {total}", BOTH + THIRD);
    assert!(stats.marks.is_clean(), "all that was marked is collected");
}

#[test]
fn loom_a_mark_beside_a_piece_is_not_lost() {
    explore(3, || a_mark_beside_pieces(BITS as u32));
    explore(3, || a_mark_beside_pieces(CHUNK as u32));
}

#[test]
fn loom_a_mark_that_is_found_can_be_collected_in_pieces() {
    explore(3, || an_adder_collects(in_pieces));
}

#[test]
#[should_panic(expected = "273 are collected")]
fn loom_a_piece_that_forgets_words_is_caught() {
    mutation::with(Mutation::PieceForgetsWords, || explore(3, || a_mark_beside_pieces(BITS as u32)));
}

#[test]
#[should_panic(expected = "273 are collected")]
fn loom_a_piece_that_forgets_chunks_is_caught() {
    mutation::with(Mutation::PieceForgetsChunks, || explore(3, || a_mark_beside_pieces(CHUNK as u32)));
}

/// One of two numbers is wanted by a collector; the other stays marked for the next.
fn an_unwanted_number(unwanted: u32) {
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
fn loom_an_unwanted_number_of_a_word_stays_marked() {
    explore(3, || an_unwanted_number(OF_THE_WORD));
}

#[test]
fn loom_an_unwanted_number_of_a_class_stays_marked() {
    explore(3, || an_unwanted_number(OF_THE_CLASS));
}

#[test]
#[should_panic(expected = "17 are collected")]
fn loom_marks_left_without_upper_bits_are_caught() {
    mutation::with(Mutation::LeftIsNotRestored, || explore(3, || an_unwanted_number(OF_THE_WORD)));
}

/// A thread adds, and checks whether all is clean while another one collects. If so, the published
/// total has its addition.
fn an_adder_checks(clean: fn(&Stats) -> bool, wanted: fn(u32) -> bool) {
    let stats = Stats::new(1, 1);
    let other = stats.spawn(move |stats| _ = stats.collect(wanted));
    stats.update(0, 0, FIRST);
    if clean(&stats) {
        // ORDERING: Relaxed; after the Acquire in `clean`.
        let published = stats.published.load(Ordering::Relaxed);
        assert!(published == FIRST as u64, "a clean addition is published, not {published}");
    }
    other.join().unwrap();
    let total = stats.collect(|_| true);
    assert!(total == FIRST, "{FIRST} is collected, not {total}");
}

/// The same beside a thread that is in the middle of setting the mark.
fn an_adder_checks_beside_a_marker(clean: fn(&Stats) -> bool) {
    let stats = Stats::new(1, 1);
    let marker = stats.spawn(|stats| stats.update(0, 0, FIRST));
    let collector = stats.spawn(|stats| _ = stats.collect(|_| true));
    stats.update(0, 0, SECOND);
    if clean(&stats) {
        // ORDERING: Relaxed; after the Acquire in `clean`.
        let published = stats.published.load(Ordering::Relaxed);
        assert!(published as i64 & SECOND != 0, "a clean addition is published, not {published}");
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
    stats.marks.of(0).is_clean()
}

#[test]
fn loom_a_collection_that_looks_over_is_published() {
    explore(3, || an_adder_checks(whole, |_| true));
    explore(3, || an_adder_checks(whole, |_| false));
}

#[test]
fn loom_a_number_that_looks_settled_is_published() {
    explore(3, || an_adder_checks(number, |_| true));
    explore(3, || an_adder_checks(number, |_| false));
}

#[test]
fn loom_a_clean_state_beside_a_marker_is_published() {
    explore(3, || an_adder_checks_beside_a_marker(whole));
}

#[test]
fn loom_a_settled_number_beside_a_marker_is_published() {
    explore(3, || an_adder_checks_beside_a_marker(number));
}

#[test]
#[should_panic(expected = "a clean addition is published")]
fn loom_a_clean_state_that_is_read_once_is_caught() {
    mutation::with(Mutation::CleanIsReadOnce, || explore(3, || an_adder_checks(whole, |_| false)));
}

#[test]
#[should_panic(expected = "a clean addition is published")]
fn loom_a_settled_number_that_is_read_once_is_caught() {
    mutation::with(Mutation::CleanIsReadOnce, || explore(3, || an_adder_checks(number, |_| true)));
}
