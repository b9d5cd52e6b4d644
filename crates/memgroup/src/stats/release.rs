//! Release: moves the statistics of a released group to its ancestors, exactly once.
//!
//! A group's last byte may be returned inside an allocator, where no thread may wait for a flush.
//! So a release takes the turn to flush each subsystem, one after the other, only if it is free.
//! Otherwise the group stays dying until the thread that has the turn lets go, and finishes the
//! release.
//!
//! - I1. A release runs under the tree lock, when the group has no charge and no handle. So no
//!   thread adds to its statistics.
//! - I2. Each update tree has a list of the releases that are left to the thread with its turn. A
//!   group in a list is released by that thread, or by the next that has the turn, and by no
//!   other.
//! - I3. The values of some subsystems may have moved when the turn of another is taken. Nothing
//!   is added to them (I1), so the next try moves the rest.
//! - I4. A release takes no turn of a subsystem in which nothing was added to the group since its
//!   values were reset, and which no thread flushes now: `StatEntry::is_unused`
//!   (`memgroup_percpu::Marks` E3).
//! - E1. put into the list → try again; let go → look at the list: RMWs on the list's first.
//!   Either the second try finds the turn free, or the thread that had it finds the group. Loom:
//!   `counts_once_in_a_flush_and_a_release`.

use memgroup_percpu::additive;
use memgroup_sync::atomic::Ordering;
use memgroup_sync::{grace, interleave};

use crate::base::id::TOP;
use crate::base::mutation::{self, Mutation};
use crate::state::stats::builtin::{MEMORY, memory};
use crate::state::stats::store::StatEntry;
use crate::state::stats::update_tree::UpdateTree;
use crate::stock::listed;
use crate::tree::node::Node;
use crate::tree::shared::Shared;
use crate::tree::topology::Tree;

/// The most releases that are finished while the tree lock is held once.
const RELEASES_HELD_MAX: u32 = 64;

/// Moves the statistics of `node` to its ancestors, or leaves the release to the thread that
/// flushes. Returns whether they were moved.
pub(crate) fn move_to_ancestors(tree: &mut Tree, node: &'static Node) -> bool {
    let id = node.id();
    if tree.is_unsettled(id) {
        return false;
    }
    let mut left_to: Option<&UpdateTree> = None;
    while let Err(busy) = try_move(node) {
        match left_to {
            Some(other) if core::ptr::eq(other, busy) => return false,
            // It was the last that was left there: the tree lock was held since.
            Some(other) => _ = tree.take_unsettled(other),
            None => (),
        }
        tree.leave_unsettled(id, busy);
        left_to = Some(busy);
        interleave::point();
    }
    left_to.into_iter().for_each(|updates| _ = tree.take_unsettled(updates));
    true
}

/// Finishes, when dropped, the releases that were left to this thread while it had the turn to
/// flush `updates`.
pub(crate) struct DeferredReleases {
    pub(crate) updates: &'static UpdateTree,
    pub(crate) shared: &'static Shared,
}

impl Drop for DeferredReleases {
    fn drop(&mut self) {
        interleave::point();
        if mutation::active(Mutation::FlushLeavesReleases) {
            return;
        }
        // ORDERING: AcqRel; the other side of `leave_unsettled` (E1). An RMW also where there is
        // none.
        if self.updates.unsettled.fetch_or(0, Ordering::AcqRel) != TOP.0 {
            while self.finish_some() {}
        }
    }
}

impl DeferredReleases {
    /// Returns whether there may be more.
    fn finish_some(&self) -> bool {
        let mut tree = self.shared.tree.lock();
        for _ in 0..RELEASES_HELD_MAX {
            let Some(id) = tree.take_unsettled(self.updates) else { return false };
            self.shared.release_held(&mut tree, id);
            // ORDERING: Relaxed; written under the tree lock only.
            if self.updates.unsettled.load(Ordering::Relaxed) == id.0 {
                // Another thread has the turn now, and finds it and the rest.
                return false;
            }
        }
        true
    }
}

