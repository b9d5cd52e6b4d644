#![doc = include_str!("../../docs/events.md")]
//!
//! # Who synchronises with whom
//!
//! - I1. Counts only grow while a group lives: what groups below counted is in their ancestors from the first moment, so their removal takes nothing away.
//! - E1. `count` ↔ `watch::Armed`: the counts, a fence, a look whether anybody waits; announce oneself, a fence, a look at the counts. One of the
//!   two sees the other, so no wake-up is lost. Loom: `who_waits_for_an_event_is_woken`, and its twins with a fault each.

pub(crate) mod deliver;
#[cfg(all(test, memgroup_loom))]
mod loom;
mod wait;
pub(crate) mod watch;

pub use self::deliver::{EventSubscription, SubscriptionReport};

use memgroup_sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::group::Group;
use crate::node::Node;
use crate::rstat::Reach;

/// The kinds of events: those of `memory.events`, in its order, and then our own.
const KINDS: usize = 7;

/// Those that are in `memory.events`.
pub(crate) const KEYS: usize = 6;

/// What can happen.
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

/// How often what happened to a group, or to it and those below it.
///
/// ```
/// # use memgroup::{Config, Hierarchy};
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let tenants = hierarchy.create("/tenants").unwrap();
/// let alice = hierarchy.create("/tenants/alice").unwrap();
/// alice.set_max(4096).unwrap();
/// alice.try_charge(5000).unwrap_err();
/// assert_eq!((alice.events_local().max, tenants.events().max, tenants.events_local().max), (1, 1, 0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Events {
    /// Times that caches of the group had to give back although it was within its `low`.
    pub low: u64,
    /// Times that a charge took the group above its `high`.
    pub high: u64,
    /// Times that a charge would have gone above `max`, with all stocks drained, or went there by force.
    pub max: u64,
    /// Times that nothing could be reclaimed for a charge that `max` held up.
    pub oom: u64,
    /// Kills of the group because of that, whoever needed the memory.
    pub oom_kill: u64,
    /// Kills of the whole subtree as a unit.
    pub oom_group_kill: u64,
    /// Charges that `max` has no room for and that were made, because it [only measures](Group::set_enforced). The kernel has no such limits.
    pub would_refuse: u64,
}

impl Events {
    fn of(counts: &[AtomicU64; KINDS]) -> Events {
        // ORDERING: Relaxed; each count by itself only grows, and together they are of no one moment.
        let [low, high, max, oom, oom_kill, oom_group_kill, would_refuse] =
            std::array::from_fn(|kind| counts[kind].load(Ordering::Relaxed));
        Events { low, high, max, oom, oom_kill, oom_group_kill, would_refuse }
    }

    /// The counts that `memory.events` has, with their keys, in its order.
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

/// The counts of one group.
pub(crate) struct Counts {
    local: [AtomicU64; KINDS],
    tree: [AtomicU64; KINDS],
    /// Waiters for this group's events, and callbacks.
    watched: AtomicU32,
}

impl Counts {
    pub(crate) fn new() -> Counts {
        Counts {
            local: std::array::from_fn(|_| AtomicU64::new(0)),
            tree: std::array::from_fn(|_| AtomicU64::new(0)),
            watched: AtomicU32::new(0),
        }
    }

    pub(crate) fn of(&self, reach: Reach) -> Events {
        match reach {
            Reach::Local => Events::of(&self.local),
            Reach::Subtree => Events::of(&self.tree),
        }
    }

    /// For a new group in the place. Nobody watches it: who does holds the group.
    pub(crate) fn reset(&self) {
        for count in self.local.iter().chain(&self.tree) {
            // ORDERING: Relaxed; nobody has a handle yet.
            count.store(0, Ordering::Relaxed);
        }
    }
}

/// Counts an event of `node`, here and above, and wakes who waits for it. The caller holds the node: by a handle, by charged bytes or by the tree lock.
pub(crate) fn count(node: &'static Node, event: Event) {
    // ORDERING: Relaxed; a count for readers. Who waits is told by the fence in `announce`.
    node.control.events.local[event as usize].fetch_add(1, Ordering::Relaxed);
    for level in levels(node) {
        // ORDERING: Relaxed, as above.
        level.control.events.tree[event as usize].fetch_add(1, Ordering::Relaxed);
    }
    watch::announce(node);
}

fn levels(node: &'static Node) -> impl Iterator<Item = &'static Node> {
    std::iter::successors(Some(node), |level| level.parent())
}

impl Group {
    /// What happened to this group and to those below it since it was created: `memory.events`.
    pub fn events(&self) -> Events {
        self.node().control.events.of(Reach::Subtree)
    }

    /// What happened to this group alone: `memory.events.local`.
    pub fn events_local(&self) -> Events {
        self.node().control.events.of(Reach::Local)
    }
}
