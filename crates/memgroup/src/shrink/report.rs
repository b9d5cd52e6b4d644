//! Report: which shrinkers there are, what each holds of which group, what its calls came to; and one of them asked by hand.
//!
//! What Linux shows of its shrinkers in debugfs. Callbacks that are asked here run as in a walk: under no lock, pinned, caught.

use core::fmt;
use std::time::Duration;

use memgroup_sync::atomic::{AtomicU64, Ordering};

use super::call::{Call, Found, Met, Wanted};
use super::entry::{Entry, domain};
use super::keep;
use super::reclaim::Reclaimed;
use super::roster::Standing;
use super::shrinker::{Count, Quarantine};
use crate::group::Group;
use crate::node::Node;
use crate::shared::Shared;

/// Which shrinker of its hierarchy. Its number is given to another one when it is removed and all its seats are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShrinkerId(pub(crate) u32);

impl fmt::Display for ShrinkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A shrinker, and what its calls of [`scan`](crate::Shrinker::scan) have come to. See [`Hierarchy::shrinkers`](crate::Hierarchy::shrinkers).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ShrinkerReport {
    /// Which.
    pub id: ShrinkerId,
    /// Its name.
    pub name: String,
    /// Why it is not called, if it is not.
    pub quarantine: Option<Quarantine>,
    /// Times that a seat of it was made to give back.
    pub scans: u64,
    /// Bytes it was asked for.
    pub asked_bytes: u64,
    /// Bytes it said it gave back.
    pub claimed_bytes: u64,
    /// Bytes that were uncharged while it was called.
    pub freed_bytes: u64,
    /// Bytes that were uncharged the last time.
    pub last_freed_bytes: u64,
    /// Time in its calls.
    pub time: Duration,
    /// Times that it could not go on.
    pub stopped: u64,
    /// Times that it panicked, in `count` too.
    pub panics: u64,
    /// Times that it took longer than its [patience](crate::ShrinkerConfig::patience), since it was last reinstated.
    pub overruns: u64,
    /// Threads that are in a call of it now: the system's number of each, its name, and for how long at least.
    pub callers: Vec<(u32, Option<String>, Duration)>,
}

/// Why a shrinker was not asked by hand. Printed, it completes the phrase "failed to ...".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AskError {
    /// No shrinker has this number.
    Unknown {
        /// The number.
        id: ShrinkerId,
    },
    /// It has no seat in the group.
    NoSeat {
        /// The number.
        id: ShrinkerId,
    },
    /// The calling thread reclaims already.
    Within {
        /// The number.
        id: ShrinkerId,
    },
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AskError::Unknown { id } => {
                write!(f, "ask shrinker {id}: the hierarchy has none of this number now")
            }
            AskError::NoSeat { id } => write!(f, "ask shrinker {id}: it has no seat in this group"),
            AskError::Within { id } => write!(f, "ask shrinker {id}: this thread is in a shrinker's call"),
        }
    }
}

impl std::error::Error for AskError {}

/// All shrinkers that are registered, by number.
pub(crate) fn all(shared: &'static Shared) -> Vec<ShrinkerReport> {
    let mut lease = domain().lease();
    let registry = &shared.shrinkers;
    let mut reports = Vec::new();
    for number in 0..registry.numbers() {
        let Some(place) = registry.place(number) else { continue };
        // Before this look is itself one of them.
        let busy = domain().busy().filter(|occupant| occupant.is_in(place));
        let callers = busy.map(|caller| (caller.thread_id(), caller.thread_name(), caller.held())).collect();
        if let Some(entry) = lease.pin(place) {
            reports.push(of(number, &entry, callers));
        }
    }
    reports
}

fn of(number: u32, entry: &Entry, callers: Vec<(u32, Option<String>, Duration)>) -> ShrinkerReport {
    // ORDERING: Relaxed; numbers for people.
    let read = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
    let calls = &entry.calls;
    ShrinkerReport {
        id: ShrinkerId(number),
        name: entry.config.name.clone(),
        quarantine: entry.quarantine(),
        scans: read(&calls.scans),
        asked_bytes: read(&calls.asked),
        claimed_bytes: read(&calls.claimed),
        freed_bytes: read(&calls.freed),
        last_freed_bytes: read(&calls.last),
        time: Duration::from_nanos(read(&calls.nanos)),
        stopped: read(&calls.stopped),
        panics: read(&calls.panics),
        overruns: read(&calls.overruns),
        callers,
    }
}

/// The groups in which a shrinker has a seat, and what it says it holds there.
pub(crate) fn counts(shared: &'static Shared, id: ShrinkerId) -> Result<Vec<(Group, Count)>, AskError> {
    let unknown = AskError::Unknown { id };
    let place = shared.shrinkers.place(id.0).ok_or(unknown)?;
    let mut lease = domain().lease();
    let entry = lease.pin(place).ok_or(unknown)?;
    let tree = shared.tree.lock();
    let seated =
        shared.nodes(&tree).filter_map(|node| Some((node, node.roster()?.seat_of(place)?.1.token())));
    // With a seat in it a group is held, and so is what its handle is made from.
    let groups: Vec<(Group, u64)> = seated.map(|(node, token)| (Group::pinned(node), token)).collect();
    drop(tree);
    Ok(groups.into_iter().map(|(group, token)| (group, entry.count(token))).collect())
}

/// Has one shrinker give back about `bytes` of one group, whatever it holds and however small that is.
pub(crate) fn ask(node: &'static Node, id: ShrinkerId, bytes: u64) -> Result<Reclaimed, AskError> {
    let unknown = AskError::Unknown { id };
    let place = node.shared.shrinkers.place(id.0).ok_or(unknown)?;
    let mut lease = domain().lease();
    let entry = lease.pin(place).ok_or(unknown)?;
    let (seat, cell) =
        node.roster().and_then(|roster| roster.seat_of(place)).ok_or(AskError::NoSeat { id })?;
    let keeper = keep::begin(node, 0).ok_or(AskError::Within { id })?;
    let wanted = Wanted { bytes, deadline: None, may_wait: true };
    let found = Found { node, generation: node.generation(), seat, cell };
    let mut met = Met::default();
    Call::by_hand(found, &entry, place, &wanted).demand(&keeper, &mut met);
    Ok(Reclaimed { bytes: keeper.freed(), scans: met.scanned, busy: met.busy })
}
