//! Records of groups that need them no more are given up, and others move together: steps 1 and 2
//! of a maintenance pass.
//!
//! A record has the statistics of a group in one subsystem, with a copy on each slot
//! (`stats::moves`). A group's stock words stay where they are.
//!
//! - E1. A mover waits for the turn to flush of one subsystem at a time, and holds no other lock
//!   meanwhile. So a flush that takes long delays a mover, and readers of its own subsystem, and
//!   no others. Loom: `reads_beside_a_flush_of_others_and_a_mover`.

use core::time::Duration;
use std::time::Instant;

use crate::base::id::{GroupId, NodeId};
use crate::base::mutation::{self, Mutation};
use crate::control::aftermath;
use crate::lifecycle::maintenance::{Maintained, PAGES_HELD_MAX};
use crate::lifecycle::memory;
use crate::lifecycle::pace::Pace;
use crate::state::stats::store::{StatEntry, StatStore};
use crate::stats::flush::FlushGuard;
use crate::stats::moves;
use crate::stock::drain;
use crate::tree::node::{Node, mix};
use crate::tree::shared::Shared;
use crate::tree::topology::{Noted, ROOT, State, Tree};

#[cfg(all(test, memgroup_loom))]
mod loom;
#[cfg(all(test, not(memgroup_loom)))]
mod tests;

/// The most groups that are worked on while a lock is held: their records may be small.
const GROUPS_HELD_MAX: u64 = 256;

/// The most places that are visited while a lock is held, with records or without.
const PLACES_HELD_MAX: u32 = 1024;

/// Runs `step` until it returns `None`, or until more work would exceed the pages or the groups
/// that one holding of the locks may take.
///
/// A step returns the bytes of records that it worked on; `each` is the most that one step takes.
/// Whether steps are left.
fn steps(
    shared: &'static Shared,
    each: u64,
    done: &mut Maintained,
    mut step: impl FnMut(&mut Maintained) -> Option<u64>,
) -> bool {
    let page = shared.shape.page_size.bytes() as u64;
    let (mut bytes, mut groups) = (0, 0);
    let more = loop {
        if groups == GROUPS_HELD_MAX || bytes > 0 && bytes + each > PAGES_HELD_MAX * page {
            break true;
        }
        let Some(work) = step(done) else { break false };
        bytes += work;
        groups += u64::from(work > 0);
    };
    done.pages_held_max = done.pages_held_max.max(bytes.div_ceil(page));
    more
}

/// Frees the memory that free places kept for their next groups, about so many bytes. The arenas
/// decide which pages float. Returns the bytes of records.
pub(crate) fn free_kept(shared: &'static Shared, bytes_max: u64, pace: &Pace, done: &mut Maintained) -> u64 {
    let each = memory::record_bytes(shared);
    let (mut freed, mut more) = (0, true);
    while more && pace.goes_on() {
        let mut tree = shared.tree.lock_behind();
        more = steps(shared, each, done, |_| {
            let goes_on = freed < bytes_max && pace.goes_on();
            let id = if goes_on { tree.strip() } else { None }?;
            pace.counts(true);
            // A group that the system refused a node for leaves a place without one.
            shared.node(id).into_iter().for_each(free_records);
            if let Some(chunk) = tree.bare_chunk(id) {
                shared.free_chunk(&tree, chunk);
                tree.free_entries(chunk);
            }
            freed += each;
            Some(each)
        });
    }
    freed
}

/// Whether the group has any record.
pub(crate) fn has_record(node: &'static Node) -> bool {
    node.entries().any(|entry| entry.record.is_linked())
}

/// Frees the records of a free place.
fn free_records(node: &'static Node) {
    node.entries().for_each(StatEntry::free_record);
    node.shared().free_parts(node);
}

/// Takes those records of a group that belong to `turn`. The caller holds the tree lock.
pub(crate) fn demote_held(node: &'static Node, turn: &FlushGuard) {
    let entries = node.entries().filter(|entry| turn.is_of(entry));
    entries.for_each(|entry| moves::move_to_base(entry, node, turn));
}

/// Takes the records of these groups, of one subsystem after the other. Their statistics move to
/// the base words. Whether all of them were taken: a step may find a turn to flush taken.
fn demote(shared: &'static Shared, groups: &[GroupId], pace: &Pace, done: &mut Maintained) -> bool {
    let mut kept = None;
    for updates in shared.statistics.trees() {
        let Some(turn) = pace.turn(updates, shared) else { return false };
        let tree = shared.tree.lock();
        for &id in groups {
            let Some(node) = shared.find(&tree, id) else { continue };
            demote_held(node, &turn);
        }
        drop(tree);
        // Else dropped here: a mover that waits for a turn has no other (E1).
        kept = Some(turn).filter(|_| mutation::active(Mutation::MoverKeepsItsTurn));
    }
    drop(kept);
    let bytes = groups.len() as u64 * memory::record_bytes(shared);
    let page = shared.shape.page_size.bytes() as u64;
    done.pages_held_max = done.pages_held_max.max(bytes.div_ceil(page));
    done.demoted_groups += groups.len() as u64;
    true
}

