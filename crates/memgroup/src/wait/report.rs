//! Report: who waits, for people and for programs, and a way to have them wait no longer.

use core::fmt;
use core::time::Duration;
use std::time::Instant;

use memgroup_sync::atomic::Ordering;

use super::WaitKind;
use super::list::Entry;
use crate::group::{Group, GroupId};
use crate::hierarchy::Hierarchy;
use crate::node::Node;
use crate::shared::Shared;

/// One wait, as it was when somebody looked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitReport {
    /// The path of the group that waits; the path it had, if it was removed.
    pub group: String,
    /// The path of the group at which it waits: its own, or an ancestor that has no room.
    pub at: String,
    /// What it waits for.
    pub kind: WaitKind,
    /// The bytes it needs; 0 where it is not about bytes.
    pub bytes: u64,
    /// When it began.
    pub since: Instant,
    /// When it ends if nothing else ends it.
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
            WaitKind::Seat => "a cache that another charge is having give back",
            WaitKind::Event => "an event",
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

/// The waits for memory of a group and of those below it, as they were at one instant: all but those for events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiters {
    /// How many there are.
    pub now: usize,
    /// For how long the longest of them has lasted so far.
    pub longest: Duration,
    /// The bytes that they need together.
    pub bytes: u64,
}

/// Every wait for memory that is listed, as they were at one instant: whose it is, the bytes it needs, since when. Room is made with no lock held.
pub(crate) fn copy(shared: &'static Shared) -> Vec<(GroupId, u64, Instant)> {
    let mut waits = Vec::new();
    loop {
        let mut there = 0;
        shared.waits.each(|entry| {
            if entry.kind == WaitKind::Event {
                return;
            }
            there += 1;
            if waits.len() < waits.capacity() {
                waits.push((entry.node.id, entry.bytes, entry.since));
            }
        });
        if waits.len() == there {
            return waits;
        }
        waits.clear();
        waits.reserve(there + there / 8 + 1);
    }
}

/// Waits in `node` and below it that the list had no room for.
pub(crate) fn unlisted(node: &'static Node) -> usize {
    // ORDERING: Relaxed; a number for people.
    node.control.waiting.unlisted.load(Ordering::Relaxed) as usize
}

impl Hierarchy {
    /// Every wait of every group, the longest first: for somebody who wants to know why nothing moves.
    ///
    /// More than 1,024 waits at a time may leave waits of the kind [`Seat`](WaitKind::Seat) out; [`Group::waiters`] counts them all the same.
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
        let mut waits = Vec::new();
        let tree = self.shared().tree.lock();
        self.shared().waits.each(|entry| {
            let &Entry { node, at, kind, bytes, since, deadline, .. } = entry;
            let (group, at) = (tree.path(node.id), tree.path(at.id));
            waits.push(WaitReport { group, at, kind, bytes, since, deadline });
        });
        drop(tree);
        waits.sort_by_key(|wait| wait.since);
        waits
    }
}

impl Group {
    /// Who waits in this group and below it now; all kinds of waits.
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
        let mut waiters = Waiters { now: unlisted(top), ..Waiters::default() };
        let now = Instant::now();
        top.shared.waits.each(|entry| {
            if entry.kind != WaitKind::Event && entry.node.is_within(top) {
                waiters.now += 1;
                waiters.longest = waiters.longest.max(now.saturating_duration_since(entry.since));
                waiters.bytes = waiters.bytes.saturating_add(entry.bytes);
            }
        });
        waiters
    }

    /// Ends all waits of this group and of those below it, of whatever kind: charges fail with [`Woken`](crate::ChargeErrorKind::Woken)
    /// unless they were made meanwhile, delays and waits for events are over. How many that were; waits that begin afterwards are not among them.
    pub fn wake_waiters(&self) -> usize {
        self.node().shared.waits.wake_within(self.node())
    }
}
