//! Flush: what was added on the slots arrives in the group and in all above it.
//!
//! 1. The marks of the subtree are cleared, and the words of each marked group taken to zero, slot by slot.
//! 2. One pass from the deepest changed groups up to the root: each group's change arrives there, and goes on to its parent.
//!
//! What is done is proportional to what changed: no group and no slot without a mark is looked at, and no other subsystem. Threads
//! that come meanwhile wait for their turn, and find that one flush has served them all.
//!
//! - I1. When a turn ends, no value is on its way (`side`, I2).
//! - I2. A flush fails for nobody: a mark of a place that is free by now, and has no side, is passed over.
//! - E1. While one flushes no record moves and no group is released: it holds the layout of the statistics for reading. Loom:
//!   `a_flush_misses_nothing_that_moves`, `a_flush_and_a_release_count_once`.
//! - E2. clear the marks → look for the record, link or admit → add → look at the mark: both sides hold the tree lock where the flush
//!   finds no record, or no copy for the slot. Who adds to a copy that is made later finds the marks cleared. Without, an addition
//!   that went through doors that were open once, to a record that is on its way back, would be in no flush. Loom:
//!   `a_flush_finds_a_record_that_comes_back`.

use memgroup_percpu::{Rows, additive};
use memgroup_sync::atomic::AtomicU64;
use memgroup_sync::grace::{self, Section};
use memgroup_sync::{MutexGuard, RwLockReadGuard, interleave};

use super::builtin;
use super::side::{END, Side};
use super::store::{Entry, Store};
use super::updates::Turn;
use crate::group::GroupId;
use crate::mutation::{self, Mutation};
use crate::node::Node;
use crate::shared::Shared;
use crate::stock;
use crate::tree::Tree;

/// How old what is read may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Everything that was added before the call is in it, by this thread, and by others whose additions it knows of.
    Fresh,
    /// It was so at most that long ago: what a flush has left within that time, if there was one, else a fresh flush.
    AtMost(core::time::Duration),
    /// As the last flush left it, whenever that was; a copy and no more.
    Flushed,
}

/// Flushes the subtree of `top` if something in it may have changed.
#[inline]
pub(crate) fn refresh(store: &'static Store, top: &'static Node) {
    let marks = &store.updates.marks;
    if !(marks.is_clean() || top.is_childless() && top.entry(store).mark.is_settled()) {
        flush(store, top, |_| ());
    }
}

/// The same, if what was flushed is too old.
#[inline]
pub(super) fn refresh_as(store: &'static Store, top: &'static Node, freshness: Freshness) {
    match freshness {
        Freshness::Fresh => refresh(store, top),
        Freshness::AtMost(age) => {
            if !is_younger(store, top, age) {
                refresh(store, top);
            }
        }
        Freshness::Flushed => (),
    }
}

/// Whether a flush of `top`, or of a group above it, began at most `age` ago.
fn is_younger(store: &'static Store, top: &'static Node, age: core::time::Duration) -> bool {
    store.updates.date();
    let now = top.shared.nanos();
    let oldest = now.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
    let mut levels = std::iter::successors(Some(top), |level| level.parent());
    let section = grace::enter();
    levels.any(|level| level.entry(store).side(&section).flushed_at().is_some_and(|at| at >= oldest))
}

