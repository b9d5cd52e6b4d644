//! Future: a charge that waits without a thread.
//!
//! ```text
//!   poll ─▶ stock ─▶ counters ─▶ refused by T ─▶ queue at T ─▶ Pending ··· woken ─▶ poll ─▶ handed over: a Charge
//!                                                  │                                  └─▶ another level refuses: queue there
//!                                                  └─▶ a reclaimer makes room for the first in the queue
//! ```
//!
//! A poll climbs the first steps of the ladder only (`Means::of_poll`). It calls no shrinker and
//! no kill hook, and takes no lock of a level and not the tree lock. So it never waits for a
//! freeze of another thread. A reclaimer climbs the other steps.
//!
//! - I1. A future is listed from the poll that found no room until it ends or is dropped.
//! - I2. The state under the lock of the queues decides. Of a hand-over and a deadline, or a drop,
//!   exactly one counts: a charge that was handed to a future which ends otherwise is uncharged,
//!   and that uncharge serves the next waiter. Loom: `charge::future::loom`.
//! - I3. A waker is cloned, called and dropped without a lock.

#[cfg(all(test, memgroup_loom))]
mod loom;
#[cfg(all(test, not(memgroup_loom)))]
mod tests;

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use memgroup_sync::grace;

use crate::base::deadline::Deadline;
use crate::base::effort::{self, Effort, Means};
use crate::base::mutation::{self, Mutation};
use crate::charge::charge::Charge;
use crate::charge::slow::{self, Ask, charge_slow_path, count_max, never_fits};
use crate::charge::wait;
use crate::control::{aftermath, held_back, high, waiters};
use crate::counter::chain::{Refused, Until};
use crate::observe::pressure;
use crate::observe::wait::charges::{Party, State, Want};
use crate::reclaim::credit;
use crate::tree::error::{ChargeError, ChargeErrorKind};
use crate::tree::handle::Group;
use crate::tree::node::Node;

/// A charge that waits for room without a thread; from [`Group::charge`].
///
/// It does nothing before its first poll, and belongs to no runtime. Dropped at any moment it
/// leaves nothing behind: a charge that was made for it goes back, and is offered to the next
/// waiter.
#[must_use = "futures do nothing unless they are polled"]
pub struct Charging {
    group: Group,
    bytes: u64,
    deadline: Option<Instant>,
    phase: Phase,
}

/// A charge that grows, and waits for room without a thread; from [`Charge::grow`].
///
/// Dropped at any moment it leaves the charge as it was.
#[must_use = "futures do nothing unless they are polled"]
pub struct Growing<'a> {
    charge: &'a mut Charge,
    more: Charging,
}

#[derive(Clone, Copy)]
enum Phase {
    New,
    /// It waits, or was notified, by this number.
    Listed(u64),
    Done,
}

/// The outcome of one climb.
enum Tried {
    Over(Result<(), ChargeError>),
    /// It is to wait at this level, which refused.
    Waits(Refused),
}

impl Charging {
    /// Sets until when it waits: an instant, a duration from now on, or [`Deadline::NEVER`], as it
    /// is unless set.
    ///
    /// The hierarchy's [reclaimer](crate::Reclaimer) wakes it then, and it ends: of all futures
    /// that wait, it sleeps until the first deadline. While every reclaimer is in a shrinker's
    /// call or a kill hook, deadlines are late. A poll after the deadline ends the future in any
    /// case. So an adapter may arm a timer for [`deadline`](Charging::deadline).
    ///
    /// ```
    /// # use memgroup::{Config, Deadline, Hierarchy};
    /// # use std::time::{Duration, Instant};
    /// # let group = Hierarchy::new(Config::new()).unwrap().create("/group").unwrap();
    /// let charging = group.charge(4096).until(Duration::from_secs(1));
    /// assert!(charging.deadline().unwrap() > Instant::now());
    /// assert_eq!(charging.until(Deadline::NEVER).deadline(), None);
    /// ```
    pub fn until(mut self, deadline: impl Into<Deadline>) -> Charging {
        self.deadline = deadline.into().instant();
        if let Phase::Listed(number) = self.phase {
            self.node().shared().wait_queue().lock().set_deadline(number, self.deadline);
        }
        self
    }

    /// Until when it waits; `None` for a wait without end.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The bytes that it charges.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The group that it charges.
    pub fn group(&self) -> &Group {
        &self.group
    }

