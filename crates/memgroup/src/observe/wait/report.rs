//! Reports on waits, and a way to end them.

use core::fmt;
use core::time::Duration;
use std::time::Instant;

use crate::base::id::GroupId;
use crate::observe::wait::charges::ChargeQueue;
use crate::observe::wait::{WaitKind, charges, list};
use crate::tree::handle::{Group, Hierarchy};
use crate::tree::node::Node;
use crate::tree::shared::Shared;

/// One wait, as it was when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitReport {
    /// The path of the group that waits; the path it had, if it was removed.
    pub group: String,
    /// The path of the group at which it waits: its own, or an ancestor that has no room.
    pub at: String,
    /// Its purpose.
    pub kind: WaitKind,
    /// The bytes it needs; 0 for a wait that needs none.
    pub bytes: u64,
    /// When it began.
    pub since: Instant,
    /// When it ends, if nothing ends it before.
    pub deadline: Instant,
}

impl fmt::Display for WaitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = Instant::now();
        let (waited, left) =
            (now.saturating_duration_since(self.since), self.deadline.checked_duration_since(now));
        let kind = match self.kind {
            WaitKind::Charge => "room",
            WaitKind::Throttle => "the end of a delay",
            WaitKind::Shrinker => "a shrinker that another charge is using",
            WaitKind::Event => "an event",
            WaitKind::Pressure => "a trigger on its pressure",
        };
        write!(f, "{} has waited {waited:.3?} for {kind}", self.group)?;
        if self.bytes > 0 {
            write!(f, ", {} bytes", self.bytes)?;
        }
        if self.at != self.group {
            write!(f, ", at {}", self.at)?;
        }
        match left {
            Some(left) => write!(f, ", and will for at most {left:.3?}"),
            None => f.write_str(", and its deadline has passed"),
        }
    }
}

/// The waits of a group and of those below it, except those for events and triggers, as they were
/// at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Waiters {
    /// How many there are.
    pub now: usize,
    /// How long the longest of them has lasted so far.
    #[cfg_attr(feature = "serde", serde(rename = "longest_us", with = "crate::base::json::us"))]
    pub longest: Duration,
    /// The sum of the bytes that they need.
    pub bytes: u64,
}

/// A wait, as it is under the locks.
struct Seen {
    node: &'static Node,
    at: &'static Node,
    kind: WaitKind,
    bytes: u64,
    since: Instant,
    deadline: Instant,
}

/// Calls `visit` with each wait, under the locks.
fn each(shared: &'static Shared, mut visit: impl FnMut(Seen)) {
    let queues = shared.wait_queue().lock();
    // As of one instant: both locks at a time.
    shared.waits().each(|entry| {
        let &list::Entry { node, at, kind, bytes, since, deadline, .. } = entry;
        visit(Seen { node, at, kind, bytes, since, deadline });
    });
    for entry in queues.entries() {
        let &charges::Entry { node, at, bytes, .. } = entry;
        let (since, deadline) = (queues.since(entry), queues.deadline(entry));
        visit(Seen { node, at, kind: WaitKind::Charge, bytes, since, deadline });
    }
}

/// Returns the value of each wait that `is_wanted`, at one instant.
fn collect<T>(shared: &'static Shared, is_wanted: impl Fn(&Seen) -> bool, of: impl Fn(Seen) -> T) -> Vec<T> {
    let mut waits = Vec::new();
    each(shared, |wait| {
        if is_wanted(&wait) {
            waits.push(of(wait));
        }
    });
    waits
}

/// The group, the bytes and the begin of every listed wait for memory, at one instant.
pub(crate) fn copy(shared: &'static Shared) -> Vec<(GroupId, u64, Instant)> {
    let is_wanted = |wait: &Seen| wait.kind.is_for_memory();
    collect(shared, is_wanted, |wait| (wait.node.group_id(), wait.bytes, wait.since))
}

/// Waits.
impl Hierarchy {
    /// Every wait of every group, the longest first. It shows why threads and tasks make no
    /// progress.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// for wait in hierarchy.waits() {
    ///     println!("{wait}");
    /// }
    /// # assert!(hierarchy.waits().is_empty());
    /// ```
    pub fn waits(&self) -> Vec<WaitReport> {
        // A wait holds its group, and that the groups above. The handles keep their paths when it
        // has ended.
        let held = |wait: Seen| (Group::pinned(wait.node), Group::pinned(wait.at), wait);
        let mut waits = collect(self.shared(), |_| true, held);
        waits.sort_by_key(|(_, _, wait)| wait.since);
        let report = |(group, at, Seen { kind, bytes, since, deadline, .. }): (Group, Group, Seen)| {
            WaitReport { group: group.path(), at: at.path(), kind, bytes, since, deadline }
        };
        waits.into_iter().map(report).collect()
    }
}

/// Waiting charges.
impl Group {
    /// The waits of this group and of those below it now, except those for events and triggers.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// # use std::time::{Duration, Instant};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let tenant = hierarchy.create("/tenant").unwrap();
    /// tenant.set_max(1000).unwrap();
    /// let held = tenant.try_charge(1000).unwrap();
    /// std::thread::scope(|scope| {
    ///     let waiting = scope.spawn(|| tenant.charge_until(600, Instant::now() + Duration::from_secs(60)));
    ///     while tenant.waiters().now == 0 {
    ///         std::thread::yield_now();
    ///     }
    ///     assert_eq!(hierarchy.root().waiters().bytes, 600);
    ///     drop(held);
    ///     assert_eq!(waiting.join().unwrap().unwrap().bytes(), 600);
    /// });
    /// assert_eq!(tenant.waiters().now, 0);
    /// ```
    pub fn waiters(&self) -> Waiters {
        let top = self.node();
        let mut waiters = Waiters::default();
        let now = Instant::now();
        each(top.shared(), |wait| {
            if wait.kind.is_for_memory() && wait.node.is_within(top) {
                waiters.now += 1;
                waiters.longest = waiters.longest.max(now.saturating_duration_since(wait.since));
                waiters.bytes = waiters.bytes.saturating_add(wait.bytes);
            }
        });
        waiters
    }

    /// Ends all waits of this group and of those below it, of every kind. Returns how many it
    /// ended.
    ///
    /// Charges fail with [`Woken`](crate::ChargeErrorKind::Woken) unless they were made meanwhile.
    /// Delays and waits for events and triggers are over. Waits that
    /// begin afterwards are not ended.
    pub fn wake_waiters(&self) -> usize {
        let (node, shared) = (self.node(), self.node().shared());
        let mut queues = shared.wait_queue().lock();
        let charges = queues.wake_within(node);
        let others = shared.waits().wake_within(node);
        ChargeQueue::call_wakers(queues, shared.wait_queue());
        charges + others
    }
}
