//! The out-of-memory state of a group: its settings, its kill hook, and the usage at which a
//! pending kill is over.
//!
//! - E1. A kill that begins ↔ a thread that uncharges: the watched usage is a hint. A thread that
//!   misses it leaves the note to the next thread that updates the pending kills (`victims` B1). A
//!   thread that finds the value of a kill that is over checks again under the lock.

use core::fmt;
use std::sync::OnceLock;

use memgroup_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use memgroup_sync::hazard::Place;

use crate::control::oom::hook::{Hook, domain};
use crate::tree::handle::Group;
use crate::tree::node::Node;
use crate::tree::parts::{Key, Part, PlacePart};

/// The score of a group that is never killed.
pub(crate) const NEVER: i32 = -1000;
const FIRST: i32 = 1000;

/// The out-of-memory state of one group.
pub(crate) struct OomState {
    /// An `i32`.
    score: AtomicU32,
    is_unit: AtomicBool,
    /// The place of the group's hook, made with its first hook.
    place: OnceLock<Box<Place<Hook>>>,
    /// The index of the group's candidate, plus one; 0 without a hook. Read and written under the
    /// lock of `victims`.
    index: AtomicU32,
    /// Usage below this value ends the pending kill; 0 without one, or once it was noted.
    watch: AtomicU64,
    /// Kills of the group that took longer than the patience.
    overdue: AtomicU64,
}

impl OomState {
    pub(crate) fn new() -> OomState {
        OomState {
            score: AtomicU32::new(0),
            is_unit: AtomicBool::new(false),
            place: OnceLock::new(),
            index: AtomicU32::new(0),
            watch: AtomicU64::new(0),
            overdue: AtomicU64::new(0),
        }
    }

    pub(crate) fn score(&self) -> i32 {
        // ORDERING: Relaxed; a setting by itself.
        self.score.load(Ordering::Relaxed).cast_signed()
    }

    /// Returns whether the group is killed as a whole.
    pub(crate) fn is_unit(&self) -> bool {
        // ORDERING: Relaxed; a setting by itself.
        self.is_unit.load(Ordering::Relaxed)
    }

    pub(crate) fn place(&'static self) -> Option<&'static Place<Hook>> {
        self.place.get().map(|place| &**place)
    }

    pub(crate) fn make_place(&'static self) -> &'static Place<Hook> {
        self.place.get_or_init(|| Box::new(Place::empty(domain())))
    }

    /// The index of the group's candidate, if it has a hook. The caller holds the lock of
    /// `victims`.
    pub(crate) fn index(&self) -> Option<usize> {
        // ORDERING: Relaxed; read and written under the lock of `victims`.
        self.index.load(Ordering::Relaxed).checked_sub(1).map(|index| index as usize)
    }

    pub(crate) fn set_index(&self, index: Option<usize>) {
        // ORDERING: Relaxed; as in `index`.
        self.index.store(index.map_or(0, |index| index as u32 + 1), Ordering::Relaxed);
    }

    pub(crate) fn count_overdue(&self) {
        // ORDERING: Relaxed; a number for reports.
        self.overdue.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends the pending kill of a group if its usage has fallen far enough. The node may have been
/// reused by then: that costs a check.
#[inline]
pub(crate) fn after_uncharge(node: &'static Node) {
    if node.marks.is_watched() {
        check_watch(node);
    }
}

#[cold]
fn check_watch(node: &'static Node) {
    // ORDERING: Relaxed; a hint (E1).
    if node.counter.usage() < node.oom().watch.load(Ordering::Relaxed) {
        node.shared().victims().update(node);
    }
}

/// Has threads that uncharge the group report usage at or below `threshold`; with `None`, no more.
/// The caller holds the lock of `victims`.
pub(crate) fn watch(node: &Node, threshold: Option<u64>) {
    // ORDERING: Relaxed; a hint (E1).
    node.oom().watch.store(threshold.map_or(0, |threshold| threshold + 1), Ordering::Relaxed);
    node.marks.watch(threshold.is_some());
}

/// A score outside the range of scores. The score before stays in force.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OomScoreError {
    /// The group's path.
    pub group: String,
    /// The score that was asked for.
    pub asked: i32,
}

impl fmt::Display for OomScoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OomScoreError { group, asked } = self;
        write!(
            f,
            "set the oom score of group {group}: {asked} is out of range; -1000 (never) to 1000 (first)"
        )
    }
}

impl std::error::Error for OomScoreError {}

/// Choice and end of victims.
impl Group {
    /// Sets how readily the group is killed when memory runs out in it or above it: -1000 (never)
    /// to 1000, 0 unless set.
    ///
    /// The highest score is killed first, whatever its size. Among equals it is the group that
    /// exceeds its protection by most. The score holds for the group, and for groups below that
    /// have no hook of their own. Groups below with a hook have a score of their own.
    ///
    /// # Errors
    /// The score is out of range, and nothing was changed.
    pub fn set_oom_score(&self, score: i32) -> Result<(), OomScoreError> {
        if !(NEVER..=FIRST).contains(&score) {
            return Err(OomScoreError { group: self.path(), asked: score });
        }
        // ORDERING: Relaxed; a setting by itself.
        self.node().oom().score.store(score.cast_unsigned(), Ordering::Relaxed);
        Ok(())
    }

