//! Registry: the shrinkers of a hierarchy by number, and the changes of marks that are under way.
//!
//! - I1. A shrinker's number is given to another only when it was withdrawn, its last call has
//!   ended, and all its slots are given up.
//! - E1. A mark moves: announced in `mark_moves` → the class set → marked in the new class →
//!   unmarked in the old one → the end announced. A look at the classes one after the other may
//!   miss it. So a look that finds nothing counts only if `mark_moves` is the same before and
//!   after, with none under way. Loom: `misses_no_mark_that_moves`.

use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use memgroup_sync::hazard::Place;

use crate::base::mutation::{self, Mutation};
use crate::observe::wait::queue::WaitQueue;
use crate::reclaim::bitmap::SummaryBitmap;
use crate::reclaim::entry::ShrinkerEntry;
use crate::tree::handle::Hierarchy;
use crate::tree::parts::{HierarchyPart, Key, Part};
use crate::tree::shared::Shared;

/// In `mark_moves`: one more, which is under way.
const ONE_MOVE: u64 = (1 << 32) + 1;

/// All shrinkers of a hierarchy.
pub(crate) struct Registry {
    /// No shrinker is marked here.
    pub(crate) places: SummaryBitmap<Place<ShrinkerEntry>>,
    /// The waits for slots, by the slot's address. The item is the outcome: whether the slot was
    /// handed over.
    pub(crate) queue: Mutex<WaitQueue<usize, Option<bool>>>,
    /// Shrinkers that are registered and not withdrawn.
    pub(crate) live: AtomicU32,
    /// Changes of marks that are under way, and how many ever began: the lower and the upper half.
    mark_moves: AtomicU64,
}

/// A slot's class and its marks are being changed until this is dropped.
pub(crate) struct MarkMove {
    registry: &'static Registry,
}

impl Drop for MarkMove {
    fn drop(&mut self) {
        // ORDERING: Release; pairs with the Acquire in `marks_now`: the marks that were set are
        // seen (E1).
        self.registry.mark_moves.fetch_sub(1, Ordering::Release);
    }
}

/// The marks as a look began that finds none.
#[derive(Clone, Copy)]
pub(crate) struct MarksSeen(u64);

impl Registry {
    pub(crate) fn new() -> Registry {
        let queue = Mutex::new(WaitQueue::new());
        Registry {
            places: SummaryBitmap::new(),
            queue,
            live: AtomicU32::new(0),
            mark_moves: AtomicU64::new(0),
        }
    }

    /// Announces that a slot's class and its marks change.
    pub(crate) fn begin_mark_move(&'static self) -> MarkMove {
        // ORDERING: AcqRel; a look that finds a mark gone finds this (E1).
        self.mark_moves.fetch_add(ONE_MOVE, Ordering::AcqRel);
        MarkMove { registry: self }
    }

    /// Before a look at marks.
    pub(crate) fn marks_now(&self) -> MarksSeen {
        // ORDERING: Acquire; pairs with the RMWs of threads that move marks (E1).
        MarksSeen(self.mark_moves.load(Ordering::Acquire))
    }

    /// Returns whether no mark moved since `seen`, nor then: a look since then that found nothing
    /// has missed nothing.
    pub(crate) fn is_unmoved(&self, seen: MarksSeen) -> bool {
        if mutation::active(Mutation::LookIgnoresMoves) {
            return true;
        }
        // ORDERING: Acquire, as in `marks_now`. It follows the look, because the look's loads are
        // Acquire too.
        seen.0 as u32 == 0 && self.mark_moves.load(Ordering::Acquire) == seen.0
    }

    /// Returns whether a mark is being moved right now. A look may miss a full cache until that
    /// ends.
    pub(crate) fn is_moving(&self) -> bool {
        self.marks_now().0 as u32 != 0
    }

    /// Returns whether there is any.
    pub(crate) fn is_any(&self) -> bool {
        // ORDERING: Relaxed; a shrinker that is registered at this moment has not been asked for
        // anything yet.
        self.live.load(Ordering::Relaxed) > 0
    }

    /// The places of all numbers that were ever given out.
    pub(crate) fn places(&'static self) -> impl Iterator<Item = (u32, &'static Place<ShrinkerEntry>)> {
        (0..self.places.given_out()).filter_map(|number| Some((number, self.places.get(number)?)))
    }
}

/// The number of a shrinker, until its last call has ended and its last slot is given up.
pub(crate) struct Registered {
    /// Keeps the hierarchy.
    pub(crate) hierarchy: Hierarchy,
    pub(crate) number: u32,
    pub(crate) name: String,
}

impl Registered {
    pub(crate) fn registry(&self) -> &'static Registry {
        self.hierarchy.shared().shrinkers()
    }

    pub(crate) fn place(&self) -> &'static Place<ShrinkerEntry> {
        self.registry().places.get(self.number).expect("a number that was given out has a place")
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.registry().places.give_back(self.number);
    }
}

impl Part for Registry {}

static SHRINKERS: Key<HierarchyPart, Registry> = Key::new(HierarchyPart::Shrinkers, Registry::new);

impl Shared {
    /// The registered shrinkers.
    pub(crate) fn shrinkers(&self) -> &Registry {
        self.parts.get(&SHRINKERS)
    }
}
