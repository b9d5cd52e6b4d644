//! Flush: what was added on the slots arrives in the group and in all above it.
//!
//! 1. The marks of the subtree are cleared, and the words of each marked group taken to zero, slot by slot.
//! 2. One pass from the deepest changed groups up to the root: each group's change arrives there, and goes on to its parent.
//!
//! What is done is proportional to what changed: no group and no slot without a mark is looked at, and no other subsystem. Threads
//! that come meanwhile wait for their turn, and find that one flush has served them all.
//!
//! - I1. When a turn ends, no value is on its way (`side`, I2).
//! - E1. While one flushes no record moves and no group is released: it holds the layout of the statistics for reading. Loom:
//!   `a_flush_misses_nothing_that_moves`, `a_flush_and_a_release_count_once`.
//! - E2. clear the marks → look for the record, link or admit → add → look at the mark: both sides hold the tree lock where the flush
//!   finds no record, or no copy for the slot. Who adds to a copy that is made later finds the marks cleared. Without, an addition
//!   that went through doors that were open once, to a record that is on its way back, would be in no flush. Loom:
//!   `a_flush_finds_a_record_that_comes_back`.

use memgroup_percpu::{Rows, additive};
use memgroup_sync::atomic::AtomicU64;
use memgroup_sync::{RwLockReadGuard, grace, interleave};

use super::builtin;
use super::side::END;
use super::store::{Entry, Store};
use super::updates::Turn;
use crate::group::GroupId;
use crate::mutation::{self, Mutation};
use crate::node::Node;
use crate::shared::Shared;
use crate::stock;

/// How old what is read may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Everything that was added before the call is in it, by this thread, and by others whose additions it knows of.
    Fresh,
    /// It was so at most that long ago; without a flush if somebody had one made in time.
    AtMost(core::time::Duration),
    /// As the last flush left it, whenever that was; a copy and no more.
    Flushed,
}

