//! Flush: moves additions on the slots to the group's values and to those of all groups above.
//!
//! 1. The flush clears the marks of the subtree, and takes the words of each marked group to zero,
//!    slot by slot.
//! 2. One pass from the deepest changed groups to the root adds each group's change to its parent.
//!
//! The work is proportional to the changes: the flush visits no group or slot without a mark, and
//! no other subsystem. It does both steps for at most `ROWS_A_PIECE` marked rows at a time.
//! Between two pieces it frees the lock, and goes behind a thread that waits for it. Threads that
//! arrive meanwhile find that one later flush has served them all.
//!
//! - I1. When a piece of a flush ends, no value is pending (`flushed`, I2).
//! - I2. A flush cannot fail. A mark of a place that is free, and so has no flushed values, is
//!   skipped.
//! - I3. A flush begins with its first piece, and covers a reader when its last one ends
//!   (`UpdateTree`, E1). Loom: `flushes_in_pieces_for_two_readers`,
//!   `flushes_in_pieces_for_a_reader_that_adds_behind_one`, `notes_a_flush_in_pieces_at_its_end`.
//! - E1. During a piece no record of its subsystems moves, and no group is released: a mover and a
//!   release need the turn to flush too. Loom: `flushes_values_that_move`,
//!   `counts_once_in_a_flush_and_a_release`.
//! - E2. clear the marks → look for the record; link or admit → add → check the mark. Both sides
//!   hold the tree lock where the flush finds no record, or no copy for the slot. So a thread that
//!   adds to a copy made later finds the marks cleared. Without the lock, an addition to a record
//!   on its way back could be in no flush. Loom: `flushes_a_record_that_comes_back`.
//! - E3. A thread that waits for a turn has no other turn and not the tree lock. So a flush, and a
//!   mover that waits for its end, delay no reader of another subsystem. Loom:
//!   `reads_beside_a_flush_of_others_and_a_mover`.

use core::cell::RefCell;
use core::time::Duration;

use memgroup_percpu::{Piece, Rows, additive};
use memgroup_sync::atomic::AtomicU64;
use memgroup_sync::grace::{self, Section};
use memgroup_sync::{MutexGuard, interleave};

use crate::base::id::NodeId;
use crate::base::mutation::{self, Mutation};
use crate::state::stats::builtin::{MEMORY, memory};
use crate::state::stats::flushed::{END, FlushedStats};
use crate::state::stats::store::{StatEntry, StatStore};
use crate::state::stats::update_tree::{FlushState, UpdateTree};
use crate::stats::release::DeferredReleases;
use crate::stock::listed;
use crate::tree::node::Node;
use crate::tree::shared::Shared;
use crate::tree::topology::Tree;

/// How old the values may be that a read returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// The values contain all additions before the call: of this thread, and of threads that it
    /// has synchronised with.
    Fresh,
    /// The values were fresh at most that long ago. The read flushes only if no flush began within
    /// that time.
    AtMost(Duration),
    /// The values of the last flush, which may be any time ago. The read only copies.
    Flushed,
}

/// The turn to flush the subsystems of one update tree. While it lives, no other thread changes
/// their flushed values or moves their records, and no group is released.
#[must_use]
pub(crate) struct FlushGuard {
    updates: &'static UpdateTree,
    // Dropped in this order: releases are finished when the turn is free.
    state: MutexGuard<'static, FlushState>,
    releases: DeferredReleases,
}

impl FlushGuard {
    /// Returns whether it is the turn of this entry's subsystem.
    pub(crate) fn is_of(&self, entry: &StatEntry) -> bool {
        core::ptr::eq(self.updates, entry.store().updates)
    }

    /// The hierarchy.
    pub(crate) fn shared(&self) -> &'static Shared {
        self.releases.shared
    }

    /// Adds a store to those that are flushed in this turn.
    pub(crate) fn join(&mut self, store: &'static StatStore) {
        self.state.join(store);
        if cfg!(memgroup_loom) {
            // Else no model has another thread run here.
            memgroup_sync::thread::yield_now();
        }
    }

    /// Frees the turn, and waits for it again behind a thread that waits already.
    pub(crate) fn let_others_in(self) -> FlushGuard {
        let (updates, shared) = (self.updates, self.releases.shared);
        drop(self);
        interleave::point();
        FlushGuard { updates, state: updates.lock_behind(), releases: DeferredReleases { updates, shared } }
    }
}

