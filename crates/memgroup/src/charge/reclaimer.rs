//! Reclaimer: makes room for charges that wait as futures, on a thread of the user's. It also
//! wakes the futures that wait for events and triggers.
//!
//! A poll climbs the first steps of the ladder alone. A reclaimer climbs the others for the first
//! task in each queue: it marks the group, so that no stock below it is open and every uncharge
//! serves the queue. Then it drains, passes dry runs, has shrinkers make room, and has a victim
//! stopped.
//!
//! ```text
//!   a task becomes the first in a queue ─▶ due ─▶ review ─▶ made: handed over, the next one is due
//!                                           ▲        └─▶ not made ─▶ later: after 100 ms, as a thread that waits does
//!                                           └──────────────────────────┘
//!                     no task left, after 100 ms ─▶ release: the mark goes, stocks are open again
//! ```
//!
//! - I1. A queue is reviewed by one reclaimer at a time. Others review other queues meanwhile.
//! - I2. It holds the group of each queue that it serves, and the task's group during a review. It
//!   calls shrinkers and hooks with no lock.
//! - I3. A task may leave during its review. Then the reclaimer uncharges the charge that it made.
//!   Loom: `charge::future::loom`.
//! - I4. When the last reclaimer ends, it ends the waits of all tasks. Later ones find that there
//!   is none, under the same lock.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use memgroup_sync::atomic::Ordering;

use crate::base::id::NodeId;
use crate::base::mutation::{self, Mutation};
use crate::charge::wait::REVIEW;
use crate::control::make_room::{Room, make_room};
use crate::control::oom::OomAttempt;
use crate::control::{aftermath, dry_run, held_back, over_limit, waiters};
use crate::counter::chain::{Climb, Until};
use crate::counter::events::Event;
use crate::observe::event;
use crate::observe::wait::charges::duties::Duty;
use crate::observe::wait::charges::{ChargeQueue, Entry};
use crate::observe::wait::party::Wakers;
use crate::tree::handle::Hierarchy;
use crate::tree::node::Node;
use crate::tree::shared::Shared;

/// Longer than any wait.
const FAR: Duration = Duration::from_secs(365 * 86_400);

/// Makes room for the charges that wait as futures ([`Group::charge`](crate::Group::charge)); from
/// [`Hierarchy::reclaimer`].
///
/// It also wakes futures that wait for events
/// ([`Group::events_after`](crate::Group::events_after)) and triggers
/// ([`PressureWatch::fired`](crate::PressureWatch::fired)).
///
/// It counts as running from the moment when it is made until it is stopped or dropped. It does
/// not keep its hierarchy: when the last handle is dropped, it ends.
#[must_use = "futures wait in vain for a reclaimer that does not run"]
#[derive(Debug)]
pub struct Reclaimer {
    stop: ReclaimerStop,
}

/// Ends a [`Reclaimer`]; from [`Reclaimer::stop_handle`].
#[derive(Clone)]
pub struct ReclaimerStop {
    shared: &'static Shared,
    number: u64,
}

impl core::fmt::Debug for ReclaimerStop {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ReclaimerStop").field("number", &self.number).finish_non_exhaustive()
    }
}

/// The kills for the first task of each queue. It goes on as long as that task waits.
type Attempts = HashMap<NodeId, (u64, OomAttempt)>;

