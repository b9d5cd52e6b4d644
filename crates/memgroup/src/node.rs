//! Node: the record of one group that the charge path touches.
//!
//! Nodes live in their hierarchy's table for the life of the process and are used again, so a `&'static Node` is
//! always good memory. What makes it *this* group: a node is released, and its place given to a new group, only
//! when the group is offline, nothing is charged to it and no handle counts on it (`tree::release`). So a
//! [`Charge`](crate::Charge) needs no reference count: its bytes are the reference. A charge of zero bytes counts as a
//! handle instead.
//!
//! A node's per-CPU words are not in the node: they are a record that it points to, which moves, goes when the group is idle
//! and comes back when it is touched (`maintenance`). A place that waits for its next group keeps its record.
//!
//! - I1. usage > 0, or handles > 0, or online ⇒ the node is not released.
//! - I2. `up` changes only while the node is free.
//! - I3. In an offline group usage rises, and handles are made from nothing, only under the tree lock.
//! - I4. `record` is linked and unlinked under the tree lock only. Without one a group has no stock: charges are exact.
//! - I5. `parent` and `depth` change only while the node is free, and a group's parent is released after it: who holds a node, or holds
//!   off releases, may climb.

use std::sync::OnceLock;

use memgroup_percpu::{Glance, Record, SlotSource};
use memgroup_sync::CachePadded;
use memgroup_sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::chain::{self, Until};
use crate::control::Control;
use crate::counter::Counter;
use crate::error::ChargeError;
use crate::group::GroupId;
use crate::marks::Marks;
use crate::overrun;

use crate::rstat::{Entry, SUBSYSTEMS_MAX, Store};
use crate::shared::Shared;
use crate::shrink::keep;
use crate::shrink::roster::Listing;
use crate::stock::word::Word;
use crate::stock::{self, Stock};

/// No group above that is charged too.
pub(crate) const TOP: GroupId = GroupId(u32::MAX);

/// One group, as the charge path sees it. The first line is read-mostly.
#[repr(C)]
pub(crate) struct Node {
    /// The largest charge that the stock deals with; 0 where there is no stock.
    stock_charge_max: AtomicU64,
    pub(crate) source: SlotSource,
    /// The stock word of each slot.
    pub(crate) record: Record,
    pub(crate) shared: &'static Shared,
    pub(crate) id: GroupId,
    up: AtomicU32,
    generation: AtomicU32,
    parent: AtomicU32,
    depth: AtomicU32,
    /// Whether there is more to do here than to count.
    pub(crate) marks: Marks,
    pub(crate) counter: Counter,
    /// The group's place in each subsystem's statistics.
    pub(crate) stats: [OnceLock<Entry>; SUBSYSTEMS_MAX],
    /// Which shrinkers can give its memory back.
    pub(crate) listing: Listing,
    /// Limits besides `max`, and what came of them.
    pub(crate) control: Control,
    /// Who has charges and uncharges pass by the stock.
    diverted: AtomicU32,
    references: CachePadded<References>,
}

/// Charges and uncharges of a group pass by its stock. Where one such time ends and another begins at the same moment, the second may
/// find the stock in use again.
pub(crate) struct Diverted {
    node: &'static Node,
}

impl Drop for Diverted {
    fn drop(&mut self) {
        // ORDERING: AcqRel; the last one to end stores after all others have: else one's 0 could stay for ever.
        if self.node.diverted.fetch_sub(1, Ordering::AcqRel) == 1 {
            // ORDERING: Relaxed; as in `divert`.
            self.node.stock_charge_max.store(self.node.shared.stock_cap_max / 2, Ordering::Relaxed);
        }
    }
}

/// What keeps a node; written by many.
struct References {
    handles: AtomicU32,
    /// Groups below it that are not released.
    children: AtomicU32,
}

