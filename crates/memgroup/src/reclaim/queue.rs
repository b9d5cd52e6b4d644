//! Queue: charging threads that wait for a shrinker slot while another thread scans it.
//!
//! ```text
//!   A  seize ── scan ─────────── release: hands over ─▶ B ── scan ── hands over ─▶ C ── ...
//!   B      busy ── in the queue ────────────────────────▲
//!   C           busy ── in the queue, behind B ──────────────────────────────────▲
//! ```
//!
//! Only one cache may have the memory that several charges need. Without a queue a charge would
//! give up after some attempts, and would be refused although a cache is full. So charging threads
//! queue. The owner hands a slot over to the thread that has waited longest. The slot is never
//! free in between, so no walk overtakes.
//!
//! - I1. A thread waits only for calls that do not wait for locks: those that charges make. So a
//!   queue is part of no cycle, if callbacks obey [`Ask::may_wait`](crate::Ask::may_wait). Where a
//!   callback does not, the wait ends with its patience.
//! - I2. A wait ends when it gets the slot, when the slot is given up, or when one call has lasted
//!   longer than its patience. It also ends with the time that the charge has for reclaim
//!   ([`Config::reclaim_patience`](crate::Config::reclaim_patience)), and with all waits of the
//!   group ([`Group::wake_waiters`](crate::Group::wake_waiters)). The list of waits has it
//!   meanwhile.
//! - I3. A thread that was handed a slot has it, also when its wait ended at that moment.
//! - E1. release ↔ wait: `WAITED` is set in the slot's word under the queue's lock. A release
//!   without it is one exchange and takes no lock; all else is under the lock. Loom:
//!   `hands_the_slot_to_every_waiter`.

#[cfg(all(test, memgroup_loom))]
mod loom;

use std::time::{Duration, Instant};

use memgroup_sync::interleave;

use crate::base::mutation::{self, Mutation};
use crate::observe::wait::list::Listed;
use crate::observe::wait::{self, Wake};
use crate::reclaim::slot::{Awaited, Ended, SlotState};
use crate::tree::shared::Shared;

/// A slot's address: it stays where it is.
fn key(slot: &'static SlotState) -> usize {
    std::ptr::from_ref(slot).addr()
}

/// Seizes a slot, after the threads that came earlier; `false` if it cannot be had, one call lasts
/// longer than `patience`, or at `end`.
pub(crate) fn seize(
    shared: &'static Shared,
    slot: &'static SlotState,
    listed: &Listed,
    patience: Duration,
    end: Option<Instant>,
) -> bool {
    let queue = || shared.shrinkers().queue.lock();
    {
        let mut queue = queue();
        match slot.await_release(shared.nanos()) {
            Awaited::Seized => return true,
            Awaited::Refused => return false,
            Awaited::Noted => queue.insert(key(slot), listed.ticket(), None),
        }
    }
    loop {
        interleave::point();
        let lasted = slot.busy_since().map_or(0, |since| shared.nanos().saturating_sub(since));
        let of_call = wait::after(patience.saturating_sub(Duration::from_nanos(lasted)));
        let until = end.map_or(of_call, |end| of_call.min(end));
        listed.postpone(until);
        // If another call has begun at the deadline, its patience starts again, but that of the
        // waiting charge doesn't.
        let is_over = Duration::from_nanos(lasted) >= patience || end == Some(until);
        if listed.park(until) != Wake::Deadline || is_over {
            let was_handed = queue().remove(listed.ticket()) == Some(true);
            return was_handed && !mutation::active(Mutation::WaiterLeavesWithTheSlot);
        }
    }
}

/// Releases a slot: hands it to the thread that has waited longest, or frees it.
pub(crate) fn release(shared: &'static Shared, slot: &'static SlotState) -> Ended {
    slot.release().unwrap_or_else(|| hand_over(shared, slot))
}

