//! Waiters: the queue of charges that wait for room, and how freed bytes become theirs.
//!
//! ```text
//!   at /tenants:  [alice 4 KiB, weight 500] [bob 1 GiB] [carol 4 KiB] [dave 4 KiB]        by weight, then by arrival
//!   uncharge ─▶ the group's OVER mark ─▶ serve: alice fits ─▶ charged for her, handed over; bob does not;
//!                                        carol does: she passes bob, and bob's count of passes goes up by one
//! ```
//!
//! The uncharging thread makes the waiter's charge itself, leaf to root, and hands it over. So no other charge takes the freed bytes between the
//! waking of the waiter and its next try.
//!
//! - I1. One thread at a time serves in a hierarchy, under the lock of the queue. A charge is made before its waiter can see it, and stays made
//!   until the waiter takes it.
//! - I2. A waiter leaves the queue under its lock, and takes the charge if it was handed over. Of a hand-over and a deadline at one moment exactly
//!   one counts. Loom: `a_charge_that_is_handed_over_at_the_deadline_is_not_lost`.
//! - I3. The first waiter that does not fit is passed by at most [`PASSES_MOST`] others. Then no waiter behind it is served before it.
//! - I4. While a charge waits at a group, no stock of its subtree is open (`over_limit`). So each uncharge there comes to the group's counter,
//!   and finds the mark.
//! - I5. A thread that serves calls no user code and allocates nothing under the lock. It takes the lock of the list of waits, which is the last. The
//!   tree lock is taken before the queue's lock or not at all.
//! - E1. enqueue → serve, uncharge → serve: no wake-up is lost. The group is marked before a waiter enters the queue, and the waiter looks for room
//!   once more in the queue, by an RMW. An uncharge that this look did not see comes later in the counter's one order. So does a charge that is taken
//!   back because a level above refused. Each finds the mark and the least bytes that a waiter asks for. If so many are free, it takes the lock after
//!   the look, and finds the waiter. Loom: `an_uncharge_serves_the_waiter`.

use core::fmt;

use memgroup_sync::Mutex;
use memgroup_sync::atomic::Ordering;

use crate::base::id::NodeId;
use crate::base::limit::BYTES_MAX;
use crate::base::mutation::{self, Mutation};
use crate::control::aftermath;
use crate::counter::chain::{self, Climb, Refused, Until};
use crate::observe::wait::list::Ticket;
use crate::observe::wait::queue::{Queued, WaitQueue};
use crate::state::counter::{Reading, Verdict};
use crate::tree::handle::Group;
use crate::tree::node::Node;
use crate::tree::parts::{Key, Part};
use crate::tree::shared::Shared;

/// How many others may be served before the first waiter, if they fit and it does not.
pub(crate) const PASSES_MOST: u32 = 16;

/// How many waiters one call serves, and how many it checks that do not fit.
const SERVED_MOST: u32 = 16;
const CHECKED_MOST: u32 = 64;

/// The largest weight of a group.
const WEIGHT_MOST: u32 = 10_000;

/// The purpose of a wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    Charge,
    /// Room alone: nothing is charged, and no group is killed.
    Room,
}

/// The state of a waiter.
#[derive(Clone, Copy)]
pub(crate) enum State {
    Waiting,
    /// The waiter makes room itself, and is not to be served.
    Away,
    /// Its charge was made; if it waits for room alone, there was room.
    Handed,
    /// Another level refuses, or this level always will. The waiter tries again itself.
    Again(Refused),
}

/// A charge in the queue.
pub(crate) struct Waiter {
    /// The group at which it waits.
    at: &'static Node,
    /// The group to be charged.
    node: &'static Node,
    bytes: u64,
    want: Want,
    /// How many were served before it while it was the first.
    passed: u32,
    state: State,
}

impl Waiter {
    pub(crate) fn new(at: &'static Node, node: &'static Node, bytes: u64, want: Want) -> Waiter {
        Waiter { at, node, bytes, want, passed: 0, state: State::Waiting }
    }

