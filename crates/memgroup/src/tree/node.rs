//! Node: the record of one group that the charge path touches.
//!
//! Nodes are cells of chunks (`memgroup_sync::Chunk`), so a `&'static Node` is always good memory.
//! A node is given to a new group, or given back, only when its group is offline, nothing is
//! charged to it and it has no handle (`control::release`). So a [`Charge`](crate::Charge) needs
//! no reference count: its bytes are the reference. A charge of zero bytes counts as a handle
//! instead.
//!
//! A node that was given back is *erased*: it has generation 0, and no hierarchy, no parent and no
//! words. Marks of statistics, scopes and stalls with forgotten guards, and threads between an
//! uncharge and its aftermath refer to nodes that they don't hold, so they must expect erased ones.
//!
//! A node's per-CPU words are not in the node. Its place has a stock word on each slot, which
//! never moves. The statistics are records that the entries point to, which move, and go when the
//! group is idle (`lifecycle::records`). A free node keeps them for its next group.
//!
//! - I1. usage > 0, or handles > 0, or online ⇒ the node is not released.
//! - I2. `up` changes only while the node is free.
//! - I3. In an offline group usage rises, and handles are made from nothing, only under the tree
//!   lock.
//! - I4. `stock` leads to the words of its place from the making of the node until it is given
//!   back. So a thread that found it in a section finds words of the same place until the section
//!   ends.
//! - I5. `parent` and `depth` change only while the node is free, and a group's parent is released
//!   after it. A thread that holds a node, or holds off releases, may climb.

use core::mem::offset_of;

use memgroup_percpu::{FastSlot, WordCell, Words};
use memgroup_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use memgroup_sync::grace::{Lent, Published, Withdrawn};
use memgroup_sync::{AtomicRef, Chunk, FixedRef, FixedU32, depth, erasable, global};

use crate::base::id::{GroupId, NodeId, TOP};
use crate::state::config::CHUNK;
use crate::state::counter::Counter;
use crate::state::event_counts::EventCounts;
use crate::state::high::HighState;
use crate::state::past::Past;
use crate::state::stalls::Stalls;
use crate::state::stats::SUBSYSTEMS_MAX;
use crate::state::stats::miss_counts::MissCounts;
use crate::state::stats::store::{StatEntry, StatStore};
use crate::state::waiting::{QueueWords, Waiting};
use crate::tree::holders::Holders;
use crate::tree::marks::Marks;
use crate::tree::parts::{Key, NodePart, NodeParts, Part, PlacePart, PlaceParts};
use crate::tree::shared::Shared;

erasable! {
    /// One group, as the charge path sees it. A hit reads the first line, and a statistic its
    /// entry, which is a line of its own. The node has an odd number of lines, so that the same
    /// line of many nodes is not in one cache set.
    #[repr(C, align(64))]
    pub(crate) struct Node {
        /// The largest charge that the stock deals with; 0 where there is no stock.
        stock_charge_max: AtomicU64,
        pub(crate) fast_slot: FastSlot,
        /// The number of bypasses of the stock that are in force.
        bypasses: AtomicU32,
        up: AtomicRef<Node>,
        /// The stock word of each slot.
        pub(crate) stock: WordCell,
        id: FixedU32,
        /// What a charge has to do here besides counting, if anything.
        pub(crate) marks: Marks,
        shared: FixedRef<Shared>,
        /// Odd while the node has a group. No two groups of the process have the same one.
        generation: AtomicU64,
        parent: AtomicU32,
        depth: AtomicU32,
        pub(crate) counter: Counter,
        pub(crate) misses: MissCounts,
        pub(crate) waiting: Waiting,
        asked: AtomicU64,
        /// The group's place in the statistics of each of the first subsystems.
        pub(crate) stats: [StatEntry; STATS_WITHIN],
        rare: FixedRef<RareWords>,
        more: FixedRef<MoreEntries>,
        /// The parts that walks refer to without a section. They stay with the place for ever.
        kept: AtomicRef<PlaceParts>,
        /// The references that keep the node.
        handles: AtomicU32,
        /// Groups below it that are not released.
        children: AtomicU32,
        pub(crate) holders: Holders,
    }
}