    fn node(&self) -> &'static Node {
        self.group.node()
    }

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Tries the charge once.
    fn attempt(&self) -> Tried {
        let (node, bytes) = (self.node(), self.bytes);
        let poll = if let Phase::New = self.phase { effort::Poll::First } else { effort::Poll::Again };
        let refused = match node.charge_by(bytes, Means::of_poll(poll)) {
            Ok(()) => return Tried::Over(Ok(())),
            Err(error) if error.kind() == ChargeErrorKind::Injected => return Tried::Over(Err(error)),
            Err(error) => error,
        };
        let can_wait = !credit::is_reclaiming() && !grace::inside() && never_fits(node, bytes).is_none();
        if refused.kind() != ChargeErrorKind::Refused || !can_wait {
            return Tried::Over(self.finally(None));
        }
        if self.is_late() {
            return Tried::Over(self.finally(Some(ChargeErrorKind::Deadline)));
        }
        let level = refused.level();
        Tried::Waits(Refused { node: level, seen: level.counter.read() })
    }

    /// Tries the charge without a wait, as far as counts alone go. If it is refused, `ended` is
    /// the reason why it does not wait.
    fn finally(&self, ended: Option<ChargeErrorKind>) -> Result<(), ChargeError> {
        let means = Means::with(Effort::Count);
        let outcome = charge_slow_path(self.node(), Ask { means, ..Ask::exact(self.bytes, Until::Top) });
        outcome.map_err(|error| match (ended, error.kind()) {
            (Some(kind), ChargeErrorKind::Refused | ChargeErrorKind::VictimDying) => {
                error.after_wait(kind, self.waited())
            }
            _ => error,
        })
    }

    fn waited(&self) -> Duration {
        match self.phase {
            Phase::Listed(number) => {
                let queues = self.node().shared().wait_queue().lock();
                queues.since(queues.entry(number)).elapsed()
            }
            Phase::New | Phase::Done => Duration::ZERO,
        }
    }

    /// Enters the queue of the level that refused. Returns `false` if no reclaimer runs.
    fn enqueue(&mut self, refused: Refused, waker: &Waker) -> bool {
        let (node, at) = (self.node(), refused.node);
        let (phase, deadline) = (self.phase, Deadline::from(self.deadline).instant_or_far());
        // Cloned and dropped without the lock (I3).
        let mut cloned = Some(waker.clone());
        let entered = waiters::with_queues(node.shared(), |queues| {
            if !node.shared().waits().reclaimers.is_any() {
                return None;
            }
            // This poll looks itself at the outcome.
            let number = match phase {
                Phase::Listed(number) => number,
                Phase::New | Phase::Done => {
                    queues.list(node, self.bytes, deadline, Want::Charge, Party::awake())
                }
            };
            queues.enqueue(number, at);
            queues.set_deadline(number, self.deadline);
            let is_in_queue = queues.entry(number).is_in_queue();
            let waker = cloned.take_if(|_| is_in_queue);
            Some((number, waker.map(|waker| queues.set_waker(number, waker))))
        });
        drop(cloned);
        let Some((number, before)) = entered else { return false };
        drop(before);
        held_back::after_enqueue(at);
        if let Phase::New = self.phase {
            pressure::begin_of_task(node);
            self.phase = Phase::Listed(number);
        }
        if !refused.seen.is_dry_run {
            count_max(refused, self.bytes);
        }
        true
    }

    /// The state in which it is: `Waiting` at its deadline, when it has left the queue; `None` if
    /// it waits, with this waker.
    fn look(&self, number: u64, waker: &Waker) -> Option<State> {
        let mut cloned = None;
        loop {
            let mut queues = self.node().shared().wait_queue().lock();
            if mutation::active(Mutation::FutureGoesWithoutTheCharge) && self.is_late() {
                return Some(State::Waiting);
            }
            let entry = queues.entry(number);
            if !entry.is_in_queue() {
                return Some(entry.state);
            }
            if self.is_late() {
                queues.leave_queue(number);
                return Some(State::Waiting);
            }
            if entry.is_woken_by(waker) || mutation::active(Mutation::FutureKeepsItsFirstWaker) {
                return None;
            }
            if let Some(cloned) = cloned.take() {
                let before = queues.set_waker(number, cloned);
                drop(queues);
                // The user's code may run here.
                drop(before);
                return None;
            }
            drop(queues);
            cloned = Some(waker.clone());
        }
    }

    /// Ends the wait. Returns the state in which it was, the level, and for how long it waited.
    fn leave(&mut self, number: u64) -> (State, &'static Node, Duration) {
        let node = self.node();
        self.phase = Phase::Done;
        let (party, left) = waiters::with_queues(node.shared(), |queues| {
            let entry = queues.entry(number);
            let (state, at, since) = (entry.state, entry.at, queues.since(entry));
            let party = queues.unlist(number);
            // It was perhaps one of those that are served at a time.
            queues.serve(at);
            (party, (state, at, since.elapsed()))
        });
        drop(party);
        pressure::end_of_task(node);
        left
    }

    /// The result of a wait that ended in `state`.
    fn end(&mut self, number: u64, state: State) -> Result<(), ChargeError> {
        let (node, bytes) = (self.node(), self.bytes);
        if state == State::Deserted {
            let outcome = self.finally(Some(ChargeErrorKind::NoReclaimer));
            self.leave(number);
            return outcome;
        }
        let (_, at, waited) = self.leave(number);
        let kind = match state {
            State::Handed => {
                high::after_charge(node, Until::Top, bytes, Effort::Count);
                return Ok(());
            }
            State::Woken => ChargeErrorKind::Woken,
            _ => ChargeErrorKind::Deadline,
        };
        let last = wait::over(node, Refused { node: at, seen: at.counter.read() }, bytes);
        let error = slow::refuse(node, last, bytes);
        Err(if last.seen.offline { error } else { error.after_wait(kind, waited) })
    }

    fn poll_charge(&mut self, waker: &Waker) -> Poll<Result<(), ChargeError>> {
        loop {
            let state = match self.phase {
                Phase::New => State::Again,
                Phase::Listed(number) => match self.look(number, waker) {
                    // It got a later deadline meanwhile.
                    Some(State::Late) if !self.is_late() => State::Again,
                    Some(state) => state,
                    None => return Poll::Pending,
                },
                Phase::Done => panic!("a charge is polled after its end"),
            };
            let outcome = match (state, self.phase) {
                (State::Again, _) => match self.attempt() {
                    Tried::Over(outcome) => outcome,
                    Tried::Waits(refused) if self.enqueue(refused, waker) => continue,
                    Tried::Waits(_) => self.finally(Some(ChargeErrorKind::NoReclaimer)),
                },
                (state, Phase::Listed(number)) => self.end(number, state),
                _ => continue,
            };
            if let Phase::Listed(number) = self.phase {
                self.leave(number);
            }
            self.phase = Phase::Done;
            return Poll::Ready(outcome);
        }
    }
}

