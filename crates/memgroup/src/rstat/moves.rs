//! Moves: a group's record is moved or given up while it is added to.
//!
//! Each word is buried, and its value added in the new place (`memgroup_percpu::additive`). Who comes late finds the word dead and
//! adds beside the slots; who added in time may have found the mark of a flush that has seen only the new place, so the mover
//! marks what it brought.
//!
//! - I1. The mover holds the tree lock, and the layout of the statistics for itself: no flush sees a value on its way.
//! - E1. add → bury → add → look: the mover is one more updater, in the new place (`update`). Loom:
//!   `a_flush_misses_nothing_that_moves`.

use memgroup_percpu::{Fresh, Unlinked, additive};
use memgroup_sync::atomic::AtomicU64;
use memgroup_sync::{RwLockWriteGuard, grace, interleave};

use super::builtin;
use super::side::Reach;
use super::store::{Entry, Store};
use super::update;
use crate::group::GroupId;
use crate::mutation::{self, Mutation};
use crate::node::{Node, mix};
use crate::shared::Shared;
use crate::stock::drain;
use crate::tree::{State, Tree};

/// The layout of the statistics, for one alone.
pub(crate) type Alone<'l> = RwLockWriteGuard<'l, ()>;

/// Moves one record so that pages become free; returns the bytes moved, `None` when there is nothing to gain.
pub(crate) fn relocate(
    shared: &'static Shared,
    store: &'static Store,
    tree: &Tree,
    alone: &Alone<'_>,
) -> Option<u64> {
    let records = &store.records;
    let relocation = records.next_move()?;
    let node = shared.node(GroupId(relocation.owner()))?;
    let entry = node.entry(store);
    let is_current = relocation.is_of(&entry.record);
    if !is_current || tree.state(node.id) == State::Free {
        // Unlinked meanwhile, or nobody's: given up instead of moved.
        records.discard(relocation.into_target());
        if is_current && let Some(old) = entry.record.unlink() {
            records.retire(old, 0);
        }
        return Some(0);
    }
    move_to(entry, relocation.into_target(), alone);
    Some(store.record_bytes())
}

/// The group's statistics are in `fresh` from now on.
pub(super) fn move_to(entry: &'static Entry, fresh: Fresh, _alone: &Alone<'_>) {
    if let Some(old) = entry.record.link(fresh) {
        fold(entry, &old, |slot| slot);
        entry.store.records.retire(old, 0);
    }
}

/// The record goes, if there is one; what was in it waits beside the slots. The caller holds the tree lock.
pub(crate) fn give_up(entry: &'static Entry, _alone: &Alone<'_>) {
    if let Some(old) = entry.record.unlink() {
        fold(entry, &old, |_| entry.store.base_row());
        entry.store.records.retire(old, 0);
        entry.store.lack();
    }
}

/// Adds what was in `old` to the row that `target` tells for each slot.
fn fold(entry: &'static Entry, old: &Unlinked, target: impl Fn(usize) -> usize) {
    let records = &entry.store.records;
    for slot in records.admitted() {
        interleave::point();
        for index in 0..entry.store.words() {
            let value = records.unlinked_word(old, slot, index).map_or(0, take_out);
            if value != 0 {
                interleave::point();
                update::bring(entry, target(slot), index, value);
            }
        }
    }
}

/// A number that changes with every addition, and with no flush or move; the caller has the layout for itself. Charges that the stocks
/// served are in it before a flush comes by, and also where their bytes are back.
pub(crate) fn activity(entry: &'static Entry, node: &'static Node) -> u64 {
    let section = grace::enter();
    let value = |index: usize| {
        let words =
            entry.store.records.admitted().filter_map(|slot| entry.record.word(&section, slot, index));
        let (side, waiting) = (entry.side(&section), words.map(additive::read));
        waiting.fold(side.peek(Reach::Local, index).wrapping_add(side.peek_beside(index)), i64::wrapping_add)
    };
    let is_charges = |index| (entry.store.number, index) == (builtin::MEMORY, builtin::memory::CHARGES);
    let uncounted = |index| if is_charges(index) { drain::uncounted(node) } else { 0 };
    (0..entry.store.words())
        .fold(0, |sum, index| mix(sum, (value(index) as u64).wrapping_add(uncounted(index))))
}

/// The value of a word that is left behind, for good.
fn take_out(word: &AtomicU64) -> i64 {
    if mutation::active(Mutation::FoldLeavesCountsLive) { additive::read(word) } else { additive::bury(word) }
}