erasable! {
    /// The words of a group that are zero until something rare happens to it. The system backs
    /// their page then, so a reset writes to no word that is zero.
    pub(crate) struct RareWords {
        pub(crate) events: EventCounts,
        pub(crate) past: Past,
        pub(crate) high: HighState,
        /// The parts that go with the node.
        parts: Published<NodeParts>,
        pub(crate) stalls: Stalls,
        pub(crate) queue: QueueWords,
        /// An upper bound on the number of an allocator's slots that hold bytes back while charges
        /// wait at the group (`held_back` I3).
        pub(crate) beside: AtomicU32,
    }
}

/// Number of built-in subsystems. Their entries are in the node.
pub(crate) const STATS_WITHIN: usize = 3;

erasable! {
    /// The group's places in the statistics of all further subsystems.
    pub(crate) struct MoreEntries {
        pub(crate) entries: [StatEntry; SUBSYSTEMS_MAX - STATS_WITHIN],
    }
}

const _: () =
    assert!(cfg!(memgroup_loom) || size_of::<Node>() % 128 == 64 && offset_of!(Node, counter) == 64);
const _: () = assert!(
    cfg!(memgroup_loom) || size_of::<StatEntry>() == 64 && offset_of!(Node, stats) % 64 == 0,
    "an entry is a cache line"
);

/// The nodes of this many places come and go together.
pub(crate) const CHUNK_NODES: usize = CHUNK as usize;

pub(crate) type NodeChunk = Chunk<Node>;

/// A guard. While it lives, charges and uncharges of a group bypass its stock. If one guard is
/// dropped at the moment another is made, the second one may find the stock in use again.
pub(crate) struct StockBypass {
    node: &'static Node,
}

impl Drop for StockBypass {
    fn drop(&mut self) {
        // ORDERING: AcqRel, because the last guard must store after all others have. Otherwise the
        // 0 that one of them stored could stay for ever.
        if self.node.bypasses.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.node.use_stock();
        }
    }
}

impl Node {
    /// Makes an erased node the free place `id` of `shared`.
    pub(crate) fn init(
        &self,
        shared: &'static Shared,
        id: NodeId,
        rare: &'static RareWords,
        more: &'static MoreEntries,
    ) {
        self.id.set(id.0);
        self.rare.set(rare);
        self.more.set(more);
        self.fast_slot.set(&shared.source);
        self.stock.set(&shared.stocks, id.0);
        // ORDERING: Relaxed, both, because no thread finds the node before `Shared::make_place`
        // publishes it.
        self.stock_charge_max.store(shared.stock_charge_max(), Ordering::Relaxed);
        self.parent.store(TOP.0, Ordering::Relaxed);
        self.shared.set(shared);
    }

