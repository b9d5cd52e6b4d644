//! Waiters: the queue of charges that wait for room, and how freed bytes become theirs.
//!
//! ```text
//!   at /tenants:  [alice 4 KiB, weight 500] [bob 1 GiB] [carol 4 KiB] [dave 4 KiB]        by weight, then by arrival
//!   uncharge ─▶ the group's OVER mark ─▶ serve: alice fits ─▶ charged for her, handed over; bob does not;
//!                                        carol does: she passes bob, and bob's count of passes goes up by one
//! ```
//!
//! The uncharging thread makes the waiter's charge itself, leaf to root, and hands it over. So no
//! other charge takes the freed bytes between the waking of the waiter and its next try.
//!
//! - I1. One thread at a time serves in a hierarchy, under the lock of the queue. A charge is made
//!   before its waiter can see it, and stays made until the waiter takes it.
//! - I2. A waiter leaves the queue under its lock, and takes the charge if it was handed over. Of
//!   a hand-over and a deadline at one moment exactly one counts. Loom:
//!   `a_charge_that_is_handed_over_at_the_deadline_is_not_lost`.
//! - I3. The first waiter that does not fit is passed by at most [`PASSES_MOST`] others. Then no
//!   waiter behind it is served before it.
//! - I4. While a charge waits at a group, no stock of its subtree is open (`over_limit`). So each
//!   uncharge there comes to the group's counter, and finds the mark.
//! - I5. A thread that serves calls no user code and allocates nothing under the lock. It takes
//!   the lock of the list of waits, which is the last. The tree lock is taken before the queues'
//!   lock or not at all.
//! - I6. A waker is called without a lock: by the thread that served its task, or, where that may
//!   hold locks, by a reclaimer (`serve_freed_untold`). Loom: `charge::future::loom`.
//! - E1. enqueue → serve, uncharge → serve: no wake-up is lost. The group is marked before a
//!   waiter enters the queue, and the waiter looks for room once more in the queue, by an RMW. An
//!   uncharge that this look did not see comes later in the counter's one order. So does a charge
//!   that is taken back because a level above refused. Each finds the mark and the least bytes
//!   that a waiter asks for. If so many are free, it takes the lock after the look, and finds the
//!   waiter. A review ends with the same look. For a task a reclaimer marks the group later, and
//!   looks then. Loom: `an_uncharge_serves_the_waiter`,
//!   `a_task_is_served_although_it_waited_before_the_mark`.

use core::fmt;

use memgroup_sync::atomic::Ordering;
use memgroup_sync::{depth, grace};

use crate::base::limit::BYTES_MAX;
use crate::base::mutation::{self, Mutation};
use crate::control::held_back;
use crate::counter::chain::{self, Climb, Until};
use crate::observe::event;
use crate::observe::wait::charges::{ChargeQueue, Entry, State, Want};
use crate::state::counter::Reading;
use crate::tree::handle::Group;
use crate::tree::node::Node;
use crate::tree::shared::Shared;

/// How many others may be served before the first waiter, if they fit and it does not.
pub(crate) const PASSES_MOST: u8 = 16;

/// How many waiters one call serves, and how many it tries in vain.
const SERVED_MOST: u32 = 16;
const TRIED_MOST: u32 = 64;

/// The largest weight of a group.
const WEIGHT_MOST: u32 = 10_000;

