//! Stall: a time in which a thread waits for memory of a group, in the group and all above it.
//!
//! A thread is stalled once, however many guards it has: the first begins the stall, in its group, and the last ends it, in whatever order they are
//! dropped.
//!
//! A stall **lasts** if somebody says so: a wait, a throttle, a reclaim that has come to nothing in a round. While one lasts, changes of scope
//! anywhere are looked at, which costs them some hundred nanoseconds where they matter; during others they are not.
//!
//! - I1. `WATCHED` counts the threads whose stall lasts.
//! - B1. Within a stall that does not last, who is at work is what it was when the last stall of the chain began or ended: `full` is off by at most
//!   so long.

use core::marker::PhantomData;
use std::cell::Cell;

use memgroup_sync::atomic::{Ordering, fence};

use super::meter::{self, chain};
use super::record::{self, Record};
use crate::group::Group;
use crate::mutation::{self, Mutation};
use crate::node::Node;

/// The stall of a thread.
#[derive(Clone, Copy)]
struct Current {
    node: Option<&'static Node>,
    generation: u32,
    guards: u32,
    lasts: bool,
}

impl Current {
    const NONE: Current = Current { node: None, generation: 0, guards: 0, lasts: false };

    /// Where it is, unless its guard was forgotten and the group is gone.
    fn node(&self) -> Option<&'static Node> {
        self.node.filter(|node| node.generation() == self.generation)
    }
}

std::thread_local! {
    static CURRENT: Cell<Current> = const { Cell::new(Current::NONE) };
}

/// The thread is stalled while it lives.
#[must_use = "the stall is over when the guard is dropped"]
pub(crate) struct Stall {
    is_counted: bool,
    here: PhantomData<*const ()>,
}

/// The calling thread is stalled for memory of `node`, which it holds by a handle, a scope or bytes.
pub(crate) fn stall(node: &'static Node) -> Stall {
    let is_counted = node.shared.config.pressure && !cfg!(memgroup_loom);
    if is_counted {
        begin(node, false);
    }
    Stall { is_counted, here: PhantomData }
}

/// The same for a stall that lasts from its beginning: a wait, a throttle.
pub(crate) fn stall_that_lasts(node: &'static Node) -> Stall {
    let is_counted = node.shared.config.pressure && !cfg!(memgroup_loom);
    if is_counted {
        begin(node, true);
    }
    Stall { is_counted, here: PhantomData }
}

impl Stall {
    /// It lasts: from now on changes of scope are looked at.
    pub(crate) fn lasts(&mut self) {
        if self.is_counted {
            last(CURRENT.get());
        }
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        if self.is_counted {
            end();
        }
    }
}

/// A stall of the calling thread for memory of a group; made by [`Group::stall`].
#[must_use = "the stall is over when the guard is dropped"]
pub struct StallGuard<'g> {
    _stall: Stall,
    group: PhantomData<&'g Group>,
}

impl StallGuard<'_> {
    pub(super) fn new(_: &Group, stall: Stall) -> StallGuard<'_> {
        StallGuard { _stall: stall, group: PhantomData }
    }
}

/// Whether the calling thread is stalled.
pub(super) fn is_stalled() -> bool {
    CURRENT.get().node().is_some()
}

fn begin(node: &'static Node, lasts: bool) {
    let current = CURRENT.get();
    if current.node().is_some() {
        let nested = Current { guards: current.guards + 1, ..current };
        CURRENT.set(nested);
        return if lasts {
            last(nested)
        };
    }
    if current.lasts {
        record::unwatch();
    }
    if lasts {
        record::watch();
    }
    CURRENT.set(Current { node: Some(node), generation: node.generation(), guards: 1, lasts });
    begin_at(node, record::own());
}

/// The thread's stall lasts from now on.
fn last(current: Current) {
    if current.lasts {
        return;
    }
    CURRENT.set(Current { lasts: true, ..current });
    record::watch();
    if let Some(node) = current.node() {
        chain(node).for_each(|level| level.control.pressure.look_again(level, None));
    }
}

