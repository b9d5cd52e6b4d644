//! Moves: a group's record moves or is given up while threads add to it.
//!
//! The mover buries each word, and adds its value in the new place (`memgroup_percpu::additive`).
//! A thread that comes late finds the word dead and adds to the base word. A thread that added in
//! time may have relied on a mark, and the flush that took it saw only the new place. So the mover
//! marks each value that it brought.
//!
//! - I1. The mover holds the tree lock, and the turn to flush the record's subsystem: no flush
//!   sees a value between two places.
//! - E1. add → bury → add → look: the mover is one more updater, in the new place (`update`).
//!   Loom: `flushes_values_that_move`.

use memgroup_percpu::{Fresh, Unlinked, additive};
use memgroup_sync::{grace, interleave};

use crate::base::mutation::{self, Mutation};
use crate::state::stats::Reach;
use crate::state::stats::builtin::{MEMORY, memory};
use crate::state::stats::store::StatEntry;
use crate::stats::flush::FlushGuard;
use crate::stats::update;
use crate::stock::drain;
use crate::tree::node::{Node, mix};

/// Moves the group's statistics to `fresh`. The caller holds the tree lock.
pub(crate) fn move_to(entry: &'static StatEntry, node: &'static Node, fresh: Fresh, turn: &FlushGuard) {
    debug_assert!(turn.is_of(entry));
    if let Some(old) = entry.record.link(fresh) {
        bring_over(entry, node, &old, |slot| slot);
        entry.store().records.retire(old);
    }
}

/// Gives the record up, if there is one, and moves its values to the base words. The caller holds
/// the tree lock.
pub(crate) fn move_to_base(entry: &'static StatEntry, node: &'static Node, turn: &FlushGuard) {
    debug_assert!(turn.is_of(entry));
    if let Some(old) = entry.record.unlink() {
        bring_over(entry, node, &old, |_| entry.store().base_row());
        entry.store().records.retire(old);
        entry.store().count_lacking();
    }
}

/// Moves the values of `old` to the row that `target` gives for each slot.
fn bring_over(entry: &'static StatEntry, node: &Node, old: &Unlinked, target: impl Fn(usize) -> usize) {
    let records = &entry.store().records;
    let copies = mutation::active(Mutation::FoldLeavesCountsLive);
    let take = |word| if copies { additive::read(word) } else { additive::take_final(word) };
    for slot in records.admitted() {
        interleave::point();
        for index in 0..entry.store().words() {
            let value = records.unlinked_word(old, slot, index).map_or(0, take);
            if value == 0 {
                continue;
            }
            interleave::point();
            let is_kept = update::add_unmarked(entry, target(slot), index, value);
            assert!(is_kept, "a value of {value} has a place under the tree lock");
            if !mutation::active(Mutation::MoverDoesNotMark) {
                update::mark(entry, node, target(slot));
            }
        }
    }
}

/// A number that changes with every addition, and with no move. The caller holds the tree lock.
///
/// A flush of the group does not change it, but a look during one may miss values on their way. It
/// counts charges that the stocks served before a flush does, also where their bytes were
/// returned.
pub(crate) fn activity(entry: &'static StatEntry, node: &'static Node) -> u64 {
    let section = grace::enter();
    let flushed = entry.flushed();
    let sum = |index: usize| {
        let words =
            entry.store().records.admitted().filter_map(|slot| entry.record.word(&section, slot, index));
        let sum = flushed.peek(Reach::Local, index).wrapping_add(flushed.peek_base(index));
        words.map(additive::read).fold(sum, i64::wrapping_add) as u64
    };
    let is_charges = |index| (entry.store().number, index) == (MEMORY, memory::CHARGES.index());
    let misses = |index| if entry.store().number == MEMORY { node.misses.peek(index) } else { 0 };
    let uncounted = |index| misses(index) + if is_charges(index) { drain::uncounted(node) } else { 0 };
    (0..entry.store().words()).fold(0, |all, index| mix(all, sum(index).wrapping_add(uncounted(index))))
}
