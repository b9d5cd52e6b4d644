//! Node: the record of one group that the charge path touches.
//!
//! Nodes live in their hierarchy's table for the life of the process and are used again, so a `&'static Node` is
//! always good memory. A node is given to a new group only when its group is offline, nothing is charged to it and it has no
//! handle (`control::release`). So a [`Charge`](crate::Charge) needs no reference count: its bytes are the reference. A charge of
//! zero bytes counts as a handle instead.
//!
//! A node's per-CPU words are not in the node. They are a record that it points to, which moves, goes when the group is idle
//! and comes back when it is charged (`lifecycle::residence`). A free node keeps its record for its next group.
//!
//! - I1. usage > 0, or handles > 0, or online ⇒ the node is not released.
//! - I2. `up` changes only while the node is free.
//! - I3. In an offline group usage rises, and handles are made from nothing, only under the tree lock.
//! - I4. `record` is linked and unlinked under the tree lock only. Without one a group has no stock: charges are exact.
//! - I5. `parent` and `depth` change only while the node is free, and a group's parent is released after it. A thread that holds a node, or holds
//!   off releases, may climb.

use std::sync::OnceLock;

use memgroup_percpu::{Record, SlotSource};
use memgroup_sync::CachePadded;
use memgroup_sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::base::id::{GroupId, NodeId, TOP};
use crate::state::counter::Counter;
use crate::state::stats::SUBSYSTEMS_MAX;
use crate::state::stats::store::{StatEntry, StatStore};
use crate::tree::marks::Marks;
use crate::tree::parts::Parts;
use crate::tree::shared::Shared;

/// One group, as the charge path sees it. The first line is read-mostly.
#[repr(C)]
pub(crate) struct Node {
    /// The largest charge that the stock deals with; 0 where there is no stock.
    stock_charge_max: AtomicU64,
    pub(crate) source: SlotSource,
    /// The stock word of each slot.
    pub(crate) record: Record,
    pub(crate) shared: &'static Shared,
    pub(crate) id: NodeId,
    up: AtomicU32,
    generation: AtomicU32,
    parent: AtomicU32,
    depth: AtomicU32,
    /// Whether there is more to do here than to count.
    pub(crate) marks: Marks,
    pub(crate) counter: Counter,
    /// The group's place in each subsystem's statistics.
    pub(crate) stats: [OnceLock<StatEntry>; SUBSYSTEMS_MAX],
    /// The state that the layers above keep for the group.
    pub(crate) parts: Parts,
    /// How many bypasses of the stock are on.
    bypasses: AtomicU32,
    references: CachePadded<References>,
}

/// While it lives, charges and uncharges of a group bypass its stock. Where one ends and another begins at the same moment, the second may
/// find the stock in use again.
pub(crate) struct StockBypass {
    node: &'static Node,
}

impl Drop for StockBypass {
    fn drop(&mut self) {
        // ORDERING: AcqRel; the last one to end stores after all others have: else one's 0 could stay for ever.
        if self.node.bypasses.fetch_sub(1, Ordering::AcqRel) == 1 {
            // ORDERING: Relaxed; as in `bypass_stock`.
            self.node.stock_charge_max.store(self.node.shared.stock_cap_max / 2, Ordering::Relaxed);
        }
    }
}

/// The references that keep a node; written by many threads.
struct References {
    handles: AtomicU32,
    /// Groups below it that are not released.
    children: AtomicU32,
}

impl Node {
    /// A free place. The caller makes its parts.
    pub(crate) fn new(shared: &'static Shared, id: NodeId) -> Node {
        Node {
            record: shared.memory.stocks.record(),
            source: shared.source,
            stock_charge_max: AtomicU64::new(shared.stock_cap_max / 2),
            bypasses: AtomicU32::new(0),
            shared,
            id,
            up: AtomicU32::new(TOP.0),
            counter: Counter::new(),
            stats: shared.statistics.entries(id),
            parts: Parts::new(),
            references: CachePadded::new(References {
                handles: AtomicU32::new(0),
                children: AtomicU32::new(0),
            }),
            generation: AtomicU32::new(0),
            parent: AtomicU32::new(TOP.0),
            depth: AtomicU32::new(0),
            marks: Marks::new(),
        }
    }

