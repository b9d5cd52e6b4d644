#![doc = include_str!("../../docs/wait.md")]

mod charge;
mod line;
mod list;
#[cfg(all(test, memgroup_loom))]
mod loom;
pub(crate) mod report;
mod room;
mod weight;

use core::time::Duration;
use std::time::Instant;

use memgroup_sync::atomic::{AtomicU32, Ordering};

pub(crate) use self::line::{serve, serve_below, serve_chain};
pub(crate) use self::list::{Waits, begin};
pub use self::report::{WaitReport, Waiters};
pub use self::weight::WeightError;

use crate::node::Node;

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitKind {
    /// Room for a charge ([`Group::charge_until`](crate::Group::charge_until)), or room alone ([`Group::wait_for_room`](crate::Group::wait_for_room)).
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
    /// Charges that wait at this group, of whatever groups; changed under the tree lock.
    held: AtomicU32,
    weight: AtomicU32,
    /// Waits of this group and of those below that the list had no place for.
    unlisted: AtomicU32,
}

impl Waiting {
    pub(crate) fn new() -> Waiting {
        let [held, unlisted] = [0; 2].map(AtomicU32::new);
        Waiting { held, unlisted, weight: AtomicU32::new(weight::DEFAULT) }
    }

    /// For a new group in the place; nobody waits there.
    pub(crate) fn reset(&self) {
        // ORDERING: Relaxed; nobody has a handle yet.
        self.weight.store(weight::DEFAULT, Ordering::Relaxed);
    }

    /// Whether a charge waits at the group: then its counter has the OVER mark, and its subtree no stock.
    pub(crate) fn is_held(&self) -> bool {
        // ORDERING: Relaxed; who looks after an RMW of the counter that found the mark, or followed it, has acquired with the mark that it is held (`counter::mark_over`).
        self.held.load(Ordering::Relaxed) > 0
    }

    fn weight(&self) -> u32 {
        // ORDERING: Relaxed; under the lock of the line, or a number for people.
        self.weight.load(Ordering::Relaxed)
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

/// A model that has found a fault unwinds out of `park`; its locks are of no use then.
fn is_model_failing() -> bool {
    cfg!(memgroup_loom) && std::thread::panicking()
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
