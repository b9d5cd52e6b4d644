//! Report: the shrinkers of a hierarchy and the figures of their calls; and a call of one by hand.
//!
//! Linux shows these figures in debugfs. Callbacks that are called here run as in a walk: under no
//! lock, pinned, with panics caught.

use core::fmt;
use std::time::Duration;

use memgroup_sync::atomic::{AtomicU64, Ordering};

use crate::reclaim::control::{Reclaimed, ScanControl};
use crate::reclaim::credit::{Purpose, ReclaimCredit};
use crate::reclaim::entry::domain;
use crate::reclaim::release::SlotRef;
use crate::reclaim::scan::Call;
use crate::reclaim::shrinker::{Quarantine, ShrinkerId};
use crate::tree::node::Node;
use crate::tree::shared::Shared;

/// A shrinker, and the figures of its calls of [`scan`](crate::Shrinker::scan). See
/// [`Hierarchy::shrinkers`](crate::Hierarchy::shrinkers).
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct ShrinkerReport {
    /// Its number.
    pub id: ShrinkerId,
    /// Its name.
    pub name: String,
    /// The reason why it is not called, if there is one.
    pub quarantine: Option<Quarantine>,
    /// Times that a slot of it was scanned.
    pub scans: u64,
    /// Bytes it was asked for.
    pub asked_bytes: u64,
    /// Bytes it said it gave back; at most `u64::MAX`.
    pub claimed_bytes: u64,
    /// Bytes that were uncharged during its calls.
    pub freed_bytes: u64,
    /// Bytes that were uncharged the last time.
    pub last_freed_bytes: u64,
    /// Time in its calls.
    #[cfg_attr(feature = "serde", serde(rename = "time_us", with = "crate::base::json::us"))]
    pub time: Duration,
    /// Times that it could not go on.
    pub stopped: u64,
    /// Times that it panicked, in `count` too.
    pub panics: u64,
    /// Times that a call took longer than its [patience](crate::ShrinkerConfig::patience), since
    /// it was last reinstated.
    pub overruns: u64,
    /// Threads that are in a call of it now: the thread's number in the system, its name, and the
    /// least time that the call has lasted.
    #[cfg_attr(feature = "serde", serde(with = "callers"))]
    pub callers: Vec<(u32, Option<String>, Duration)>,
}

/// The threads in a shrinker's calls as JSON.
#[cfg(feature = "serde")]
mod callers {
    use std::borrow::Cow;
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Caller<'c> {
        thread: u32,
        name: Option<Cow<'c, str>>,
        #[serde(rename = "held_us", with = "crate::base::json::us")]
        held: Duration,
    }

    type Parts = (u32, Option<String>, Duration);

    pub(super) fn serialize<S: Serializer>(callers: &[Parts], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(callers.iter().map(|(thread, name, held)| Caller {
            thread: *thread,
            name: name.as_deref().map(Cow::Borrowed),
            held: *held,
        }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Parts>, D::Error> {
        let callers = Vec::<Caller<'_>>::deserialize(from)?.into_iter();
        Ok(callers.map(|one| (one.thread, one.name.map(Cow::into_owned), one.held)).collect())
    }
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
    /// The shrinker is not attached to the group.
    NotAttached {
        /// The number.
        id: ShrinkerId,
    },
    /// The calling thread is in a shrinker's call.
    Within {
        /// The number.
        id: ShrinkerId,
    },
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, why) = match self {
            AskError::Unknown { id } => (id, "the hierarchy has none of this number now"),
            AskError::NotAttached { id } => (id, "it is not attached to this group"),
            AskError::Within { id } => {
                (id, "this thread is in a shrinker's call; ask when that has returned")
            }
        };
        write!(f, "ask shrinker {id}: {why}")
    }
}

impl std::error::Error for AskError {}

/// All shrinkers that are registered, by number.
pub(crate) fn all(shared: &'static Shared) -> Vec<ShrinkerReport> {
    let mut lease = domain().lease();
    let mut reports = Vec::new();
    for (number, place) in shared.shrinkers().places() {
        // Before it is pinned here: this thread would be a caller.
        let callers = domain().busy().filter(|caller| caller.is_in(place));
        let callers =
            callers.map(|caller| (caller.thread_id(), caller.thread_name(), caller.held())).collect();
        let Some(entry) = lease.pin(place) else { continue };
        // ORDERING: Relaxed; figures of a report.
        let read = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let calls = &entry.calls;
        reports.push(ShrinkerReport {
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
        });
    }
    reports
}

/// Has one shrinker give back about `bytes` of one group, whatever it holds and however small that
/// is.
pub(crate) fn ask(node: &'static Node, id: ShrinkerId, bytes: u64) -> Result<Reclaimed, AskError> {
    let unknown = AskError::Unknown { id };
    let place = node.shared().shrinkers().places.get(id.0).ok_or(unknown)?;
    let mut lease = domain().lease();
    let entry = &lease.pin(place).ok_or(unknown)?;
    let slot = SlotRef::of(node, place).ok_or(AskError::NotAttached { id })?;
    let credit = ReclaimCredit::begin(node, Purpose::ByHand).ok_or(AskError::Within { id })?;
    let mut control = ScanControl::new(node, &credit, bytes, false);
    Call { slot, place, entry }.demand(&mut control);
    Ok(control.reclaimed())
}