    /// The group's [score](Group::set_oom_score).
    pub fn oom_score(&self) -> i32 {
        self.node().find_oom().map_or(0, OomState::score)
    }

    /// Sets whether the group and all groups below are killed as a whole, if one of them is
    /// killed: `memory.oom.group`.
    ///
    /// Of several such groups, one above the other, the topmost counts that is not above the full
    /// group. Groups with a score of -1000 survive.
    pub fn set_oom_group(&self, as_a_whole: bool) {
        // ORDERING: Relaxed; a setting by itself.
        self.node().oom().is_unit.store(as_a_whole, Ordering::Relaxed);
    }

    /// Returns whether the group is killed [as a whole](Group::set_oom_group).
    pub fn oom_group(&self) -> bool {
        self.node().find_oom().is_some_and(OomState::is_unit)
    }

    /// Kills of this group that took longer than
    /// [`Config::kill_patience`](crate::Config::kill_patience), after which the group was skipped.
    pub fn oom_kills_overdue(&self) -> u64 {
        // ORDERING: Relaxed; a number for reports.
        self.node().find_oom().map_or(0, |state| state.overdue.load(Ordering::Relaxed))
    }

    /// Reports that the killed work of this group has ended, and has freed its memory. From now on
    /// the next group may be chosen.
    ///
    /// It is for users that know of the end before usage shows it. Usage shows the end when half
    /// of the group's bytes are gone, or all of a group that was removed. Bytes that the group
    /// keeps are on their way no longer. Returns whether a kill of the group was pending.
    pub fn kill_done(&self) -> bool {
        self.node().shared().victims().finish(self.node())
    }
}

impl Part for OomState {
    /// For a new group in the node. The last one had no hook: a hook would have kept it.
    fn reset(&self) {
        // ORDERING: Relaxed, all; no thread has a handle yet, and the tree lock publishes it.
        self.score.store(0, Ordering::Relaxed);
        // ORDERING: as above.
        self.is_unit.store(false, Ordering::Relaxed);
        // ORDERING: as above.
        self.overdue.store(0, Ordering::Relaxed);
    }
}

static STATE: Key<PlacePart, OomState> = Key::new(PlacePart::Oom, OomState::new);

impl Node {
    /// The out-of-memory state of the group, which is made if it has none yet. A charge asks for
    /// it only where there is a hook.
    pub(crate) fn oom(&self) -> &'static OomState {
        self.kept_part(&STATE)
    }

    /// The out-of-memory state of the group; `None` if its place never had a hook or a setting.
    pub(crate) fn find_oom(&self) -> Option<&'static OomState> {
        self.find_kept(&STATE)
    }

    /// The index of the group's candidate, if it has a hook. The caller holds the lock of
    /// `victims`.
    pub(crate) fn candidate_index(&self) -> Option<usize> {
        self.find_oom()?.index()
    }
}