    /// Makes the charge, if there is room. `seen` is the state of the group at which it waits.
    fn try_charge(&self, seen: &mut Reading) -> State {
        let &Waiter { at, node, bytes, want, .. } = self;
        // A dry run takes the tree lock. So the waiter itself passes its limit.
        if seen.offline || bytes > seen.max.min(BYTES_MAX) || seen.is_dry_run {
            return State::Again(Refused { node: at, seen: *seen });
        }
        if bytes > seen.headroom() {
            return State::Waiting;
        }
        let outcome = match want {
            Want::Charge => chain::charge(node, bytes, Climb::to(Until::Top, Verdict::Hint))
                .map(|charged| aftermath::tell_events(node, charged)),
            Want::Room => chain::look_for_room(node, Until::Top, bytes),
        };
        *seen = at.counter.read();
        match outcome {
            Ok(()) => State::Handed,
            // A charge that does not wait was faster.
            Err(refused) if std::ptr::eq(refused.node, at) => State::Waiting,
            Err(refused) => State::Again(refused),
        }
    }
}

/// All waiting charges of one hierarchy, by the group at which they wait.
pub(crate) type ChargeQueue = WaitQueue<NodeId, Waiter>;

impl ChargeQueue {
    /// Adds a waiter, and serves it if there is room.
    pub(crate) fn enqueue(&mut self, waiter: Waiter, ticket: Ticket) {
        let at = waiter.at;
        // The weight is read under the lock, as `set_weight` stores it.
        let bytes = waiter.bytes;
        self.insert(at.id(), waiter.node.waiting.weight(), ticket, waiter);
        let is_told_late = mutation::active(Mutation::WaiterIsToldLate);
        if !is_told_late {
            at.counter.set_least_waiting(at.counter.least_waiting().min(bytes));
        }
        if !mutation::active(Mutation::WaiterDoesNotLookAgain) {
            self.serve_by(at, at.counter.read_now());
        }
        if is_told_late {
            at.counter.set_least_waiting(at.counter.least_waiting().min(bytes));
        }
    }

    /// Removes a waiter, and returns its state.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> State {
        let Waiter { at, state, .. } = self.remove(ticket);
        let least = self.of(at.id()).iter().map(|queued| queued.item.bytes).min();
        at.counter.set_least_waiting(least.unwrap_or(u64::MAX));
        state
    }

    /// Whether a waiter still waits.
    pub(crate) fn waits(&mut self, ticket: Ticket) -> bool {
        matches!(self.get(ticket).state, State::Waiting)
    }

    /// Lets the first waiter make room itself. It keeps its place. Returns `false` if it is not the first, or waits no more.
    pub(crate) fn begin_review(&mut self, ticket: Ticket) -> bool {
        let at = self.get(ticket).at.id();
        let first = &mut self.of(at)[0];
        let begins = first.ticket == ticket && matches!(first.item.state, State::Waiting);
        if begins {
            first.item.state = State::Away;
        }
        begins
    }

    /// The first waiter has made its charge, or waits again.
    pub(crate) fn end_review(&mut self, ticket: Ticket, is_made: bool) {
        let waiter = self.get(ticket);
        let at = waiter.at;
        waiter.state = if is_made { State::Handed } else { State::Waiting };
        if !is_made {
            self.serve(at);
        }
    }

    /// Serves the charges that wait at `at`, as far as there is room. It serves and checks only so many: the thread that freed the room may be inside
    /// an allocator. Those that it serves serve others when they leave.
    pub(crate) fn serve(&mut self, at: &'static Node) {
        self.serve_by(at, at.counter.read());
    }

    fn serve_by(&mut self, at: &'static Node, mut seen: Reading) {
        let (mut first, mut served, mut unserved) = (None::<&mut Waiter>, 0, 0);
        for Queued { item: waiter, ticket, .. } in self.of(at.id()) {
            match waiter.state {
                State::Handed | State::Again(_) => continue,
                // It makes room itself, which may take as long as a shrinker's call. The others need not wait for that, but pass it.
                State::Away => {
                    first.get_or_insert(waiter);
                    continue;
                }
                State::Waiting => waiter.state = waiter.try_charge(&mut seen),
            }
            match waiter.state {
                State::Waiting | State::Away => {
                    unserved += 1;
                    first.get_or_insert(waiter);
                }
                State::Handed | State::Again(_) => {
                    ticket.notify(at.shared());
                    if let State::Handed = waiter.state {
                        served += 1;
                        first.iter_mut().for_each(|first| first.passed += 1);
                    }
                }
            }
            let is_reserved =
                |first: &&mut Waiter| first.passed >= PASSES_MOST && matches!(first.state, State::Waiting);
            if served == SERVED_MOST || unserved == CHECKED_MOST || first.as_ref().is_some_and(is_reserved) {
                break;
            }
        }
    }
}