/// The outcome of a try to serve a waiter.
enum Tried {
    /// There is no room for it here.
    Waits,
    Handed,
    /// Its party is to try again: this level refuses.
    Again(&'static Node),
}

/// Makes the charge of a waiter, if there is room. `seen` is the state of the group at which it
/// waits.
fn try_charge(waiter: &Entry, seen: &mut Reading) -> Tried {
    let &Entry { at, node, bytes, want, .. } = waiter;
    // A dry run takes the tree lock. So a waiting thread passes its limit itself, and a reclaimer
    // does so for a task.
    if tries_itself(waiter, *seen) {
        return Tried::Again(at);
    }
    let outcome = match want {
        Want::Charge => chain::charge(node, bytes, Climb::to(Until::Top))
            .map(|charged| event::after_charge(node, charged)),
        Want::Room | Want::Checkpoint => chain::look_for_room(node, Until::Top, bytes),
    };
    *seen = at.counter.read();
    match outcome {
        Ok(()) => Tried::Handed,
        // A charge that does not wait was faster.
        Err(refused) if std::ptr::eq(refused.node, at) => Tried::Waits,
        Err(refused) => Tried::Again(refused.node),
    }
}

/// Returns whether nothing can be done for a waiter at a group in this state. At a dry run the
/// waiter may be refused by the group's fair share of the group above: then it waits on. Else it
/// would try in vain, again and again.
fn tries_itself(waiter: &Entry, seen: Reading) -> bool {
    let passes = || chain::look_past_dry_runs(waiter.node, Until::Top, waiter.bytes).is_ok();
    seen.offline
        || waiter.bytes > BYTES_MAX
        || if seen.is_dry_run { !waiter.is_task() && passes() } else { waiter.bytes > seen.max }
}

impl ChargeQueue {
    /// Puts a wait into the queue of `at`, and serves it if there is room.
    pub(crate) fn enqueue(&mut self, number: u64, at: &'static Node) {
        if self.entry(number).state == State::Woken {
            return;
        }
        self.join(number, at);
        let is_published_late = mutation::active(Mutation::WaiterIsToldLate);
        if !is_published_late {
            self.publish_least(at);
        }
        if !mutation::active(Mutation::WaiterDoesNotLookAgain) {
            self.serve_with(number, at, at.counter.read_now());
        }
        if is_published_late {
            self.publish_least(at);
        }
        self.review_first(at);
    }

    /// Lets the first waiter have room made for it. It keeps its place. Returns `false` if it is
    /// not the first, or waits no more.
    pub(crate) fn begin_review(&mut self, number: u64) -> bool {
        let entry = self.entry(number);
        let is_first = self.next(entry.at, None).is_some_and(|(_, first, _)| first == number);
        let begins = entry.state == State::Waiting && is_first;
        if begins {
            self.set_away(number, true);
        }
        begins
    }

    /// The waiter has its charge made, or waits again. Returns `false` if its wait was ended in
    /// between.
    pub(crate) fn end_review(&mut self, number: u64, is_made: bool) -> bool {
        let &Entry { at, state, .. } = self.entry(number);
        match state {
            State::Away if is_made => self.settle(number, State::Handed),
            State::Away => {
                self.set_away(number, false);
                // By an RMW: an uncharge that did not see its bytes, or the mark, comes before this
                // look (E1).
                let is_load = mutation::active(Mutation::ReviewEndsWithALoad);
                let seen = if is_load { at.counter.read() } else { at.counter.read_now() };
                self.serve_with(number, at, seen);
            }
            _ => return false,
        }
        true
    }

    /// Serves the charges that wait at `at`, as far as there is room. The thread that freed the
    /// room may be inside an allocator, so it serves and tries a few only. Those that it serves
    /// serve others when they leave.
    pub(crate) fn serve(&mut self, at: &'static Node) {
        self.serve_by(at, at.counter.read());
    }

    /// Serves the charges that wait at `at`, after `number` became one that can be served. A limit
    /// may have been lowered before that, so that `serve_all` did not find it.
    fn serve_with(&mut self, number: u64, at: &'static Node, seen: Reading) {
        if tries_itself(self.entry(number), seen) {
            self.settle(number, State::Again);
        }
        self.serve_by(at, seen);
    }

