//! Wait: the list of all waits. See [`guide::wait`](crate::guide::wait).

pub(crate) mod list;
pub(crate) mod queue;
pub(crate) mod report;

use core::time::Duration;
use std::time::Instant;

use memgroup_sync::atomic::{AtomicU32, Ordering};

pub(crate) use crate::observe::wait::list::{WAITS, begin_at};
pub use crate::observe::wait::report::{WaitReport, Waiters};
use crate::tree::node::Node;
use crate::tree::parts::{Key, Part};

/// The purpose of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitKind {
    /// Room for a charge ([`Group::charge_until`](crate::Group::charge_until)), or room alone ([`Group::wait_for_room`](crate::Group::wait_for_room)).
    Charge,
    /// The end of a delay that a group above its `high` owes.
    Throttle,
    /// A shrinker that another charge is using.
    Shrinker,
    /// An event of the group.
    Event,
}

/// The reason why a wait was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// The thing it waits for may be there.
    Notified,
    /// All waits of the group were ended, or it was removed.
    All,
    /// The deadline has passed.
    Deadline,
}

/// The weight of a group for which none was set.
pub(crate) const WEIGHT_DEFAULT: u32 = 100;

/// The state of a group that belongs to waits.
pub(crate) struct Waiting {
    /// Charges that wait at this group, of any group below it; changed under the tree lock.
    pub(crate) held: AtomicU32,
    pub(crate) weight: AtomicU32,
}

impl Waiting {
    pub(crate) fn new() -> Waiting {
        Waiting { held: AtomicU32::new(0), weight: AtomicU32::new(WEIGHT_DEFAULT) }
    }

    /// Whether a charge waits at the group. Then its counter has the OVER mark, and its subtree no stock.
    pub(crate) fn is_held(&self) -> bool {
        // ORDERING: Relaxed. The caller has made an RMW of the counter. If that found the mark, or followed it, the caller has acquired the count
        // with the mark (`counter::mark_over`).
        self.held.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn weight(&self) -> u32 {
        // ORDERING: Relaxed; under the lock of the queue, or a number for reports.
        self.weight.load(Ordering::Relaxed)
    }
}

/// The deadline of a wait that has a patience alone.
pub(crate) fn after(patience: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(3600 * 24 * 365);
    Instant::now() + patience.min(FAR)
}

/// Ends all waits of `node`, and those at it, after it was marked offline.
pub(crate) fn removed(node: &'static Node) {
    node.shared.waits().wake_within(node);
}

/// Whether a model that has found a fault unwinds: its locks and atomics must not be used then.
pub(crate) fn is_model_failing() -> bool {
    cfg!(memgroup_loom) && std::thread::panicking()
}

impl Part for Waiting {
    /// For a new group in the node, where no charge waits.
    fn reset(&self) {
        // ORDERING: Relaxed; no thread has a handle yet.
        self.weight.store(WEIGHT_DEFAULT, Ordering::Relaxed);
    }
}

pub(crate) static WAITING: Key<Waiting> = Key::new(4, Waiting::new);

impl Node {
    /// The state of the group that belongs to waits.
    pub(crate) fn waiting(&self) -> &Waiting {
        self.parts.get(&WAITING)
    }
}