/// Serves the charges that wait at `at`, after bytes were freed there. Returns whether a charge waits there.
pub(crate) fn serve(at: &'static Node) -> bool {
    let is_waited = at.waiting.is_held();
    if is_waited {
        at.shared().wait_queue().lock().serve(at);
    }
    is_waited
}

/// `serve`, after bytes went back to the counter of `at` by an RMW of this thread: where no waiter asks for as few as are free, without the lock.
pub(crate) fn serve_freed(at: &'static Node) -> bool {
    let is_waited = at.waiting.is_held();
    if is_waited {
        let seen = at.counter.read();
        if seen.offline || seen.is_dry_run || at.counter.least_waiting() <= seen.headroom() {
            return serve(at);
        }
    }
    is_waited
}

impl Part for Mutex<ChargeQueue> {}

static QUEUE: Key<Mutex<ChargeQueue>> = Key::new(3, || Mutex::new(ChargeQueue::new()));

impl Shared {
    /// The queue of charges that wait for room.
    pub(crate) fn wait_queue(&self) -> &Mutex<ChargeQueue> {
        self.parts.get(&QUEUE)
    }
}

/// A weight outside the range of weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightError {
    /// The path of the group.
    pub group: String,
    /// The weight that was asked for.
    pub asked: u32,
}

impl fmt::Display for WeightError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "give group {} the weight {}: allowed are 1 to {WEIGHT_MOST}", self.group, self.asked)
    }
}

impl std::error::Error for WeightError {}

/// Weight among waiting charges.
impl Group {
    /// Sets the weight, 1 to 10,000; 100 unless set, as `cpu.weight` has it.
    ///
    /// Of the charges that wait at one group, those of heavier groups are served first, however many they are. The weight is the group's own, and
    /// does not apply to groups below. Charges that wait now change places at once.
    ///
    /// It is also the weight of the group's fair share, where the group above gives some ([`set_share`](Group::set_share)).
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let tenant = hierarchy.create("/tenant").unwrap();
    /// assert_eq!(tenant.weight(), 100);
    /// tenant.set_weight(500).unwrap();
    /// assert!(tenant.set_weight(0).unwrap_err().to_string().contains("/tenant the weight 0: allowed are 1 to 10000"));
    /// assert_eq!(tenant.weight(), 500);
    /// ```
    ///
    /// # Errors
    /// The weight is 0, or more than 10,000. The group keeps its weight.
    pub fn set_weight(&self, weight: u32) -> Result<(), WeightError> {
        if !(1..=WEIGHT_MOST).contains(&weight) {
            return Err(WeightError { group: self.path(), asked: weight });
        }
        let node = self.node();
        // Stored under the lock: a charge that enters the queue reads it there, or is in the queue already.
        let mut queue = node.shared().wait_queue().lock();
        // ORDERING: Relaxed; under the lock of the queue, or a number for reports.
        node.waiting.weight.store(weight, Ordering::Relaxed);
        queue.reweigh(weight, |waiter| std::ptr::eq(waiter.node, node));
        drop(queue);
        self.reweigh_share();
        Ok(())
    }