    fn serve_by(&mut self, at: &'static Node, mut seen: Reading) {
        let (mut after, mut served, mut tried) = (None, 0, 0);
        while served < SERVED_MOST && tried < TRIED_MOST {
            let all_try = seen.offline || seen.is_dry_run;
            let room = if all_try { u64::MAX - 1 } else { seen.headroom() };
            if !self.may_fit(at, room) {
                break;
            }
            let Some((first_key, first, asks)) = self.next(at, None) else { break };
            // One that makes room itself, which may take as long as a shrinker's call, is passed by
            // the others.
            let Entry { passed, state, .. } = *self.entry(first);
            let is_behind_first = asks > room || after >= Some(first_key);
            if is_behind_first && passed >= PASSES_MOST && state == State::Waiting {
                break;
            }
            // Those before `after` did not fit. If room has come since, its thread serves them
            // (E1).
            let Some((key, number)) = self.next_fit(at, after, room) else { break };
            after = Some(key);
            match try_charge(self.entry(number), &mut seen) {
                Tried::Waits => tried += 1,
                Tried::Again(level) => {
                    self.settle(number, State::Again);
                    self.entry_mut(number).at = level;
                    served += 1;
                }
                Tried::Handed => {
                    if number != first {
                        let first = self.entry_mut(first);
                        first.passed = first.passed.saturating_add(1);
                    }
                    self.settle(number, State::Handed);
                    served += 1;
                }
            }
        }
    }
}

/// Serves the charges that wait at `at`, after bytes were freed there. The caller holds no lock.
/// Returns whether a charge waits there.
pub(crate) fn serve(at: &'static Node) -> bool {
    let is_waited = at.waiting.is_held();
    if is_waited {
        with_queues(at.shared(), |queues| queues.serve(at));
    }
    is_waited
}

/// Changes the queues, and calls the wakers of those that were served. Within an allocator, a lock
/// of the engine or a read section a reclaimer calls them: a waker may want a lock that the thread
/// holds, or wait for the section's end.
pub(crate) fn with_queues<T>(shared: &'static Shared, act: impl FnOnce(&mut ChargeQueue) -> T) -> T {
    let may_call = !depth::is_inside() && !grace::inside();
    let mut queues = shared.wait_queue().lock();
    let done = act(&mut queues);
    ChargeQueue::call_some(queues, shared, may_call);
    done
}

/// Returns whether a waiter may fit, after bytes went back to the counter of `at` by an RMW of
/// this thread. If every waiter asks for more bytes than are free, none does.
pub(crate) fn may_fit(at: &'static Node) -> bool {
    let seen = at.counter.read();
    seen.offline || seen.is_dry_run || at.counter.least_waiting() <= seen.headroom()
}

/// `serve`, after bytes went back to the counter of `at` by an RMW of this thread: where no waiter
/// may fit, without the lock.
pub(crate) fn serve_freed(at: &'static Node) -> bool {
    let is_waited = at.waiting.is_held();
    if is_waited {
        if may_fit(at) {
            serve(at);
        }
        held_back::after_fall(at);
    }
    is_waited
}

/// `serve_freed`, for a caller that may hold locks, or a stock word: a reclaimer calls the wakers.
pub(crate) fn serve_freed_untold(at: &'static Node) {
    if at.waiting.is_held() {
        if may_fit(at) {
            serve_untold(at);
        }
        held_back::after_fall(at);
    }
}

/// `serve`, for a caller that may hold locks.
pub(crate) fn serve_untold(at: &'static Node) {
    if at.waiting.is_held() {
        let mut queues = at.shared().wait_queue().lock();
        queues.serve(at);
        ChargeQueue::call_some(queues, at.shared(), false);
    }
}

/// After the limit of `at` changed: charges that it will never let pass try again, and others are
/// served.
pub(crate) fn serve_all(at: &'static Node) {
    with_queues(at.shared(), |queues| {
        let (seen, mut after) = (at.counter.read(), None);
        while let Some((key, number, _)) = queues.next(at, after) {
            let entry = queues.entry(number);
            if entry.state == State::Waiting && tries_itself(entry, seen) {
                queues.settle(number, State::Again);
            }
            after = Some(key);
        }
        queues.serve(at);
    });
}

/// Ends the waits of a group that was marked offline, and has no group below it.
pub(crate) fn removed(node: &'static Node) {
    with_queues(node.shared(), |queues| {
        if node.rare().queue.charges() > 0 {
            queues.wake_within(node);
        }
        queues.hurry(node);
    });
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
    /// Of the charges that wait at one group, those of heavier groups are served first, however
    /// many they are. The weight is the group's own, and does not apply to groups below.
    /// Charges that wait now change places at once.
    ///
    /// It is also the weight of the group's fair share, where the group above gives some
    /// ([`set_share`](Group::set_share)).
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
        // Stored under the lock: a charge that enters the queue reads it there, or is in the queue
        // already.
        let mut queue = node.shared().wait_queue().lock();
        // ORDERING: Relaxed; under the lock of the queue, or a number for reports.
        node.waiting.weight.store(weight, Ordering::Relaxed);
        queue.reweigh(node, weight);
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

    use memgroup_sync::thread;

    use crate::control::aftermath;
    use crate::control::waiters::*;
    use crate::observe::wait::charges::Party;
    use crate::{Config, Hierarchy};

    const PAGE: u64 = 4096;

    /// Puts a charge of `node` into the queue at `at`. A thread that waits looks again by itself;
    /// here none does.
    fn enqueue(node: &'static Node, at: &'static Node, bytes: u64) -> u64 {
        let deadline = Instant::now() + Duration::from_secs(3600);
        let mut queues = at.shared().wait_queue().lock();
        let number = queues.list(node, bytes, deadline, Want::Charge, Party::Thread(thread::current()));
        queues.enqueue(number, at);
        number
    }

    /// Ends the wait. Whether its charge was made.
    fn is_handed(node: &'static Node, place: u64) -> bool {
        let mut queues = node.shared().wait_queue().lock();
        let state = queues.entry(place).state;
        drop(queues.unlist(place));
        state == State::Handed
    }

    /// Whether a charge of `group` that waits at its parent is served by `act`.
    fn is_served_by(group: &Group, bytes: u64, act: impl FnOnce()) -> bool {
        let parent = group.parent().unwrap();
        let (at, node) = (parent.node(), group.node());
        // ORDERING: Relaxed, as below; one thread.
        at.waiting.held.fetch_add(1, Ordering::Relaxed);
        let place = enqueue(node, at, bytes);
        assert_eq!(at.shared().wait_queue().lock().entry(place).state, State::Waiting);
        act();
        let is_handed = is_handed(node, place);
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
        let queue = || node.shared().wait_queue().lock();
        let place = enqueue(node, node, PAGE);
        assert!(queue().begin_review(place));
        drop(held);
        group.drain();
        queue().serve(node);
        assert_eq!(group.usage_exact(), 0, "it makes room itself, meanwhile");
        queue().end_review(place, false);
        assert!(is_handed(node, place));
        assert_eq!(group.usage_exact(), PAGE);
        aftermath::uncharge_counters(node, PAGE);
    }

    /// A group that is a dry run, and whose fair share refuses a charge.
    #[test]
    fn a_charge_waits_at_a_dry_run_while_a_fair_share_refuses_it() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let tenants = hierarchy.create("/tenants").unwrap();
        tenants.set_max(1000).unwrap();
        tenants.set_share(Some(1)).unwrap();
        let (tried, other) = (tenants.create("tried").unwrap(), tenants.create("other").unwrap());
        tried.set_max(0).unwrap();
        tried.set_enforced(false);
        let held = other.charge_forced(400).unwrap();
        assert_eq!(tried.try_charge(372).unwrap_err().group(), tried.id(), "its share refuses");
        let (node, queue) = (tried.node(), tried.node().shared().wait_queue());
        let far = Instant::now() + Duration::from_secs(3600);
        let mut queues = queue.lock();
        let place = queues.list(node, 372, far, Want::Charge, Party::Thread(thread::current()));
        queues.enqueue(place, node);
        assert_eq!(queues.entry(place).state, State::Waiting, "it would try in vain");
        drop(queues);
        drop(held);
        let mut queues = queue.lock();
        queues.serve(node);
        assert_eq!(queues.entry(place).state, State::Again, "now it passes");
        queues.leave_queue(place);
        let party = queues.unlist(place);
        drop(queues);
        drop(party);
    }
}
