//! Models of bytes that an allocator holds back beside a charge that waits. Each fault of
//! `mutation` must make its model fail.

use std::task::Waker;
use std::time::{Duration, Instant};

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::keep;
use memgroup_sync::loom::thread;

use crate::base::mutation::{self, Mutation};
use crate::charge::loom::{charge_counters, config, explore, lone_group, obtain};
use crate::control::aftermath;
use crate::control::held_back::{HOLDER_OF_MODEL, Holder, Take};
use crate::observe::wait::charges::{Party, State, Want};
use crate::tree::node::Node;
use crate::tree::owner::Owner;

/// The one slot of the only thread that holds bytes back: as many as a slot may beside a waiter,
/// or none and no owner.
struct Slot {
    word: AtomicU64,
    owner: Owner,
}

const HELD: u64 = Owner::BESIDE_MOST;

impl Holder for Slot {
    fn visit(&self, ask: &mut dyn FnMut(Owner, u64) -> Take, taken: &mut dyn FnMut(Owner, u64)) {
        // ORDERING: Acquire, and AcqRel of the exchange: both pair with the Release in `free`, so
        // the charge of the bytes happens before the uncharge of whoever takes them out. Otherwise
        // a counter could pass below zero.
        let bytes = self.word.load(Ordering::Acquire);
        if bytes > 0
            && ask(self.owner, bytes) != Take::Nothing
            && self.word.compare_exchange(bytes, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            taken(self.owner, bytes);
        }
    }
}

impl Slot {
    /// The thread frees a block of `HELD` bytes, and holds them back if it may.
    fn free(&self) {
        // ORDERING: AcqRel, of both swaps. Release pairs with the Acquire in `visit`; Acquire lets
        // this thread take out bytes as `visit` does.
        self.word.swap(HELD, Ordering::AcqRel);
        if !self.owner.may_hold() && !self.owner.may_hold_beside(false) {
            let bytes = self.word.swap(0, Ordering::AcqRel);
            self.owner.uncharge(bytes);
        }
    }
}

/// A charge of all that the group may have waits in its queue, for a task: whoever frees the last
/// byte must serve it.
fn wait_for_all(group: &'static Node, bytes: u64) -> u64 {
    // ORDERING: Relaxed, because only this thread runs yet.
    group.waiting.held.fetch_add(1, Ordering::Relaxed);
    group.counter.mark_over(true);
    let deadline = Instant::now() + Duration::from_secs(3600);
    let mut queues = group.shared().wait_queue().lock();
    let party = Party::Task(Waker::noop().clone());
    let place = queues.list(group, bytes, deadline, Want::Charge, party);
    queues.enqueue(place, group);
    place
}

/// One thread frees a small block, and another one all else, beside a charge that needs both.
fn a_slot_beside_a_waiter() {
    let all = 4 * HELD;
    let group = lone_group(1, all);
    charge_counters(group, all).ok().unwrap();
    let slot: &'static Slot = keep(Box::new(Slot { word: AtomicU64::new(0), owner: Owner::of(group) }));
    HOLDER_OF_MODEL.set(Some(slot));
    let place = wait_for_all(group, all);
    let other = thread::spawn(move || aftermath::uncharge_counters(group, all - HELD));
    slot.free();
    other.join().unwrap();
    let state = group.shared().wait_queue().lock().entry(place).state;
    HOLDER_OF_MODEL.set(None);
    assert!(state == State::Handed, "the waiter fits, and was served");
    assert_eq!(group.counter.usage(), all);
}

#[test]
fn a_waiter_gets_the_bytes_that_a_slot_holds_back() {
    explore(a_slot_beside_a_waiter);
}

#[test]
#[should_panic(expected = "the waiter fits, and was served")]
fn a_fall_that_leaves_slots_open_is_caught() {
    mutation::with(Mutation::FallLeavesSlotsOpen, || explore(a_slot_beside_a_waiter));
}

#[test]
#[should_panic(expected = "the waiter fits, and was served")]
fn a_slot_that_is_opened_beside_a_waiter_without_a_fence_is_caught() {
    mutation::with(Mutation::HoldsBesideWithoutFence, || explore(a_slot_beside_a_waiter));
}

/// A thread frees a small block of a group while the group is removed, beside a charge that waits
/// above for all. The removal may take the bytes before the thread finds that it may not hold
/// them.
fn a_slot_beside_a_removal_and_a_waiter() {
    let all = 4 * HELD;
    let shared = obtain(config(1, 4).stock_cap_bytes(0));
    let parent = shared.create(shared.root(), "parent").unwrap();
    parent.counter.set_max(all);
    let removed = shared.create(parent, "removed").unwrap();
    charge_counters(removed, HELD).ok().unwrap();
    let slot: &'static Slot = keep(Box::new(Slot { word: AtomicU64::new(0), owner: Owner::of(removed) }));
    HOLDER_OF_MODEL.set(Some(slot));
    let place = wait_for_all(parent, all);
    let freeing = thread::spawn(move || slot.free());
    removed.counter.mark_offline();
    aftermath::retire(removed);
    freeing.join().unwrap();
    let state = shared.wait_queue().lock().entry(place).state;
    HOLDER_OF_MODEL.set(None);
    assert!(state == State::Handed, "the waiter fits, and was served");
    assert_eq!((removed.counter.usage(), parent.counter.usage()), (0, all));
}

#[test]
fn a_waiter_gets_the_bytes_that_a_removal_takes_from_a_slot() {
    explore(a_slot_beside_a_removal_and_a_waiter);
}

#[test]
#[should_panic(expected = "the waiter fits, and was served")]
fn a_removal_that_serves_no_waiter_is_caught() {
    mutation::with(Mutation::RetireServesNoWaiter, || explore(a_slot_beside_a_removal_and_a_waiter));
}
