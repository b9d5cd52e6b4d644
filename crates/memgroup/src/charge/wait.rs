//! A charge with a deadline: tried as any other, and where it is refused it waits for room at the
//! group that refused.
//!
//! ```text
//!   stock ─▶ counters ─▶ drained, reclaimed ─▶ refused by T ─▶ hold T ─▶ in line at T ─▶ handed over
//!                              ▲                                             ├─▶ another level refuses: in line there
//!                              └──── every 100 ms, where there are shrinkers ┤
//!                                                                            └─▶ deadline, woken, removed: an error
//! ```
//!
//! - I1. The wait ends by its deadline. A shrinker's call that the waiting thread makes itself may
//!   end later, and so may bounded steps of the engine.
//! - I2. A charge that can never fit where it would wait, or of a removed group, does not wait.
//! - I3. While it waits it holds one group: that group's subtree has no stock until the last that
//!   waits there is gone.

use core::time::Duration;
use std::cell::Cell;
use std::time::Instant;

use memgroup_sync::atomic::Ordering;
use memgroup_sync::{MutexGuard, thread};

use crate::base::deadline::Deadline;
use crate::base::effort::Means;
use crate::base::mutation::{self, Mutation};
use crate::charge::miss;
use crate::charge::slow::{Ask, charge_slow_path};
use crate::control::make_room::{Room, make_room};
use crate::control::oom::OomAttempt;
use crate::control::{aftermath, held_back, over_limit, waiters};
use crate::counter::chain::{self, Refused, Until};
use crate::observe::pressure::{self, StallGuard};
use crate::observe::wait::charges::{ChargeQueue, Party, State, Want};
use crate::state::counter::Reading;
use crate::tree::error::{ChargeError, ChargeErrorKind};
use crate::tree::handle::Group;
use crate::tree::node::Node;

/// After how long the first in a line has shrinkers asked again: caches may have been filled
/// without anything being uncharged.
pub(crate) const REVIEW: Duration = Duration::from_millis(100);

/// Charges `bytes`, and waits for room until `deadline`.
pub(crate) fn charge_until(node: &'static Node, bytes: u64, deadline: Instant) -> Result<(), ChargeError> {
    miss::charge(node, bytes, Means::until(deadline))
}

/// Waits until there is room for `bytes`, and charges nothing.
fn wait_for_room(node: &'static Node, bytes: u64, deadline: Instant) -> Result<(), ChargeError> {
    if bytes == 0 {
        let seen = node.counter.read();
        return if seen.offline { Err(ChargeError::of(node, seen, 0)) } else { Ok(()) };
    }
    let ask = Ask { want: Want::Room, means: Means::until(deadline), ..Ask::exact(bytes, Until::Top) };
    charge_slow_path(node, ask)
}

