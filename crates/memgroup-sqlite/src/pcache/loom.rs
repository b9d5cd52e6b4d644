//! Models of a cache whose connection lets pages go and pins them again while another thread takes them: every interleaving of a
//! few calls. The oracle is loom's own: who has a page writes to it through a checked cell, and two who have it at once, or the
//! second without seeing what the first did, are a data race. Each fault of `mutation` must make its model fail.

#![allow(unsafe_code)]
// loom's cells are shared by the threads of a model, which run in turns.
#![allow(clippy::arc_with_non_send_sync)]

use std::ptr::NonNull;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use super::front::Front;
use super::lock::Lock;
use super::page::{Header, Pin};
use crate::mutation::{self, Mutation};

/// The key of the one page.
const KEY: u32 = 7;

/// A cache of one page, whose memory is a checked cell; the list under the lock has the page, or not.
struct Model {
    front: Front,
    list: Lock<Option<Pin>>,
    memory: UnsafeCell<u64>,
}

impl Model {
    fn new() -> Arc<Model> {
        Arc::new(Model { front: Front::default(), list: Lock::new(None), memory: UnsafeCell::new(0) })
    }

    /// The page, which is pointed to only.
    fn page() -> Pin {
        Pin::from_pointer(NonNull::<Header>::dangling().as_ptr()).expect("not null")
    }

    /// What is done with the page by who has it.
    fn write(&self) {
        // SAFETY: loom checks that nobody else has it.
        self.memory.with_mut(|memory| unsafe { *memory += 1 });
    }

    /// The connection lets the page go.
    fn let_go(&self) {
        self.write();
        assert!(self.front.offer(Model::page(), KEY));
    }

    /// The connection wants the page again.
    fn pin(&self) -> bool {
        let page = self.front.claim(KEY).or_else(|| {
            let mut list = self.list.lock();
            self.front.take_all(|page| *list = Some(page));
            list.take()
        });
        page.inspect(|_| self.write()).is_some()
    }

    /// The connection takes the lock for something else.
    fn list(&self) {
        let mut list = self.list.lock();
        self.front.take_all(|page| *list = Some(page));
    }

    /// Another thread takes the page, if it can.
    fn shrink(&self) -> bool {
        let Some(mut list) = self.list.try_lock() else { return false };
        let page = list.take().or_else(|| self.front.take());
        drop(list);
        page.inspect(|_| self.write()).is_some()
    }
}

fn the_page_is_let_go_and_pinned_again_while_another_shrinks() {
    let model = Model::new();
    let shrinker = thread::spawn({
        let model = Arc::clone(&model);
        move || model.shrink()
    });
    model.let_go();
    let is_pinned = model.pin();
    let is_taken = shrinker.join().expect("it ends");
    assert!(is_pinned != is_taken, "pinned: {is_pinned}, taken: {is_taken}");
}

fn the_page_is_listed_while_another_shrinks() {
    let model = Model::new();
    let shrinker = thread::spawn({
        let model = Arc::clone(&model);
        move || model.shrink()
    });
    model.let_go();
    model.list();
    let is_pinned = model.pin();
    let is_taken = shrinker.join().expect("it ends");
    assert!(is_pinned != is_taken, "pinned: {is_pinned}, taken: {is_taken}");
}

fn three_take_the_lock() {
    let (lock, value) = (Lock::new(()), UnsafeCell::new(0_u64));
    let shared = Arc::new((lock, value));
    // SAFETY: loom checks that nobody else has it.
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
    // SAFETY: loom checks that nobody writes meanwhile.
    assert_eq!(shared.1.with(|value| unsafe { *value }), added);
}

#[test]
fn loom_a_page_just_let_go_is_claimed_or_taken() {
    loom::model(the_page_is_let_go_and_pinned_again_while_another_shrinks);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_claim_by_load_and_store_is_caught() {
    mutation::with(Mutation::ClaimByStore, || {
        loom::model(the_page_is_let_go_and_pinned_again_while_another_shrinks);
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_letting_go_without_publishing_is_caught() {
    mutation::with(Mutation::OfferRelaxed, || {
        loom::model(the_page_is_let_go_and_pinned_again_while_another_shrinks);
    });
}

#[test]
fn loom_a_page_in_the_list_is_pinned_or_taken() {
    loom::model(the_page_is_listed_while_another_shrinks);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_release_of_the_lock_that_publishes_nothing_is_caught() {
    mutation::with(Mutation::UnlockRelaxed, || loom::model(the_page_is_listed_while_another_shrinks));
}

#[test]
fn loom_a_holder_of_the_lock_has_the_value_alone() {
    loom::model(three_take_the_lock);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_lock_taken_without_seeing_the_last_holder_is_caught() {
    mutation::with(Mutation::LockRelaxed, || loom::model(three_take_the_lock));
}
