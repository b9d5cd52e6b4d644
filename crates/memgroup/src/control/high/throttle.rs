//! Throttle: delays the thread of a group that owes, at a moment that the caller chooses.
//!
//! A charge never sleeps, because it may be inside an allocator, with a lock that others need.
//! Instead, the bytes that it took above a limit become a debt. The code that works for the group
//! pays it between its statements: by [`Group::throttle`], or by [`Group::take_throttle`] if it
//! must not block a thread.
//!
//! ```text
//!   debt ─▶ any level above? ─▶ 10 ms worth? ─▶ drain, shrinkers free ─▶ still above? ─▶ taken
//!            └─ no: forgiven     └─ no: stays                                              │
//!            dropped too early: the rest is owed again  ◀── dropped: paid ◀── time passes ◀┘
//! ```
//!
//! - I1. A debt that was taken is in one [`Throttle`], which pays by its time or returns the rest
//!   (`debt` I1).
//! - I2. Nothing here waits in a shrinker's call or a read section. Nothing waits beyond the
//!   caller's deadline, except for a callback that hangs.
//! - B1. A sleeping thread checks every [`CHECK_EVERY`] whether it must still sleep, so it may
//!   sleep that much too long.

use core::fmt;
use core::time::Duration;
use std::time::Instant;

use crate::base::deadline::Deadline;
use crate::control::aftermath;
use crate::control::high::delay::{delay, is_due, unpaid};
use crate::control::high::notice::SLACK_BYTES;
use crate::control::high::{Level, drain_stocks, must_not_wait};
use crate::counter::chain;
use crate::observe::pressure;
use crate::observe::wait::{WaitKind, Wake, list};
use crate::reclaim::{self, Purpose};
use crate::state::stats::builtin::memory;
use crate::stats::update::count;
use crate::tree::handle::Group;
use crate::tree::node::Node;

/// How often a sleeping thread checks whether it must still sleep. To wake it, every uncharge
/// would have to look for sleeping threads.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// The reason why a [`Group::throttle`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ThrottleEnd {
    /// The group owes nothing, or less than 10 ms' worth.
    NothingDue,
    /// No level is above its limit, or none was any more before the delay was over. The debt is
    /// forgiven.
    Within,
    /// The thread is in a shrinker's call or in a read section, where it must not wait. The debt
    /// stays.
    Inside,
    /// The thread slept for the whole debt.
    Paid,
    /// The deadline has passed. The rest is still owed.
    Deadline,
    /// All waiters of the group were woken. The debt is forgiven.
    Woken,
    /// The group was removed.
    Removed,
}

/// The result of a [`Group::throttle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Throttled {
    /// The reason why it returned.
    pub end: ThrottleEnd,
    /// Bytes that it had to pay for.
    pub bytes: u64,
    /// The delay for them.
    pub delay: Duration,
    /// How long it slept.
    pub slept: Duration,
    /// Bytes that shrinkers freed before.
    pub reclaimed: u64,
}

/// A delay that a group owes, for a caller that schedules it: keep it for
/// [`delay`](Throttle::delay), then drop it.
///
/// While it lives, the group counts as delayed in the statistics `throttles` and `throttled_usec`.
/// If it's dropped too early, the rest is owed again, unless no level is above its limit any more.
/// So a statement that is cancelled during its delay doesn't escape it.
///
/// ```
/// # use memgroup::{Config, Hierarchy};
/// # use std::time::Duration;
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let etl = hierarchy.create("/etl").unwrap();
/// etl.set_high(1 << 20).unwrap();
/// let pinned = etl.try_charge(2 << 20).unwrap();
/// let throttle = etl.take_throttle().expect("twice the limit is charged");
/// assert_eq!((throttle.delay(), throttle.bytes()), (Duration::from_secs(2), 1 << 20));
/// assert!(etl.take_throttle().is_none(), "it is owed once");
/// drop(pinned);
/// assert_eq!(throttle.left(), Duration::ZERO);
/// ```
#[must_use = "the rest is owed again if this is dropped too early"]
pub struct Throttle {
    group: Group,
    bytes: u64,
    worst: Worst,
    delay: Duration,
    since: Instant,
    forgiven: bool,
}