/// The highest level of the chain at which a charge waits.
pub(crate) fn held_level(node: &'static Node) -> Option<&'static Node> {
    chain::levels(node).filter(|level| level.waiting.is_held() && !level.counter.read().is_dry_run).last()
}

/// How a wait in one queue ended.
pub(crate) enum Left {
    Handed,
    Again(Refused),
    Over(ChargeErrorKind),
}

/// The next step of a waiting charge.
pub(crate) enum Waited {
    /// The charge was made for it.
    Handed,
    /// The charge is tried again.
    Again,
    /// The charge is refused.
    Over,
}

/// The whole wait of one charge, in one queue after the other.
pub(crate) struct WaitSession {
    node: &'static Node,
    bytes: u64,
    deadline: Instant,
    want: Want,
    /// Its number among the waits.
    number: u64,
    /// The kills for the charge since it waits.
    attempt: Cell<Option<OomAttempt>>,
    _stall: StallGuard<'static>,
}

impl WaitSession {
    pub(crate) fn begin(node: &'static Node, bytes: u64, deadline: Instant, want: Want) -> WaitSession {
        let thread = Party::Thread(thread::current());
        let number = node.shared().wait_queue().lock().list(node, bytes, deadline, want, thread);
        let stall = pressure::stall(node);
        WaitSession { node, bytes, deadline, want, number, attempt: Cell::new(None), _stall: stall }
    }

    /// Waits once, at the level that refused `last`.
    pub(crate) fn wait(&self, last: &mut Refused, ended: &mut Option<ChargeErrorKind>) -> Waited {
        match self.in_line(last.node) {
            Ok(Left::Handed) => return Waited::Handed,
            Ok(Left::Again(refused)) | Err(refused) => *last = refused,
            Ok(Left::Over(kind)) => {
                *last = over(self.node, *last, self.bytes);
                *ended = (!last.seen.offline).then_some(kind);
                return Waited::Over;
            }
        }
        Waited::Again
    }

    /// Waits at `at`, which has refused. `Err`: the group was removed.
    pub(crate) fn in_line(&self, at: &'static Node) -> Result<Left, Refused> {
        let _hold = FreezeGuard::begin(self.node, at)?;
        waiters::with_queues(self.node.shared(), |queues| queues.enqueue(self.number, at));
        held_back::after_enqueue(at);
        let mut review = self.next_review();
        while self.is_in_queue() {
            let now = Instant::now();
            if now >= self.deadline {
                break;
            }
            if now >= review {
                self.review(at);
                review = self.next_review();
            } else {
                thread::park_timeout(review.min(self.deadline) - now);
            }
        }
        Ok(match self.leave() {
            State::Handed => Left::Handed,
            State::Woken => Left::Over(ChargeErrorKind::Woken),
            State::Again => {
                let node = self.queues().entry(self.number).at;
                Left::Again(Refused { node, seen: node.counter.read() })
            }
            State::Idle | State::Waiting | State::Away | State::Deserted | State::Late => {
                Left::Over(ChargeErrorKind::Deadline)
            }
        })
    }

    fn queues(&self) -> MutexGuard<'_, ChargeQueue> {
        self.node.shared().wait_queue().lock()
    }

    fn is_in_queue(&self) -> bool {
        self.queues().entry(self.number).is_in_queue()
    }

    /// When it looks again whether caches can give, or another group must be stopped.
    fn next_review(&self) -> Instant {
        let shared = self.node.shared();
        let gives = shared.config.reclaim() && shared.shrinkers().is_any();
        // A charge, too, may lower the bytes kept free for others, and serves no waiter.
        let reviews = gives || self.may_kill() || shared.protected().is_any();
        if reviews { Instant::now() + REVIEW } else { self.deadline }
    }

    fn may_kill(&self) -> bool {
        self.want != Want::Room && self.node.shared().victims().is_any()
    }

    /// The first in the queue has shrinkers asked once more, and the next victim if the one before
    /// takes too long.
    fn review(&self, at: &'static Node) {
        if !self.queues().begin_review(self.number) {
            return;
        }
        let (&WaitSession { node, bytes, .. }, mut over) = (self, at);
        let gives = node.shared().config.reclaim() && node.shared().shrinkers().is_any();
        let end = self.deadline.min(Instant::now() + node.shared().config.reclaim_patience());
        let is_made = gives && make_room(node, Until::Top, bytes, &mut over, end) == Room::Charged
            || self.may_kill() && self.kill(&mut over);
        if is_made && self.want != Want::Charge {
            aftermath::uncharge_counters(node, bytes);
        }
        let was_away = waiters::with_queues(node.shared(), |queues| queues.end_review(self.number, is_made));
        held_back::after_enqueue(at);
        if is_made && !was_away && self.want == Want::Charge {
            aftermath::uncharge_counters(node, bytes);
        }
    }

    /// Stops a group that was not asked yet for this charge. Returns whether the charge is made.
    fn kill(&self, over: &mut &'static Node) -> bool {
        let mut attempt = self.attempt.take().unwrap_or_else(|| OomAttempt::new(self.node, true));
        let is_made = attempt.make_charge(Until::Top, self.bytes, over);
        self.attempt.set(Some(attempt));
        is_made
    }

    /// Leaves the queue. Returns the state in which it was: with `Handed`, its charge is made.
    fn leave(&self) -> State {
        let mut queues = self.queues();
        let state = queues.entry(self.number).state;
        queues.leave_queue(self.number);
        if mutation::active(Mutation::WaiterGoesWithoutTheCharge) { State::Waiting } else { state }
    }
}

impl Drop for WaitSession {
    fn drop(&mut self) {
        if crate::observe::wait::is_model_failing() {
            return;
        }
        let party = self.queues().unlist(self.number);
        // The thread's handle is freed without the lock.
        drop(party);
    }
}

