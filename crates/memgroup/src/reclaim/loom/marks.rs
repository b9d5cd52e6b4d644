//! Models of the marks that lead to caches.

use std::sync::Arc;

use memgroup_sync::atomic::{AtomicU64, Ordering, fence};
use memgroup_sync::interleave;
use memgroup_sync::loom::thread;

use crate::base::mutation::{self, Mutation};
use crate::charge::loom::{config, explore, obtain};
use crate::reclaim::group;
use crate::reclaim::slot::SlotState;
use crate::tree::node::Node;

/// A group below the root, with three slots of caches: one is marked in the top word of its
/// bitmap, two in a chunk.
struct Fixture {
    leaf: &'static Node,
    caches: [AtomicU64; SLOTS as usize],
}

const SLOTS: u32 = 3;

impl Fixture {
    fn new() -> Arc<Fixture> {
        let shared = obtain(config(1, 2));
        let leaf = shared.create(shared.root(), "leaf").unwrap();
        let shrinkers = group::enlist(leaf).unwrap();
        (0..SLOTS).for_each(|slot| assert_eq!(shrinkers.slots.draw(SlotState::new), Some(slot)));
        Arc::new(Fixture { leaf, caches: std::array::from_fn(|_| AtomicU64::new(0)) })
    }

    /// Fills a cache that was empty.
    fn fill(&self, slot: u32) {
        // ORDERING: Relaxed; `mark` orders it.
        self.caches[slot as usize].store(1, Ordering::Relaxed);
        group::mark(self.leaf, slot, 0);
    }

    /// A walk: reads every cache that is marked, and unmarks the empty ones as a visit does.
    fn walk(&self) {
        self.each(|slot| {
            if self.holds(slot) {
                return;
            }
            interleave::point();
            group::unmark(self.leaf, slot, 0);
            // ORDERING: SeqCst; as in `Call::found_empty`.
            fence(Ordering::SeqCst);
            if self.holds(slot) && !mutation::active(Mutation::UnmarkIgnoresLateItems) {
                group::mark(self.leaf, slot, 0);
            }
        });
    }

    fn holds(&self, slot: u32) -> bool {
        // ORDERING: Relaxed; the fence before, or the join.
        self.caches[slot as usize].load(Ordering::Relaxed) != 0
    }

    /// The slots that a walk from the root visits.
    fn each(&self, mut visit: impl FnMut(u32)) {
        self.leaf.shared().root().shrinkers().unwrap().children.each_marked(0, 0..u32::MAX, |_, _| {
            self.leaf.shrinkers().unwrap().slots.each_marked(0, 0..u32::MAX, |slot, _| {
                visit(slot);
                true
            })
        });
    }

    fn assert_found(&self) {
        let expected: Vec<u32> = (0..SLOTS).filter(|&slot| self.holds(slot)).collect();
        let mut found = Vec::new();
        self.each(|slot| found.push(slot));
        assert!(
            expected.iter().all(|slot| found.contains(slot)),
            "{expected:?} are there, {found:?} are found"
        );
    }
}

/// Caches are filled while a walk finds another one, or one of them, empty.
fn fills_against_a_walk(empty: u32, slots: &[u32]) {
    let fixture = Fixture::new();
    group::mark(fixture.leaf, empty, 0);
    let threads: Vec<_> = slots
        .iter()
        .map(|&slot| {
            let fixture = Arc::clone(&fixture);
            thread::spawn(move || fixture.fill(slot))
        })
        .collect();
    fixture.walk();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    fixture.assert_found();
}

/// A cache is filled while two walks find it empty.
fn a_fill_against_two_walks(slot: u32) {
    let fixture = Fixture::new();
    group::mark(fixture.leaf, slot, 0);
    let walk = {
        let fixture = Arc::clone(&fixture);
        thread::spawn(move || fixture.walk())
    };
    let fill = {
        let fixture = Arc::clone(&fixture);
        thread::spawn(move || fixture.fill(slot))
    };
    fixture.walk();
    walk.join().unwrap();
    fill.join().unwrap();
    fixture.assert_found();
}

/// A thread that has marked finds its mark at once, if no thread unmarks, although another thread
/// is still on the way up.
fn two_fills_of_one_cache(slot: u32) {
    let fixture = Fixture::new();
    let other = {
        let fixture = Arc::clone(&fixture);
        thread::spawn(move || fixture.fill(slot))
    };
    fixture.fill(slot);
    fixture.assert_found();
    other.join().unwrap();
    fixture.assert_found();
}

/// A walk takes the mark of a group that was released meanwhile. Its number is another group's by
/// then, in which something is marked.
fn a_number_that_is_used_again() {
    let shared = obtain(config(1, 3));
    let [old, new] = ["old", "new"].map(|name| shared.create(shared.root(), name).unwrap());
    for node in [old, new] {
        assert_eq!(group::enlist(node).unwrap().slots.draw(SlotState::new), Some(0));
    }
    // ORDERING: Relaxed; before the threads.
    new.shrinkers().unwrap().number.store(0, Ordering::Relaxed);
    let children = &shared.root().shrinkers().unwrap().children;
    group::mark(old, 0, 0);
    let walk = thread::spawn(move || group::unmark(old, 0, 0));
    // ORDERING: Release, as in `enlist`.
    children.get(0).unwrap().store(new.id().0, Ordering::Release);
    group::mark(new, 0, 0);
    walk.join().unwrap();
    assert!(children.is_marked(0, 0), "the marks of the new group are found");
}

#[test]
fn finds_the_mark_of_a_group_that_reuses_a_number() {
    explore(a_number_that_is_used_again);
}

#[test]
#[should_panic(expected = "are found")]
fn catches_an_unmark_that_checks_the_old_group() {
    mutation::with(Mutation::TidyLooksAtTheOldGroup, || explore(a_number_that_is_used_again));
}

#[test]
fn finds_every_mark_from_above() {
    for (empty, slots) in [(0, &[0][..]), (0, &[1]), (1, &[0]), (1, &[1]), (1, &[2]), (1, &[1, 2])] {
        explore(move || fills_against_a_walk(empty, slots));
    }
    explore(|| two_fills_of_one_cache(0));
    explore(|| two_fills_of_one_cache(1));
}

#[test]
fn finds_every_mark_when_two_walks_take_it() {
    explore(|| a_fill_against_two_walks(0));
    explore(|| a_fill_against_two_walks(1));
}

#[test]
#[should_panic(expected = "are found")]
fn catches_a_mark_without_a_fence() {
    mutation::with(Mutation::MarkWithoutFence, || explore(|| fills_against_a_walk(1, &[1])));
}

#[test]
#[should_panic(expected = "are found")]
fn catches_a_mark_that_relies_on_another_thread() {
    mutation::with(Mutation::MarkReliesOnOthers, || explore(|| two_fills_of_one_cache(1)));
}

#[test]
#[should_panic(expected = "are found")]
fn catches_an_unmark_that_does_not_check_again() {
    mutation::with(Mutation::UnmarkDoesNotLookAgain, || explore(|| fills_against_a_walk(1, &[2])));
}

#[test]
#[should_panic(expected = "are found")]
fn catches_a_walk_that_does_not_count_again() {
    mutation::with(Mutation::UnmarkIgnoresLateItems, || explore(|| fills_against_a_walk(0, &[0])));
}

#[test]
#[should_panic(expected = "are found")]
fn catches_an_unmark_that_ignores_the_groups_below() {
    mutation::with(Mutation::TidyDoesNotLookAgain, || explore(|| fills_against_a_walk(0, &[1])));
}
