//! Throttle: a group that owes is slowed down, at a moment of its own choosing.
//!
//! A charge never sleeps: it may be in somebody's allocator, with a lock that others need. What it took above a limit is a debt instead, and the
//! code that works for the group pays between its statements, by [`Group::throttle`], or, where it has no thread to block, by [`Group::take_throttle`].
//!
//! ```text
//!   debt ─▶ any level above? ─▶ 10 ms worth? ─▶ drain, caches give back ─▶ still? ─▶ taken ─▶ time passes ─▶ dropped: paid
//!            └─ no: forgiven     └─ no: stays                                          └─ too early: what is left is owed again
//! ```
//!
//! - I1. A debt that was taken is in one [`Throttle`], which pays by its time or gives the rest back (`debt` I1).
//! - I2. Nothing here waits in a shrinker's call or a read section, or beyond the caller's deadline but for a callback that does not end.
//! - B1. Who sleeps looks each [`LOOK_EVERY`] whether it has to; so it may sleep so much too long.

use core::fmt;
use core::time::Duration;
use std::time::Instant;

use super::delay::{delay, is_due, unpaid};
use super::notice::SLACK_BYTES;
use super::{Level, drain_stocks, is_inside, levels};
use crate::group::Group;
use crate::node::Node;
use crate::pressure;
use crate::shrink::reclaim;
use crate::stock::{count, drain};
use crate::wait::{self, WaitKind, Wake};

/// How often who sleeps looks whether it has to. Being told would cost every uncharge a look at who sleeps.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How a [`Group::throttle`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ThrottleEnd {
    /// Nothing is owed, or less than 10 ms' worth.
    NothingDue,
    /// No level is above its limit, or none was any more before the delay was over: what was owed is forgiven.
    Within,
    /// The thread is in a shrinker's call or in a read section, where nobody waits. What is owed stays owed.
    Inside,
    /// It has slept for what was owed.
    Paid,
    /// The deadline has passed. What it did not sleep for is still owed.
    Deadline,
    /// Somebody woke all waiters of the group: what was owed is forgiven.
    Woken,
    /// The group was removed.
    Removed,
}

/// What came of a [`Group::throttle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Throttled {
    /// How it ended.
    pub end: ThrottleEnd,
    /// Bytes it was to pay for.
    pub bytes: u64,
    /// How long it was to sleep for them.
    pub delay: Duration,
    /// How long it slept.
    pub slept: Duration,
    /// Bytes that caches gave back before.
    pub reclaimed: u64,
}

impl Throttled {
    fn without_sleep(end: ThrottleEnd, reclaimed: u64) -> Throttled {
        Throttled { end, bytes: 0, delay: Duration::ZERO, slept: Duration::ZERO, reclaimed }
    }
}

/// A delay that a group owes and its caller sees to: keep it for [`delay`](Throttle::delay), then drop it.
///
/// While it lives the group is being slowed down: it counts in the statistics `throttles` and `throttled_usec` for as long as it was kept. What it was dropped too early for is owed again, unless no level is above its limit any more; so a
/// statement that is cancelled in the middle of its delay has not escaped it.
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
#[must_use = "what is dropped too early is owed again"]
pub struct Throttle {
    group: Group,
    bytes: u64,
    /// The worst level, and by how much of its limit it was above it.
    worst: Worst,
    delay: Duration,
    since: Instant,
    forgiven: bool,
}

/// The level that is furthest above its limit.
#[derive(Clone, Copy)]
struct Worst {
    node: &'static Node,
    /// By how much of its limit; 0 where none is above.
    ratio: f64,
}

impl Worst {
    fn of(node: &'static Node) -> Worst {
        let all = levels(node).map(|node| Worst { node, ratio: Level::of_both(node).ratio() });
        all.max_by(|a, b| a.ratio.total_cmp(&b.ratio)).unwrap_or(Worst { node, ratio: 0.0 })
    }

    fn is_within(self) -> bool {
        self.ratio == 0.0
    }
}