/// Takes the records of removed groups that are not free yet, about so many bytes. Returns the
/// bytes.
pub(crate) fn demote_removed(
    shared: &'static Shared,
    bytes_max: u64,
    pace: &Pace,
    done: &mut Maintained,
) -> u64 {
    let each = memory::record_bytes(shared);
    let page = shared.shape.page_size.bytes() as u64;
    let most = pace.at_once(1, (PAGES_HELD_MAX * page / each).clamp(1, GROUPS_HELD_MAX) as usize);
    let mut taken = 0;
    while taken < bytes_max && pace.goes_on() {
        let groups: Vec<GroupId> = {
            let mut tree = shared.tree.lock();
            let removed = std::iter::from_fn(|| tree.take_departed()).filter_map(|id| shared.node(id));
            removed.filter(|node| has_record(node)).take(most).map(Node::group_id).collect()
        };
        if groups.is_empty() {
            break;
        }
        if !demote(shared, &groups, pace, done) {
            // A flush is under way. The next step finds them again.
            let mut tree = shared.tree.lock();
            groups.iter().for_each(|id| tree.depart_again(NodeId(id.node())));
            break;
        }
        pace.counts(true);
        taken += groups.len() as u64 * each;
    }
    taken
}

/// Frees the records of all places and all nodes, if no group is left.
pub(crate) fn free_all(shared: &'static Shared, done: &mut Maintained) {
    loop {
        free_kept(shared, u64::MAX, &Pace::whole(), done);
        let mut tree = shared.tree.lock();
        if tree.state(ROOT) != State::Free {
            return;
        }
        // Another user may have had the hierarchy meanwhile, and left records.
        if tree.kept() == 0 {
            shared.node(ROOT).into_iter().for_each(free_records);
            return shared.free_all_chunks(&mut tree);
        }
    }
}

/// Takes the records and the prepaid bytes of groups that were idle for long enough, and the
/// records of removed groups that still hold bytes.
pub(crate) fn demote_idle(shared: &'static Shared, now: Instant, done: &mut Maintained) {
    let Some(after) = shared.config.demote_after() else { return };
    let each = memory::record_bytes(shared) + memory::stock_bytes(shared);
    let (mut at, mut more) = (0, true);
    while more {
        let mut idle = Vec::new();
        let mut tree = shared.tree.lock();
        let end = tree.places().min(at + PLACES_HELD_MAX);
        steps(shared, each, done, |_| {
            let place = (at < end).then_some(at)?;
            at += 1;
            let Some(node) = shared.node(NodeId(place)) else { return Some(0) };
            // Only a look at all words of a group tells whether it is idle, so the look is work on
            // its records too.
            let has_memory = has_record(node) || drain::has_open(node);
            let has_work = has_memory && tree.state(node.id()) != State::Free;
            if has_work && is_idle(&mut tree, node, now, after) {
                aftermath::retire(node);
                idle.push(node.group_id());
            }
            Some(if has_work { each } else { 0 })
        });
        more = at < tree.places();
        drop(tree);
        demote(shared, &idle, &Pace::whole(), done);
    }
}

/// A number that changes whenever the group is charged, uncharged or added to.
fn activity(node: &'static Node) -> u64 {
    node.entries().map(|entry| moves::activity(entry, node)).fold(drain::activity(node), mix)
}

fn is_idle(tree: &mut Tree, node: &'static Node, now: Instant, after: Duration) -> bool {
    match tree.state(node.id()) {
        State::Free => false,
        State::Closing | State::Dying { .. } => true,
        State::Online => {
            let activity = activity(node);
            let noted = tree.noted(node.id());
            match *noted {
                Some(before) if before.activity == activity => {
                    now.saturating_duration_since(before.since) >= after
                }
                _ => {
                    *noted = Some(Noted { activity, since: now });
                    after.is_zero()
                }
            }
        }
    }
}

/// Moves records out of sparse chunks, one arena after the other, at most so many bytes of all.
pub(crate) fn relocate(shared: &'static Shared, bytes_max: u64, pace: &Pace, done: &mut Maintained) {
    let bytes_max = done.moved_bytes + bytes_max;
    for store in shared.statistics.stores() {
        let each = (store.records.record_bytes() * store.records.admitted().count()) as u64;
        let mut more = true;
        while more {
            let Some(turn) = pace.turn(store.updates, shared) else { return };
            let tree = shared.tree.lock();
            more = steps(shared, each, done, |done| {
                if done.moved_bytes >= bytes_max {
                    done.more = true;
                    return None;
                }
                if !pace.goes_on() {
                    return None;
                }
                let bytes = move_next(&tree, store, &turn)?;
                pace.counts(true);
                done.moved_bytes += bytes;
                done.moved_records += u64::from(bytes > 0);
                Some(each.max(64))
            });
        }
    }
}

/// Moves the next record that should move, on `each` slot that has copies. Returns the bytes that
/// moved, 0 if it was given up instead; `None` if moving on gains nothing.
fn move_next(tree: &Tree, store: &'static StatStore, turn: &FlushGuard) -> Option<u64> {
    let (shared, records) = (turn.shared(), &store.records);
    let relocation = records.next_move()?;
    let node = shared.node(NodeId(relocation.owner()));
    let Some(node) = node.filter(|node| relocation.is_current(&node.entry(store).record)) else {
        // Unlinked meanwhile.
        records.discard(relocation.into_target());
        return Some(0);
    };
    if tree.state(node.id()) == State::Free {
        records.discard(relocation.into_target());
        node.entry(store).free_record();
        return Some(0);
    }
    moves::move_to(node.entry(store), node, relocation.into_target(), turn);
    Some((records.record_bytes() * records.admitted().count()) as u64)
}
