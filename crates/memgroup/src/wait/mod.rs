#![doc = include_str!("../../docs/wait.md")]

mod list;
mod report;

use core::time::Duration;
use std::time::Instant;

use memgroup_sync::atomic::{AtomicU32, Ordering};

pub(crate) use self::list::{Listed, Waits, begin};
pub use self::report::{WaitReport, Waiters};

use crate::node::Node;

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitKind {
    /// Room for a charge ([`Group::try_charge`](crate::Group::charge_until)).
    Charge,
    /// The end of a delay that a group above its `high` owes.
    Throttle,
    /// A cache that another charge is having give back.
    Seat,
    /// An event of the group.
    Event,
}

/// Why a wait goes on no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// What it waits for may be there.
    Notified,
    /// All waits of the group were ended, or it was removed.
    All,
    /// The time is over.
    Deadline,
}

/// What a group has to do with waits.
pub(crate) struct Waiting {
    /// Waits of this group and of those below that the list had no place for.
    unlisted: AtomicU32,
}

impl Waiting {
    pub(crate) fn new() -> Waiting {
        Waiting { unlisted: AtomicU32::new(0) }
    }
}

/// So long from now: a deadline for waits that have only a patience.
pub(crate) fn after(patience: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(3600 * 24 * 365);
    Instant::now() + patience.min(FAR)
}

/// Ends all waits of `node`, and at it; the group was marked offline.
pub(crate) fn removed(node: &'static Node) {
    node.shared.waits.wake_within(node);
}

fn chain_of(node: &'static Node) -> impl Iterator<Item = &'static Node> {
    std::iter::successors(Some(node), |level| level.parent())
}

/// Counts a wait that has no place in the list, or no longer.
fn count_unlisted(node: &'static Node, begins: bool) {
    for level in chain_of(node) {
        let unlisted = &level.control.waiting.unlisted;
        // ORDERING: Relaxed; a number for people.
        if begins {
            unlisted.fetch_add(1, Ordering::Relaxed);
        } else {
            unlisted.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