/// Waits for the turn. The caller holds no turn and not the tree lock (E3).
pub(crate) fn lock(updates: &'static UpdateTree, shared: &'static Shared) -> FlushGuard {
    FlushGuard { updates, state: updates.lock(), releases: DeferredReleases { updates, shared } }
}

/// The turn, if no thread has it.
pub(crate) fn try_lock(updates: &'static UpdateTree, shared: &'static Shared) -> Option<FlushGuard> {
    Some(FlushGuard { updates, state: updates.try_lock()?, releases: DeferredReleases { updates, shared } })
}

/// The most marked rows that are flushed with the turn held once; or those of one group, if it has
/// more.
const ROWS_A_PIECE: usize = if cfg!(memgroup_loom) {
    2
} else if cfg!(memgroup_yields) {
    8
} else {
    256
};

/// Flushes the subtree of `top`, unless another thread does so after this call has begun.
pub(crate) fn flush(store: &'static StatStore, top: &'static Node) -> FlushGuard {
    let (updates, shared) = (store.updates, top.shared());
    let arrival = updates.arrive();
    let mut guard = lock(updates, shared);
    let is_within = |group| shared.node(group).is_some_and(|node| top.is_within(node));
    let (mut begun, mut from) = (None, 0);
    // Between two pieces, too, another thread may have flushed all.
    while !guard.state.covers(arrival, is_within) {
        let (epoch, began) = *begun.get_or_insert_with(|| {
            let began = updates.is_dated().then(|| shared.nanos());
            (updates.begin(), began)
        });
        let next = flush_piece(store, &mut guard.state, top, from);
        if let Some(next) = next.filter(|_| !mutation::active(Mutation::PieceEndsTheFlush)) {
            from = next;
            guard = guard.let_others_in();
            begun = begun.filter(|_| !mutation::active(Mutation::PieceBeginsTheFlush));
            continue;
        }
        if let Some(began) = began {
            entries(top, &guard.state.members).for_each(|entry| entry.flushed().note_flush(began));
        }
        guard.state.end(epoch, top.id());
        break;
    }
    guard
}

/// Flushes the subtree of `top` if something in it may have changed.
#[inline]
pub(crate) fn refresh(store: &'static StatStore, top: &'static Node) {
    let marks = &store.updates.marks;
    if !(marks.is_clean() || top.is_childless() && top.entry(store).mark(top.id()).is_clean()) {
        drop(flush(store, top));
    }
}

/// As `refresh`, only if the flushed values are older than `freshness` allows.
#[inline]
pub(crate) fn refresh_as(store: &'static StatStore, top: &'static Node, freshness: Freshness) {
    match freshness {
        Freshness::Flushed => (),
        Freshness::AtMost(age) if is_younger(store, top, age) => (),
        Freshness::Fresh | Freshness::AtMost(_) => refresh(store, top),
    }
}

/// Returns whether a flush of `top`, or of a group above it, began at most `age` ago.
fn is_younger(store: &'static StatStore, top: &'static Node, age: Duration) -> bool {
    store.updates.date();
    let oldest = top.shared().nanos().saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
    let mut levels = std::iter::successors(Some(top), |level| level.parent());
    levels.any(|level| level.entry(store).flushed().flushed_at().is_some_and(|at| at >= oldest))
}

/// Flushes one piece: the marked groups of the subtree of `top`, from the number `from` on.
/// Returns the number at which the next piece begins.
fn flush_piece(
    store: &'static StatStore,
    state: &mut FlushState,
    top: &'static Node,
    from: u32,
) -> Option<u32> {
    let shared = top.shared();
    let FlushState { scratch, rows, deltas, heads, members, .. } = state;
    let work =
        RefCell::new(FlushPiece { members, next: None, rows, deltas, heads, lookup: Lookup::default() });
    let group = |number| shared.node(NodeId(number));
    let each = |number, rows: Rows<'_>| {
        group(number).into_iter().for_each(|node| work.borrow_mut().group(node, rows.clone()));
    };
    // It runs before the marks look clean to any reader.
    let finish = || work.borrow_mut().finish(shared);
    let marks = &store.updates.marks;
    if top.is_childless() {
        marks.collect_one(scratch, top.id().0, |rows| each(top.id().0, rows), finish);
        return None;
    }
    let is_wanted = |number| top.depth() == 0 || group(number).is_some_and(|node| node.is_within(top));
    let piece = Piece { from, marks_max: ROWS_A_PIECE };
    marks.collect_piece(scratch, piece, is_wanted, each, finish)
}