fn end() {
    let current = CURRENT.get();
    if current.guards > 1 {
        return CURRENT.set(Current { guards: current.guards - 1, ..current });
    }
    CURRENT.set(Current::NONE);
    if let Some(node) = current.node {
        end_at(node, current.generation, record::own());
    }
    if current.lasts {
        record::unwatch();
    }
}

/// The thread ends: so does a stall whose guard was forgotten.
pub(super) fn end_with_thread(record: &'static Record) {
    let current = CURRENT.replace(Current::NONE);
    if let Some(node) = current.node {
        record.put(None, 0);
        end_at(node, current.generation, Some(record));
    }
    if current.lasts {
        record::unwatch();
    }
}

/// The levels of what is in force on the thread that are not levels of `node`.
fn elsewhere(record: Option<&'static Record>, node: &'static Node) -> impl Iterator<Item = &'static Node> {
    record.and_then(Record::scope).into_iter().flat_map(chain).take_while(|level| !node.is_within(level))
}

/// The thread of `record` is stalled in `node`.
pub(super) fn begin_at(node: &'static Node, record: Option<&'static Record>) {
    let watched = record::is_watched();
    if let Some(record) = record {
        record.set_stalled(true);
    }
    if watched {
        // ORDERING: SeqCst; as in `moved`: a thread that begins a stall is at work no more.
        fence(Ordering::SeqCst);
    }
    let now = node.shared.nanos();
    let worker = meter::deepest_worker(node);
    for level in chain(node) {
        level.control.pressure.begin(level, now, std::ptr::eq(level, node), worker, watched);
    }
    if let Some(record) = record
        && watched
    {
        elsewhere(Some(record), node).for_each(|level| level.control.pressure.loses(level, record));
    }
}

/// The stall of the thread of `record` in `node` ends.
pub(super) fn end_at(node: &'static Node, generation: u32, record: Option<&'static Record>) {
    if let Some(record) = record {
        record.set_stalled(false);
    }
    let now = node.shared.nanos();
    let scope = record.and_then(Record::at_work);
    let worker = |level| record.filter(|_| scope.is_some_and(|scope| scope.is_within(level)));
    if node.control.pressure.end_own(node, generation, now, worker(node)) {
        for level in chain(node).skip(1) {
            level.control.pressure.end(now, worker(level));
        }
    }
    if let Some(record) = record.filter(|_| scope.is_some()) {
        if record::is_watched() {
            // ORDERING: SeqCst; as in `moved`.
            fence(Ordering::SeqCst);
        }
        elsewhere(Some(record), node).for_each(|level| level.control.pressure.gains(level, record));
    }
}

/// What is in force on the thread of `record` has changed, while a stall lasts somewhere.
#[cold]
#[inline(never)]
pub(super) fn moved(record: &'static Record, before: Option<&'static Node>, after: Option<&'static Node>) {
    if record.is_stalled() {
        return;
    }
    if !mutation::active(Mutation::MoveWithoutFence) {
        // ORDERING: SeqCst; pairs with the fence in `Meter::look` (E1 there): the record's change is before it, the looks at witnesses after.
        fence(Ordering::SeqCst);
    }
    let is_left = |level: &&'static Node| after.is_none_or(|after| !after.is_within(level));
    for level in before.into_iter().flat_map(chain).take_while(is_left) {
        level.control.pressure.loses(level, record);
    }
    for level in after.into_iter().flat_map(chain) {
        level.control.pressure.gains(level, record);
    }
}

/// The group is released; the caller holds the tree lock. Stalls whose guards were forgotten end, here and above.
pub(crate) fn release(node: &'static Node) {
    let now = node.shared.nanos();
    let abandoned = node.control.pressure.abandon(now);
    if abandoned > 0 {
        chain(node).skip(1).for_each(|level| level.control.pressure.end_abandoned(abandoned, now));
    }
}