/// Moves all values. The error is the first update tree that another thread flushes.
fn try_move(node: &'static Node) -> Result<(), &'static UpdateTree> {
    match node.shared().statistics.shared_tree() {
        Some(updates) => try_move_within(node, node.entries(), updates)?,
        None => node
            .entries()
            .try_for_each(|entry| try_move_within(node, std::iter::once(entry), entry.store().updates))?,
    }
    let lacking = node.entries().filter(|entry| !entry.record.is_linked());
    lacking.for_each(|entry| entry.store().uncount_lacking());
    Ok(())
}

/// Moves the values of all subsystems with this update tree, unless another thread flushes them.
fn try_move_within(
    node: &'static Node,
    entries: impl Iterator<Item = &'static StatEntry> + Clone,
    updates: &'static UpdateTree,
) -> Result<(), &'static UpdateTree> {
    if entries.clone().all(|entry| entry.is_unused(node.id())) {
        return Ok(());
    }
    entries.clone().for_each(|entry| prefetch(entry, node));
    let turn = updates.try_lock();
    if turn.is_none() && !mutation::active(Mutation::ReleaseIgnoresFlush) {
        return Err(updates);
    }
    let mut is_marked = false;
    for entry in entries.clone() {
        is_marked |= move_entry(entry, node);
    }
    if is_marked {
        // After all entries were moved, because the subsystems share the marks.
        for entry in entries {
            marked_rows(entry, node).for_each(|row| entry.mark(node.id()).clear(row));
        }
    }
    Ok(())
}

fn marked_rows(entry: &'static StatEntry, node: &Node) -> impl Iterator<Item = usize> + use<> {
    entry.mark(node.id()).marked_rows(entry.store().misses_row() + 1)
}

/// Prefetches lines of a record that may have been idle for long, so that they are fetched
/// together.
fn prefetch(entry: &'static StatEntry, node: &Node) {
    const ROWS: usize = 2;
    if entry.record.is_linked() {
        let section = grace::enter();
        let slots = entry.mark(node.id()).marked_rows(entry.store().base_row()).take(ROWS);
        slots.for_each(|slot| entry.record.prefetch_words(&section, slot));
    }
}

/// Values on their way from a released group to its ancestors. Most groups leave a few at most, so
/// there is room for a few, and more go in several steps.
struct Rest {
    entry: &'static StatEntry,
    node: &'static Node,
    values: [(usize, i64); 8],
    count: usize,
}

impl Rest {
    fn add(&mut self, index: usize, value: i64) {
        if self.count == self.values.len() {
            self.give();
        }
        self.values[self.count] = (index, value);
        self.count += 1;
    }

    /// Adds the values to the totals of all ancestors.
    fn give(&mut self) {
        let values = &self.values[..std::mem::take(&mut self.count)];
        if values.is_empty() {
            return;
        }
        let mut above = self.node.parent();
        while let Some(level) = above {
            let Some(entry) = level.find_entry(self.entry.store().number) else { return };
            entry.flushed().add_to_totals(values);
            above = level.parent();
        }
    }
}

/// Moves the values of one subsystem. Returns whether there was a mark, which the caller clears.
fn move_entry(entry: &'static StatEntry, node: &'static Node) -> bool {
    let Some(flushed) = entry.find_flushed() else { return false };
    let mut rest = Rest { entry, node, values: [(0, 0); 8], count: 0 };
    let mut is_marked = false;
    let section = grace::enter();
    for row in marked_rows(entry, node) {
        is_marked = true;
        if row == entry.store().base_row() {
            flushed.take_base(|index, value| rest.add(index, value));
            continue;
        }
        if row == entry.store().misses_row() {
            if entry.store().number == MEMORY {
                node.misses.take(|index, value| rest.add(index, value));
            }
            continue;
        }
        let words = entry.record.words(&section, row).into_iter().flatten().enumerate();
        // A word that is zero stays zero (I1), so it needs no RMW as in a flush.
        for (index, word) in words.filter(|(_, word)| additive::read(word) != 0) {
            rest.add(index, additive::take(word));
        }
        if entry.store().number == MEMORY {
            let charges = listed::harvest(node, row).unwrap_or(0);
            rest.add(memory::CHARGES.index(), charges as i64);
        }
    }
    rest.give();
    flushed.reset();
    is_marked
}
