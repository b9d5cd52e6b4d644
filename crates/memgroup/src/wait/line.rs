//! Line: who waits for room, at which group, and how what is set free becomes theirs.
//!
//! ```text
//!   at /tenants:  [alice 4 KiB, weight 500] [bob 1 GiB] [carol 4 KiB] [dave 4 KiB]        by weight, then by arrival
//!   uncharge ─▶ the group's OVER mark ─▶ serve: alice fits ─▶ charged for her, handed over; bob does not;
//!                                        carol does: she passes bob, whose patience goes down by one
//! ```
//!
//! Whoever uncharges makes the waiting charge itself, leaf to root, and hands it over: what was set free is not up for grabs between the waking of a thread and its next try.
//!
//! - I1. One server at a time in a hierarchy, under the lock of the line. What is handed over is charged before the waiter can see it, and stays so until the waiter takes it.
//! - I2. A waiter leaves the line under its lock, with what it was handed if it was: of a hand-over and a deadline at the same moment exactly one counts. Loom:
//!   `a_charge_that_is_handed_over_at_the_deadline_is_not_lost`.
//! - I3. The first in line that does not fit is passed by at most [`PASSES_MOST`] others. Then nobody behind it is served before it is.
//! - I4. While somebody waits at a group the stocks of its subtree are closed (`overrun`), so that each uncharge there comes to the group's counter and finds the mark.
//! - I5. Nothing is called and nothing allocated under the lock by who serves; it takes the list's lock, which is the last. The tree lock is taken before it or not at all.
//! - E1. enqueue → serve, uncharge → serve: no lost wake-up. A waiter is in the line before it looks for room the last time, and the group was marked before that. An uncharge
//!   (or a charge that is taken back because a level above refused) that this look did not see comes later in the counter's one order, finds the mark, and takes
//!   the lock after the look: it finds the waiter. Loom: `an_uncharge_finds_who_waits`.

use std::cmp::Reverse;

use memgroup_sync::Mutex;

use super::list::Ticket;
use crate::chain::{self, Refused, Until};
use crate::counter::{LARGEST, Reading, Verdict};
use crate::mutation::{self, Mutation};
use crate::node::Node;

/// How many others may be served before the first in line, if they fit and it does not.
pub(super) const PASSES_MOST: u32 = 16;

/// How many are served at a time, and how many are looked at that there is too little room for.
const SERVED_MOST: u32 = 16;
const SEEN_MOST: u32 = 64;

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    Charge,
    /// That there is room; nothing is charged, and nobody killed for it.
    Room,
}

/// What became of a waiter.
#[derive(Clone, Copy)]
pub(super) enum State {
    Waiting,
    /// It gets room itself, and is not to be served.
    Away,
    /// Its bytes are charged, and its; where it wants room alone, there was some.
    Handed,
    /// Another level refuses, or this one always will: it is to see for itself.
    Again(Refused),
}

/// A charge that waits.
pub(super) struct Waiter {
    /// Where it waits.
    at: &'static Node,
    /// What is to be charged.
    node: &'static Node,
    bytes: u64,
    want: Want,
    weight: u32,
    /// Smaller: it came earlier.
    arrival: u64,
    /// How many were served before it while it was the first.
    passed: u32,
    state: State,
    ticket: Ticket,
}

impl Waiter {
    pub(super) fn new(
        at: &'static Node,
        node: &'static Node,
        bytes: u64,
        want: Want,
        arrival: u64,
        ticket: Ticket,
    ) -> Waiter {
        Waiter { at, node, bytes, want, weight: 0, arrival, passed: 0, state: State::Waiting, ticket }
    }

    fn order(&self) -> (u32, Reverse<u32>, u64) {
        (self.at.id.0, Reverse(self.weight), self.arrival)
    }

    /// Makes the charge, if it wants one and there is room; `seen` is what the group at which it waits is like.
    fn take(&self, seen: &mut Reading) -> State {
        let at = self.at;
        // Of a limit that only measures it sees for itself, too: that takes the tree lock.
        if seen.offline || self.bytes > seen.max.min(LARGEST) || seen.measured {
            return State::Again(Refused { node: at, seen: *seen });
        }
        if self.bytes > seen.headroom() {
            return State::Waiting;
        }
        let taken = match self.want {
            Want::Charge => chain::climb(self.node, None, Until::Top, self.bytes, Verdict::Hint),
            Want::Room => chain::look_for_room(self.node, Until::Top, self.bytes),
        };
        *seen = at.counter.read();
        match taken {
            Ok(()) => State::Handed,
            // Somebody who does not wait was faster.
            Err(refused) if std::ptr::eq(refused.node, at) => State::Waiting,
            Err(refused) => State::Again(refused),
        }
    }

    fn end(&mut self, state: State) {
        self.state = state;
        self.ticket.notify(self.node.shared);
    }
}

/// All charges of one hierarchy that wait, in the order in which those at one group are served.
pub(super) struct Line {
    waiters: Vec<Waiter>,
    arrivals: u64,
}

impl Line {
    pub(super) fn new() -> Mutex<Line> {
        Mutex::new(Line { waiters: Vec::new(), arrivals: 0 })
    }

