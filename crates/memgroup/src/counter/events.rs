//! Events: how often each group and its subtree reached a limit.
//!
//! - I1. Counts only grow while a group lives. Ancestors count the events of groups below at once,
//!   so a removal takes nothing away.
//! - I2. A reader that reads a group's local counts and then those of its subtree finds at least
//!   as many there, because the sum includes the local count, which only grows.

use memgroup_sync::atomic::{AtomicU64, Ordering};

use crate::state::event_counts::{EventCounts, KINDS};
use crate::state::stats::Reach;
use crate::tree::handle::Group;
use crate::tree::node::Node;

/// The number of kinds that are in `memory.events`.
pub(crate) const KEYS: usize = 6;

/// The kind of an event: those of `memory.events`, in its order, and then `WouldRefuse`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Low,
    High,
    Max,
    Oom,
    OomKill,
    OomGroupKill,
    WouldRefuse,
}

/// The counts of a group's events, or of those of a whole subtree.
///
/// ```
/// # use memgroup::{Config, Hierarchy};
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let tenants = hierarchy.create("/tenants").unwrap();
/// let alice = hierarchy.create("/tenants/alice").unwrap();
/// alice.set_max(4096).unwrap();
/// alice.try_charge(5000).unwrap_err();
/// assert_eq!((alice.events_local().max, tenants.events_local().max), (1, 0));
/// assert_eq!(tenants.events().max, 1);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Events {
    /// How often shrinkers of the group had to free memory although it was within its `low`.
    pub low: u64,
    /// How often a charge took the group above its `high`.
    pub high: u64,
    /// How often a charge did not fit below `max` with all stocks drained, or exceeded it by
    /// force.
    pub max: u64,
    /// How often nothing could be reclaimed for a charge that did not fit below `max`.
    pub oom: u64,
    /// Kills of the group because memory ran out in it or above it.
    pub oom_kill: u64,
    /// Kills of the whole subtree.
    pub oom_group_kill: u64,
    /// Charges that did not fit below `max` and were made all the same, because the limit is a
    /// [dry run](Group::set_enforced). The kernel has no such limits.
    pub would_refuse: u64,
}

impl Events {
    fn of(count: impl Fn(usize) -> u64) -> Events {
        let [low, high, max, oom, oom_kill, oom_group_kill, would_refuse] = std::array::from_fn(count);
        Events { low, high, max, oom, oom_kill, oom_group_kill, would_refuse }
    }

    /// Returns the counts that `memory.events` has, with their keys, in its order.
    #[must_use]
    pub fn pairs(&self) -> [(&'static str, u64); KEYS] {
        [
            ("low", self.low),
            ("high", self.high),
            ("max", self.max),
            ("oom", self.oom),
            ("oom_kill", self.oom_kill),
            ("oom_group_kill", self.oom_group_kill),
        ]
    }
}

impl EventCounts {
    pub(crate) fn of(&self, reach: Reach) -> Events {
        // ORDERING: Relaxed, because counts of several kinds belong to no common instant.
        let count = |counts: &[AtomicU64; KINDS], kind: usize| counts[kind].load(Ordering::Relaxed);
        match reach {
            Reach::Local => Events::of(|kind| count(&self.local, kind)),
            Reach::Subtree => Events::of(|kind| count(&self.local, kind) + count(&self.below, kind)),
        }
    }
}

/// Counts an event of `node`, here and above. The caller must hold the node: by a handle, by
/// charged bytes or by the tree lock.
pub(crate) fn count(node: &'static Node, event: Event) {
    // ORDERING: Relaxed, both, because these are counts for readers. The fence in `event::announce`
    // orders them before its check for waits.
    node.events().local[event as usize].fetch_add(1, Ordering::Relaxed);
    for level in levels(node).skip(1) {
        level.events().below[event as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the group and its ancestors, including the root even if nothing is charged to it.
pub(crate) fn levels(node: &'static Node) -> impl Iterator<Item = &'static Node> {
    std::iter::successors(Some(node), |level| level.up().or_else(|| level.parent()))
}

/// Events.
impl Group {
    /// Returns the events of this group and of those below it since it was created:
    /// `memory.events`.
    pub fn events(&self) -> Events {
        self.node().events().of(Reach::Subtree)
    }

    /// Returns the events of this group alone: `memory.events.local`. A count of
    /// [`events`](Group::events) that is read afterwards is at least as large.
    pub fn events_local(&self) -> Events {
        self.node().events().of(Reach::Local)
    }
}
