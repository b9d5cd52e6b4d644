//! Wait: the list of all waits. See [`guide::wait`](crate::guide::wait).

pub(crate) mod charges;
pub(crate) mod list;
pub(crate) mod party;
pub(crate) mod queue;
pub(crate) mod reclaimers;
pub(crate) mod report;
pub(crate) mod table;
pub(crate) mod tasks;

use core::time::Duration;
use std::time::Instant;

use crate::tree::node::Node;

/// The purpose of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitKind {
    /// Room for a charge ([`Group::charge_until`](crate::Group::charge_until)), or room alone
    /// ([`Group::wait_for_room`](crate::Group::wait_for_room)).
    Charge,
    /// The end of a delay that a group above its `high` owes.
    Throttle,
    /// A shrinker that another charge is using.
    Shrinker,
    /// An event of the group.
    Event,
    /// A [trigger](crate::PressureWatch) on the group's pressure.
    Pressure,
}

impl WaitKind {
    /// Returns whether it waits for memory, and not for news.
    pub(crate) fn is_for_memory(self) -> bool {
        !matches!(self, WaitKind::Event | WaitKind::Pressure)
    }
}

/// The reason why a wait was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// The thing it waits for may be there.
    Notified,
    /// All waits of the group were ended, or it was removed.
    All,
    /// No reclaimer is left that would wake a task.
    Deserted,
    /// The deadline has passed.
    Deadline,
}

/// The deadline of a wait that has a patience alone.
pub(crate) fn after(patience: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(3600 * 24 * 365);
    Instant::now() + patience.min(FAR)
}

/// Ends all waits of `node`, and those at it, after it was marked offline.
pub(crate) fn removed(node: &'static Node) {
    node.shared().waits().wake_within(node);
}

/// Returns whether a model that has found a fault unwinds: its locks and atomics must not be used
/// then.
pub(crate) fn is_model_failing() -> bool {
    cfg!(memgroup_loom) && std::thread::panicking()
}