impl Node {
    pub(crate) fn new(shared: &'static Shared, id: GroupId) -> Node {
        Node {
            record: shared.memory.stocks.record(),
            source: shared.source,
            stock_charge_max: AtomicU64::new(shared.stock_cap_max / 2),
            diverted: AtomicU32::new(0),
            shared,
            id,
            up: AtomicU32::new(TOP.0),
            counter: Counter::new(),
            stats: shared.statistics.entries(id),
            listing: Listing::new(),
            control: Control::new(),
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
        self.shared.node(GroupId(self.parent.load(Ordering::Relaxed)))
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
    pub(crate) fn entry(&'static self, store: &'static Store) -> &'static Entry {
        self.stats[store.number].get().expect("a node has a place in every subsystem")
    }

    /// Its places in the statistics of all subsystems.
    pub(crate) fn entries(&'static self) -> impl Iterator<Item = &'static Entry> {
        self.stats.iter().filter_map(OnceLock::get)
    }

    /// Whether no group below it is left, online or not.
    pub(crate) fn is_childless(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release in `lose_child`: what the child left to its ancestors is seen.
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
        self.shared.node(GroupId(self.up.load(Ordering::Relaxed)))
    }

    /// Charges `bytes`: from the stock, else the slow path.
    ///
    /// Here and in `uncharge` nothing is called on the way to the atomic addition: what would be kept over a call is pushed onto the
    /// stack at the function's beginning, and an atomic addition waits for every store before it. Nor is anything loaded after it: a
    /// load waits for the addition in its turn. That is why the section is a brief one, which ends without a look.
    #[inline(always)]
    pub(crate) fn charge(&'static self, bytes: u64) -> Result<(), ChargeError> {
        let (mut slot, mut tried, mut found) = (0, None, Word(0));
        if self.stocks(bytes)
            && let Some(stock) = Stock::glance(self)
        {
            found = stock.attempt(bytes);
            if found.serves(bytes) {
                // Before the result is made: the optimiser then sees it through.
                drop(stock);
                return Ok(());
            }
            (slot, tried) = (stock.slot, Some(stock.word));
        }
        self.charge_slowly(bytes, slot, tried, found)
    }

    /// One function for all that is not a hit, so that little is left to be inlined elsewhere. With a word, the attempt on it was made.
    #[cold]
    #[inline(never)]
    fn charge_slowly(
        &'static self,
        bytes: u64,
        slot: usize,
        tried: Option<Glance>,
        found: Word,
    ) -> Result<(), ChargeError> {
        match tried {
            Some(word) => {
                stock::consume::charge_miss(Stock { node: self, slot, word }.extend(), bytes, found)
            }
            None => self.charge_at(self.source.current(), bytes),
        }
    }

    /// `charge` in a given slot.
    #[inline]
    pub(crate) fn charge_at(&'static self, slot: usize, bytes: u64) -> Result<(), ChargeError> {
        if self.stocks(bytes)
            && let Some(stock) = Stock::enter(self, slot)
        {
            let found = stock.attempt(bytes);
            if found.serves(bytes) {
                return Ok(());
            }
            return stock::consume::charge_miss(stock, bytes, found);
        }
        stock::consume::charge_untried(self, slot, bytes)
    }

    /// Uncharges `bytes`: into the stock, else the slow path.
    #[inline(always)]
    pub(crate) fn uncharge(&'static self, bytes: u64) {
        let (mut slot, mut put) = (0, None);
        if self.stocks(bytes)
            && let Some(stock) = Stock::glance(self)
        {
            if stock.put(bytes).takes(bytes) {
                return;
            }
            (slot, put) = (stock.slot, Some(stock.word));
        }
        self.uncharge_slowly(bytes, slot, put);
    }

    /// As `charge_slowly`. With a word, the bytes lie in it.
    #[cold]
    #[inline(never)]
    fn uncharge_slowly(&'static self, bytes: u64, slot: usize, put: Option<Glance>) {
        match put {
            Some(word) => stock::refill::uncharge_miss(Stock { node: self, slot, word }.extend(), bytes),
            None => self.uncharge_at(self.source.current(), bytes),
        }
    }

    /// `uncharge` in a given slot.
    #[inline]
    pub(crate) fn uncharge_at(&'static self, slot: usize, bytes: u64) {
        if self.stocks(bytes)
            && let Some(stock) = Stock::enter(self, slot)
        {
            if stock.put(bytes).takes(bytes) {
                return;
            }
            return stock::refill::uncharge_miss(stock, bytes);
        }
        stock::refill::uncharge_untried(self, slot, bytes);
    }

    /// Whether a charge or an uncharge of so many bytes is the stock's business at all.
    #[inline]
    pub(crate) fn stocks(&self, bytes: u64) -> bool {
        // ORDERING: Relaxed; whoever diverts wants its own thread to see it.
        bytes.wrapping_sub(1) < self.stock_charge_max.load(Ordering::Relaxed)
    }

    /// Bytes back to the counters without passing by the stock.
    pub(crate) fn uncharge_counters(&'static self, bytes: u64) {
        if !keep::uncharge(self, bytes) {
            chain::uncharge(self, Until::Top, bytes);
        }
    }

    /// Until the end of what is returned, charges and uncharges of this thread pass by the stock, and mostly those of others too.
    pub(crate) fn divert(&'static self) -> Diverted {
        // ORDERING: Relaxed, both; for this thread (`stocks`).
        self.diverted.fetch_add(1, Ordering::Relaxed);
        // ORDERING: as above.
        self.stock_charge_max.store(0, Ordering::Relaxed);
        Diverted { node: self }
    }

    /// Counts one more handle of a user, which keeps the whole hierarchy too.
    pub(crate) fn pin(&'static self) {
        self.shared.hold();
        self.pin_inner();
    }

    /// Counts one more reference from inside the tree.
    pub(crate) fn pin_inner(&self) {
        // ORDERING: Relaxed; whoever pins holds the node by a handle, by bytes or by the tree lock already.
        let before = self.references.handles.fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX / 2, "more than {} handles on one group", u32::MAX / 2);
    }

    /// Gives a user's handle back; the last one of an offline, empty group releases it.
    pub(crate) fn unpin(&'static self) {
        let shared = self.shared;
        // With the handle gone the node may be another group's already; `release_if_done` decides under the tree lock.
        // Whoever removed this group held a handle too, so its offline mark precedes the last of these decrements.
        if self.unpin_inner() && self.counter.is_offline_now() {
            shared.release_if_done(self);
        }
        shared.let_go();
    }

    /// Gives a reference back; whether it was the last. The caller looks after the release.
    pub(crate) fn unpin_inner(&self) -> bool {
        // ORDERING: AcqRel; Release: what was done through the handle precedes the release that sees zero.
        self.references.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(crate) fn is_pinned(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release in `unpin`.
        self.references.handles.load(Ordering::Acquire) != 0
    }

    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        // ORDERING: Acquire; pairs with the Release in `adopt`: who finds the group of a place that is used again finds its parent, too. Else a
        // walk of shrinkers could take it for a group below the parent of the one before.
        self.generation.load(Ordering::Acquire)
    }

    /// The group is released: a scope whose guard was forgotten finds it no more. The caller holds the tree lock.
    pub(crate) fn leave(&self) {
        // ORDERING: Relaxed; compared under the tree lock, or by a scope that nobody promised anything.
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// The node becomes a new group; the caller holds the tree lock and the node is free.
    pub(crate) fn adopt(&'static self, up: GroupId, parent: GroupId, depth: u32) {
        // ORDERING: Relaxed, all; published by the tree lock.
        self.up.store(up.0, Ordering::Relaxed);
        self.parent.store(parent.0, Ordering::Relaxed);
        self.depth.store(depth, Ordering::Relaxed);
        // ORDERING: Release; pairs with `generation`.
        self.generation.fetch_add(1, Ordering::Release);
        stock::drain::forget_attempts(self);
        self.counter.reset();
        self.control.reset();
        overrun::open_or_close(self);
    }
}

/// One more number of those that tell whether a group changed.
pub(crate) fn mix(sum: u64, number: u64) -> u64 {
    sum.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number
}