#[cold]
fn hand_over(shared: &'static Shared, slot: &'static SlotState) -> Ended {
    let mut queue = shared.shrinkers().queue.lock();
    let waits = queue.of(key(slot));
    // A wait that has an outcome is about to leave the queue.
    let count = waits.iter().filter(|wait| wait.item.is_none()).count();
    let more_wait = count > 1 && !mutation::active(Mutation::HandOnForgetsTheRest);
    let ended = slot.hand_over((count > 0).then(|| shared.nanos()), more_wait);
    // A slot that was given up is handed to no wait, and all of them end.
    let told = if ended.is_given_up { count } else { 1 };
    for wait in waits.iter_mut().filter(|wait| wait.item.is_none()).take(told) {
        wait.item = Some(!ended.is_given_up);
        wait.ticket.notify(shared);
    }
    ended
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::observe::wait::WaitKind;
    use crate::reclaim::entry::empty_place;
    use crate::reclaim::queue::*;
    use crate::state::config::Config;
    use crate::tree::handle::Hierarchy;

    const LONG: Duration = Duration::from_secs(3600);

    /// A slot that is seized, and the hierarchy that it is in.
    struct Fixture {
        hierarchy: Hierarchy,
        slot: &'static SlotState,
    }

    impl Fixture {
        fn new() -> Fixture {
            let slot: &'static SlotState = memgroup_sync::keep(Box::new(SlotState::new()));
            slot.occupy(empty_place(), 0, 0);
            assert!(slot.seize(1, false));
            Fixture { hierarchy: Hierarchy::new(Config::new()).unwrap(), slot }
        }

        fn shared(&self) -> &'static Shared {
            self.hierarchy.root().node().shared()
        }

        fn seize(&self, patience: Duration) -> bool {
            let root = self.hierarchy.root();
            let listed = wait::list::begin(root.node(), WaitKind::Shrinker, 0, wait::after(patience));
            seize(self.shared(), self.slot, &listed, patience, None)
        }

        fn release(&self) -> Ended {
            release(self.shared(), self.slot)
        }

        fn waiting(&self) -> usize {
            self.shared().shrinkers().queue.lock().of(key(self.slot)).len()
        }

        fn await_waiting(&self, count: usize) {
            while self.waiting() < count {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn hands_the_slot_over_in_order_of_arrival_and_never_frees_it() {
        let fixture = Fixture::new();
        let order = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for number in 0..20 {
                let (order, fixture) = (&order, &fixture);
                scope.spawn(move || {
                    assert!(fixture.seize(LONG));
                    assert!(!fixture.slot.seize(1, false), "a walk that comes by does not get it");
                    order.lock().unwrap().push(number);
                    assert!(!fixture.release().is_given_up);
                });
                fixture.await_waiting(number + 1);
            }
            assert!(!fixture.release().is_given_up);
        });
        assert!(order.into_inner().unwrap().iter().eq(&Vec::from_iter(0..20)));
        assert!(fixture.slot.seize(1, false), "no thread is left");
    }

    #[test]
    fn ends_all_waits_when_the_slot_is_given_up() {
        let fixture = Fixture::new();
        std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..4).map(|_| scope.spawn(|| fixture.seize(LONG))).collect();
            fixture.await_waiting(waiters.len());
            fixture.slot.vacate();
            assert!(!fixture.slot.give_up(), "it is seized");
            assert!(fixture.release().is_given_up, "once, and now");
            assert!(waiters.into_iter().all(|waiter| !waiter.join().unwrap()));
        });
        assert!(!fixture.seize(LONG), "it cannot be had");
    }

    #[test]
    fn leaves_the_queue_when_all_waits_of_the_group_are_ended() {
        let fixture = Fixture::new();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| fixture.seize(LONG));
            fixture.await_waiting(1);
            assert_eq!(fixture.hierarchy.root().wake_waiters(), 1);
            assert!(!waiter.join().unwrap());
        });
        assert_eq!(fixture.waiting(), 0);
        assert!(!fixture.release().is_given_up);
        assert!(fixture.slot.seize(1, false), "it is free");
    }

    #[test]
    fn waits_for_the_patience_of_one_call_only() {
        let fixture = Fixture::new();
        assert!(!fixture.seize(Duration::from_nanos(1)), "one call has lasted for longer");
        assert_eq!(fixture.waiting(), 0);
        assert!(!fixture.slot.begin_again(fixture.shared().nanos()));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| fixture.seize(LONG));
            fixture.await_waiting(1);
            assert!(!fixture.release().was_noted);
            assert!(waiter.join().unwrap());
        });
        assert!(fixture.slot.busy_since().is_some_and(|since| since > 1), "since it was handed over");
    }
}
