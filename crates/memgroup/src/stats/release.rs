//! Release: moves the statistics of a released group to its ancestors, exactly once.
//!
//! A group's last byte may be returned inside an allocator, where no thread may wait for a flush. So a release takes the turn to flush
//! each subsystem, one after the other, only if it is free. Otherwise the group stays dying until the thread that has the turn lets go,
//! and finishes the release.
//!
//! - I1. A release runs under the tree lock, when the group has no charge and no handle. So no thread adds to its statistics.
//! - I2. A deferred group is in the tree's list of deferred releases before the flag is set.
//! - I3. The values of some subsystems may have moved when the turn of another is taken. Nothing is added to them (I1), so the next try
//!   moves the rest.
//! - E1. set the flag → try again; let go → take the flag: RMWs on one flag. Either the second try finds the turn free, or its
//!   holder finds the flag. Loom: `counts_once_in_a_flush_and_a_release`.

use memgroup_percpu::additive;
use memgroup_sync::atomic::Ordering;
use memgroup_sync::{grace, interleave};

use crate::base::mutation::{self, Mutation};
use crate::state::stats::builtin::{MEMORY, memory};
use crate::state::stats::flushed::FlushedStats;
use crate::state::stats::store::StatEntry;
use crate::state::stats::update_tree::UpdateTree;
use crate::stock::listed;
use crate::tree::node::Node;
use crate::tree::shared::Shared;
use crate::tree::topology::Tree;

/// Moves the statistics of `node` to its ancestors, or defers that to the thread that flushes. Whether they were moved.
pub(crate) fn move_to_ancestors(tree: &mut Tree, node: &'static Node) -> bool {
    if try_move(node) {
        return true;
    }
    let shared = node.shared();
    tree.leave_unsettled(node.id());
    interleave::point();
    // ORDERING: AcqRel; Acquire: if the holder took the flag before, the next try sees that it let go (E1). Release: the thread that
    // takes the flag finds the group in the list.
    shared.unsettled.swap(true, Ordering::AcqRel);
    try_move(node)
}

/// Finishes, when dropped, the releases that were deferred while this thread had a turn to flush.
pub(crate) struct DeferredReleases(pub(crate) &'static Shared);

impl Drop for DeferredReleases {
    fn drop(&mut self) {
        let shared = self.0;
        interleave::point();
        if mutation::active(Mutation::FlushLeavesReleases) {
            return;
        }
        // ORDERING: AcqRel; the other side of `move_to_ancestors`. An RMW also where the flag is not set.
        if shared.unsettled.swap(false, Ordering::AcqRel) {
            let mut tree = shared.tree.lock();
            // A group that cannot be released now is deferred again, to another thread.
            for _ in 0..tree.unsettled() {
                if let Some(id) = tree.take_unsettled() {
                    shared.release_held(&mut tree, id);
                }
            }
        }
    }
}

fn try_move(node: &'static Node) -> bool {
    node.entries().for_each(prefetch);
    let is_moved = node.shared().statistics.trees().all(|updates| try_move_within(node, updates));
    if is_moved {
        let lacking = node.entries().filter(|entry| !entry.record.is_linked());
        lacking.for_each(|entry| entry.store().uncount_lacking());
    }
    is_moved
}

/// Moves the values of the subsystems with this update tree, if no thread flushes them.
fn try_move_within(node: &'static Node, updates: &'static UpdateTree) -> bool {
    let turn = updates.try_lock();
    if turn.is_none() && !mutation::active(Mutation::ReleaseIgnoresFlush) {
        return false;
    }
    let entries = || node.entries().filter(|entry| core::ptr::eq(entry.store().updates, updates));
    entries().for_each(|entry| move_entry(entry, node));
    // After all entries were moved, because the subsystems share the marks.
    for entry in entries() {
        (0..=entry.store().misses_row()).for_each(|row| entry.mark().clear(row));
    }
    true
}

fn marked_rows(entry: &'static StatEntry) -> impl Iterator<Item = usize> {
    (0..=entry.store().misses_row()).filter(|&row| entry.mark().is_set(row))
}

/// Prefetches lines of a group that may have been idle for long, so that they are fetched together.
fn prefetch(entry: &'static StatEntry) {
    const ROWS: usize = 2;
    let slots = marked_rows(entry).filter(|&row| row < entry.store().base_row());
    entry.prefetch(&grace::enter(), slots.take(ROWS));
}

fn move_entry(entry: &'static StatEntry, node: &'static Node) {
    let section = grace::enter();
    let Some(flushed) = entry.find_flushed() else { return };
    let above = |level: &'static Node| level.parent()?.find_entry(entry.store().number)?.find_flushed();
    // On their way the values are the parent's pending ones (`flushed` I2): the group's own words may never have been written to.
    let parent = above(node);
    let bring = |index, value| parent.iter().for_each(|parent| parent.add_pending(index, value));
    for row in marked_rows(entry) {
        if row == entry.store().base_row() {
            flushed.take_base(bring);
            continue;
        }
        if row == entry.store().misses_row() {
            if entry.store().number == MEMORY {
                node.misses.take(bring);
            }
            continue;
        }
        let words = entry.record.words(&section, row).into_iter().flatten().enumerate();
        // A word that is zero stays zero (I1), so it needs no RMW as in a flush.
        for (index, word) in words.filter(|(_, word)| additive::read(word) != 0) {
            bring(index, additive::take(word));
        }
        if entry.store().number == MEMORY {
            let charges = listed::harvest(node, &section, row).unwrap_or(0);
            bring(memory::CHARGES.index(), charges as i64);
        }
    }
    if let Some(parent) = parent.filter(FlushedStats::has_pending) {
        let levels = std::iter::successors(Some(node), |level| level.parent());
        levels.filter_map(above).for_each(|level| level.add_pending_of(parent));
        parent.clear_pending();
    }
    flushed.reset();
}
