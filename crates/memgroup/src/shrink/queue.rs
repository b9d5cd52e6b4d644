//! Queue: who waits for a seat that somebody else is having give back.
//!
//! ```text
//!   A  seize ── scan ─────────── let go: hands it on ─▶ B ── scan ── hands it on ─▶ C ── ...
//!   B      busy ── in the queue ─────────────────────────▲
//!   C           busy ── in the queue, behind B ────────────────────────────────────▲
//! ```
//!
//! A charge that needs what one cache alone has, and finds another charge at it, would be refused beside gigabytes that can be had, if it gave up
//! after so many attempts; and which one of many that try again and again comes first would be chance. So they queue. A seat that is let go is handed
//! to who has waited longest, and is never free in between: who just comes by goes on, or queues.
//!
//! - I1. What is waited for is a call in which nobody waits for locks: one that a charge makes, and `cell` knows of no other here. So a queue is
//!   no part of a cycle, as long as callbacks keep to [`Ask::may_wait`](crate::Ask::may_wait); where one does not, the wait ends with its patience.
//! - I2. A wait ends: with the seat; empty-handed when it is given up; when one call has lasted for longer than its patience; or when all waits of the
//!   group are ended ([`Group::wake_waiters`](crate::Group::wake_waiters)). It is as long as the calls of those ahead, and listed with all others (`wait`).
//! - I3. Who was handed a seat has it, also when it was about to go.
//! - E1. let go ↔ wait: `WAITED` is set in the seat's word, so the common case of letting go is one exchange and no lock. What is behind it is under
//!   the lock of the queue. Loom: `a_seat_is_handed_to_everybody_who_waits_for_it`.

#[cfg(all(test, memgroup_loom))]
mod loom;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use memgroup_sync::atomic::{AtomicU32, Ordering};
use memgroup_sync::thread::{self, Thread};
use memgroup_sync::{Mutex, global, interleave};

use super::cell::{Awaited, Cell, Ended};
use crate::mutation::{self, Mutation};

/// Locks that the queues of all seats share.
const QUEUES: usize = if cfg!(memgroup_loom) { 1 } else { 16 };

global! {
    static WAITING: Queues = Queues::new();
}

/// Who waits, and for which seat, the one who came first in front.
type Queue = VecDeque<(usize, Arc<Waiter>)>;

struct Queues([Mutex<Queue>; QUEUES]);

struct Waiter {
    thread: Thread,
    outcome: AtomicU32,
}

/// In `outcome`: it waits.
const NONE: u32 = 0;
const HANDED: u32 = 1;
const DISMISSED: u32 = 2;

impl Queues {
    #[cfg(not(memgroup_loom))]
    const fn new() -> Queues {
        Queues([const { Mutex::new(VecDeque::new()) }; QUEUES])
    }

    #[cfg(memgroup_loom)]
    fn new() -> Queues {
        Queues(std::array::from_fn(|_| Mutex::new(VecDeque::new())))
    }

    fn of(&self, seat: usize) -> &Mutex<Queue> {
        // Seats lie side by side, and one is about as large.
        &self.0[seat / 64 % QUEUES]
    }
}

impl Waiter {
    fn outcome(&self) -> Option<bool> {
        // ORDERING: Acquire; pairs with the Release in `end`: with the seat comes what those before have left there.
        match self.outcome.load(Ordering::Acquire) {
            NONE => None,
            outcome => Some(outcome == HANDED),
        }
    }

    fn end(&self, outcome: u32) {
        // ORDERING: Release; see `outcome`.
        self.outcome.store(outcome, Ordering::Release);
        self.thread.unpark();
    }
}

/// What a seat is known by: it stays where it is as long as the process.
fn key(cell: &'static Cell) -> usize {
    std::ptr::from_ref(cell).addr()
}

/// Seizes a seat, after those who came before; `false` where it is not to be had, or a call lasts for longer than `patience`. `now` is the clock. Before
/// each sleep `stays` is told how much of the patience is left, and says whether the wait is to go on.
pub(crate) fn seize(
    cell: &'static Cell,
    patience: Duration,
    now: impl Fn() -> u64,
    stays: impl Fn(Duration) -> bool,
) -> bool {
    let waiter = Arc::new(Waiter { thread: thread::current(), outcome: AtomicU32::new(NONE) });
    let mut queue = WAITING.of(key(cell)).lock();
    match cell.await_turn(now()) {
        Awaited::Seized => return true,
        Awaited::Refused => return false,
        Awaited::Noted => queue.push_back((key(cell), Arc::clone(&waiter))),
    }
    drop(queue);
    loop {
        interleave::point();
        if let Some(is_mine) = waiter.outcome() {
            return is_mine;
        }
        let lasted = cell.busy_since().map_or(0, |since| now().saturating_sub(since));
        match patience.checked_sub(Duration::from_nanos(lasted)).filter(|left| !left.is_zero()) {
            Some(left) if stays(left) => thread::park_timeout(left),
            _ => return give_up_waiting(cell, &waiter),
        }
    }
}

