//! Settle: what a released group leaves behind goes to its ancestors, exactly once.
//!
//! A group's last byte may be returned inside somebody's allocator, where nobody waits for a flush. So a release takes the layout of the
//! statistics only if nobody has it. If somebody has, the group stays dying a little longer: whoever holds the layout finishes
//! the release when it lets go.
//!
//! - I1. A group is settled under the tree lock when nothing is charged to it and nobody has a handle: nobody adds to its statistics.
//! - I2. A group that is left to others is in the tree's list of the unsettled before the flag is set.
//! - E1. set the flag → try again, let go → take the flag: RMWs on one flag. Either the second try finds the layout free, or the holder
//!   finds the flag. Loom: `a_flush_and_a_release_count_once`.

use memgroup_percpu::additive;
use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::{grace, interleave};

use super::builtin;
use super::side::Side;
use super::store::Entry;
use crate::mutation::{self, Mutation};
use crate::node::Node;
use crate::shared::Shared;
use crate::stock;
use crate::tree::Tree;

/// Settles `node`, or leaves it to whoever holds the layout. Whether it is done.
pub(crate) fn settle(tree: &mut Tree, node: &'static Node) -> bool {
    if try_settle(node) {
        return true;
    }
    let shared = node.shared;
    tree.leave_unsettled(node.id);
    interleave::point();
    // ORDERING: AcqRel; Acquire: if the holder has taken the flag before, that it let go is seen by the next try (E1). Release: who
    // takes it finds the group in the list.
    shared.unsettled.swap(true, Ordering::AcqRel);
    try_settle(node)
}

/// Finishes the releases that were left to the caller, which has just let go of the layout.
pub(crate) fn finish_releases(shared: &'static Shared) {
    interleave::point();
    if mutation::active(Mutation::FlushLeavesReleases) {
        return;
    }
    // ORDERING: AcqRel; as in `settle`, the other side. An RMW also where it finds nothing.
    if shared.unsettled.swap(false, Ordering::AcqRel) {
        let mut tree = shared.tree.lock();
        // One that cannot be settled now is left to somebody else, and stays.
        for _ in 0..tree.unsettled() {
            if let Some(id) = tree.take_unsettled() {
                shared.release_held(&mut tree, id);
            }
        }
    }
}

fn try_settle(node: &'static Node) -> bool {
    let layout = if mutation::active(Mutation::ReleaseIgnoresFlush) {
        None
    } else {
        let Some(layout) = node.shared.layout.try_write() else { return false };
        Some(layout)
    };
    node.entries().for_each(ask);
    node.entries().for_each(|entry| settle_one(entry, node));
    // When all have seen them: subsystems may share one tree of marks.
    for entry in node.entries() {
        (0..=entry.store.base_row()).for_each(|row| entry.mark.clear(row));
    }
    drop(layout);
    true
}

/// Asks for the lines of a group that was not used for long, perhaps: they come together instead of one after the other.
fn ask(entry: &'static Entry) {
    const ROWS: usize = 2;
    let section = grace::enter();
    if let Some(side) = entry.find_side(&section) {
        side.prefetch();
    }
    let marked = (0..entry.store.base_row()).filter(|&row| entry.mark.is_set(row));
    marked.take(ROWS).for_each(|row| entry.record.prefetch_words(&section, row));
}

fn settle_one(entry: &'static Entry, node: &'static Node) {
    let section = grace::enter();
    let Some(side) = entry.find_side(&section) else { return };
    for row in (0..=entry.store.base_row()).filter(|&row| entry.mark.is_set(row)) {
        if row == entry.store.base_row() {
            side.take_beside(|index, value| side.delay(index, value));
            continue;
        }
        if let Some(words) = entry.record.words(&section, row) {
            collect(side, words);
        }
        if entry.store.number == builtin::MEMORY {
            let charges = stock::listed::harvest(node, &section, row).unwrap_or(0);
            side.delay(builtin::memory::CHARGES, charges as i64);
        }
    }
    let ancestors = std::iter::successors(node.parent(), |level| level.parent());
    for above in ancestors.filter_map(|level| level.stats[entry.store.number].get()) {
        above.side(&section).inherit(side);
    }
    side.forget();
    if !entry.record.is_linked() {
        entry.store.lack_no_more();
    }
}

/// Takes what is in `words`. Nobody adds (I1), so one that reads as zero is left alone, where a flush would have to change it.
fn collect<'w>(side: &Side, words: impl Iterator<Item = &'w AtomicU64>) {
    for (index, word) in words.enumerate().filter(|(_, word)| additive::read(word) != 0) {
        side.delay(index, additive::take(word));
    }
}
