//! Update: adding to a statistic, on the thread's own slot.
//!
//! One atomic addition, and a look at the group's mark on this slot. Who finds it missing sets it: then the next flush comes by. Nothing
//! is waited for and nothing allocated. An addition that finds no record, or one that is being moved, goes to a word beside
//! the slots, which is always there; so do all to a removed group that has given its record up, which gets no other.
//!
//! - E1. add → look, clear → take: the skip race. The look comes after the addition, and a flush clears the mark before it takes the
//!   words, each by an RMW, a zero too: an addition that is too late for the flush follows its RMW, and so finds the mark
//!   cleared. Loom: `an_update_is_flushed_or_marked`.

use memgroup_percpu::additive;
use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::{grace, interleave};

use super::store::Entry;
use crate::mutation::{self, Mutation};
use crate::node::Node;

/// Adds to a statistic of a subsystem. The caller knows that there is such a statistic, and that it may change so.
#[inline(always)]
pub(crate) fn add(node: &'static Node, number: usize, index: usize, delta: i64) {
    match node.stats[number].get() {
        Some(entry) => add_to(entry, node, index, delta),
        None => missing(number),
    }
}

#[inline(always)]
pub(super) fn add_to(entry: &'static Entry, node: &'static Node, index: usize, delta: i64) {
    // Nothing is called on the way, as in `Node::charge`; the mark's address is known before the addition is made.
    if let Some((slot, word)) = entry.record.glance(&node.source, index)
        && let Some(mark) = entry.mark.word(slot)
    {
        interleave::point();
        if additive::add(&word, delta) {
            interleave::point();
            if entry.mark.is_set_in(mark) || mutation::active(Mutation::UpdateNeverMarks) {
                return;
            }
            drop(word);
            return entry.mark.set(slot);
        }
    }
    add_slowly(entry, node, index, delta);
}

/// Adds in the given row, if there is a word that lives.
pub(super) fn add_at(entry: &'static Entry, row: usize, index: usize, delta: i64) -> bool {
    let section = grace::enter();
    let added = if row == entry.store.base_row() {
        entry.find_side(&section).map(|side| side.add_beside(index, delta)).is_some()
    } else {
        entry.record.word(&section, row, index).is_some_and(|word| additive::add(word, delta))
    };
    if added {
        interleave::point();
        ensure_marked(entry, row);
    }
    added
}

/// A mover adds what it took out elsewhere; it has seen to a word.
pub(super) fn bring(entry: &'static Entry, row: usize, index: usize, value: i64) {
    if mutation::active(Mutation::MoverDoesNotMark) {
        let section = grace::enter();
        if row == entry.store.base_row() {
            entry.side(&section).add_beside(index, value);
        } else {
            let _ = entry.record.word(&section, row, index).map(|word| additive::add(word, value));
        }
        return;
    }
    let kept = add_at(entry, row, index, value);
    assert!(kept, "a change of {value} has a place to go under the tree lock");
}

fn ensure_marked(entry: &'static Entry, row: usize) {
    if !entry.mark.is_set(row) && !mutation::active(Mutation::UpdateNeverMarks) {
        entry.mark.set(row);
    }
}

#[cold]
#[inline(never)]
fn add_slowly(entry: &'static Entry, node: &'static Node, index: usize, delta: i64) {
    let slot = node.source.current();
    if (!entry.record.is_linked() || !entry.store.records.is_admitted(slot))
        && let Some(_tree) = node.shared.tree.try_lock()
        && !node.counter.is_offline()
    {
        entry.furnish(node, slot);
    }
    if !add_at(entry, slot, index, delta) {
        check_range(entry, node, slot, index);
        // A place without words beside the slots is free: a scope has outlived its group.
        let _ = add_at(entry, entry.store.base_row(), index, delta);
    }
}

/// A word that is linked reads as one that was left behind only if it holds too much.
fn check_range(entry: &'static Entry, node: &'static Node, slot: usize, index: usize) {
    let Some(_tree) = node.shared.tree.try_lock() else { return };
    let section = grace::enter();
    if let Some(word) = entry.record.word(&section, slot, index).filter(|word| !additive::add(word, 0)) {
        out_of_range(entry, word, index);
    }
}

/// The word begins anew before the panic: whoever moves it, and the place's next group, finds one that lives.
#[cold]
fn out_of_range(entry: &'static Entry, word: &AtomicU64, index: usize) -> ! {
    // ORDERING: Relaxed; what was added is lost, and nothing else goes by this word.
    word.store(0, Ordering::Relaxed);
    let subsystem = entry.store.subsystem();
    panic!(
        "{} of {} has changed by more than 2^61 on one slot since it was last flushed",
        subsystem.stats[index].name(),
        subsystem.name
    )
}

#[cold]
fn missing(number: usize) -> ! {
    panic!("the subsystem {number} has no place in this group")
}