/// A piece of a flush. It takes each group when it knows the next one, whose lines it has
/// prefetched by then.
struct FlushPiece<'a> {
    members: &'a [&'static StatStore],
    /// The group that is taken next, and its marked rows.
    next: Option<&'static Node>,
    rows: &'a mut Vec<usize>,
    /// The changes of one group.
    deltas: &'a mut [i64],
    /// The lists of groups with pending values, by depth.
    heads: &'a mut [u32],
    lookup: Lookup,
}

impl FlushPiece<'_> {
    /// Takes the group before, and prefetches this one, which is marked in `rows`.
    fn group(&mut self, node: &'static Node, rows: Rows<'_>) {
        prefetch(node, self.members, rows.clone());
        self.take_next();
        self.next = Some(node);
        self.rows.clear();
        self.rows.extend(rows);
    }

    /// Takes the last group, and moves all changes up to the root.
    fn finish(&mut self, shared: &'static Shared) {
        self.take_next();
        self.lookup.tree = None;
        self.propagate(shared);
    }

    /// Takes the additions to the next group.
    fn take_next(&mut self) {
        let Some(node) = self.next.take() else { return };
        interleave::point();
        self.lookup.begin_group();
        let (parent, section) = (node.parent(), grace::enter());
        let mut changed = false;
        for entry in entries(node, self.members) {
            // A scope with a forgotten guard may have marked the place while its group was released
            // (I2).
            let Some(flushed) = entry.find_flushed() else { continue };
            let deltas = &mut self.deltas[..entry.store().words()];
            take_rows(entry, &flushed, node, self.rows, deltas, &section, &mut self.lookup);
            let above = parent.and_then(|parent| parent.find_entry(entry.store().number));
            changed |= flushed.apply(deltas, above.and_then(StatEntry::find_flushed));
        }
        if let Some(parent) = parent.filter(|_| changed) {
            self.enlist(parent);
        }
    }

    /// Puts the group into the list of its depth. Subsystems that share a tree share the list.
    fn enlist(&mut self, node: &'static Node) {
        let first = self.members.first().and_then(|member| node.find_entry(member.number));
        if let Some(flushed) = first.and_then(StatEntry::find_flushed) {
            flushed.enlist(node.id().0, &mut self.heads[node.depth() as usize]);
        }
    }

    /// Moves pending values from the deepest groups up to the root.
    fn propagate(&mut self, shared: &'static Shared) {
        for depth in (0..self.heads.len()).rev() {
            let mut at = std::mem::replace(&mut self.heads[depth], END);
            while let Some(node) = (at != END).then(|| shared.node(NodeId(at))).flatten() {
                let parent = node.parent();
                for (nth, entry) in entries(node, self.members).enumerate() {
                    if nth == 0 {
                        at = entry.flushed().delist();
                    }
                    let above = parent.and_then(|parent| parent.find_entry(entry.store().number));
                    entry.flushed().propagate(above.map(StatEntry::flushed));
                }
                if let Some(parent) = parent.filter(|_| !mutation::active(Mutation::FlushStopsBelowTheRoot)) {
                    self.enlist(parent);
                }
            }
        }
    }
}

fn entries(node: &'static Node, members: &[&'static StatStore]) -> impl Iterator<Item = &'static StatEntry> {
    members.iter().filter_map(|member| node.find_entry(member.number))
}

/// Number of rows of a group that are prefetched together: as many lines as a processor fetches at
/// a time.
fn rows_ahead(entry: &StatEntry) -> usize {
    const LINES: usize = 16;
    (LINES / entry.store().words().div_ceil(8)).max(1)
}