/// What a reclaimer does next.
#[expect(clippy::large_enum_variant, reason = "it is moved once, and never stored")]
enum Work {
    Wake(Wakers),
    Review(&'static Node),
    Release(&'static Node),
}

/// Looks for work. If there is none, returns when there will be some, if that is known.
fn look(shared: &'static Shared) -> Result<Work, Option<Instant>> {
    let now = Instant::now();
    let (wakers, look_at) = shared.waits().take_wakers(now);
    if !wakers.is_empty() {
        return Ok(Work::Wake(wakers));
    }
    let mut queues = shared.wait_queue().lock();
    queues.end_late(now);
    let wakers = queues.take_wakers();
    if !wakers.is_empty() {
        return Ok(Work::Wake(wakers));
    }
    let later = match queues.next_duty(now) {
        Duty::Review(at) => {
            if look_at.is_some() {
                // This reclaimer may be in foreign code for long.
                shared.waits().reclaimers.wake_one();
            }
            return Ok(Work::Review(at));
        }
        Duty::Release(at) => return Ok(Work::Release(at)),
        Duty::Later(when) => Some(when),
        Duty::Nothing => None,
    };
    Err([later, look_at, queues.first_deadline()].into_iter().flatten().min())
}

/// A task for which room is made.
pub(crate) struct Review {
    number: u64,
    node: &'static Node,
    bytes: u64,
    deadline: Instant,
    is_first: bool,
}

impl Reclaimer {
    /// Makes room until it is stopped, or the hierarchy goes. It blocks its thread, runs shrinkers
    /// and kill hooks on it, and sleeps while no future waits.
    ///
    /// Several may run: while one is in a shrinker's call that takes long, others make room in
    /// other groups. Threads that wait by [`charge_until`](crate::Group::charge_until) make
    /// room themselves.
    pub fn run(self) {
        let (shared, number) = (self.stop.shared, self.stop.number);
        let mut attempts = Attempts::new();
        while let Some(work) = shared.waits().reclaimers.next(number, || look(shared)) {
            match work {
                Work::Wake(wakers) => wakers.call(),
                Work::Review(at) => review(at, &mut attempts),
                Work::Release(at) => {
                    attempts.remove(&at.id());
                    release(at);
                }
            }
        }
    }

    /// A handle by which any thread ends it.
    pub fn stop_handle(&self) -> ReclaimerStop {
        self.stop.clone()
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        if crate::observe::wait::is_model_failing() {
            return;
        }
        self.stop.stop();
        let shared = self.stop.shared;
        // The queue that it was reviewing when it was stopped.
        release_all(shared);
        aftermath::unpin(shared.root());
    }
}

impl ReclaimerStop {
    /// Ends the reclaimer: [`run`](Reclaimer::run) returns, when the shrinker's call or the kill
    /// hook that it is in has returned. If no other one is left, all futures that wait end with
    /// [`NoReclaimer`](crate::ChargeErrorKind::NoReclaimer). Does nothing if it has ended already.
    pub fn stop(&self) {
        end(self.shared, self.number);
    }
}

/// Ends the reclaimer with this number, and with the last one the waits of all tasks.
pub(crate) fn end(shared: &'static Shared, number: u64) {
    // The lock under which a task looks for a reclaimer (I4).
    let mut queues = shared.wait_queue().lock();
    if shared.waits().reclaimers.remove(number) {
        queues.desert_tasks();
        ChargeQueue::call_wakers(queues, shared.wait_queue());
        shared.waits().desert_tasks();
        release_all(shared);
    }
}

/// One review, if one is due.
#[cfg(all(test, memgroup_loom))]
pub(crate) fn work_once(shared: &'static Shared) {
    let duty = shared.wait_queue().lock().next_duty(Instant::now());
    if let Duty::Review(at) = duty {
        review(at, &mut Attempts::new());
    }
}

/// Makes room for the first task in the queue of `at`.
fn review(at: &'static Node, attempts: &mut Attempts) {
    let shared = at.shared();
    let queues = || shared.wait_queue().lock();
    if !mutation::active(Mutation::ReclaimerDoesNotMark) && !queues().set_marked(at) {
        // ORDERING: Relaxed; changed under the lock of the level, and published by the mark (see
        // `is_held`).
        over_limit::change(at, |at| at.waiting.held.fetch_add(1, Ordering::Relaxed));
    }
    waiters::with_queues(shared, |queues| queues.serve(at));
    let begun = begin(&mut queues(), at);
    if let Some(review) = begun {
        let (_, attempt) = attempts
            .entry(at.id())
            .and_modify(|(number, attempt)| {
                if *number != review.number {
                    (*number, *attempt) = (review.number, OomAttempt::new(review.node, true));
                }
            })
            .or_insert_with(|| (review.number, OomAttempt::new(review.node, true)));
        let is_made = review.make_charge(at, attempt);
        review.end(is_made);
    }
    held_back::after_enqueue(at);
    let gives = shared.config.reclaim() && shared.shrinkers().is_any();
    let is_in_vain = !gives && !shared.victims().is_any() && !at.counter.read().is_dry_run;
    queues().end_review_of(at, Instant::now() + REVIEW, is_in_vain);
}

/// Takes the first wait of a queue for a review, if it is a task. The caller lets go of its node.
pub(crate) fn begin(queues: &mut ChargeQueue, at: &'static Node) -> Option<Review> {
    let (_, number, _) = queues.next(at, None)?;
    if !queues.entry(number).is_task() || !queues.begin_review(number) {
        return None;
    }
    let entry = queues.entry_mut(number);
    let is_first = !std::mem::replace(&mut entry.is_reviewed, true);
    let &mut Entry { node, bytes, .. } = entry;
    // The task holds it while it is listed.
    node.pin_inner();
    Some(Review { number, node, bytes, deadline: queues.deadline(queues.entry(number)), is_first })
}

impl Review {
    /// Climbs the steps of the ladder that a poll does not. Returns whether the charge is made.
    fn make_charge(&self, at: &'static Node, attempt: &mut OomAttempt) -> bool {
        let &Review { node, bytes, deadline, is_first, .. } = self;
        let shared = node.shared();
        let charge = || aftermath::charge(node, bytes, Climb::to(Until::Top));
        let mut over = match dry_run::past_dry_runs(bytes, charge) {
            Ok(()) => return true,
            Err(refused) if refused.seen.offline => return false,
            Err(refused) => refused.node,
        };
        let end = deadline.min(Instant::now() + shared.config.reclaim_patience());
        if shared.shrinkers().is_any() && make_room(node, Until::Top, bytes, &mut over, end) == Room::Charged
        {
            return true;
        }
        if shared.victims().is_any() && attempt.make_charge(Until::Top, bytes, &mut over) {
            return true;
        }
        let is_counted = attempt.counted.is_some_and(|counted| std::ptr::eq(counted, over));
        if is_first && !is_counted && std::ptr::eq(at, over) {
            event::count(over, Event::Oom);
        }
        false
    }

    /// Hands the charge over, or has the task wait again. If it has left, the charge goes back.
    pub(crate) fn end(self, is_made: bool) {
        let Review { number, node, bytes, .. } = self;
        let was_there = waiters::with_queues(node.shared(), |queues| {
            queues.is_listed(number) && queues.end_review(number, is_made)
        });
        if is_made && !was_there && !mutation::active(Mutation::ReviewIgnoresTheEnd) {
            aftermath::uncharge_counters(node, bytes);
        }
        aftermath::unpin(node);
    }
}

/// Lets go of a group at which no task waits.
fn release(at: &'static Node) {
    let ended = at.shared().wait_queue().lock().end_service(at);
    let Some(was_marked) = ended else { return };
    if was_marked {
        // ORDERING: Relaxed; as in `review`.
        over_limit::change(at, |at| at.waiting.held.fetch_sub(1, Ordering::Relaxed));
        _ = waiters::serve(at);
    }
    aftermath::unpin(at);
}

/// Lets go of all groups, unless there is a reclaimer again, which looks after them.
fn release_all(shared: &'static Shared) {
    while !shared.waits().reclaimers.is_any() {
        let duty = shared.wait_queue().lock().next_duty(Instant::now() + FAR);
        match duty {
            Duty::Review(at) | Duty::Release(at) => release(at),
            Duty::Later(_) | Duty::Nothing => return,
        }
    }
}

/// Reclaimers.
impl Hierarchy {
    /// Makes a reclaimer, which makes room for the charges that wait as futures. A thread of the
    /// user's, or a blocking task, [runs](Reclaimer::run) it.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let reclaimer = hierarchy.reclaimer();
    /// let stop = reclaimer.stop_handle();
    /// let thread = std::thread::spawn(|| reclaimer.run());
    /// stop.stop();
    /// thread.join().unwrap();
    /// ```
    pub fn reclaimer(&self) -> Reclaimer {
        let shared = self.shared();
        // Until it is dropped: the hierarchy's memory is not used again before.
        shared.root().pin_inner();
        Reclaimer { stop: ReclaimerStop { shared, number: shared.waits().reclaimers.add() } }
    }
}
