//! Update tree: the groups that changed since the last flush, and the right to flush. One for each
//! subsystem.
//!
//! - I1. Each piece of a flush holds the `state` lock from before it clears the first mark until
//!   the last value has arrived. Meanwhile the values that it took are nowhere else. Between two
//!   pieces the other marks are set.
//! - E1. arrive → begin: both are RMWs on `epoch`. A flush that serves a reader began after the
//!   reader arrived, and so sees everything that the reader had added. Loom:
//!   `shares_a_flush_between_readers_in_time`.

use memgroup_percpu::{Marks, Scratch};
use memgroup_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use memgroup_sync::{Mutex, MutexGuard};

use crate::base::id::{NodeId, TOP};
use crate::base::mutation::{self, Mutation};
use crate::state::config::DEPTH_LARGEST;
use crate::state::stats::flushed::END;
use crate::state::stats::store::StatStore;

/// The update tree of one subsystem. Aligned, so that readers of different subsystems share no
/// cache line.
#[repr(align(128))]
pub(crate) struct UpdateTree {
    pub(crate) marks: Marks,
    /// Number of flushes that have begun.
    epoch: AtomicU64,
    state: Mutex<FlushState>,
    /// The first in the list of releases that are left to the thread with the turn
    /// (`stats::release`), by the group's number; `TOP` for none. Written under the tree lock.
    pub(crate) unsettled: AtomicU32,
    /// Whether flushes note when they begin, because a reader accepts values of some age.
    is_dated: AtomicBool,
}

/// Working memory of the flushing thread.
pub(crate) struct FlushState {
    pub(crate) scratch: Scratch,
    /// The rows of the group that is taken next.
    pub(crate) rows: Vec<usize>,
    /// The changes of one group.
    pub(crate) deltas: Vec<i64>,
    /// For each depth, the first group of the list of those with pending values.
    pub(crate) heads: Vec<u32>,
    /// The subsystems that are flushed together: one, unless the hierarchy has a single tree.
    pub(crate) members: Vec<&'static StatStore>,
    last: Option<Last>,
}

/// The last flush that ended.
///
/// It stays valid when the place of `top` is given to another group. A reader that it could serve
/// holds a group in or below `top`, and so keeps `top`. A flush of an earlier user of the
/// hierarchy began before any present reader arrived.
struct Last {
    epoch: u64,
    top: NodeId,
}

/// The number of flushes that had begun when a reader arrived.
#[derive(Clone, Copy)]
pub(crate) struct Arrival(u64);

impl UpdateTree {
    pub(crate) fn new(slots: usize, places_max: u32) -> UpdateTree {
        // Two rows more than slots: for the base words, and for the miss counts.
        let rows = slots + 2;
        let state = FlushState {
            scratch: Scratch::new(rows),
            rows: Vec::with_capacity(rows),
            deltas: Vec::new(),
            heads: vec![END; DEPTH_LARGEST as usize + 1],
            members: Vec::new(),
            last: None,
        };
        UpdateTree {
            marks: Marks::new(rows, places_max),
            epoch: AtomicU64::new(0),
            state: Mutex::new(state),
            unsettled: AtomicU32::new(TOP.0),
            is_dated: AtomicBool::new(false),
        }
    }

    pub(crate) fn arrive(&self) -> Arrival {
        // ORDERING: AcqRel; Release: the next flush sees the additions of this thread (E1).
        Arrival(self.epoch.fetch_add(0, Ordering::AcqRel))
    }

    /// Makes flushes note when they begin.
    pub(crate) fn date(&self) {
        // ORDERING: Relaxed, twice; a flush that misses it counts as too old, and the reader makes
        // another.
        if !self.is_dated.load(Ordering::Relaxed) {
            self.is_dated.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_dated(&self) -> bool {
        // ORDERING: Relaxed, as above.
        self.is_dated.load(Ordering::Relaxed)
    }

    /// Waits for the right to flush.
    pub(crate) fn lock(&self) -> MutexGuard<'_, FlushState> {
        self.state.lock()
    }

    /// As `lock`, behind a thread that waits already.
    pub(crate) fn lock_behind(&self) -> MutexGuard<'_, FlushState> {
        self.state.lock_behind()
    }

    /// The right to flush, if no thread has it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, FlushState>> {
        self.state.try_lock()
    }

    /// Number of flushes that have begun.
    pub(crate) fn flushes(&self) -> u64 {
        // ORDERING: Relaxed; a figure for reports.
        self.epoch.load(Ordering::Relaxed)
    }

    /// Begins a flush and returns its number.
    pub(crate) fn begin(&self) -> u64 {
        // ORDERING: AcqRel; Acquire: the flush sees the additions of readers that arrived before
        // (E1).
        self.epoch.fetch_add(1, Ordering::AcqRel) + 1
    }
}

impl FlushState {
    /// Adds a store to those that are flushed together.
    pub(crate) fn join(&mut self, store: &'static StatStore) {
        self.members.push(store);
        let words = self.deltas.len().max(store.words());
        self.deltas.resize(words, 0);
    }

    /// Whether a flush that began after `arrival` has covered the reader's group. `is_within`
    /// tells whether that group is in, or below, the given one.
    pub(crate) fn covers(&self, arrival: Arrival, is_within: impl Fn(NodeId) -> bool) -> bool {
        let begun_before = mutation::active(Mutation::ReaderTakesAFlushThatHadBegun);
        let any_group = mutation::active(Mutation::ReaderTakesAFlushOfOthers);
        let in_time = |last: &Last| last.epoch > arrival.0 || begun_before && last.epoch == arrival.0;
        self.last.as_ref().is_some_and(|last| in_time(last) && (any_group || is_within(last.top)))
    }

    pub(crate) fn end(&mut self, epoch: u64, top: NodeId) {
        self.last = Some(Last { epoch, top });
    }
}