/// Flushes the subtree of `top` if something in it may have changed.
pub(crate) fn refresh(store: &'static Store, top: &'static Node) {
    let marks = &store.updates.marks;
    if !marks.is_clean() && !(top.is_childless() && top.entry(store).mark.is_settled()) {
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
    let now = top.shared.nanos();
    let oldest = now.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
    let mut levels = std::iter::successors(Some(top), |level| level.parent());
    levels.any(|level| level.entry(store).side.flushed_at().is_some_and(|at| at >= oldest))
}

/// Flushes the subtree of `top`, unless somebody does so after this call has begun. `then` sees values that are of one moment.
pub(super) fn flush<T>(store: &'static Store, top: &'static Node, then: impl FnOnce(&Still<'_>) -> T) -> T {
    let arrival = store.updates.arrive();
    hold(store, top.shared, |turn, layout| {
        if !turn.covers(arrival, top) {
            make(store, turn, top);
        }
        then(&Still { layout })
    })
}

/// Holds off flushes of the store, releases and moves.
pub(super) fn hold_still<T>(
    store: &'static Store,
    shared: &'static Shared,
    then: impl FnOnce(&Still<'_>) -> T,
) -> T {
    hold(store, shared, |_, layout| then(&Still { layout }))
}

/// While it lives, no flushed value of a store changes and no group is released.
pub(super) struct Still<'l> {
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
    let at = shared.nanos();
    let epoch = store.updates.begin();
    let Turn { scratch, deltas, heads, members, .. } = &mut *turn;
    let heads = std::cell::RefCell::new(heads);
    let take_one = |number: u32, rows: Rows<'_>| {
        let Some(node) = shared.node(GroupId(number)) else { return };
        interleave::point();
        let mut changed = false;
        for entry in members.iter().filter_map(|member| node.stats[member.number].get()) {
            changed |= take(entry, node, rows.clone(), &mut deltas[..entry.store.words()]);
        }
        if changed {
            enlist(node, members, &mut heads.borrow_mut());
        }
    };
    // Only when all has arrived does anything look clean.
    let finish = || {
        arrive(shared, members, &mut heads.borrow_mut());
        let entries = members.iter().filter_map(|member| top.stats[member.number].get());
        entries.for_each(|entry| entry.side.note_flush(at));
    };
    let marks = &store.updates.marks;
    if top.is_childless() {
        let mut take_one = take_one;
        marks.collect_one_then(scratch, top.id.0, |rows| take_one(top.id.0, rows), finish);
    } else {
        let wanted = |number| shared.node(GroupId(number)).is_some_and(|node| node.is_within(top));
        marks.collect_then(scratch, wanted, take_one, finish);
    }
    turn.end(epoch, top);
}

/// Takes what was added to one group in `rows`. Whether it was anything. `deltas` is zero, before and after.
fn take(entry: &'static Entry, node: &'static Node, rows: Rows<'_>, deltas: &mut [i64]) -> bool {
    // Who makes a copy holds the tree lock: one that is not found under it is made by somebody who finds the marks cleared (E2).
    let is_found =
        is_found(entry, node, rows.clone()) || mutation::active(Mutation::FlushTakesUnfoundForNone);
    let _tree = (!is_found).then(|| node.shared.tree.lock());
    let section = grace::enter();
    for row in rows {
        if row == entry.store.base_row() {
            take_row(entry.side.base().iter(), deltas);
            continue;
        }
        if let Some(words) = entry.record.words(&section, row) {
            take_row(words, deltas);
        }
        // After the misses, as the counted charges are: no miss is read before its charge, where a thread stays on its slot.
        if entry.store.number == builtin::MEMORY {
            deltas[builtin::memory::CHARGES] += stock::listed::harvest(node, &section, row) as i64;
        }
    }
    drop(section);
    entry.side.receive(deltas)
}

/// Takes the words of one row, the last first: who adds in the order of the numbers is not found to have added the second alone.
fn take_row<'w>(
    words: impl DoubleEndedIterator<Item = &'w AtomicU64> + ExactSizeIterator,
    deltas: &mut [i64],
) {
    let take_one = |(word, delta): (_, &mut i64)| *delta = delta.wrapping_add(additive::take(word));
    let words = words.zip(deltas);
    if mutation::active(Mutation::FlushTakesFirstWordsFirst) {
        words.for_each(take_one);
    } else {
        words.rev().for_each(take_one);
    }
}

/// Whether the group has all words of `rows` now. Where it has not, somebody may be about to add to one without looking that far.
fn is_found(entry: &'static Entry, node: &'static Node, rows: Rows<'_>) -> bool {
    let section = grace::enter();
    let has_charges = entry.store.number == builtin::MEMORY && node.shared.has_stock();
    rows.filter(|&row| row < entry.store.base_row()).all(|row| {
        entry.record.word(&section, row, 0).is_some()
            && (!has_charges || node.record.word(&section, row, stock::WORD).is_some())
    })
}

/// The group is in the list of its depth; those of one tree share one list.
fn enlist(node: &'static Node, members: &[&'static Store], heads: &mut [u32]) {
    if let Some(entry) = members.first().and_then(|member| node.stats[member.number].get()) {
        entry.side.enlist(node.id.0, &mut heads[node.depth() as usize]);
    }
}

/// The pass from the deepest to the root.
fn arrive(shared: &'static Shared, members: &[&'static Store], heads: &mut [u32]) {
    for depth in (0..heads.len()).rev() {
        let mut at = std::mem::replace(&mut heads[depth], END);
        while let Some(node) = (at != END).then(|| shared.node(GroupId(at))).flatten() {
            let parent = node.parent();
            for (nth, member) in members.iter().enumerate() {
                let Some(entry) = node.stats[member.number].get() else { continue };
                if nth == 0 {
                    at = entry.side.delist();
                }
                let above = parent.and_then(|parent| parent.stats[member.number].get());
                entry.side.arrive(above.map(|entry| &*entry.side));
            }
            if let Some(parent) = parent.filter(|_| !mutation::active(Mutation::FlushStopsBelowTheRoot)) {
                enlist(parent, members, heads);
            }
        }
    }
}
