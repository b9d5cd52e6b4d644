//! Node: the record of one group that the charge path touches.
//!
//! Nodes live in their hierarchy's table for the life of the process and are used again, so a `&'static Node` is
//! always good memory. What makes it *this* group: a node is released, and its place given to a new group, only
//! when the group is offline, nothing is charged to it and no handle counts on it (`tree::release`). So a
//! [`Charge`](crate::Charge) needs no reference count: its bytes are the reference. A charge of zero bytes counts as a
//! handle instead.
//!
//! - I1. usage > 0, or handles > 0, or online ⇒ the node is not released.
//! - I2. `up` changes only while the node is free.
//! - I3. In an offline group usage rises, and handles are made from nothing, only under the tree lock.

use memgroup_percpu::{PerCpu, SlotSource};
use memgroup_sync::CachePadded;
use memgroup_sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::chain::{self, Until};
use crate::counter::Counter;
use crate::error::ChargeError;
use crate::group::GroupId;
use crate::overrun;
use crate::shared::Shared;
use crate::stock::word::{self, Word};
use crate::stock::{self, StockCounts};

/// No group above that is charged too.
pub(crate) const TOP: GroupId = GroupId(u32::MAX);

/// What became of an attempt to consume.
#[derive(Clone, Copy)]
pub(crate) enum Consumed {
    /// The bytes are the caller's.
    Served,
    /// They were subtracted from this word, which did not have them, or whose attempts are to be harvested.
    Tried(Word),
    /// The stock does not deal with such a charge; the word was not touched.
    NotTried,
}

/// One group, as the charge path sees it. The first line is read-mostly.
#[repr(C)]
pub(crate) struct Node {
    pub(crate) stock: PerCpu<AtomicU64>,
    pub(crate) source: SlotSource,
    /// The largest charge that the stock deals with; 0 where there is no stock.
    stock_charge_max: u64,
    pub(crate) shared: &'static Shared,
    pub(crate) id: GroupId,
    up: AtomicU32,
    generation: AtomicU32,
    pub(crate) counter: Counter,
    pub(crate) stats: CachePadded<StockCounts>,
    handles: AtomicU32,
}

impl Node {
    pub(crate) fn new(shared: &'static Shared, id: GroupId) -> Node {
        Node {
            stock: PerCpu::new(shared.source.slots()),
            source: shared.source,
            stock_charge_max: shared.stock_cap_max / 2,
            shared,
            id,
            up: AtomicU32::new(TOP.0),
            counter: Counter::new(),
            stats: CachePadded::new(StockCounts::new()),
            handles: AtomicU32::new(0),
            generation: AtomicU32::new(0),
        }
    }

    /// The next level that is charged with this one.
    pub(crate) fn up(&self) -> Option<&'static Node> {
        // ORDERING: Relaxed; written while the node was free, published by the tree lock that gave out the handle (I2).
        self.shared.node(GroupId(self.up.load(Ordering::Relaxed)))
    }

    /// Charges `bytes`: from the stock, else the slow path.
    #[inline(always)]
    pub(crate) fn charge(&'static self, bytes: u64) -> Result<(), ChargeError> {
        self.charge_at(self.source.current(), bytes)
    }

    /// `charge` in a given slot.
    #[inline(always)]
    pub(crate) fn charge_at(&'static self, slot: usize, bytes: u64) -> Result<(), ChargeError> {
        match self.consume(slot, bytes) {
            Consumed::Served => Ok(()),
            missed => stock::consume::charge_miss(self, slot, bytes, missed),
        }
    }

    /// Uncharges `bytes`: into the stock, else the slow path.
    #[inline(always)]
    pub(crate) fn uncharge(&'static self, bytes: u64) {
        self.uncharge_at(self.source.current(), bytes);
    }

    /// `uncharge` in a given slot.
    #[inline(always)]
    pub(crate) fn uncharge_at(&'static self, slot: usize, bytes: u64) {
        if !self.refill(slot, bytes) {
            stock::refill::uncharge_miss(self, slot, bytes);
        }
    }

    /// Whether a charge or an uncharge of so many bytes is the stock's business at all.
    #[inline]
    pub(crate) fn stocks(&self, bytes: u64) -> bool {
        bytes.wrapping_sub(1) < self.stock_charge_max
    }

    /// Takes `bytes` out of the stock of `slot`, or does not and leaves what to do to `stock::consume`.
    #[inline(always)]
    fn consume(&self, slot: usize, bytes: u64) -> Consumed {
        if !self.stocks(bytes) {
            return Consumed::NotTried;
        }
        // ORDERING: AcqRel; pairs with the Release of whoever put the bytes here: their charge to the counters precedes our
        // later uncharge, so no counter passes below zero. Release: as an RMW of the word it is ordered with the marks.
        let found = Word(self.stock.get(slot).fetch_add(word::consume_delta(bytes), Ordering::AcqRel));
        if found.serves(bytes) { Consumed::Served } else { Consumed::Tried(found) }
    }

    /// Puts `bytes` into the stock of `slot`. `false`: `stock::refill` has to look, at what lies there or not (as
    /// `stocks` says).
    #[inline(always)]
    fn refill(&self, slot: usize, bytes: u64) -> bool {
        // ORDERING: AcqRel; Release pairs with the Acquire of a drain or a consume: the bytes were charged before they
        // were put here.
        self.stocks(bytes)
            && Word(self.stock.get(slot).fetch_add(word::refill_delta(bytes), Ordering::AcqRel)).takes(bytes)
    }

    /// Bytes back to the counters without passing by the stock.
    pub(crate) fn uncharge_counters(&'static self, bytes: u64) {
        chain::uncharge(self, Until::Top, bytes);
    }

    /// Counts one more handle of a user, which keeps the whole hierarchy too.
    pub(crate) fn pin(&'static self) {
        self.shared.hold();
        self.pin_inner();
    }

    /// Counts one more reference from inside the tree.
    pub(crate) fn pin_inner(&self) {
        // ORDERING: Relaxed; whoever pins holds the node by a handle, by bytes or by the tree lock already.
        let before = self.handles.fetch_add(1, Ordering::Relaxed);
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
        self.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(crate) fn is_pinned(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release in `unpin`.
        self.handles.load(Ordering::Acquire) != 0
    }

    pub(crate) fn generation(&self) -> u32 {
        // ORDERING: Relaxed; compared under the tree lock.
        self.generation.load(Ordering::Relaxed)
    }

    /// The node becomes a new group; the caller holds the tree lock and the node is free.
    pub(crate) fn adopt(&'static self, up: GroupId) {
        // ORDERING: Relaxed, both; published by the tree lock.
        self.up.store(up.0, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Relaxed);
        stock::drain::forget_attempts(self);
        self.stats.reset();
        self.counter.reset();
        overrun::open_or_close(self);
    }
}
