//! Update: adds to a statistic, on the thread's own slot.
//!
//! One atomic addition, then a look at the group's mark on this slot. A thread that finds no mark
//! sets it, and the next flush visits the group. An update waits for nothing and allocates
//! nothing. An addition that finds no record, or one that is being moved, goes to a base word,
//! which is always there. So do all additions to a removed group without a record, which gets no
//! new one.
//!
//! - E1. add → look; clear → take: the skip race. The look follows the addition, and a flush
//!   clears the mark before it takes the words. Both change each word by an RMW, also a word that
//!   is zero. So an addition that is too late for the flush follows the flush's RMW, and finds the
//!   mark cleared. Loom: `flushes_or_marks_each_update`.

use memgroup_percpu::{MarkCell, additive};
use memgroup_sync::atomic::Ordering;
use memgroup_sync::{grace, interleave};

use crate::base::mutation::{self, Mutation};
use crate::state::stats::builtin::{MEMORY, memory};
use crate::state::stats::stat::StatKey;
use crate::state::stats::store::StatEntry;
use crate::tree::node::Node;

/// Counts an operation of a stock, a shrinker or a throttle, in the subsystem `memory`.
///
/// The caller keeps the node: by a handle, by charged bytes, by PENDING or by the tree lock.
pub(crate) fn count(node: &'static Node, key: StatKey, delta: u64) {
    // A model may have fewer statistics.
    let has_stat = || node.find_entry(MEMORY).is_some_and(|entry| key.index() < entry.store().words());
    if delta == 0 || cfg!(memgroup_loom) && !has_stat() {
        return;
    }
    match node.find_entry(MEMORY) {
        // Most groups count so little that they need no record.
        Some(entry) if !entry.record.is_linked() && node.misses.try_add(key.index(), delta) => {
            mark(entry, node, entry.store().misses_row());
        }
        Some(entry) => add_to(entry, node, key.index(), delta as i64),
        None => (),
    }
}

/// Counts a stock that was drained, unless it was empty.
pub(crate) fn count_drain(node: &'static Node, bytes: u64) {
    count(node, memory::STOCK_DRAINS, u64::from(bytes > 0));
    count(node, memory::STOCK_DRAINED, bytes);
}

/// Adds to a statistic of the subsystem with this number. The caller has checked that there is
/// such a statistic, and that it may change so.
#[inline(always)]
pub(crate) fn add(node: &'static Node, number: usize, index: usize, delta: i64) {
    // A node that was given back has none: a scope has outlived its group by long.
    if let Some(entry) = node.stat_entry(number) {
        add_to(entry, node, index, delta);
    }
}

#[inline(always)]
pub(crate) fn add_to(entry: &'static StatEntry, node: &'static Node, index: usize, delta: i64) {
    // Nothing is called in between, as in `Node::charge`. The mark's address is known before the
    // addition is made.
    if let Some((slot, word)) = entry.record.fast_access(&node.fast_slot, index)
        && let Some(mark) = entry.mark.word(slot, node.id().0)
    {
        interleave::point();
        if additive::add(&word, delta) {
            interleave::point();
            if MarkCell::is_set_in(mark, node.id().0) || mutation::active(Mutation::UpdateNeverMarks) {
                return;
            }
            drop(word);
            return entry.mark(node.id()).set(slot);
        }
    }
    add_slow(entry, node, index, delta);
}

/// Adds in the given row without marking it. Whether there was a word that is in use.
pub(crate) fn add_unmarked(entry: &'static StatEntry, row: usize, index: usize, delta: i64) -> bool {
    let section = grace::enter();
    if row == entry.store().base_row() {
        return entry.find_flushed().map(|flushed| flushed.add_base(index, delta)).is_some();
    }
    entry.record.word(&section, row, index).is_some_and(|word| additive::add(word, delta))
}

/// Marks the row, unless it is marked.
pub(crate) fn mark(entry: &'static StatEntry, node: &Node, row: usize) {
    interleave::point();
    let mark = entry.mark(node.id());
    if !mark.is_set(row) && !mutation::active(Mutation::UpdateNeverMarks) {
        mark.set(row);
    }
}

#[cold]
#[inline(never)]
fn add_slow(entry: &'static StatEntry, node: &'static Node, index: usize, delta: i64) {
    if entry.find_store().is_none() {
        // The node was given back: a scope has outlived its group by long.
        return;
    }
    let slot = node.shared().source.current();
    if (!entry.record.is_linked() || !entry.store().records.is_admitted(slot))
        && let Some(_tree) = node.shared().tree.try_lock()
        && !node.counter.is_offline()
    {
        entry.alloc_record(node.id().0, slot);
    }
    if add_unmarked(entry, slot, index, delta) {
        return mark(entry, node, slot);
    }
    check_range(entry, node, slot, index);
    // A place without base words is free: a scope has outlived its group.
    if add_unmarked(entry, entry.store().base_row(), index, delta) {
        mark(entry, node, entry.store().base_row());
    }
}

/// Panics if the slot's word is out of range. A linked word refuses additions only then.
fn check_range(entry: &'static StatEntry, node: &'static Node, slot: usize, index: usize) {
    let Some(_tree) = node.shared().tree.try_lock() else { return };
    let section = grace::enter();
    let Some(word) = entry.record.word(&section, slot, index).filter(|word| !additive::add(word, 0)) else {
        return;
    };
    // Zero before the panic, so that a mover and the place's next group find a word that is in use.
    // ORDERING: Relaxed; the additions are lost, and nothing else depends on this word.
    word.store(0, Ordering::Relaxed);
    let subsystem = entry.store().subsystem();
    let (subsystem, stat) =
        subsystem.map_or(("", ""), |subsystem| (subsystem.name, subsystem.stats[index].name()));
    panic!("{stat} of {subsystem} has changed by more than 2^61 on one slot since it was last flushed")
}