/// Leaves the queue. Whether the seat was handed over before.
fn give_up_waiting(cell: &'static Cell, waiter: &Arc<Waiter>) -> bool {
    let mut queue = WAITING.of(key(cell)).lock();
    queue.retain(|(_, other)| !Arc::ptr_eq(other, waiter));
    !mutation::active(Mutation::WaiterGoesWithTheSeat) && waiter.outcome() == Some(true)
}

/// Lets a seat go: to who waits for it, if somebody does.
pub(crate) fn let_go(cell: &'static Cell, now: impl Fn() -> u64) -> Ended {
    cell.let_go().unwrap_or_else(|| hand_on(cell, now()))
}

#[cold]
fn hand_on(cell: &'static Cell, now: u64) -> Ended {
    let mut queue = WAITING.of(key(cell)).lock();
    let is_ours = |(seat, _): &(usize, Arc<Waiter>)| *seat == key(cell);
    let next = queue.iter().position(is_ours).and_then(|at| queue.remove(at));
    let more_wait = queue.iter().any(is_ours) && !mutation::active(Mutation::HandOnForgetsTheRest);
    let ended = cell.hand_on(next.as_ref().map(|_| now), more_wait);
    if ended.is_given_up {
        let rest = queue.iter().filter(|waiting| is_ours(waiting));
        next.iter().chain(rest).for_each(|(_, waiter)| waiter.end(DISMISSED));
        queue.retain(|waiting| !is_ours(waiting));
    } else if let Some((_, waiter)) = next {
        waiter.end(HANDED);
    }
    ended
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;
    use crate::shrink::entry::nobody;

    fn cell() -> &'static Cell {
        let cell: &'static Cell = memgroup_sync::keep(Box::new(Cell::new()));
        cell.occupy(nobody(), 0, 0);
        cell
    }

    fn waiting(cell: &'static Cell) -> usize {
        WAITING.of(key(cell)).lock().iter().filter(|(seat, _)| *seat == key(cell)).count()
    }

    #[test]
    fn who_came_first_has_the_seat_first_and_it_is_never_free_in_between() {
        const PATIENCE: Duration = Duration::from_secs(3600);
        let cell = cell();
        assert!(cell.seize(1, false));
        let order = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for number in 0..20 {
                let order = &order;
                scope.spawn(move || {
                    assert!(seize(cell, PATIENCE, || 1, |_| true));
                    assert!(!cell.seize(1, false), "who comes by now does not get it");
                    order.lock().unwrap().push(number);
                    assert!(!let_go(cell, || 1).is_given_up);
                });
                while waiting(cell) <= number {
                    std::thread::yield_now();
                }
            }
            assert!(!let_go(cell, || 1).is_given_up);
        });
        assert!(order.into_inner().unwrap().iter().eq(&Vec::from_iter(0..20)));
        assert!(cell.seize(1, false), "nobody is left");
    }

    #[test]
    fn a_seat_that_is_given_up_is_nobodys_and_who_waits_is_told() {
        let cell = cell();
        assert!(cell.seize(1, false));
        std::thread::scope(|scope| {
            let waits = || scope.spawn(|| seize(cell, Duration::from_secs(3600), || 1, |_| true));
            let waiters: Vec<_> = (0..4).map(|_| waits()).collect();
            while waiting(cell) < waiters.len() {
                std::thread::yield_now();
            }
            cell.vacate();
            assert!(!cell.give_up(), "it is giving back");
            assert!(let_go(cell, || 1).is_given_up, "once, and now");
            assert!(waiters.into_iter().all(|waiter| !waiter.join().unwrap()));
        });
        assert!(!seize(cell, Duration::from_secs(3600), || 1, |_| true), "it is not to be had");
    }

    #[test]
    fn a_wait_that_is_not_to_go_on_leaves_the_queue() {
        let cell = cell();
        assert!(cell.seize(1, false));
        assert!(!seize(cell, Duration::from_secs(3600), || 1, |_| false));
        assert_eq!(waiting(cell), 0);
        assert!(!let_go(cell, || 1).is_given_up);
        assert!(cell.seize(1, false), "it is free");
    }

    #[test]
    fn a_wait_ends_with_the_patience_for_one_call_however_many_there_are_before() {
        let cell = cell();
        assert!(cell.seize(1, false));
        assert!(!seize(cell, Duration::from_nanos(999), || 1000, |_| true), "one call has lasted for 999 ns");
        assert_eq!(waiting(cell), 0);
        assert!(!cell.begin_again(1000));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| seize(cell, Duration::from_secs(3600), || 1100, |_| true));
            while waiting(cell) < 1 {
                std::thread::yield_now();
            }
            assert!(!let_go(cell, || 1100).was_noted);
            assert!(waiter.join().unwrap());
        });
        assert_eq!(cell.busy_since(), Some(1100), "it is the waiter's, from when it was handed over");
    }
}