    /// Returns its rare words.
    pub(crate) fn rare(&self) -> &'static RareWords {
        self.rare.get().expect("a node that is in use has all its words")
    }

    /// Returns the group's event counts.
    pub(crate) fn events(&self) -> &'static EventCounts {
        &self.rare().events
    }

    /// Returns its entry in the statistics of the subsystem with this number, if there is memory
    /// for one.
    #[inline(always)]
    pub(crate) fn stat_entry(&'static self, number: usize) -> Option<&'static StatEntry> {
        self.stats.get(number).or_else(|| self.more.get()?.entries.get(number - STATS_WITHIN))
    }

    #[inline]
    pub(crate) fn id(&self) -> NodeId {
        NodeId(self.id.get())
    }

    /// Returns its hierarchy.
    #[inline]
    pub(crate) fn shared(&self) -> &'static Shared {
        self.shared.get().expect("a node that is in use has a hierarchy")
    }

    /// Returns the stock words of its hierarchy; `None` if the node was given back.
    #[inline]
    pub(crate) fn find_stocks(&self) -> Option<&'static Words> {
        self.shared.get().map(|shared| &shared.stocks)
    }

    /// Returns whether it is a node of this hierarchy. A node that was given back belongs to none.
    pub(crate) fn is_of(&self, shared: &Shared) -> bool {
        self.shared.get().is_some_and(|own| std::ptr::eq(own, shared))
    }

    /// Returns whether this process got the group by a fork.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        self.shared.get().is_some_and(|shared| shared.is_inherited())
    }

    /// Returns the node at a place of the same hierarchy; `None` if there is none, or if this node
    /// was given back.
    #[inline]
    fn other(&self, id: NodeId) -> Option<&'static Node> {
        self.shared.get()?.node(id)
    }

    /// Returns a part of the group, which is made first if the group has none yet.
    pub(crate) fn part<T: Part>(&self, key: &Key<NodePart, T>) -> Lent<'_, T> {
        loop {
            if let Some(parts) = self.rare().parts.lend() {
                return parts.map(|parts| parts.get(key));
            }
            self.make_parts();
        }
    }

    #[cold]
    fn make_parts(&self) {
        let _inside = depth::enter();
        let made = Box::new(NodeParts::new());
        let _one_at_a_time = self.shared().making_parts.lock();
        if self.rare().parts.lend().is_none() {
            let before = self.rare().parts.publish(made);
            debug_assert!(before.is_none());
        }
    }

    /// Returns a part of the group, if it has been made.
    #[inline]
    pub(crate) fn find_part<T: Part>(&self, key: &Key<NodePart, T>) -> Option<Lent<'_, T>> {
        self.rare.get()?.parts.lend()?.find(|parts| parts.find(key))
    }

    /// Returns a part that stays with the place for ever. It is made first if there is none yet.
    pub(crate) fn kept_part<T: Part>(&self, key: &Key<PlacePart, T>) -> &'static T {
        self.kept_parts().unwrap_or_else(|| self.make_kept()).get(key)
    }

    #[cold]
    fn make_kept(&self) -> &'static PlaceParts {
        let _one_at_a_time = self.shared().making_parts.lock();
        self.kept_parts().unwrap_or_else(|| {
            let made: &'static PlaceParts = memgroup_sync::keep(Box::new(PlaceParts::new()));
            self.keep_parts(made);
            made
        })
    }

    /// Returns a part that stays with the place, if it has been made.
    #[inline]
    pub(crate) fn find_kept<T: Part>(&self, key: &Key<PlacePart, T>) -> Option<&'static T> {
        self.kept_parts()?.find(key)
    }

    /// Returns all parts that stay with the place.
    pub(crate) fn kept_parts(&self) -> Option<&'static PlaceParts> {
        // ORDERING: Acquire pairs with the Release in `keep_parts`. Weaker, the parts could be
        // found before they are initialised.
        self.kept.load(Ordering::Acquire)
    }

    /// Sets the parts that stay with its place.
    pub(crate) fn keep_parts(&self, parts: &'static PlaceParts) {
        // ORDERING: Release pairs with the Acquire in `kept_parts`.
        self.kept.store(Some(parts), Ordering::Release);
    }

    /// Withdraws the parts that go with the node; `None` if it has none, or its memory was given
    /// back. The caller must hold the tree lock, and the place must be free.
    pub(crate) fn withdraw_parts(&self) -> Option<Withdrawn<NodeParts>> {
        self.rare.get()?.parts.withdraw()
    }

    /// Returns the group above, even if charges don't climb to it.
    pub(crate) fn parent(&self) -> Option<&'static Node> {
        // ORDERING: Relaxed, here and for `depth`, because both were written while the node was
        // free (I5). They are published as `up` is, and by the marks that a flush finds.
        self.other(NodeId(self.parent.load(Ordering::Relaxed)))
    }

    /// Returns whether `parent` is the group above.
    pub(crate) fn is_child_of(&self, parent: &Node) -> bool {
        self.parent.load(Ordering::Relaxed) == parent.id().0
    }

    /// Prefetches the line in which `parent` lies.
    pub(crate) fn prefetch_parent(&self) {
        memgroup_percpu::prefetch(&self.parent);
    }

    /// Returns the number of levels above it.
    pub(crate) fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed)
    }

    /// Returns whether it is `top` or lies below it.
    pub(crate) fn is_within(&'static self, top: &'static Node) -> bool {
        let mut level = Some(self);
        while let Some(node) = level.filter(|node| node.depth() > top.depth()) {
            level = node.parent();
        }
        level.is_some_and(|node| std::ptr::eq(node, top))
    }

    /// Returns its entry in the statistics of one subsystem.
    pub(crate) fn entry(&'static self, store: &'static StatStore) -> &'static StatEntry {
        self.stat_entry(store.number).expect("a node that is in use has an entry in each store")
    }

    /// Returns its entry in the statistics of the subsystem with this number; `None` if there is
    /// no such subsystem.
    #[inline(always)]
    pub(crate) fn find_entry(&'static self, number: usize) -> Option<&'static StatEntry> {
        self.stat_entry(number).filter(|entry| entry.find_store().is_some())
    }

    /// Returns its entries in the statistics of all subsystems.
    pub(crate) fn entries(&'static self) -> impl Iterator<Item = &'static StatEntry> + Clone {
        (0..SUBSYSTEMS_MAX).map_while(|number| self.find_entry(number))
    }

    /// Returns the bytes that reclaim has asked the caches of this group and of those below it
    /// for, in calls that have not returned yet (`protect::spare`).
    pub(crate) fn asked(&self) -> &AtomicU64 {
        &self.asked
    }

    /// Returns whether no group is left below it, online or not.
    pub(crate) fn is_childless(&self) -> bool {
        // ORDERING: Acquire pairs with the Release in `lose_child`: the caller sees the statistics
        // that the last child left to its ancestors.
        self.children.load(Ordering::Acquire) == 0
    }

    /// Counts a new child. The caller must hold the tree lock.
    pub(crate) fn gain_child(&self) {
        // ORDERING: Relaxed, because the child's handle publishes it.
        self.children.fetch_add(1, Ordering::Relaxed);
        self.pin_inner();
    }

    /// Uncounts a child that was released after its statistics were settled. The caller must hold
    /// the tree lock, and must check whether this group can be released now.
    pub(crate) fn lose_child(&self) {
        // ORDERING: Release pairs with the Acquire in `is_childless`.
        self.children.fetch_sub(1, Ordering::Release);
        self.unpin_inner();
    }

    /// Returns the next level that is charged with this one.
    #[inline(always)]
    pub(crate) fn up(&self) -> Option<&'static Node> {
        // ORDERING: Relaxed, because it was written while the node was free, and the tree lock
        // under which the handle was given out publishes it (I2).
        self.up.load(Ordering::Relaxed)
    }

    /// Returns whether the stock serves charges and uncharges of this size.
    #[inline]
    pub(crate) fn stocks(&self, bytes: u64) -> bool {
        // ORDERING: Relaxed, here and in all methods that write it, because a bypass is for its own
        // thread, and the rest is a matter of speed.
        bytes.wrapping_sub(1) < self.stock_charge_max.load(Ordering::Relaxed)
    }

    /// Returns a guard. While it lives, charges and uncharges of this thread bypass the stock, and
    /// so do most of those of other threads.
    pub(crate) fn bypass_stock(&'static self) -> StockBypass {
        self.bypasses.fetch_add(1, Ordering::Relaxed);
        self.stock_charge_max.store(0, Ordering::Relaxed);
        StockBypass { node: self }
    }

    /// Has the stock serve as large charges as the hierarchy allows, unless it is bypassed.
    pub(crate) fn use_stock(&self) {
        // ORDERING: Relaxed, both; as in `bypass_stock`.
        if self.bypasses.load(Ordering::Relaxed) == 0 {
            self.stock_charge_max.store(self.shared().stock_charge_max(), Ordering::Relaxed);
        }
    }

    /// Has the group's next `charges` go to the counters, because its stock was evicted or it can
    /// have none now. Otherwise groups that are too many for the budget would evict each other's
    /// stocks at every charge.
    pub(crate) fn back_off(&self, charges: u32) {
        // ORDERING: Relaxed, here and in `count_exact`, because the number is only for speed. Of
        // two charges at a time, one may not be counted.
        let left = self.counter.backing_off().load(Ordering::Relaxed);
        self.counter.backing_off().store(left.max(charges), Ordering::Relaxed);
        self.stock_charge_max.store(0, Ordering::Relaxed);
    }

    /// Counts a charge that goes to the counters. The last one of those that back off puts the
    /// stock to use again.
    #[inline]
    pub(crate) fn count_exact(&self) {
        let left = self.counter.backing_off().load(Ordering::Relaxed);
        if left > 0 {
            self.counter.backing_off().store(left - 1, Ordering::Relaxed);
            if left == 1 {
                self.use_stock();
            }
        }
    }

    /// Counts one more handle of a user, which keeps the whole hierarchy as well.
    pub(crate) fn pin(&'static self) {
        self.shared().hold();
        self.pin_inner();
    }

    /// Counts one more reference from inside the tree.
    pub(crate) fn pin_inner(&self) {
        // ORDERING: Relaxed, because the caller already holds the node by a handle, by bytes or by
        // the tree lock.
        let before = self.handles.fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX / 2, "more than {} handles on one group", u32::MAX / 2);
    }

    /// Gives a reference back. Returns whether it was the last; then the caller must check whether
    /// the group can be released.
    pub(crate) fn unpin_inner(&self) -> bool {
        // ORDERING: AcqRel pairs with itself and with the Acquire in `is_pinned`: all uses of the
        // handles come before the release that sees zero.
        self.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(crate) fn is_pinned(&self) -> bool {
        // ORDERING: Acquire pairs with the Release in `unpin_inner`.
        self.handles.load(Ordering::Acquire) != 0
    }

    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release in `adopt`: a thread that finds the new group
        // also finds its parent. Weaker, a walk of shrinkers could take it for a child of the last
        // group's parent.
        self.generation.load(Ordering::Acquire)
    }

    /// Returns whether the node has a group now.
    #[inline]
    pub(crate) fn has_group(&self) -> bool {
        self.generation() % 2 == 1
    }

    /// Makes the node a new group at this position in the tree. The caller must hold the tree
    /// lock, and the node must be free.
    pub(crate) fn adopt(&self, up: Option<&'static Node>, parent: NodeId, depth: u32) {
        // ORDERING: Relaxed, because the tree lock publishes it. Release for the generation pairs
        // with the Acquire in `generation`.
        self.up.store(up, Ordering::Relaxed);
        self.parent.store(parent.0, Ordering::Relaxed);
        self.depth.store(depth, Ordering::Relaxed);
        self.generation.store(next_generation(), Ordering::Release);
        self.counter.reset();
        self.waiting.reset();
        // ORDERING: Relaxed, both, because no thread has a handle yet.
        self.counter.backing_off().store(0, Ordering::Relaxed);
        self.stock_charge_max.store(self.shared().stock_charge_max(), Ordering::Relaxed);
        self.holders.reset();
        let rare = self.rare();
        rare.events.reset();
        rare.past.reset();
        rare.high.reset();
        rare.stalls.reset();
        if let Some(parts) = rare.parts.lend() {
            parts.reset();
        }
        if let Some(kept) = self.kept_parts() {
            kept.reset();
        }
    }

    /// Returns the id of the group that has the node now. A node with a group has an odd
    /// generation.
    #[inline]
    pub(crate) fn group_id(&self) -> GroupId {
        GroupId::new(self.id(), self.generation())
    }

    /// Ends the group: its ids and its forgotten scope guards are stale from now on. The caller
    /// must hold the tree lock.
    pub(crate) fn leave(&self) {
        // ORDERING: Relaxed, both, because generations are compared under the tree lock, or by a
        // scope that promises nothing.
        let generation = self.generation.load(Ordering::Relaxed);
        // If the system refused memory for a root, the node never had a group, and its generation
        // is even already.
        let even = generation.wrapping_add(generation % 2);
        self.generation.store(even, Ordering::Relaxed);
    }
}

global! {
    /// Twice the number of groups that the process has created so far.
    static GENERATIONS: AtomicU64 = AtomicU64::new(0);
}

/// Returns an odd generation that no group of the process has had, for a new group. The node gets
/// the next, even one when the group is released.
///
/// Because all nodes share one count, a generation is unique by itself. So a node that goes to
/// another hierarchy need not remember the generations that it had. And if the stores of two
/// threads mix up a pair of node and generation, that pair names no group.
fn next_generation() -> u64 {
    // ORDERING: Relaxed, because the number publishes nothing.
    GENERATIONS.fetch_add(2, Ordering::Relaxed).wrapping_add(1)
}

/// Makes the first odd generation after `generation` that of the process's next group.
#[cfg(all(test, not(memgroup_loom)))]
pub(crate) fn set_generations(generation: u64) {
    // ORDERING: Relaxed, because the number publishes nothing.
    GENERATIONS.store(generation & !1, Ordering::Relaxed);
}

/// Mixes one more number into a sum that changes whenever one of its numbers does.
pub(crate) fn mix(sum: u64, number: u64) -> u64 {
    sum.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number
}
