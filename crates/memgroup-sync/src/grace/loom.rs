//! Models of grace periods with readers that enter by a swap: every interleaving of a few calls,
//! with up to three preemptions (two where three threads run). The oracle is loom's own: memory
//! that is used again is written through a checked cell, and an access of a section that is not
//! over by then is a data race. Each fault of `mutation` must make its model fail.

#![allow(unsafe_code)]
// loom's cells are shared by the threads of a model, which run in turns.
#![allow(clippy::arc_with_non_send_sync)]

use std::cell::Cell;
use std::sync::Arc;

use super::evidence::Evidence;
use super::scan::Found;
use super::section::end_of_thread;
use super::{Epoch, Form, Limbo, Section, begin, enter, epoch, registry, synchronize, tag};
use crate::atomic::{AtomicUsize, Ordering};
use crate::loom::cell::UnsafeCell;
use crate::loom::model::Builder;
use crate::mutation::{self, Mutation};
use crate::thread;

mod brief;
mod published;

fn explore_up_to(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        // Made by the first thread, so that no interleaving of their first use is explored.
        let _ = (epoch::now(), epoch::completed(), epoch::barrier_lost(), registry::readers().count());
        model();
    });
}

std::thread_local! {
    /// Whether sections leave by a store; else by an exchange, so that a wait for them ends. All
    /// threads of a model run on the thread of its test.
    pub(super) static LEAVES_AS_SHIPPED: Cell<bool> = const { Cell::new(false) };
}

/// Explores a model that scans and does not wait.
fn explore_as_shipped(model: impl Fn() + Sync + Send + 'static) {
    LEAVES_AS_SHIPPED.set(true);
    explore(model);
}

/// Explores a model that may wait.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    explore_up_to(3, model);
}

/// Two places, and which of them is linked: the first. The second is the one that replaces it.
struct Linked {
    place: AtomicUsize,
    places: [UnsafeCell<u64>; 2],
}

impl Linked {
    fn new() -> Arc<Self> {
        Arc::new(Self { place: AtomicUsize::new(0), places: [UnsafeCell::new(0), UnsafeCell::new(0)] })
    }

    /// The place that is linked now.
    fn follow(&self) -> usize {
        // ORDERING: Relaxed; the oracle: no section follows a link that was replaced before the
        // scan.
        self.place.load(Ordering::Relaxed)
    }

    fn read(&self, place: usize) {
        // SAFETY: loom checks that no other thread writes meanwhile.
        let value = self.places[place].with(|value| unsafe { *value });
        assert!(value == 0, "a section reads memory that is used again");
    }

    fn unlink(&self) {
        // ORDERING: Relaxed, as above.
        self.place.store(1, Ordering::Relaxed);
    }

    fn use_again(&self) {
        // SAFETY: loom checks that no other thread reads or writes meanwhile.
        self.places[0].with_mut(|value| unsafe { *value = 7 });
    }
}

fn in_section(linked: &Linked, section: Section) {
    linked.read(linked.follow());
    drop(section);
}

/// Starts a reader of `linked`.
fn reader(linked: &Arc<Linked>, read: fn(&Linked)) -> thread::JoinHandle<()> {
    let linked = Arc::clone(linked);
    thread::spawn(move || read(&linked))
}

fn fails_with(fault: Mutation, model: impl FnOnce()) {
    mutation::with(fault, model);
}

fn one_section() {
    let linked = Linked::new();
    let other = reader(&linked, |linked| in_section(linked, enter()));
    linked.unlink();
    synchronize(Form::Quiet);
    linked.use_again();
    other.join().unwrap();
}