/// The level that is furthest above its limit.
#[derive(Clone, Copy)]
struct Worst {
    node: &'static Node,
    /// The part of its limit by which it exceeds it, or 0 if no level is above.
    ratio: f64,
}

impl Worst {
    fn of(node: &'static Node) -> Worst {
        let all = chain::levels(node).map(|node| Worst { node, ratio: Level::of_both(node).ratio() });
        all.max_by(|a, b| a.ratio.total_cmp(&b.ratio)).unwrap_or(Worst { node, ratio: 0.0 })
    }

    fn is_within(self) -> bool {
        self.ratio == 0.0
    }
}

/// Returns the level because of which the group must pay now, or the reason why it need not.
/// Forgives the debt if no level is above its limit.
fn due(node: &'static Node) -> Result<Worst, ThrottleEnd> {
    let debt = &node.rare().high.debt;
    let owed = debt.bytes();
    if owed == 0 {
        return Err(ThrottleEnd::NothingDue);
    }
    if must_not_wait() {
        return Err(ThrottleEnd::Inside);
    }
    if node.counter.is_offline() {
        return Err(ThrottleEnd::Removed);
    }
    let worst = Worst::of(node);
    if worst.is_within() {
        debt.forgive_seen(owed);
        return Err(ThrottleEnd::Within);
    }
    if is_due(worst.ratio, owed) { Ok(worst) } else { Err(ThrottleEnd::NothingDue) }
}

/// Drains the stocks below each level that is above its limit. Then, if `asks` is set, has
/// shrinkers there free bytes, and waits for them. Returns the freed bytes.
fn make_room(node: &'static Node, deadline: Option<Instant>, asks: bool) -> u64 {
    let mut given = 0;
    for level in chain::levels(node) {
        if Level::of_both(level).above() > 0 {
            drain_stocks(level);
        }
        let above = Level::of_both(level).above();
        if above > 0 && asks {
            let wanted = above.min(node.rare().high.debt.bytes().saturating_add(SLACK_BYTES));
            let _stall = reclaim::is_any(level).then(|| pressure::stall(node));
            given += reclaim::reclaim(level, Purpose::High { may_wait: true }, wanted, deadline).bytes;
        }
    }
    given
}

impl Throttle {
    fn take(group: &Group) -> Result<Throttle, ThrottleEnd> {
        let worst = due(group.node())?;
        let taken = group.node().rare().high.debt.take(|owed| is_due(worst.ratio, owed));
        let bytes = taken.ok_or(ThrottleEnd::NothingDue)?;
        let (delay, since) = (delay(worst.ratio, bytes), Instant::now());
        Ok(Throttle { group: group.clone(), bytes, worst, delay, since, forgiven: false })
    }

    /// Returns how long the group should be delayed: at least 10 ms, at most 2 s.
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// Returns the rest of the delay, counted from when it was taken. The rest is zero once no
    /// level of the group is above its limit.
    pub fn left(&self) -> Duration {
        let left = self.delay.saturating_sub(self.since.elapsed());
        if left.is_zero() || self.is_needless() { Duration::ZERO } else { left }
    }

    /// Ends the delay as paid, whatever is left of it by this thread's clock. This is for callers
    /// with a clock of their own, such as a runtime's timer.
    pub fn finish(mut self) {
        self.forgiven = true;
    }

    /// Returns the bytes that it pays for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the group that owes.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Returns whether no level is above its limit any more, or the group is removed. Drains the
    /// group's own stocks first, because freed bytes are there.
    fn is_needless(&self) -> bool {
        let node = self.group.node();
        if node.counter.is_offline() {
            return true;
        }
        if !Worst::of(node).is_within() {
            aftermath::drain(node);
        }
        Worst::of(node).is_within()
    }

