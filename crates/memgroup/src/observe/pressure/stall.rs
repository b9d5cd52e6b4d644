//! Stall: a time in which a thread waits for memory of a group. It counts in the group and in all
//! above it.
//!
//! A thread is stalled once, however many guards it has. The first guard begins the stall, in its
//! group. The last one ends it, whatever the order in which they are dropped.
//!
//! While a stall is on, changes of scope in its hierarchy are checked on all threads, which costs
//! them some hundred nanoseconds if they matter to the stall. A future that waits stalls its task,
//! whatever thread polls it.
//!
//! - I1. `Shared::stalls` counts the stalls that are on in a hierarchy: the sum of its groups'
//!   `own`.

use core::marker::PhantomData;
use std::cell::Cell;

use memgroup_sync::atomic::{Ordering, fence};
use memgroup_sync::grace;

use crate::base::mutation::{self, Mutation};
use crate::counter::events::levels;
use crate::observe::pressure::record::{self, Record};
use crate::tree::handle::Group;
use crate::tree::node::Node;

/// The stall of a thread.
#[derive(Clone, Copy)]
struct Current {
    node: Option<&'static Node>,
    generation: u64,
    guards: u32,
}

impl Current {
    const NONE: Current = Current { node: None, generation: 0, guards: 0 };

    /// Its group, unless its guard was forgotten and the group is released.
    fn node(&self) -> Option<&'static Node> {
        self.node.filter(|node| node.generation() == self.generation)
    }
}

std::thread_local! {
    static CURRENT: Cell<Current> = const { Cell::new(Current::NONE) };
}

/// A stall of the calling thread for memory of a group; made by [`Group::stall`].
#[must_use = "the stall is over when the guard is dropped"]
pub struct StallGuard<'g> {
    is_counted: bool,
    thread_and_group: PhantomData<(*const (), &'g Group)>,
}

/// Returns whether stalls of `node` are counted.
fn is_counted(node: &'static Node) -> bool {
    node.shared().config.pressure() && !cfg!(memgroup_loom)
}

/// Stalls the calling thread for memory of `node`, which it holds by a handle, a scope or bytes,
/// until the guard is dropped.
pub(crate) fn stall<'g>(node: &'static Node) -> StallGuard<'g> {
    let is_counted = is_counted(node);
    if is_counted {
        begin(node);
    }
    StallGuard { is_counted, thread_and_group: PhantomData }
}

/// Begins a stall of a task, and of no thread: a future that waits. The task holds the group.
pub(crate) fn begin_of_task(node: &'static Node) {
    if is_counted(node) {
        begin_at(node, None);
    }
}

/// Ends the stall of a task.
pub(crate) fn end_of_task(node: &'static Node) {
    if is_counted(node) {
        end_at(node, node.generation(), None);
    }
}

impl Drop for StallGuard<'_> {
    fn drop(&mut self) {
        if self.is_counted {
            end();
        }
    }
}

/// A stall of a task for memory of a group; made by [`Group::stall_task`]. It may move between
/// threads.
#[must_use = "the stall is over when the guard is dropped"]
#[derive(Debug)]
pub struct TaskStall {
    group: Group,
}

impl TaskStall {
    pub(crate) fn new(group: &Group) -> TaskStall {
        begin_of_task(group.node());
        TaskStall { group: group.clone() }
    }
}

impl Drop for TaskStall {
    fn drop(&mut self) {
        end_of_task(self.group.node());
    }
}

/// Returns whether the calling thread is stalled.
pub(crate) fn is_stalled() -> bool {
    CURRENT.get().node().is_some()
}

fn begin(node: &'static Node) {
    let current = CURRENT.get();
    if current.node().is_some() {
        return CURRENT.set(Current { guards: current.guards + 1, ..current });
    }
    CURRENT.set(Current { node: Some(node), generation: node.generation(), guards: 1 });
    begin_at(node, record::own());
}

fn end() {
    let current = CURRENT.get();
    if current.guards > 1 {
        return CURRENT.set(Current { guards: current.guards - 1, ..current });
    }
    CURRENT.set(Current::NONE);
    end_stall(current, record::own());
}

