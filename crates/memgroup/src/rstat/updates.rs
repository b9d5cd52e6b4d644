//! Updates: who has changed since the last flush, and whose turn it is to flush. One for each subsystem.
//!
//! - I1. `turn` is held from before the first mark is cleared until the last value has arrived; what a flush has taken is nowhere else
//!   meanwhile.
//! - E1. arrive → flush: both are RMWs on `epoch`, so a flush that counts for a reader began after the reader came, and sees what it
//!   had done. Loom: `readers_share_a_flush_and_none_is_late`.

use memgroup_percpu::{Marks, Scratch};
use memgroup_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use memgroup_sync::{Mutex, MutexGuard};

use super::side::END;
use super::store::Store;
use crate::mutation::{self, Mutation};
use crate::node::Node;

/// The tree of one subsystem's updates. In lines of its own: readers of others are not disturbed.
#[repr(align(128))]
pub(crate) struct Updates {
    pub(crate) marks: Marks,
    /// Flushes begun.
    epoch: AtomicU64,
    turn: Mutex<Turn>,
    /// Somebody asks how old flushed values are, so flushes note when they begin.
    is_dated: AtomicBool,
}

/// What the one who flushes works with.
pub(super) struct Turn {
    pub(super) scratch: Scratch,
    /// The group that comes next, and its rows.
    pub(super) next: Next,
    /// The deltas of one group.
    pub(super) deltas: Vec<i64>,
    /// The first of the list of each depth.
    pub(super) heads: Vec<u32>,
    /// All subsystems that are flushed together: one, unless the hierarchy has a single tree.
    pub(super) members: Vec<&'static Store>,
    last: Option<Last>,
}

/// A group that a flush has come to and not yet worked on: its lines are on their way meanwhile.
pub(super) struct Next {
    pub(super) node: Option<&'static Node>,
    pub(super) rows: Vec<usize>,
}

/// The last flush that is over. It is never forgotten, although the place of its `top` may be given to another group: for whom it counts
/// held a group in or below `top` when it began, and so `top` too. One of an earlier user of the hierarchy counts for nobody who came later.
struct Last {
    epoch: u64,
    top: &'static Node,
}

/// When a reader came.
#[derive(Clone, Copy)]
pub(super) struct Arrival(u64);

impl Updates {
    pub(super) fn new(slots: usize, places_max: u32, depth_max: u32) -> Updates {
        let rows = slots + 1;
        let turn = Turn {
            scratch: Scratch::new(rows),
            next: Next { node: None, rows: Vec::with_capacity(rows) },
            deltas: Vec::new(),
            heads: vec![END; depth_max as usize + 1],
            members: Vec::new(),
            last: None,
        };
        Updates {
            marks: Marks::new(rows, places_max),
            epoch: AtomicU64::new(0),
            turn: Mutex::new(turn),
            is_dated: AtomicBool::new(false),
        }
    }

    pub(super) fn join(&self, store: &'static Store) {
        let mut turn = self.turn.lock();
        turn.members.push(store);
        let words = turn.deltas.len().max(store.words());
        turn.deltas.resize(words, 0);
    }

    pub(super) fn arrive(&self) -> Arrival {
        // ORDERING: AcqRel; Release: the next flush sees what this thread has done (E1).
        Arrival(self.epoch.fetch_add(0, Ordering::AcqRel))
    }

    /// From now on flushes note when they begin.
    pub(super) fn date(&self) {
        // ORDERING: Relaxed, twice; a flush that has not seen it is one that is not known to be young enough.
        if !self.is_dated.load(Ordering::Relaxed) {
            self.is_dated.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn dated(&self) -> bool {
        // ORDERING: Relaxed, as above.
        self.is_dated.load(Ordering::Relaxed)
    }

    pub(super) fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock()
    }

    /// Flushes begun so far.
    pub(super) fn flushes(&self) -> u64 {
        // ORDERING: Relaxed; a figure for reports.
        self.epoch.load(Ordering::Relaxed)
    }

    /// A flush begins; its number.
    pub(super) fn begin(&self) -> u64 {
        // ORDERING: AcqRel; Acquire: what was done by those who came before is seen (E1).
        self.epoch.fetch_add(1, Ordering::AcqRel) + 1
    }
}

impl Turn {
    /// Whether a flush of `top`, or of a group above it, has begun and ended since `arrival`.
    pub(super) fn covers(&self, arrival: Arrival, top: &'static Node) -> bool {
        let in_time = |last: &Last| {
            last.epoch > arrival.0
                || mutation::active(Mutation::ReaderTakesAFlushThatHadBegun) && last.epoch == arrival.0
        };
        let is_within =
            |last: &Last| top.is_within(last.top) || mutation::active(Mutation::ReaderTakesAFlushOfOthers);
        self.last.as_ref().is_some_and(|last| in_time(last) && is_within(last))
    }

    pub(super) fn end(&mut self, epoch: u64, top: &'static Node) {
        self.last = Some(Last { epoch, top });
    }
}