    /// The group's [weight](Group::set_weight).
    pub fn weight(&self) -> u32 {
        self.node().waiting.weight()
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use std::time::{Duration, Instant};

    use crate::control::waiters::*;
    use crate::observe::wait::{WaitKind, list};
    use crate::{Config, Hierarchy};

    const PAGE: u64 = 4096;

    /// Whether a charge of `group` that waits at its parent is served by `act`. A thread that waits looks again by itself; here none does.
    fn is_served_by(group: &Group, bytes: u64, act: impl FnOnce()) -> bool {
        let parent = group.parent().unwrap();
        let (at, node) = (parent.node(), group.node());
        let listed = list::begin(node, WaitKind::Charge, bytes, Instant::now() + Duration::from_secs(3600));
        let (queue, ticket) = (|| at.shared().wait_queue().lock(), listed.ticket());
        // ORDERING: Relaxed, as below; one thread.
        at.waiting.held.fetch_add(1, Ordering::Relaxed);
        queue().enqueue(Waiter::new(at, node, bytes, Want::Charge), ticket);
        assert!(queue().waits(ticket));
        act();
        let is_handed = matches!(queue().leave(ticket), State::Handed);
        // ORDERING: as above.
        at.waiting.held.fetch_sub(1, Ordering::Relaxed);
        if is_handed {
            aftermath::uncharge_counters(node, bytes);
        }
        is_handed
    }

    #[test]
    fn serves_a_waiter_when_a_protection_goes() {
        for is_removed in [false, true] {
            let hierarchy = Hierarchy::new(Config::new()).unwrap();
            let tenants = hierarchy.create("/tenants").unwrap();
            tenants.set_max(1000 * PAGE).unwrap();
            let (guarded, busy) = (tenants.create("guarded").unwrap(), tenants.create("busy").unwrap());
            guarded.set_min(500 * PAGE).unwrap();
            let _held = tenants.charge_forced(995 * PAGE).unwrap();
            assert!(is_served_by(&busy, 5 * PAGE, || {
                if is_removed { guarded.remove().unwrap() } else { guarded.set_min(0).unwrap() }
            }));
        }
    }

    #[test]
    fn serves_a_waiter_when_a_move_makes_room() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let tenants = hierarchy.create("/tenants").unwrap();
        tenants.set_max(8000).unwrap();
        let [x, y, z] = ["x", "y", "z"].map(|name| tenants.create(name).unwrap());
        z.set_min(5000).unwrap();
        x.set_min(1000).unwrap();
        let mut held = x.try_charge(1500).unwrap();
        let _others = y.try_charge(5500).unwrap();
        let mut moved = held.split(1000);
        let served = is_served_by(&x, 200, || moved.try_move_to(&y).unwrap());
        assert!(served, "x is within its min now, and may use the bytes kept free");
    }

    #[test]
    fn serves_a_waiter_after_its_review_with_bytes_freed_meanwhile() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let group = hierarchy.create("/group").unwrap();
        group.set_max(PAGE).unwrap();
        let (node, held) = (group.node(), group.try_charge(PAGE).unwrap());
        let listed = list::begin(node, WaitKind::Charge, PAGE, Instant::now() + Duration::from_secs(3600));
        let queue = || node.shared().wait_queue().lock();
        let ticket = listed.ticket();
        queue().enqueue(Waiter::new(node, node, PAGE, Want::Charge), ticket);
        assert!(queue().begin_review(ticket));
        drop(held);
        group.drain();
        queue().serve(node);
        assert_eq!(group.usage_exact(), 0, "it makes room itself, meanwhile");
        queue().end_review(ticket, false);
        assert!(matches!(queue().leave(ticket), State::Handed));
        assert_eq!(group.usage_exact(), PAGE);
        aftermath::uncharge_counters(node, PAGE);
    }
}