/// Flushes the subtree of `top`, unless somebody does so after this call has begun. `then` sees values that are of one moment.
pub(crate) fn flush<T>(store: &'static Store, top: &'static Node, then: impl FnOnce(&Still<'_>) -> T) -> T {
    let arrival = store.updates.arrive();
    hold(store, top.shared, |turn, layout| {
        if !turn.covers(arrival, top) {
            make(store, turn, top);
        }
        then(&Still { layout })
    })
}

/// Holds off flushes of the store, releases and moves.
pub(crate) fn hold_still<T>(
    store: &'static Store,
    shared: &'static Shared,
    then: impl FnOnce(&Still<'_>) -> T,
) -> T {
    hold(store, shared, |_, layout| then(&Still { layout }))
}

/// While it lives, no flushed value of a store changes and no group is released.
pub(crate) struct Still<'l> {
    #[expect(dead_code, reason = "held")]
    layout: &'l RwLockReadGuard<'l, ()>,
}

fn hold<T>(
    store: &'static Store,
    shared: &'static Shared,
    work: impl FnOnce(&mut Turn, &RwLockReadGuard<'_, ()>) -> T,
) -> T {
    let mut turn = store.updates.turn();
    let layout = shared.layout.read();
    let done = work(&mut turn, &layout);
    drop(layout);
    drop(turn);
    super::settle::finish_releases(shared);
    done
}

fn make(store: &'static Store, turn: &mut Turn, top: &'static Node) {
    let shared = top.shared;
    let at = store.updates.dated().then(|| shared.nanos());
    let epoch = store.updates.begin();
    let Turn { scratch, next, deltas, heads, members, .. } = &mut *turn;
    let work = std::cell::RefCell::new((next, deltas, heads));
    let each = |number: u32, rows: Rows<'_>| {
        let (next, deltas, heads) = &mut *work.borrow_mut();
        let Some(node) = shared.node(GroupId(number)) else { return };
        expect(node, members, rows.clone());
        if let Some(node) = next.node.replace(node) {
            take(node, members, &next.rows, deltas, heads);
        }
        next.rows.clear();
        next.rows.extend(rows);
    };
    // Only when all has arrived does anything look clean.
    let finish = || {
        let (next, deltas, heads) = &mut *work.borrow_mut();
        if let Some(node) = next.node.take() {
            take(node, members, &next.rows, deltas, heads);
        }
        arrive(shared, members, heads);
        if let Some(at) = at {
            let entries = members.iter().filter_map(|member| top.stats[member.number].get());
            entries.for_each(|entry| entry.side(&grace::enter()).note_flush(at));
        }
    };
    let marks = &store.updates.marks;
    if top.is_childless() {
        marks.collect_one_then(scratch, top.id.0, |rows| each(top.id.0, rows), finish);
    } else {
        let whole = top.depth() == 0;
        let is_within = |number| shared.node(GroupId(number)).is_some_and(|node| node.is_within(top));
        let wanted = |number| whole || is_within(number);
        marks.collect_then(scratch, wanted, each, finish);
    }
    turn.end(epoch, top);
}

/// Lines of a group that are asked for ahead: no more than a processor fetches at a time.
const LINES_AHEAD: usize = 16;

/// How many rows of a group that is.
fn rows_ahead(entry: &Entry) -> usize {
    (LINES_AHEAD / entry.store.words().div_ceil(8)).max(1)
}

/// A group comes next: the first of its lines are asked for. They come from other CPUs, and would come one after the other.
fn expect(node: &'static Node, members: &[&'static Store], rows: Rows<'_>) {
    let section = grace::enter();
    // Mostly numbers come one after the other: where the places of the next but one lie is known, and where their values do, of the next.
    let later = |steps: u32| node.shared.node(GroupId(node.id.0 + steps));
    if let Some(later) = later(2) {
        members.iter().for_each(|member| memgroup_percpu::prefetch(&later.stats[member.number]));
        later.prefetch_parent();
    }
    if let Some(next) = later(1) {
        let entries = members.iter().filter_map(|member| next.stats[member.number].get());
        entries.filter_map(|entry| entry.find_side(&section)).for_each(memgroup_percpu::prefetch);
    }
    for entry in members.iter().filter_map(|member| node.stats[member.number].get()) {
        if let Some(side) = entry.find_side(&section) {
            side.prefetch();
        }
        rows.clone().take(rows_ahead(entry)).for_each(|row| entry.record.prefetch_words(&section, row));
    }
}