fn end_stall(current: Current, record: Option<&'static Record>) {
    // A guard may have been forgotten, and the group's node given back: but not within a section.
    let _section = grace::enter();
    match (current.node(), record) {
        (Some(node), _) => end_at(node, current.generation, record),
        (None, Some(record)) => record.set_stalled(false),
        (None, None) => (),
    }
}

/// Ends a stall with a forgotten guard, when its thread ends.
pub(crate) fn end_with_thread(record: &'static Record) {
    let current = CURRENT.replace(Current::NONE);
    if current.node.is_some() {
        record.put(None, 0);
        end_stall(current, Some(record));
    }
}

/// Counts `stalls` fewer in the hierarchy of `node`.
fn unwatch(node: &'static Node, stalls: u32) {
    // ORDERING: Relaxed; a change of scope that still sees them checks in vain.
    node.shared().stalls.fetch_sub(stalls, Ordering::Relaxed);
}

/// The levels of the thread's scope that are not levels of `node`.
fn elsewhere(record: Option<&'static Record>, node: &'static Node) -> impl Iterator<Item = &'static Node> {
    record.and_then(Record::scope).into_iter().flat_map(levels).take_while(|level| !node.is_within(level))
}

/// Begins a stall of the thread of `record` in `node`.
pub(crate) fn begin_at(node: &'static Node, record: Option<&'static Record>) {
    if let Some(record) = record {
        record.set_stalled(true);
    }
    // ORDERING: Relaxed; the fence orders it before the checks of records.
    node.shared().stalls.fetch_add(1, Ordering::Relaxed);
    // ORDERING: SeqCst; as in `after_scope_change`: a thread that begins a stall is no longer at
    // work.
    fence(Ordering::SeqCst);
    let now = node.shared().nanos();
    let mut worker = None;
    for level in levels(node) {
        worker = level.pressure().begin(now, std::ptr::eq(level, node), worker);
    }
    if let Some(record) = record {
        elsewhere(Some(record), node).for_each(|level| level.pressure().after_leave(record));
    }
}

/// Ends the stall of the thread of `record` in `node`.
pub(crate) fn end_at(node: &'static Node, generation: u64, record: Option<&'static Record>) {
    if let Some(record) = record {
        record.set_stalled(false);
    }
    let now = node.shared().nanos();
    let scope = record.and_then(Record::at_work);
    let worker = |level| record.filter(|_| scope.is_some_and(|scope| scope.is_within(level)));
    if node.pressure().end_own(generation, now, worker(node)) {
        for level in levels(node).skip(1) {
            level.pressure().end(1, now, worker(level));
        }
        unwatch(node, 1);
    }
    if let Some(record) = record.filter(|_| scope.is_some()) {
        // ORDERING: SeqCst; as in `after_scope_change`.
        fence(Ordering::SeqCst);
        elsewhere(Some(record), node).for_each(|level| level.pressure().after_enter(record));
    }
}

/// The scope of the thread of `record` has changed while a thread is stalled in a hierarchy that
/// it concerns.
#[cold]
#[inline(never)]
pub(crate) fn after_scope_change(
    record: &'static Record,
    before: Option<&'static Node>,
    after: Option<&'static Node>,
) {
    if record.is_stalled() {
        return;
    }
    if !mutation::active(Mutation::MoveWithoutFence) {
        // ORDERING: SeqCst; pairs with the fence in `Meter::find_witness` (E1 there). The record's
        // change is before it, the looks at witnesses after.
        fence(Ordering::SeqCst);
    }
    let is_left = |level: &&'static Node| after.is_none_or(|after| !after.is_within(level));
    for level in before.into_iter().flat_map(levels).take_while(is_left) {
        level.pressure().after_leave(record);
    }
    for level in after.into_iter().flat_map(levels) {
        level.pressure().after_enter(record);
    }
}

/// Ends stalls with forgotten guards, here and above, when the group is released. The caller holds
/// the tree lock.
pub(crate) fn release(node: &'static Node) {
    if !node.pressure().is_stalled() {
        return;
    }
    let now = node.shared().nanos();
    let abandoned = node.pressure().abandon(now);
    if abandoned > 0 {
        levels(node).skip(1).for_each(|level| level.pressure().end(abandoned, now, None));
        unwatch(node, abandoned);
    }
}