    /// A number for who comes now.
    pub(super) fn arrive(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    /// Puts one into the line, and serves it if it can be.
    pub(super) fn enqueue(&mut self, mut waiter: Waiter) {
        // Read under the lock (`reorder`).
        waiter.weight = waiter.node.control.waiting.weight();
        let (at, order) = (waiter.at, waiter.order());
        let place = self.waiters.partition_point(|other| other.order() < order);
        self.waiters.insert(place, waiter);
        if !mutation::active(Mutation::WaiterDoesNotLookAgain) {
            self.serve(at);
        }
    }

    fn place(&self, at: &'static Node, arrival: u64) -> usize {
        let is_it = |waiter: &Waiter| waiter.arrival == arrival && std::ptr::eq(waiter.at, at);
        self.waiters.iter().position(is_it).expect("a waiter is in the line until it leaves")
    }

    /// Takes one out of the line; what became of it.
    pub(super) fn leave(&mut self, at: &'static Node, arrival: u64) -> State {
        self.waiters.remove(self.place(at, arrival)).state
    }

    /// Whether one waits still.
    pub(super) fn waits(&self, at: &'static Node, arrival: u64) -> bool {
        matches!(self.waiters[self.place(at, arrival)].state, State::Waiting)
    }

    /// The first in line is busy with getting room itself, and keeps its place; `false` if it is not the first, or waits no longer.
    pub(super) fn go_away(&mut self, at: &'static Node, arrival: u64) -> bool {
        let place = self.place(at, arrival);
        let is_first = place == 0 || self.waiters[place - 1].at.id != at.id;
        let goes = is_first && matches!(self.waiters[place].state, State::Waiting);
        if goes {
            self.waiters[place].state = State::Away;
        }
        goes
    }

    /// It has made the charge itself.
    pub(super) fn made(&mut self, at: &'static Node, arrival: u64) {
        let place = self.place(at, arrival);
        self.waiters[place].state = State::Handed;
    }

    /// It waits again.
    pub(super) fn come_back(&mut self, at: &'static Node, arrival: u64) {
        let place = self.place(at, arrival);
        self.waiters[place].state = State::Waiting;
        self.serve(at);
    }

    /// The weight of a group has changed.
    pub(super) fn reorder(&mut self, node: &'static Node, weight: u32) {
        let ours = self.waiters.iter_mut().filter(|waiter| std::ptr::eq(waiter.node, node));
        ours.for_each(|waiter| waiter.weight = weight);
        self.waiters.sort_unstable_by_key(Waiter::order);
    }

    /// Serves who waits at `at`, as far as there is room: at most [`SERVED_MOST`], who serve others when they leave, and past at most [`SEEN_MOST`] whom it does
    /// not suffice, for whoever has set something free may be inside an allocator.
    pub(super) fn serve(&mut self, at: &'static Node) {
        let begin = self.waiters.partition_point(|waiter| waiter.at.id < at.id);
        let (mut first, mut seen) = (None::<usize>, at.counter.read());
        let (mut served, mut unserved) = (0, 0);
        for index in begin..self.waiters.len() {
            let waiter = &mut self.waiters[index];
            if waiter.at.id != at.id || served == SERVED_MOST || unserved == SEEN_MOST {
                break;
            }
            match waiter.state {
                State::Waiting => {}
                // It gets room itself: that may take as long as a shrinker's call, and is nobody else's wait. It is passed by all the same.
                State::Away => {
                    first.get_or_insert(index);
                    continue;
                }
                State::Handed | State::Again(_) => continue,
            }
            match waiter.take(&mut seen) {
                State::Waiting => {}
                state => waiter.end(state),
            }
            let fits = match waiter.state {
                State::Again(_) => continue,
                state => matches!(state, State::Handed),
            };
            if fits {
                served += 1;
            } else {
                unserved += 1;
                first.get_or_insert(index);
            }
            if let Some(first) = first.map(|first| &mut self.waiters[first]) {
                first.passed += u32::from(fits);
                if first.passed >= PASSES_MOST && matches!(first.state, State::Waiting) {
                    break;
                }
            }
        }
    }
}

/// Serves who waits at `at` after something was set free there; whether anybody waits.
pub(crate) fn serve(at: &'static Node) -> bool {
    let is_waited = at.control.waiting.is_held();
    if is_waited {
        at.shared.waits.line.lock().serve(at);
    }
    is_waited
}

/// `serve` at `node` and each level above that is charged with it, for who holds the node.
pub(crate) fn serve_chain(node: &'static Node) {
    let levels = std::iter::successors(Some(node), |level| level.up());
    levels.for_each(|level| {
        serve(level);
    });
}

/// `serve` at each level that was charged and uncharged again because `refused`, a level above them, refused.
pub(crate) fn serve_below(node: &'static Node, refused: &'static Node) {
    if mutation::active(Mutation::TakenBackWithoutALook) {
        return;
    }
    let levels = std::iter::successors(Some(node), |level| level.up());
    levels.take_while(|level| !std::ptr::eq(*level, refused)).for_each(|level| {
        serve(level);
    });
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::wait::{WaitKind, list};
    use crate::{Config, Hierarchy};

    #[test]
    fn who_was_away_has_what_was_set_free_meanwhile_when_it_comes_back() {
        const PAGE: u64 = 4096;
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let group = hierarchy.create("/group").unwrap();
        group.set_max(PAGE).unwrap();
        let (node, held) = (group.node(), group.try_charge(PAGE).unwrap());
        let listed = list::begin(node, WaitKind::Charge, PAGE, Instant::now() + Duration::from_secs(3600));
        let line = || node.shared.waits.line.lock();
        let arrival = line().arrive();
        line().enqueue(Waiter::new(node, node, PAGE, Want::Charge, arrival, listed.ticket().unwrap()));
        assert!(line().go_away(node, arrival));
        drop(held);
        group.drain();
        line().serve(node);
        assert_eq!(group.usage_exact(), 0, "it gets room itself, meanwhile");
        line().come_back(node, arrival);
        assert!(matches!(line().leave(node, arrival), State::Handed));
        assert_eq!(group.usage_exact(), PAGE);
        node.uncharge_counters(PAGE);
    }
}
