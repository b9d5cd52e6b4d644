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
//! - I4. `record` and `cold` are linked and unlinked under the tree lock only. Without a record a group has no stock: charges
//!   are exact, and its counts are in `cold`.

use memgroup_percpu::{Glance, Record, SlotSource};
use memgroup_sync::CachePadded;
use memgroup_sync::atomic::{AtomicU32, Ordering};

use crate::chain::{self, Until};
use crate::counter::Counter;
use crate::error::ChargeError;
use crate::group::GroupId;
use crate::overrun;
use crate::shared::Shared;
use crate::stock::word::Word;
use crate::stock::{self, Stock, StockCounts};

/// No group above that is charged too.
pub(crate) const TOP: GroupId = GroupId(u32::MAX);

/// One group, as the charge path sees it. The first line is read-mostly.
#[repr(C)]
pub(crate) struct Node {
    /// The largest charge that the stock deals with; 0 where there is no stock.
    stock_charge_max: u64,
    pub(crate) source: SlotSource,
    /// The stock word and the counters of each slot.
    pub(crate) record: Record,
    pub(crate) shared: &'static Shared,
    pub(crate) id: GroupId,
    up: AtomicU32,
    generation: AtomicU32,
    pub(crate) counter: Counter,
    pub(crate) stats: CachePadded<StockCounts>,
    handles: AtomicU32,
    /// The counters of a group that has given its units back.
    pub(crate) cold: Record,
}

impl Node {
    pub(crate) fn new(shared: &'static Shared, id: GroupId) -> Node {
        Node {
            record: shared.memory.hot.record(),
            source: shared.source,
            stock_charge_max: shared.stock_cap_max / 2,
            shared,
            id,
            up: AtomicU32::new(TOP.0),
            counter: Counter::new(),
            stats: CachePadded::new(StockCounts::new()),
            handles: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            cold: shared.memory.cold.record(),
        }
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
        bytes.wrapping_sub(1) < self.stock_charge_max
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
        crate::counts::forget(self);
        stock::drain::forget_attempts(self);
        self.stats.reset();
        self.counter.reset();
        overrun::open_or_close(self);
    }
}