/// Takes what was added to one group in `rows`.
fn take(
    node: &'static Node,
    members: &[&'static Store],
    rows: &[usize],
    deltas: &mut [i64],
    heads: &mut [u32],
) {
    interleave::point();
    let (parent, section) = (node.parent(), grace::enter());
    let mut changed = false;
    for entry in members.iter().filter_map(|member| node.stats[member.number].get()) {
        // None in a free place, which a scope whose guard was forgotten may have marked while its group was released (I2).
        let Some(side) = entry.find_side(&section) else { continue };
        let deltas = &mut deltas[..entry.store.words()];
        take_rows(entry, side, node, rows, deltas, &section);
        let above = parent.and_then(|parent| parent.stats[entry.store.number].get());
        changed |= side.receive(deltas, above.and_then(|above| above.find_side(&section)));
    }
    if changed && let Some(parent) = parent {
        enlist(parent, members, heads);
    }
}

fn take_rows(
    entry: &'static Entry,
    side: &Side,
    node: &'static Node,
    rows: &[usize],
    deltas: &mut [i64],
    section: &Section,
) {
    let ahead = rows_ahead(entry);
    let has_charges = entry.store.number == builtin::MEMORY && node.shared.has_stock();
    let mut again = Again::new(node);
    for (nth, &row) in rows.iter().enumerate() {
        if let Some(&row) = rows.get(nth + ahead) {
            entry.record.prefetch_words(section, row);
        }
        if row == entry.store.base_row() {
            let mut add = |index: usize, value| deltas[index] = deltas[index].wrapping_add(value);
            side.take_beside(&mut add);
            continue;
        }
        if let Some(words) = again.find(|| entry.record.words(section, row)) {
            take_row(words, deltas);
        }
        // After the misses, as the counted charges are: no miss is read before its charge, where a thread stays on its slot.
        if has_charges && let Some(charges) = again.find(|| stock::listed::harvest(node, section, row)) {
            deltas[builtin::memory::CHARGES] += charges as i64;
        }
    }
}

/// What is not found is looked for again under the tree lock: who makes a copy holds it, so one that is not found then is made by
/// somebody who finds the marks cleared (E2).
struct Again<'t> {
    node: &'static Node,
    tree: Option<MutexGuard<'t, Tree>>,
}

impl Again<'_> {
    fn new(node: &'static Node) -> Self {
        Again { node, tree: None }
    }

    #[inline]
    fn find<T>(&mut self, look: impl Fn() -> Option<T>) -> Option<T> {
        look().or_else(|| {
            if mutation::active(Mutation::FlushTakesUnfoundForNone) {
                return None;
            }
            self.tree.get_or_insert_with(|| self.node.shared.tree.lock());
            look()
        })
    }
}

/// Takes the words of one row, the last first: who adds in the order of the numbers is not found to have added the second alone.
#[inline]
fn take_row<'w>(
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

/// The group is in the list of its depth; those of one tree share one list.
fn enlist(node: &'static Node, members: &[&'static Store], heads: &mut [u32]) {
    let section = grace::enter();
    if let Some(entry) = members.first().and_then(|member| node.stats[member.number].get())
        && let Some(side) = entry.find_side(&section)
    {
        side.enlist(node.id.0, &mut heads[node.depth() as usize]);
    }
}

/// The pass from the deepest to the root.
fn arrive(shared: &'static Shared, members: &[&'static Store], heads: &mut [u32]) {
    for depth in (0..heads.len()).rev() {
        let mut at = std::mem::replace(&mut heads[depth], END);
        while let Some(node) = (at != END).then(|| shared.node(GroupId(at))).flatten() {
            let (parent, section) = (node.parent(), grace::enter());
            for (nth, member) in members.iter().enumerate() {
                let Some(entry) = node.stats[member.number].get() else { continue };
                if nth == 0 {
                    at = entry.side(&section).delist();
                }
                let above = parent.and_then(|parent| parent.stats[member.number].get());
                entry.side(&section).arrive(above.map(|entry| entry.side(&section)));
            }
            if let Some(parent) = parent.filter(|_| !mutation::active(Mutation::FlushStopsBelowTheRoot)) {
                enlist(parent, members, heads);
            }
        }
    }
}