    fn sleep(&self, deadline: Option<Instant>) -> ThrottleEnd {
        let paid = self.since + self.delay;
        let until = deadline.map_or(paid, |deadline| deadline.min(paid));
        let node = self.group.node();
        let listed = list::begin_at(node, self.worst.node, WaitKind::Throttle, self.bytes, until);
        loop {
            if node.counter.is_offline() {
                return ThrottleEnd::Removed;
            }
            let now = Instant::now();
            if now >= until {
                return if now >= paid { ThrottleEnd::Paid } else { ThrottleEnd::Deadline };
            }
            // The group may be removed between the two checks.
            if self.is_needless() && !node.counter.is_offline() {
                return ThrottleEnd::Within;
            }
            if listed.park(until.min(now + CHECK_EVERY)) == Wake::All && !node.counter.is_offline() {
                return ThrottleEnd::Woken;
            }
        }
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        let lasted = self.since.elapsed();
        count(self.group.node(), memory::THROTTLES, 1);
        let nanos = u64::try_from(lasted.as_nanos()).unwrap_or(u64::MAX);
        count(self.group.node(), memory::THROTTLED_USEC, nanos);
        let left = self.delay.saturating_sub(lasted);
        if !left.is_zero() && !self.forgiven && !self.is_needless() {
            self.group.node().rare().high.debt.add(unpaid(self.worst.ratio, self.bytes, left));
        }
    }
}

impl fmt::Debug for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Throttle");
        out.field("group", &self.group.path()).field("bytes", &self.bytes).field("delay", &self.delay);
        out.finish_non_exhaustive()
    }
}

/// Throttling.
impl Group {
    /// Delays the calling thread for the group's [debt](Group::owed). Call it while the thread
    /// holds no lock that other threads wait for: between two statements, outside of transactions.
    ///
    /// First, shrinkers of the levels that are above their limit free bytes, and here they may
    /// wait. If that is not enough, the thread sleeps for r² x debt / 4096 seconds, up to 2 s,
    /// where r is the part of its limit (the lower of `high` and `max`) by which the worst level
    /// exceeds it. A debt that costs less than 10 ms stays until it has grown. The thread wakes
    /// early, within 10 ms, when no level is above its limit any more or the group is removed.
    /// Otherwise it wakes at the deadline at the latest. No group is killed and no charge refused
    /// because of the debt.
    ///
    /// Without a debt, a call costs one load. Within a shrinker's call or a read section it does
    /// nothing.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy, ThrottleEnd};
    /// # use std::time::{Duration, Instant};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let etl = hierarchy.create("/etl").unwrap();
    /// assert_eq!(etl.throttle(None).end, ThrottleEnd::NothingDue);
    /// etl.set_high(1 << 20).unwrap();
    /// let pinned = etl.try_charge(2 << 20).unwrap();
    /// let throttled = etl.throttle(Some(Instant::now() + Duration::from_millis(20)));
    /// assert_eq!(throttled.end, ThrottleEnd::Deadline);
    /// assert_eq!(throttled.delay, Duration::from_secs(2));
    /// drop(pinned);
    /// assert_eq!(etl.throttle(None).end, ThrottleEnd::Within);
    /// ```
    pub fn throttle(&self, deadline: impl Into<Deadline>) -> Throttled {
        let deadline = deadline.into().instant();
        let node = self.node();
        let mut throttled = Throttled {
            end: ThrottleEnd::Deadline,
            bytes: 0,
            delay: Duration::ZERO,
            slept: Duration::ZERO,
            reclaimed: 0,
        };
        if let Err(end) = due(node) {
            return Throttled { end, ..throttled };
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return throttled;
        }
        throttled.reclaimed = make_room(node, deadline, true);
        match Throttle::take(self) {
            Ok(mut throttle) => {
                let end = throttle.sleep(deadline);
                throttle.forgiven = end == ThrottleEnd::Woken;
                let (bytes, delay, slept) = (throttle.bytes, throttle.delay, throttle.since.elapsed());
                Throttled { end, bytes, delay, slept, ..throttled }
            }
            Err(end) => Throttled { end, ..throttled },
        }
    }

    /// Takes the group's [debt](Group::owed) as a delay for callers that schedule themselves.
    /// Returns `None` if nothing is due, or within a shrinker's call or a read section.
    ///
    /// It neither sleeps nor asks shrinkers, which might wait; see [`reclaim`](Group::reclaim) for
    /// that. Otherwise it does the same as [`throttle`](Group::throttle).
    pub fn take_throttle(&self) -> Option<Throttle> {
        due(self.node()).ok()?;
        make_room(self.node(), None, false);
        Throttle::take(self).ok()
    }
}