    /// The group above, also where charges do not climb to it.
    pub(crate) fn parent(&self) -> Option<&'static Node> {
        // ORDERING: Relaxed; written while the node was free (I5), published as `up` is, and by the marks that a flush finds.
        self.shared.node(NodeId(self.parent.load(Ordering::Relaxed)))
    }

    /// Whether `parent` is the group above.
    pub(crate) fn is_child_of(&self, parent: &Node) -> bool {
        // ORDERING: Relaxed, as in `parent`.
        self.parent.load(Ordering::Relaxed) == parent.id.0
    }

    /// Asks for the line in which `parent` is.
    pub(crate) fn prefetch_parent(&self) {
        memgroup_percpu::prefetch(&self.parent);
    }

    /// Levels below the root.
    pub(crate) fn depth(&self) -> u32 {
        // ORDERING: Relaxed, as in `parent`.
        self.depth.load(Ordering::Relaxed)
    }

    /// Whether it is `top` or below it.
    pub(crate) fn is_within(&'static self, top: &'static Node) -> bool {
        let mut level = Some(self);
        while let Some(node) = level.filter(|node| node.depth() > top.depth()) {
            level = node.parent();
        }
        level.is_some_and(|node| std::ptr::eq(node, top))
    }

    /// Its place in the statistics of one subsystem.
    pub(crate) fn entry(&'static self, store: &'static StatStore) -> &'static StatEntry {
        self.stats[store.number].get().expect("a node has a place in every subsystem")
    }

    /// Its places in the statistics of all subsystems.
    pub(crate) fn entries(&'static self) -> impl Iterator<Item = &'static StatEntry> {
        self.stats.iter().filter_map(OnceLock::get)
    }

    /// Whether no group below it is left, online or not.
    pub(crate) fn is_childless(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release in `lose_child`: statistics that the child left to its ancestors are seen.
        self.references.children.load(Ordering::Acquire) == 0
    }

    /// A group below it is made; the caller holds the tree lock.
    pub(crate) fn gain_child(&self) {
        // ORDERING: Relaxed; published with the child's handle.
        self.references.children.fetch_add(1, Ordering::Relaxed);
        self.pin_inner();
    }

    /// A group below it was released, and its statistics were settled; the caller holds the tree lock and looks after its release.
    pub(crate) fn lose_child(&self) {
        // ORDERING: Release; pairs with the Acquire in `is_childless`.
        self.references.children.fetch_sub(1, Ordering::Release);
        self.unpin_inner();
    }

    /// The next level that is charged with this one.
    pub(crate) fn up(&self) -> Option<&'static Node> {
        // ORDERING: Relaxed; written while the node was free, published by the tree lock that gave out the handle (I2).
        self.shared.node(NodeId(self.up.load(Ordering::Relaxed)))
    }

    /// Whether the stock serves charges and uncharges of this size.
    #[inline]
    pub(crate) fn stocks(&self, bytes: u64) -> bool {
        // ORDERING: Relaxed; a bypass is for its own thread.
        bytes.wrapping_sub(1) < self.stock_charge_max.load(Ordering::Relaxed)
    }

    /// While the guard lives, charges and uncharges of this thread bypass the stock, and mostly those of others too.
    pub(crate) fn bypass_stock(&'static self) -> StockBypass {
        // ORDERING: Relaxed, both; for this thread (`stocks`).
        self.bypasses.fetch_add(1, Ordering::Relaxed);
        // ORDERING: as above.
        self.stock_charge_max.store(0, Ordering::Relaxed);
        StockBypass { node: self }
    }

    /// Counts one more handle of a user, which keeps the whole hierarchy too.
    pub(crate) fn pin(&'static self) {
        self.shared.hold();
        self.pin_inner();
    }

    /// Counts one more reference from inside the tree.
    pub(crate) fn pin_inner(&self) {
        // ORDERING: Relaxed; the caller holds the node by a handle, by bytes or by the tree lock already.
        let before = self.references.handles.fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX / 2, "more than {} handles on one group", u32::MAX / 2);
    }

    /// Gives a reference back; whether it was the last. The caller looks after the release.
    pub(crate) fn unpin_inner(&self) -> bool {
        // ORDERING: AcqRel; Release: the uses of the handle precede the release that sees zero.
        self.references.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(crate) fn is_pinned(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release in `unpin`.
        self.references.handles.load(Ordering::Acquire) != 0
    }

    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        // ORDERING: Acquire; pairs with the Release in `adopt`: a thread that finds the new group finds its parent, too. Else a
        // walk of shrinkers could take it for a child of the last group's parent.
        self.generation.load(Ordering::Acquire)
    }

    /// The node becomes a new group: its place in the tree. The caller holds the tree lock and the node is free.
    pub(crate) fn adopt(&self, up: NodeId, parent: NodeId, depth: u32) {
        // ORDERING: Relaxed, all; published by the tree lock.
        self.up.store(up.0, Ordering::Relaxed);
        self.parent.store(parent.0, Ordering::Relaxed);
        self.depth.store(depth, Ordering::Relaxed);
        // ORDERING: Release; pairs with `generation`.
        self.generation.fetch_add(1, Ordering::Release);
        self.counter.reset();
        self.parts.reset();
    }

    /// The id of the group that has the node now. A node with a group has an odd generation.
    pub(crate) fn group_id(&self) -> GroupId {
        GroupId::new(self.id, self.generation())
    }

    /// The group is released: ids and forgotten scope guards of it are stale from now on. The caller holds the tree lock.
    pub(crate) fn leave(&self) {
        // ORDERING: Relaxed; compared under the tree lock, or by a scope without a guarantee.
        self.generation.fetch_add(1, Ordering::Relaxed);
    }
}

/// One more number of those that tell whether a group changed.
pub(crate) fn mix(sum: u64, number: u64) -> u64 {
    sum.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number
}
