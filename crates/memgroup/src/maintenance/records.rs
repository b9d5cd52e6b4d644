//! Records: those that groups need no more are given up, and others move together. Steps 1 and 2 of a pass.

use core::time::Duration;
use std::time::Instant;

use super::{Maintained, PAGES_HELD_MAX};
use crate::group::GroupId;
use crate::memory;
use crate::node::{Node, mix};
use crate::residence;
use crate::rstat::moves::{self, Alone};
use crate::rstat::settle;
use crate::shared::Shared;
use crate::stock::drain;
use crate::tree::{Noted, ROOT, State, Tree};

/// The most places that are looked at while a lock is held, with records or without.
const PLACES_HELD_MAX: u32 = 1024;

/// Work under the tree lock, held for no more than so many bytes of records at a time.
struct Hold {
    page: u64,
    bytes: u64,
}

impl Hold {
    fn begin(shared: &'static Shared) -> Hold {
        Hold { page: shared.memory.stocks.arena().page().bytes() as u64, bytes: 0 }
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.bytes == 0 || self.bytes + bytes <= PAGES_HELD_MAX * self.page
    }

    fn end(self, done: &mut Maintained) {
        done.pages_held_max = done.pages_held_max.max(self.bytes.div_ceil(self.page));
    }
}

/// Runs `work` with the layout of the statistics and the tree for it alone.
fn alone<T>(shared: &'static Shared, work: impl FnOnce(&Alone<'_>, &mut Tree) -> T) -> T {
    let layout = shared.layout.write();
    let done = work(&layout, &mut shared.tree.lock());
    drop(layout);
    settle::finish_releases(shared);
    done
}

/// Free places give up their records, at most so many bytes of them. What may float of that, floats in the arenas.
pub(super) fn strip(shared: &'static Shared, bytes_max: u64, done: &mut Maintained) {
    let each = memory::group_bytes(shared);
    let mut left = bytes_max / each;
    while left > 0 {
        let mut tree = shared.tree.lock();
        let mut hold = Hold::begin(shared);
        while left > 0 && hold.has_room(each) {
            let Some(node) = tree.strip().and_then(|id| shared.node(id)) else {
                return hold.end(done);
            };
            residence::vacate(node);
            hold.bytes += each;
            left -= 1;
        }
        hold.end(done);
    }
}

/// Removed groups that are not free yet give up their records: their stocks are closed for good, and their statistics wait beside
/// the slots. At most so many bytes of them.
pub(super) fn strip_departed(shared: &'static Shared, bytes_max: u64, done: &mut Maintained) {
    let each = memory::group_bytes(shared);
    let mut left = bytes_max / each;
    while left > 0 {
        let more = alone(shared, |alone, tree| {
            let mut hold = Hold::begin(shared);
            while left > 0 && hold.has_room(each) {
                let Some(id) = tree.take_departed() else {
                    left = 0;
                    break;
                };
                let Some(node) = shared.node(id).filter(|&node| residence::is_furnished(node)) else {
                    continue;
                };
                residence::demote_held(node, alone);
                done.demoted_groups += 1;
                hold.bytes += each;
                left -= 1;
            }
            hold.end(done);
            left > 0
        });
        if !more {
            return;
        }
    }
}

/// The root's place, which no other group is ever given, gives up its record if it is free.
pub(super) fn strip_root(shared: &'static Shared) {
    let tree = shared.tree.lock();
    if tree.state(ROOT) == State::Free {
        residence::vacate(shared.root());
    }
}

/// Groups that were idle for long enough, and removed ones that still hold bytes, give up their records. Returns how many online
/// groups have no stock.
pub(super) fn demote_idle(shared: &'static Shared, now: Instant, done: &mut Maintained) -> u64 {
    let Some(after) = shared.config.demote_after else { return 0 };
    let each = memory::group_bytes(shared);
    let (mut at, mut cold, mut more) = (0, 0, true);
    while more {
        more = alone(shared, |alone, tree| {
            let (mut hold, end) = (Hold::begin(shared), tree.places().min(at + PLACES_HELD_MAX));
            while at < end && hold.has_room(each) {
                let id = GroupId(at);
                at += 1;
                let Some(node) = shared.node(id) else { continue };
                if tree.state(id) != State::Free && residence::is_furnished(node) {
                    // To tell whether a group is idle all its words are read: that is work on its records too.
                    hold.bytes += each;
                    if is_idle(tree, node, now, after) {
                        residence::demote_held(node, alone);
                        done.demoted_groups += 1;
                    }
                }
                cold += u64::from(tree.state(id) == State::Online && !node.record.is_linked());
            }
            hold.end(done);
            at < tree.places()
        });
    }
    cold
}

/// A number that changes whenever the group is charged, uncharged or counted for.
fn activity(node: &'static Node) -> u64 {
    let counted = node.entries().map(|entry| moves::activity(entry, node));
    counted.fold(drain::activity(node), mix)
}

fn is_idle(tree: &mut Tree, node: &'static Node, now: Instant, after: Duration) -> bool {
    match tree.state(node.id) {
        State::Free => false,
        State::Dying { .. } => true,
        State::Online => {
            let activity = activity(node);
            let noted = tree.noted(node.id);
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

/// Records move out of sparse chunks, of one kind after the other, at most so many bytes of all.
pub(super) fn relocate(shared: &'static Shared, bytes_max: u64, done: &mut Maintained) {
    relocate_kind(shared, bytes_max, done, |_, tree| residence::relocate_held(shared, tree));
    for store in shared.statistics.stores() {
        relocate_kind(shared, bytes_max, done, |alone, tree| moves::relocate(shared, store, tree, alone));
    }
}

fn relocate_kind(
    shared: &'static Shared,
    bytes_max: u64,
    done: &mut Maintained,
    mut relocate_one: impl FnMut(&Alone<'_>, &Tree) -> Option<u64>,
) {
    let mut more = true;
    while more {
        more = alone(shared, |alone, tree| {
            let (mut hold, mut each) = (Hold::begin(shared), 0);
            while hold.has_room(each) {
                if done.moved_bytes >= bytes_max {
                    done.more = true;
                    break;
                }
                let Some(bytes) = relocate_one(alone, tree) else { break };
                done.moved_bytes += bytes;
                done.moved_records += u64::from(bytes > 0);
                each = each.max(bytes);
                // What is given up instead is work too.
                hold.bytes += each.max(64);
            }
            let full = !hold.has_room(each);
            hold.end(done);
            full
        });
    }
}
