//! Settings: what a group says about its own end, and what is kept with it of a kill that is on.
//!
//! - E1. A kill that begins ↔ a thread that uncharges: the watch is a hint. Who misses it leaves what it would have noted to whoever looks next
//!   (`victims` B1); who finds it of a kill that is over looks again under the lock.

use std::sync::OnceLock;

use memgroup_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use memgroup_sync::hazard::Place;

use super::error::OomScoreError;
use super::hook::{Hook, domain};
use crate::group::Group;
use crate::node::Node;

/// Whoever has this score is never killed.
pub(super) const NEVER: i32 = -1000;
const FIRST: i32 = 1000;

/// A group as one that may be killed.
pub(crate) struct Candidacy {
    /// An `i32`.
    score: AtomicU32,
    is_unit: AtomicBool,
    /// Where its hook is, if it ever had one.
    place: OnceLock<Box<Place<Hook>>>,
    /// Its seat among those that have hooks, and one more; 0: it has none. Written under the lock of `victims`.
    seat: AtomicU32,
    /// It is being killed, and usage below this says that it is as good as dead; 0: it is not, or that was noted.
    watch: AtomicU64,
    /// Kills of it that took longer than the patience.
    overdue: AtomicU64,
}

impl Candidacy {
    pub(crate) fn new() -> Candidacy {
        Candidacy {
            score: AtomicU32::new(0),
            is_unit: AtomicBool::new(false),
            place: OnceLock::new(),
            seat: AtomicU32::new(0),
            watch: AtomicU64::new(0),
            overdue: AtomicU64::new(0),
        }
    }

    /// For a new group in the place. The last one had no hook any more, or it would be there still.
    pub(crate) fn reset(&self) {
        // ORDERING: Relaxed, all; nobody has a handle yet, and the tree lock gives it out.
        self.score.store(0, Ordering::Relaxed);
        // ORDERING: as above.
        self.is_unit.store(false, Ordering::Relaxed);
        // ORDERING: as above.
        self.overdue.store(0, Ordering::Relaxed);
    }

    pub(super) fn score(&self) -> i32 {
        // ORDERING: Relaxed; a setting by itself.
        self.score.load(Ordering::Relaxed).cast_signed()
    }

    /// Whether the group dies as a whole.
    pub(super) fn is_unit(&self) -> bool {
        // ORDERING: Relaxed; a setting by itself.
        self.is_unit.load(Ordering::Relaxed)
    }

    pub(super) fn place(&'static self) -> Option<&'static Place<Hook>> {
        self.place.get().map(|place| &**place)
    }

    pub(super) fn make_place(&'static self) -> &'static Place<Hook> {
        self.place.get_or_init(|| Box::new(Place::empty(domain())))
    }

    pub(super) fn seat(&self) -> Option<usize> {
        // ORDERING: Relaxed; read and written under the lock of `victims`.
        self.seat.load(Ordering::Relaxed).checked_sub(1).map(|seat| seat as usize)
    }

    /// Whether it has a hook. For who holds the lock of `victims`.
    pub(super) fn has_hook(&self) -> bool {
        self.seat().is_some()
    }

    pub(super) fn set_seat(&self, seat: Option<usize>) {
        // ORDERING: Relaxed; as in `seat`.
        self.seat.store(seat.map_or(0, |seat| seat as u32 + 1), Ordering::Relaxed);
    }

    pub(super) fn count_overdue(&self) {
        // ORDERING: Relaxed; a number for people.
        self.overdue.fetch_add(1, Ordering::Relaxed);
    }
}

/// Usage of a group fell. The group may be released by then, and its place another's: then this looks at that one for nothing.
#[inline]
pub(crate) fn fell(node: &'static Node) {
    if node.marks.is_watched() {
        look(node);
    }
}

#[cold]
fn look(node: &'static Node) {
    // ORDERING: Relaxed; a hint (E1).
    if node.counter.usage() < node.control.oom.watch.load(Ordering::Relaxed) {
        node.shared.victims.look(node);
    }
}

/// From now on somebody who uncharges notes when usage is `threshold` bytes or less; `None`: nobody does. Under the lock of `victims`.
pub(super) fn watch(node: &Node, threshold: Option<u64>) {
    // ORDERING: Relaxed; a hint (E1).
    node.control.oom.watch.store(threshold.map_or(0, |threshold| threshold + 1), Ordering::Relaxed);
    node.marks.watch(threshold.is_some());
}

impl Group {
    /// How readily the group is killed when memory runs out in it or above it: -1000 (never) to 1000. The highest dies first, whatever its size; among
    /// equals, who exceeds its protection by most. 0 unless set. It is the group's own, with groups below that have no hook of their own: those that have one have a score of their
    /// own, too.
    ///
    /// # Errors
    /// It is out of range, and nothing was changed.
    pub fn set_oom_score(&self, score: i32) -> Result<(), OomScoreError> {
        if !(NEVER..=FIRST).contains(&score) {
            return Err(OomScoreError { asked: score });
        }
        // ORDERING: Relaxed; a setting by itself.
        self.node().control.oom.score.store(score.cast_unsigned(), Ordering::Relaxed);
        Ok(())
    }

    /// See [`set_oom_score`](Group::set_oom_score).
    pub fn oom_score(&self) -> i32 {
        self.node().control.oom.score()
    }

    /// Whether the group and all groups below die as a whole, if one of them is to die: `memory.oom.group`. Of several such groups one above the other the
    /// topmost counts that is not above the group that is full. Groups with a score of -1000 survive it.
    pub fn set_oom_group(&self, as_a_whole: bool) {
        // ORDERING: Relaxed; a setting by itself.
        self.node().control.oom.is_unit.store(as_a_whole, Ordering::Relaxed);
    }

    /// See [`set_oom_group`](Group::set_oom_group).
    pub fn oom_group(&self) -> bool {
        self.node().control.oom.is_unit()
    }

    /// Kills of this group since it was created that took longer than [`Config::kill_patience`](crate::Config::kill_patience): the group was passed over then.
    pub fn oom_kills_overdue(&self) -> u64 {
        // ORDERING: Relaxed; a number for people.
        self.node().control.oom.overdue.load(Ordering::Relaxed)
    }

    /// Says that what was told to stop in this group has ended, and has freed what it could: the next one may be chosen from now on. For who knows it before usage shows it, which counts
    /// as ended when half of what the group had is gone. Whether a kill of it was on.
    pub fn kill_done(&self) -> bool {
        self.node().shared.victims.done(self.node())
    }
}