/// Whether it is time to pay, and because of which level.
fn look(node: &'static Node) -> Result<Worst, ThrottleEnd> {
    let debt = &node.control.high.debt;
    let owed = debt.bytes();
    if owed == 0 {
        return Err(ThrottleEnd::NothingDue);
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

/// Returns what is prepaid below each level that is above its limit; then, if it may wait, has caches there give back. Bytes given back.
fn make_room(node: &'static Node, deadline: Option<Instant>, asks: bool) -> u64 {
    let mut given = 0;
    for level in levels(node) {
        if Level::of_both(level).above() > 0 {
            drain_stocks(level);
        }
        let above = Level::of_both(level).above();
        if above > 0 && asks {
            let wanted = above.min(node.control.high.debt.bytes().saturating_add(SLACK_BYTES));
            let _stall = reclaim::is_any(level).then(|| pressure::stall_that_lasts(node));
            given += reclaim::bring_down(level, wanted, deadline, true).bytes;
        }
    }
    given
}

impl Throttle {
    fn take(group: &Group) -> Result<Throttle, ThrottleEnd> {
        let node = group.node();
        let worst = look(node)?;
        let debt = &node.control.high.debt;
        let bytes = debt.take(|owed| is_due(worst.ratio, owed)).ok_or(ThrottleEnd::NothingDue)?;
        Ok(Throttle {
            group: group.clone(),
            bytes,
            worst,
            delay: delay(worst.ratio, bytes),
            since: Instant::now(),
            forgiven: false,
        })
    }

    /// How long the group is to be held up: at least 10 ms, at most 2 s.
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// How much of the delay is left, counted from when it was taken; zero as soon as no level of the group is above its limit.
    pub fn left(&self) -> Duration {
        let left = self.delay.saturating_sub(self.since.elapsed());
        if left.is_zero() || self.is_needless() { Duration::ZERO } else { left }
    }

    /// Bytes it pays for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The group that owes.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Whether no level is above its limit any more, or the group is removed. What lies in the group's own stocks is looked at too, because what is
    /// uncharged goes there first.
    fn is_needless(&self) -> bool {
        let node = self.group.node();
        if node.counter.is_offline() {
            return true;
        }
        if !Worst::of(node).is_within() && node.shared.has_stock() {
            let _tree = node.shared.tree.lock();
            drain::group(node);
        }
        Worst::of(node).is_within()
    }

    /// Sleeps for what is owed.
    fn sleep(&self, deadline: Option<Instant>) -> ThrottleEnd {
        let paid = self.since + self.delay;
        let until = deadline.map_or(paid, |deadline| deadline.min(paid));
        let node = self.group.node();
        let listed = wait::begin(node, WaitKind::Throttle, self.bytes, until);
        listed.at(self.worst.node);
        loop {
            if node.counter.is_offline() {
                return ThrottleEnd::Removed;
            }
            let now = Instant::now();
            if now >= until {
                return if now >= paid { ThrottleEnd::Paid } else { ThrottleEnd::Deadline };
            }
            // A removal may come between the two looks.
            if self.is_needless() && !node.counter.is_offline() {
                return ThrottleEnd::Within;
            }
            if listed.park(until.min(now + LOOK_EVERY)) == Wake::All && !node.counter.is_offline() {
                return ThrottleEnd::Woken;
            }
        }
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        let lasted = self.since.elapsed();
        count::throttle(self.group.node(), u64::try_from(lasted.as_nanos()).unwrap_or(u64::MAX));
        let left = self.delay.saturating_sub(lasted);
        if !left.is_zero() && !self.forgiven && !self.is_needless() {
            self.group.node().control.high.debt.note(unpaid(self.worst.ratio, self.bytes, left));
        }
    }
}

impl fmt::Debug for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.group.path();
        f.debug_struct("Throttle")
            .field("group", &path)
            .field("bytes", &self.bytes)
            .field("delay", &self.delay)
            .finish_non_exhaustive()
    }
}

impl Group {
    /// Slows the calling thread down for what this group [owes](Group::owed): to be called where it holds nothing that others wait for, between two statements and
    /// outside of transactions.
    ///
    /// Caches of the levels that are above their limit give back first, and here they may wait. If that is not enough the thread sleeps for r² x debt / 4096 seconds, where r is by how much of
    /// its limit (the lower of `high` and `max`) the worst level is above it, up to 2 s; a debt that costs less than 10 ms stays until more has come. It is woken early, within 10 ms, when no level is above any
    /// more or the group is removed, and by the deadline. Nobody is killed or refused because of it.
    ///
    /// Where nothing is owed it is a load. From within a shrinker's call or a read section it does nothing.
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
    /// assert_eq!((throttled.end, throttled.delay), (ThrottleEnd::Deadline, Duration::from_secs(2)));
    /// drop(pinned);
    /// assert_eq!(etl.throttle(None).end, ThrottleEnd::Within);
    /// ```
    pub fn throttle(&self, deadline: Option<Instant>) -> Throttled {
        let node = self.node();
        if node.control.high.debt.bytes() == 0 {
            return Throttled::without_sleep(ThrottleEnd::NothingDue, 0);
        }
        if is_inside() {
            return Throttled::without_sleep(ThrottleEnd::Inside, 0);
        }
        if let Err(end) = look(node) {
            return Throttled::without_sleep(end, 0);
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Throttled::without_sleep(ThrottleEnd::Deadline, 0);
        }
        let reclaimed = make_room(node, deadline, true);
        match Throttle::take(self) {
            Ok(mut throttle) => {
                let end = throttle.sleep(deadline);
                throttle.forgiven = end == ThrottleEnd::Woken;
                let (bytes, delay, slept) = (throttle.bytes, throttle.delay, throttle.since.elapsed());
                Throttled { end, bytes, delay, slept, reclaimed }
            }
            Err(end) => Throttled::without_sleep(end, reclaimed),
        }
    }

    /// What this group [owes](Group::owed), as a delay that the caller sees to, for callers that schedule themselves: `None` where nothing is due, or from within a
    /// shrinker's call or a read section. As [`throttle`](Group::throttle), but it neither sleeps nor asks caches, which might wait: see [`reclaim`](Group::reclaim) for that.
    pub fn take_throttle(&self) -> Option<Throttle> {
        let node = self.node();
        if node.control.high.debt.bytes() == 0 || is_inside() || look(node).is_err() {
            return None;
        }
        make_room(node, None, false);
        Throttle::take(self).ok()
    }
}