/// Prefetches the first lines of a group that is taken next. They come from other CPUs, and this
/// fetches them together.
fn prefetch(node: &'static Node, members: &[&'static StatStore], rows: Rows<'_>) {
    let section = grace::enter();
    // Mostly the numbers of groups follow each other.
    if let Some(ahead) = node.shared().node(NodeId(node.id().0 + 2)) {
        members
            .iter()
            .filter_map(|member| ahead.stat_entry(member.number))
            .for_each(memgroup_percpu::prefetch);
        ahead.prefetch_parent();
    }
    entries(node, members).for_each(|entry| entry.prefetch(&section, rows.clone().take(rows_ahead(entry))));
}

/// Takes the additions to one group in `rows`, into `deltas`.
fn take_rows(
    entry: &'static StatEntry,
    flushed: &FlushedStats,
    node: &'static Node,
    rows: &[usize],
    deltas: &mut [i64],
    section: &Section,
    lookup: &mut Lookup,
) {
    let ahead = rows_ahead(entry);
    let has_charges = entry.store().number == MEMORY && node.shared().has_stock();
    let misses_row = entry.store().misses_row();
    let has_misses = entry.store().number == MEMORY && rows.last() == Some(&misses_row);
    let takes_misses_last = mutation::active(Mutation::FlushTakesMissesLast);
    // Before the charges are counted, as below.
    if has_misses && !takes_misses_last {
        take_misses(node, deltas);
    }
    for (nth, &row) in rows.iter().enumerate().filter(|(_, row)| **row != misses_row) {
        if let Some(&row) = rows.get(nth + ahead) {
            entry.record.prefetch_words(section, row);
        }
        if row == entry.store().base_row() {
            flushed.take_base(|index, value| deltas[index] = deltas[index].wrapping_add(value));
            continue;
        }
        if let Some(words) = lookup.find(node, || entry.record.words(section, row)) {
            take_words(words, deltas);
        }
        // After the misses, as the charges are counted. So a thread that stays on its slot shows no
        // miss before its charge.
        if has_charges {
            deltas[memory::CHARGES.index()] += listed::harvest(node, row).unwrap_or(0) as i64;
        }
    }
    if has_misses && takes_misses_last {
        take_misses(node, deltas);
    }
}

fn take_misses(node: &'static Node, deltas: &mut [i64]) {
    node.misses.take(|index, value| deltas[index] = deltas[index].wrapping_add(value));
}

/// For how many groups a flush holds the tree lock on end. Most groups are small, and have no
/// record of `memory`: a flush that took the lock for each would wait for it as often.
const GROUPS_HELD_MAX: u32 = 64;

/// The search for copies, which may need the tree lock (E2).
#[derive(Default)]
struct Lookup {
    tree: Option<MutexGuard<'static, Tree>>,
    /// Groups since the lock was taken.
    groups: u32,
}

impl Lookup {
    fn begin_group(&mut self) {
        self.groups += 1;
        if self.groups > GROUPS_HELD_MAX {
            self.tree = None;
        }
    }

    /// Looks for a copy, and once more under the tree lock if there is none. A copy that is
    /// missing then is made by a thread that will find the marks cleared.
    #[inline]
    fn find<T>(&mut self, node: &'static Node, look: impl Fn() -> Option<T>) -> Option<T> {
        look().or_else(|| {
            if self.tree.is_some() || mutation::active(Mutation::FlushTakesUnfoundForNone) {
                return None;
            }
            (self.tree, self.groups) = (Some(node.shared().tree.lock_behind()), 0);
            look()
        })
    }
}

/// Takes the words of one row, the last first. So a thread that adds in the order of the positions
/// never shows its second addition without the first.
#[inline]
fn take_words<'w>(
    words: impl DoubleEndedIterator<Item = &'w AtomicU64> + ExactSizeIterator,
    deltas: &mut [i64],
) {
    let take_one = |(word, delta): (_, &mut i64)| {
        let value = additive::take(word);
        if value != 0 {
            *delta = delta.wrapping_add(value);
        }
    };
    let words = words.zip(deltas);
    if mutation::active(Mutation::FlushTakesFirstWordsFirst) {
        words.for_each(take_one);
    } else {
        words.rev().for_each(take_one);
    }
}
