//! Models of a cache: its connection unpins pages and pins them again while another thread takes
//! them, in every interleaving of a few calls. The oracle is loom's own. The holder of a page
//! writes to it through a checked cell. Two holders at once, or a second one that does not see the
//! first one's write, are a data race. Each fault of `mutation` must make its model fail.

#![allow(unsafe_code)]
// The threads of a model share loom's cells, and run in turns.
#![allow(clippy::arc_with_non_send_sync)]

use std::ptr::NonNull;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use super::lock::Lock;
use super::page::{Header, PagePtr};
use super::recent::RecentPages;
use crate::mutation::{self, Mutation};

/// The key of the one page.
const KEY: u32 = 7;

/// A cache of one page. A checked cell stands for its memory. The list under the lock has the page
/// or not.
struct Model {
    recent: RecentPages,
    list: Lock<Option<PagePtr>>,
    memory: UnsafeCell<u64>,
}

impl Model {
    fn new() -> Arc<Model> {
        Arc::new(Model { recent: RecentPages::default(), list: Lock::new(None), memory: UnsafeCell::new(0) })
    }

    /// A pointer to the page, which is not followed.
    fn page() -> PagePtr {
        PagePtr::from_ptr(NonNull::<Header>::dangling().as_ptr()).expect("not null")
    }

    /// The holder of the page writes to it.
    fn write(&self) {
        // SAFETY: loom checks that no other thread has it.
        self.memory.with_mut(|memory| unsafe { *memory += 1 });
    }

    /// The connection unpins the page.
    fn unpin(&self) {
        self.write();
        assert!(self.recent.offer(Model::page(), KEY));
    }

    /// The connection pins the page again.
    fn pin(&self) -> bool {
        let page = self.recent.claim(KEY).or_else(|| {
            let mut list = self.list.lock();
            self.recent.take_all(|page| *list = Some(page));
            list.take()
        });
        page.inspect(|_| self.write()).is_some()
    }

    /// The connection takes the lock for something else.
    fn list(&self) {
        let mut list = self.list.lock();
        self.recent.take_all(|page| *list = Some(page));
    }

    /// Another thread takes the page, if it can.
    fn shrink(&self) -> bool {
        let Some(mut list) = self.list.try_lock() else { return false };
        let page = list.take().or_else(|| self.recent.take());
        drop(list);
        page.inspect(|_| self.write()).is_some()
    }
}

fn pins_a_recent_page_again_while_another_shrinks() {
    let model = Model::new();
    let shrinker = thread::spawn({
        let model = Arc::clone(&model);
        move || model.shrink()
    });
    model.unpin();
    let is_pinned = model.pin();
    let is_taken = shrinker.join().expect("it ends");
    assert!(is_pinned != is_taken, "pinned: {is_pinned}, taken: {is_taken}");
}

fn pins_a_listed_page_while_another_shrinks() {
    let model = Model::new();
    let shrinker = thread::spawn({
        let model = Arc::clone(&model);
        move || model.shrink()
    });
    model.unpin();
    model.list();
    let is_pinned = model.pin();
    let is_taken = shrinker.join().expect("it ends");
    assert!(is_pinned != is_taken, "pinned: {is_pinned}, taken: {is_taken}");
}

fn three_threads_take_the_lock() {
    let (lock, value) = (Lock::new(()), UnsafeCell::new(0_u64));
    let shared = Arc::new((lock, value));
    // SAFETY: loom checks that no other thread has it.
    let add = |value: &UnsafeCell<u64>| value.with_mut(|value| unsafe { *value += 1 });
    let others: Vec<_> = (0..2)
        .map(|_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let guard = shared.0.try_lock();
                guard.map(|_held| add(&shared.1)).is_some()
            })
        })
        .collect();
    {
        let _held = shared.0.lock();
        add(&shared.1);
    }
    let added = others.into_iter().map(|other| other.join().expect("it ends"));
    let added = 1 + added.filter(|added| *added).count() as u64;
    let _held = shared.0.lock();
    // SAFETY: loom checks that no thread writes at the same time.
    assert_eq!(shared.1.with(|value| unsafe { *value }), added);
}

#[test]
fn loom_a_recent_page_is_claimed_or_taken_once() {
    loom::model(pins_a_recent_page_again_while_another_shrinks);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_catches_a_claim_by_a_load() {
    mutation::with(Mutation::ClaimByLoad, || {
        loom::model(pins_a_recent_page_again_while_another_shrinks);
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_catches_an_offer_that_publishes_nothing() {
    mutation::with(Mutation::OfferRelaxed, || {
        loom::model(pins_a_recent_page_again_while_another_shrinks);
    });
}

#[test]
fn loom_a_listed_page_is_pinned_or_taken_once() {
    loom::model(pins_a_listed_page_while_another_shrinks);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_catches_an_unlock_that_publishes_nothing() {
    mutation::with(Mutation::UnlockRelaxed, || loom::model(pins_a_listed_page_while_another_shrinks));
}

#[test]
fn loom_gives_the_value_to_one_holder_at_a_time() {
    loom::model(three_threads_take_the_lock);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_catches_a_lock_that_misses_the_last_holder() {
    mutation::with(Mutation::LockRelaxed, || loom::model(three_threads_take_the_lock));
}