/// The level that a wait of `node` for `bytes` names at its end, after `last` refused it.
///
/// The group may have less by now than when its fair share refused the charge. As in
/// `share::refused`, the share that is named is one that the charge doesn't fit.
pub(crate) fn over(node: &'static Node, last: Refused, bytes: u64) -> Refused {
    let at = if node.counter.is_offline() { node } else { last.node };
    let seen = at.counter.read();
    let seen = match last.seen {
        Reading { is_share: true, max, .. } if std::ptr::eq(at, last.node) => {
            let most = seen.usage.saturating_add(bytes).saturating_sub(1);
            Reading { is_share: true, max: max.min(most), ..seen }
        }
        Reading { reserved, .. } if std::ptr::eq(at, last.node) => Reading { reserved, ..seen },
        _ => seen,
    };
    Refused { node: at, seen }
}

/// A charge waits at a group: until this is dropped there is no stock in its subtree.
struct FreezeGuard {
    at: &'static Node,
}

impl FreezeGuard {
    /// For a charge of `node` that waits at `at`. `Err`: the group was removed.
    fn begin(node: &'static Node, at: &'static Node) -> Result<FreezeGuard, Refused> {
        // A removal from here on ends the wait, which is listed already.
        let seen = node.counter.read();
        if seen.offline {
            return Err(Refused { node, seen });
        }
        over_limit::change(at, |at| {
            // ORDERING: Relaxed; changed under the lock of the level, and published by the mark
            // (see `is_held`).
            at.waiting.held.fetch_add(1, Ordering::Relaxed)
        });
        Ok(FreezeGuard { at })
    }
}

impl Drop for FreezeGuard {
    fn drop(&mut self) {
        if crate::observe::wait::is_model_failing() {
            return;
        }
        over_limit::change(self.at, |at| {
            // ORDERING: Relaxed; as in `begin`.
            at.waiting.held.fetch_sub(1, Ordering::Relaxed)
        });
        // The others may have let this one go first.
        _ = waiters::serve(self.at);
    }
}

/// Waiting for room.
impl Group {
    /// Waits until `deadline` for room for `bytes`, as [`charge_until`](Group::charge_until) does,
    /// and charges nothing.
    ///
    /// For work that failed for want of memory, has set its memory free, and is tried again when
    /// it may succeed. Its caller can only guess the size, so no kill hook is called for it.
    ///
    /// There was room at an instant within the call; other charges may have it by the time it
    /// returns. Where reclaim makes the room, the bytes are charged for that instant, which the
    /// group's [peak](Group::peak) may show.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy, KillAnswer, KillRequest};
    /// # use std::time::{Duration, Instant};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let tenants = hierarchy.create("/tenants").unwrap();
    /// tenants.set_max(1000).unwrap();
    /// let (query, neighbour) = (tenants.create("query").unwrap(), tenants.create("neighbour").unwrap());
    /// let _held = neighbour.try_charge(600).unwrap();
    /// let _hook = neighbour.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Dying).unwrap();
    /// let soon = || Instant::now() + Duration::from_millis(20);
    /// assert!(query.wait_for_room(400, soon()).is_ok() && query.usage_exact() == 0);
    /// assert!(query.wait_for_room(600, soon()).is_err() && neighbour.events().oom_kill == 0);
    /// ```
    ///
    /// # Errors
    /// As for [`charge_until`](Group::charge_until).
    pub fn wait_for_room(&self, bytes: u64, deadline: impl Into<Deadline>) -> Result<(), ChargeError> {
        wait_for_room(self.node(), bytes, deadline.into().instant_or_far())
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::charge::wait::*;
    use crate::{Config, Hierarchy};

    #[test]
    fn a_wait_that_a_share_refused_does_not_say_that_the_charge_fits() {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        parent.set_max(1000).unwrap();
        parent.set_share(Some(8)).unwrap();
        let [large, small] = ["large", "small"].map(|name| parent.create(name).unwrap());
        let _small = small.try_charge(10).unwrap();
        let mut held = vec![large.try_charge(400).unwrap()];
        while let Ok(charge) = large.try_charge(50) {
            held.push(charge);
        }
        let node = large.node();
        let refused = chain::look_for_room(node, Until::Top, 300).expect_err("it is beyond its share");
        assert!(refused.seen.is_share);
        // The wait goes on, because the parent has no room for it, when the group frees most of its
        // own.
        held.truncate(1);
        let over = over(node, refused, 300);
        assert!(over.seen.is_share && std::ptr::eq(over.node, node));
        assert_eq!(over.seen.usage, 400);
        assert!(over.seen.usage + 300 > over.seen.max, "400 and 300 bytes fit in {}", over.seen.max);
    }
}