impl Future for Charging {
    type Output = Result<Charge, ChargeError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Charge, ChargeError>> {
        let outcome = self.poll_charge(context.waker());
        outcome.map_ok(|()| Charge::owning(self.node(), self.bytes))
    }
}

impl Drop for Charging {
    fn drop(&mut self) {
        if crate::observe::wait::is_model_failing() {
            return;
        }
        if let Phase::Listed(number) = self.phase {
            let (state, ..) = self.leave(number);
            if state == State::Handed && !mutation::active(Mutation::DroppedFutureKeepsTheCharge) {
                aftermath::uncharge_counters(self.node(), self.bytes);
            }
        }
    }
}

impl core::fmt::Debug for Charging {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut charging = f.debug_struct("Charging");
        charging.field("group", &self.group.path()).field("bytes", &self.bytes);
        charging.field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl Growing<'_> {
    /// Sets until when it waits, as [`Charging::until`] does.
    pub fn until(mut self, deadline: impl Into<Deadline>) -> Self {
        self.more = self.more.until(deadline);
        self
    }

    /// Until when it waits; `None` for a wait without end.
    pub fn deadline(&self) -> Option<Instant> {
        self.more.deadline
    }

    /// The bytes by which the charge grows.
    pub fn bytes(&self) -> u64 {
        self.more.bytes
    }

    /// The group that is charged.
    pub fn group(&self) -> &Group {
        &self.more.group
    }
}

impl Future for Growing<'_> {
    type Output = Result<(), ChargeError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), ChargeError>> {
        let Growing { charge, more } = &mut *self;
        if more.bytes == 0 {
            return Poll::Ready(Ok(()));
        }
        more.poll_charge(context.waker()).map_ok(|()| charge.add(more.bytes))
    }
}

impl core::fmt::Debug for Growing<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Growing").field("charge", &self.charge).field("more", &self.more).finish()
    }
}

