//! Records of groups that need them no more are given up, and others move together: steps 1 and 2 of a maintenance pass.

use core::time::Duration;
use std::time::Instant;

use memgroup_percpu::{Fresh, Record, Records};

use crate::base::id::NodeId;
use crate::lifecycle::maintenance::{Maintained, PAGES_HELD_MAX};
use crate::lifecycle::{memory, residence};
use crate::stats::moves::{self, LayoutGuard};
use crate::stats::release::DeferredReleases;
use crate::stock::drain;
use crate::tree::node::{Node, mix};
use crate::tree::shared::Shared;
use crate::tree::topology::{Noted, ROOT, State, Tree};

#[cfg(all(test, memgroup_loom))]
mod loom;

/// The most places that are visited while a lock is held, with records or without.
const PLACES_HELD_MAX: u32 = 1024;

/// Runs `step` until it returns `None`, or until more work would exceed the pages that one holding of the locks may take.
///
/// A step returns the bytes of records that it worked on; `each` is the most that one step takes. Whether steps are left.
fn steps(
    shared: &'static Shared,
    each: u64,
    done: &mut Maintained,
    mut step: impl FnMut(&mut Maintained) -> Option<u64>,
) -> bool {
    let page = shared.memory.stocks.arena().page().bytes() as u64;
    let mut bytes = 0;
    let more = loop {
        if bytes > 0 && bytes + each > PAGES_HELD_MAX * page {
            break true;
        }
        let Some(work) = step(done) else { break false };
        bytes += work;
    };
    done.pages_held_max = done.pages_held_max.max(bytes.div_ceil(page));
    more
}

/// Runs `work` with the tree lock, and the layout of the statistics alone.
fn with_layout<T>(shared: &'static Shared, work: impl FnOnce(&LayoutGuard<'_>, &mut Tree) -> T) -> T {
    let _releases = DeferredReleases(shared);
    let layout = shared.layout.write();
    let mut tree = shared.tree.lock();
    work(&layout, &mut tree)
}

/// Frees the records that free places kept for their next groups, at most so many bytes. The arenas decide which pages float.
pub(crate) fn free_kept(shared: &'static Shared, bytes_max: u64, done: &mut Maintained) {
    let each = memory::group_bytes(shared);
    let mut left = bytes_max / each;
    let mut more = true;
    while more {
        let mut tree = shared.tree.lock();
        more = steps(shared, each, done, |_| {
            left = left.checked_sub(1)?;
            let id = tree.strip()?;
            residence::free_records(shared.made(id));
            if let Some(chunk) = tree.bare_chunk(id) {
                shared.free_chunk(&tree, chunk);
            }
            Some(each)
        });
    }
}

/// Takes the records of removed groups that are not free yet, at most so many bytes. Their stocks are closed for good, and their
/// statistics move to the base words.
pub(crate) fn demote_removed(shared: &'static Shared, bytes_max: u64, done: &mut Maintained) {
    let each = memory::group_bytes(shared);
    let mut left = bytes_max / each;
    let mut step = |layout: &LayoutGuard<'_>, tree: &mut Tree, done: &mut Maintained| {
        left = left.checked_sub(1)?;
        let removed = std::iter::from_fn(|| tree.take_departed()).filter_map(|id| shared.node(id));
        let node = removed.into_iter().find(|node| residence::has_record(node))?;
        residence::demote_held(node, layout);
        done.demoted_groups += 1;
        Some(each)
    };
    while with_layout(shared, |layout, tree| steps(shared, each, done, |done| step(layout, tree, done))) {}
}

/// Frees the records of the root's place and all nodes, if no group is left.
pub(crate) fn free_root(shared: &'static Shared) {
    let mut tree = shared.tree.lock();
    if tree.state(ROOT) == State::Free {
        shared.node(ROOT).into_iter().for_each(residence::free_records);
        shared.free_all_chunks(&mut tree);
    }
}

/// Takes the records of groups that were idle for long enough, and of removed groups that still hold bytes. Returns the number of
/// online groups without a stock.
pub(crate) fn demote_idle(shared: &'static Shared, now: Instant, done: &mut Maintained) -> u64 {
    let Some(after) = shared.config.demote_after else { return 0 };
    let each = memory::group_bytes(shared);
    let (mut at, mut cold) = (0, 0);
    let mut step = |at: u32, layout: &LayoutGuard<'_>, tree: &mut Tree, done: &mut Maintained| {
        let Some(node) = shared.node(NodeId(at)) else { return 0 };
        // Only a look at all words of a group tells whether it is idle, so the look is work on its records too.
        let has_work = tree.state(node.id()) != State::Free && residence::has_record(node);
        if has_work && is_idle(tree, node, now, after) {
            residence::demote_held(node, layout);
            done.demoted_groups += 1;
        }
        cold += u64::from(tree.state(node.id()) == State::Online && !node.record.is_linked());
        if has_work { each } else { 0 }
    };
    while with_layout(shared, |layout, tree| {
        let end = tree.places().min(at + PLACES_HELD_MAX);
        steps(shared, each, done, |done| {
            let place = (at < end).then_some(at)?;
            at += 1;
            Some(step(place, layout, tree, done))
        });
        at < tree.places()
    }) {}
    cold
}

/// A number that changes whenever the group is charged, uncharged or added to.
fn activity(node: &'static Node) -> u64 {
    node.entries().map(|entry| moves::activity(entry, node)).fold(drain::activity(node), mix)
}

fn is_idle(tree: &mut Tree, node: &'static Node, now: Instant, after: Duration) -> bool {
    match tree.state(node.id()) {
        State::Free => false,
        State::Dying { .. } => true,
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
pub(crate) fn relocate(shared: &'static Shared, bytes_max: u64, done: &mut Maintained) {
    let stocks = &shared.memory.stocks;
    relocate_in(
        shared,
        stocks,
        bytes_max,
        done,
        |node| &node.record,
        |node, fresh, _| {
            residence::move_held(node, fresh);
        },
    );
    for store in shared.statistics.stores() {
        let record = |node: &'static Node| &node.entry(store).record;
        relocate_in(shared, &store.records, bytes_max, done, record, |node, fresh, layout| {
            moves::move_to(node.entry(store), fresh, layout);
        });
    }
}

fn relocate_in(
    shared: &'static Shared,
    records: &'static Records,
    bytes_max: u64,
    done: &mut Maintained,
    record: impl Fn(&'static Node) -> &'static Record,
    move_to: impl Fn(&'static Node, Fresh, &LayoutGuard<'_>),
) {
    let bytes = (records.record_bytes() * records.admitted().count()) as u64;
    let step = |layout: &LayoutGuard<'_>, tree: &Tree, done: &mut Maintained| {
        if done.moved_bytes >= bytes_max {
            done.more = true;
            return None;
        }
        let relocation = records.next_move()?;
        let node = shared.made(NodeId(relocation.owner()));
        let is_current = relocation.is_current(record(node));
        if is_current && tree.state(node.id()) != State::Free {
            move_to(node, relocation.into_target(), layout);
            done.moved_bytes += bytes;
            done.moved_records += u64::from(bytes > 0);
        } else {
            // Unlinked meanwhile, or of a free place: given up instead of moved.
            records.discard(relocation.into_target());
            if is_current && let Some(old) = record(node).unlink() {
                records.retire(old, residence::tag(node));
            }
        }
        Some(bytes.max(64))
    };
    while with_layout(shared, |layout, tree| steps(shared, bytes, done, |done| step(layout, tree, done))) {}
}