#[test]
fn loom_a_reader_never_sees_memory_that_is_used_again() {
    explore(one_section);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_an_entry_by_a_store_without_a_barrier_is_caught() {
    fails_with(Mutation::EnterByStore, || explore(one_section));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_scan_by_loads_without_a_barrier_is_caught() {
    fails_with(Mutation::ScanByLoads, || explore(one_section));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_leave_that_publishes_nothing_is_caught() {
    fails_with(Mutation::LeaveRelaxed, || explore(one_section));
}

/// The caller's fault: the call does not wait for memory that is unlinked after it began.
#[test]
#[should_panic(expected = "Causality violation")]
fn loom_an_unlink_after_the_grace_period_is_caught() {
    explore(|| {
        let linked = Linked::new();
        let other = reader(&linked, |linked| in_section(linked, enter()));
        synchronize(Form::Quiet);
        linked.unlink();
        linked.use_again();
        other.join().unwrap();
    });
}

/// The reader's fault: the section is over before the access.
#[test]
#[should_panic(expected = "Causality violation")]
fn loom_an_access_after_the_section_is_caught() {
    explore(|| {
        let linked = Linked::new();
        let other = reader(&linked, |linked| {
            let section = enter();
            let place = linked.follow();
            drop(section);
            linked.read(place);
        });
        linked.unlink();
        synchronize(Form::Quiet);
        linked.use_again();
        other.join().unwrap();
    });
}

/// Returns whether a scan of each record finds no section.
fn sees_no_section(target: Epoch, evidence: Evidence) -> bool {
    registry::readers().all(|reader| reader.scan(target, evidence) == Found::Nothing)
}

fn one_scan(sections: usize) {
    let linked = Linked::new();
    let there = Arc::clone(&linked);
    let other = thread::spawn(move || (0..sections).for_each(|_| in_section(&there, enter())));
    linked.unlink();
    if sees_no_section(tag(), Evidence::Exchanges) {
        linked.use_again();
    }
    other.join().unwrap();
}

#[test]
fn loom_one_scan_sees_every_section_that_misses_the_unlink() {
    explore_as_shipped(|| one_scan(1));
}

#[test]
fn loom_one_scan_sees_every_section_in_a_row_that_misses_the_unlink() {
    explore_as_shipped(|| one_scan(2));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_look_by_loads_is_caught() {
    fails_with(Mutation::ScanByLoads, || explore_as_shipped(|| one_scan(1)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_an_entry_by_a_store_is_caught_by_one_scan() {
    fails_with(Mutation::EnterByStore, || explore_as_shipped(|| one_scan(1)));
}

/// A scan beside a section for which no record is free, so its thread appends a block.
fn a_section_in_a_new_block() {
    (0..registry::RECORDS).for_each(|_| _ = registry::claim());
    one_scan(1);
}

#[test]
fn loom_a_section_in_a_new_block_is_not_missed() {
    explore_as_shipped(a_section_in_a_new_block);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_new_block_that_is_found_by_a_load_is_caught() {
    fails_with(Mutation::NextBlockIsLoaded, || explore_as_shipped(a_section_in_a_new_block));
}

#[test]
fn loom_a_section_that_follows_another_sees_the_unlink_or_is_waited_for() {
    explore(|| {
        let linked = Linked::new();
        let other = reader(&linked, |linked| {
            in_section(linked, enter());
            in_section(linked, enter());
        });
        linked.unlink();
        synchronize(Form::Quiet);
        linked.use_again();
        other.join().unwrap();
    });
}

fn a_section_within_another() {
    let linked = Linked::new();
    let other = reader(&linked, |linked| {
        let outer = enter();
        let place = linked.follow();
        drop(enter());
        linked.read(place);
        drop(outer);
    });
    linked.unlink();
    synchronize(Form::Quiet);
    linked.use_again();
    other.join().unwrap();
}

#[test]
fn loom_a_nested_section_keeps_the_protection_of_the_outer() {
    explore(a_section_within_another);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_nested_section_that_takes_the_new_epoch_is_caught() {
    fails_with(Mutation::NestedTakesNewEpoch, || explore(a_section_within_another));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_nested_section_that_ends_the_outer_one_is_caught() {
    fails_with(Mutation::NestedLeaveIsLast, || explore(a_section_within_another));
}

#[test]
fn loom_sections_may_end_in_any_order() {
    explore(|| {
        let linked = Linked::new();
        let other = reader(&linked, |linked| {
            let outer = enter();
            let inner = enter();
            let place = linked.follow();
            drop(outer);
            linked.read(place);
            drop(inner);
        });
        linked.unlink();
        synchronize(Form::Quiet);
        linked.use_again();
        other.join().unwrap();
    });
}

/// Two writers and a reader; the writers' turns may be one grace period.
fn two_writers() {
    let (linked, theirs) = (Linked::new(), Linked::new());
    let other = reader(&linked, |linked| in_section(linked, enter()));
    let writer = thread::spawn(move || {
        theirs.unlink();
        synchronize(Form::Quiet);
        theirs.use_again();
    });
    linked.unlink();
    synchronize(Form::Quiet);
    linked.use_again();
    other.join().unwrap();
    writer.join().unwrap();
}

#[test]
fn loom_a_shared_grace_period_began_after_the_call() {
    explore_up_to(2, two_writers);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_grace_period_that_began_before_the_call_is_caught() {
    fails_with(Mutation::FollowerTakesAnyGracePeriod, || explore_up_to(2, two_writers));
}

#[test]
fn loom_writers_of_both_forms_do_not_disturb_each_other() {
    explore_up_to(2, || {
        let linked = Linked::new();
        let other = reader(&linked, |linked| in_section(linked, enter()));
        let writer = thread::spawn(|| synchronize(Form::Expedited));
        linked.unlink();
        synchronize(Form::Quiet);
        linked.use_again();
        other.join().unwrap();
        writer.join().unwrap();
    });
}

/// A retired item is reclaimed if the grace period that another thread waits for covers it.
fn retired_while_another_waits() {
    let linked = Linked::new();
    let other = reader(&linked, |linked| in_section(linked, enter()));
    let writer = thread::spawn(|| synchronize(Form::Quiet));
    let mut limbo = Limbo::new(1);
    linked.unlink();
    limbo.retire((), 1).unwrap();
    thread::yield_now();
    limbo.reclaim(|()| linked.use_again());
    other.join().unwrap();
    writer.join().unwrap();
}

#[test]
fn loom_a_retired_item_waits_for_the_sections_that_may_see_it() {
    explore_up_to(2, retired_while_another_waits);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_tag_that_is_loaded_is_caught() {
    fails_with(Mutation::TagByLoad, || explore_up_to(2, retired_while_another_waits));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_grace_period_that_counts_before_its_scan_is_caught() {
    fails_with(Mutation::CompletedBeforeScan, || explore_up_to(2, retired_while_another_waits));
}

/// A reader beside a grace period that is polled, once while it may last and once when it is over.
fn a_polled_grace_period() {
    let linked = Linked::new();
    let other = reader(&linked, |linked| in_section(linked, enter()));
    linked.unlink();
    let mut pending = begin(Form::Expedited);
    if pending.poll() {
        linked.use_again();
        other.join().unwrap();
    } else {
        other.join().unwrap();
        assert!(pending.poll(), "no section is left");
        linked.use_again();
    }
}

#[test]
fn loom_memory_is_used_again_when_a_poll_says_so() {
    explore(a_polled_grace_period);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_poll_that_passes_over_sections_is_caught() {
    fails_with(Mutation::PollPassesOverSections, || explore(a_polled_grace_period));
}

/// The caller's fault: the tag is drawn before the unlink.
#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_tag_before_the_unlink_is_caught() {
    explore_up_to(2, || {
        let linked = Linked::new();
        let other = reader(&linked, |linked| in_section(linked, enter()));
        let writer = thread::spawn(|| synchronize(Form::Quiet));
        let epoch = tag();
        linked.unlink();
        thread::yield_now();
        if epoch.is_over() {
            linked.use_again();
        }
        other.join().unwrap();
        writer.join().unwrap();
    });
}

/// Threads that claim, use and give back records, each with a scratch cell that only the owner of
/// the record may touch.
fn records_change_hands() {
    let scratch: Arc<[UnsafeCell<u64>; 2]> = Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]);
    let threads = [(); 2].map(|()| {
        let scratch = Arc::clone(&scratch);
        thread::spawn(move || {
            let section = enter();
            let at = registry::readers().position(|reader| section.is_on(reader)).expect("a record");
            // SAFETY: loom checks that no other thread touches it meanwhile.
            scratch[at].with_mut(|uses| unsafe { *uses += 1 });
            drop(section);
            end_of_thread();
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
    // SAFETY: both threads are joined.
    let uses: u64 = scratch.iter().map(|uses| uses.with(|uses| unsafe { *uses })).sum();
    assert_eq!(uses, 2);
    assert!(registry::readers().all(|reader| reader.is_free()), "each record was given back");
}

#[test]
fn loom_a_record_that_changes_hands_is_one_threads_at_a_time() {
    explore(records_change_hands);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_claim_by_a_store_is_caught() {
    fails_with(Mutation::ClaimByStore, || explore(records_change_hands));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_give_back_that_publishes_nothing_is_caught() {
    fails_with(Mutation::GiveBackRelaxed, || explore(records_change_hands));
}

/// Sections were entered by a store; now the barrier fails.
fn the_barrier_is_lost() {
    epoch::let_readers_store();
    let linked = Linked::new();
    let other = reader(&linked, |linked| {
        in_section(linked, enter());
        in_section(linked, enter());
        end_of_thread();
    });
    linked.unlink();
    let evidence = Evidence::Proofs { since: epoch::lose_the_barrier() };
    if sees_no_section(tag(), evidence) {
        linked.use_again();
    }
    other.join().unwrap();
}

#[test]
fn loom_a_lost_barrier_is_made_good_by_proofs() {
    explore_as_shipped(the_barrier_is_lost);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_lost_barrier_without_proofs_is_caught() {
    fails_with(Mutation::LostBarrierNeedsNoProof, || explore_as_shipped(the_barrier_is_lost));
}