/// Charges that wait without a thread.
impl Group {
    /// Charges `bytes`, and waits for room without a thread: a future, of no runtime, with the
    /// queue and the order of [`charge_until`](Group::charge_until).
    ///
    /// The first poll takes prepaid bytes, or charges the counters. Where a limit leaves no room,
    /// the future waits at the group that refused. The thread that uncharges there makes the
    /// charge, and then calls the waker: in the order of [weights](Group::set_weight), then of
    /// arrival. Later polls look at the outcome. No poll calls a shrinker or a kill hook, or
    /// waits for a thread that is being refused. A [`Reclaimer`](crate::Reclaimer) makes room
    /// for the futures that wait: caches give back for them, and victims are stopped. So a
    /// hierarchy needs one that [runs](crate::Reclaimer::run).
    ///
    /// The wait is [listed](crate::Hierarchy::waits), counts as a stall of the group in its
    /// [pressure](Group::pressure), and is ended by [`wake_waiters`](Group::wake_waiters) and
    /// by the removal of the group. The future keeps the group as a handle does. Bytes above a
    /// [`high`](Group::set_high) become debt, as by [`Effort::Count`].
    ///
    /// *Cancel safety*: dropped at any moment it leaves nothing behind.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// # use std::pin::pin;
    /// # use std::task::{Context, Poll, Waker};
    /// # use std::time::Duration;
    /// # struct Executor;
    /// # impl Executor { fn poll<F: Future>(&self, future: std::pin::Pin<&mut F>) -> Poll<F::Output> { future.poll(&mut Context::from_waker(Waker::noop())) } }
    /// # let executor = Executor;
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let reclaimer = hierarchy.reclaimer();
    /// let stop = reclaimer.stop_handle();
    /// let thread = std::thread::spawn(|| reclaimer.run());
    ///
    /// let tenant = hierarchy.create("/tenant").unwrap();
    /// tenant.set_max(1000).unwrap();
    /// let held = tenant.try_charge(600).unwrap();
    /// let mut charging = pin!(tenant.charge(600).until(Duration::from_secs(60)));
    /// assert!(executor.poll(charging.as_mut()).is_pending());
    /// drop(held);
    /// let charge = loop {
    ///     if let Poll::Ready(charge) = executor.poll(charging.as_mut()) {
    ///         break charge.unwrap();
    ///     }
    /// };
    /// assert_eq!(charge.bytes(), 600);
    /// stop.stop();
    /// thread.join().unwrap();
    /// ```
    ///
    /// # Errors
    /// - [`NoReclaimer`](crate::ChargeErrorKind::NoReclaimer), at once: there is no room, prepaid
    ///   bytes included, and no reclaimer; or the last one was stopped while it waited.
    /// - [`Deadline`](crate::ChargeErrorKind::Deadline): there was no room at a poll after the
    ///   deadline.
    /// - [`Woken`](crate::ChargeErrorKind::Woken): all waits of the group were ended.
    /// - At once, as by [`try_charge_by`](Group::try_charge_by): the group was removed, also while
    ///   it waited; or `bytes` are more than a limit allows in all. Within a shrinker's call it
    ///   does not wait.
    ///
    /// # Panics
    /// When it is polled after its end.
    pub fn charge(&self, bytes: u64) -> Charging {
        Charging { group: self.clone(), bytes, deadline: None, phase: Phase::New }
    }
}

/// Growth that waits without a thread.
impl Charge {
    /// Charges `bytes` more, and waits for room without a thread, as [`Group::charge`] does. The
    /// charge keeps its bytes meanwhile.
    ///
    /// *Cancel safety*: dropped at any moment it leaves this charge as it was.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// # use std::pin::pin;
    /// # use std::task::{Context, Poll, Waker};
    /// # let group = Hierarchy::new(Config::new()).unwrap().create("/group").unwrap();
    /// let mut charge = group.try_charge(1000).unwrap();
    /// let polled = pin!(charge.grow(500)).poll(&mut Context::from_waker(Waker::noop()));
    /// assert_eq!(polled, Poll::Ready(Ok(())));
    /// assert_eq!(charge.bytes(), 1500);
    /// ```
    ///
    /// # Errors
    /// As there; this charge stays as it was.
    pub fn grow(&mut self, bytes: u64) -> Growing<'_> {
        let more = self.group().charge(bytes);
        Growing { charge: self, more }
    }
}
