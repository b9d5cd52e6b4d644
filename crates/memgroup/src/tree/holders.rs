//! Holders: the groups below a level that may hold prepaid bytes, so that a drain or a refusal
//! visits those and no others.
//!
//! ```text
//!   level ── first ──▶ child ⇄ child ⇄ child       the children with a grant in them or below, each with the slots of its own open stocks
//! ```
//!
//! A grant (`stock::grant`) lists its group at the level above, and that one at its own level
//! above, up to the top. A walk takes the first child, pins it and puts it last. It takes it off
//! the list when no grant is left in it.
//!
//! - I1. A group in or below which a stock is open is listed at the level above it, and so on up.
//!   A listed group may hold nothing.
//! - I2. A list changes under the lock of its level (`Shared::holder_lock`), which is held for a
//!   few instructions. A group is taken off before its node is released, under the tree lock.
//! - E1. grant → list, take off → look at the grant: a SeqCst fence between on both sides. The
//!   granting thread finds the group taken off, and lists it again; or the walk finds the grant,
//!   and leaves the group listed. The same holds for a group's slots. Loom:
//!   `a_refusal_is_never_caused_by_stock`, `finds_a_stock_in_a_slot_that_is_listed_still`.

use memgroup_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use memgroup_sync::{MutexGuard, erasable, interleave};

use crate::base::id::{NodeId, TOP};
use crate::base::mutation::{self, Mutation};
use crate::tree::node::Node;

erasable! {
    /// A group's list of children, its place in its parent's list, and the slots of its own stocks.
    pub(crate) struct Holders {
        /// The slots that may have open stocks; a bit for all slots of the same remainder.
        slots: AtomicU64,
        first: AtomicU32,
        last: AtomicU32,
        next: AtomicU32,
        previous: AtomicU32,
        is_listed: AtomicU32,
        /// The walk that took this group last and left it listed.
        walk: AtomicU32,
    }
}

/// The number of bits for slots.
const BITS: usize = u64::BITS as usize;

impl Holders {
    /// For a node that is in no list.
    pub(crate) fn reset(&self) {
        for end in [&self.first, &self.last, &self.next, &self.previous] {
            // ORDERING: Relaxed; the node is free.
            end.store(TOP.0, Ordering::Relaxed);
        }
    }
}

fn get(at: &AtomicU32) -> NodeId {
    // ORDERING: Relaxed; under the lock of the list (I2).
    NodeId(at.load(Ordering::Relaxed))
}

fn set(at: &AtomicU32, id: NodeId) {
    // ORDERING: Relaxed; as in `get`.
    at.store(id.0, Ordering::Relaxed);
}

impl Node {
    fn list_lock(&self) -> MutexGuard<'_, ()> {
        self.shared().holder_lock(self.id())
    }

    fn child(&self, id: NodeId) -> Option<&'static Node> {
        (id != TOP).then(|| self.shared().made(id))
    }

    /// Appends `child` to the list. The caller holds the lock.
    fn append(&self, child: &Node) {
        let last = get(&self.holders.last);
        set(&child.holders.previous, last);
        set(&child.holders.next, TOP);
        match self.child(last) {
            Some(last) => set(&last.holders.next, child.id()),
            None => set(&self.holders.first, child.id()),
        }
        set(&self.holders.last, child.id());
    }

    /// Takes `child` out of the list. The caller holds the lock.
    fn unlink(&self, child: &Node) {
        let (previous, next) = (get(&child.holders.previous), get(&child.holders.next));
        match self.child(previous) {
            Some(previous) => set(&previous.holders.next, next),
            None => set(&self.holders.first, next),
        }
        match self.child(next) {
            Some(next) => set(&next.holders.previous, previous),
            None => set(&self.holders.last, previous),
        }
    }

    fn is_listed(&self) -> bool {
        // ORDERING: Relaxed; under the lock, or after the fence (E1).
        self.holders.is_listed.load(Ordering::Relaxed) != 0
    }

    fn set_listed(&self, listed: bool) {
        // ORDERING: Relaxed; as in `is_listed`.
        self.holders.is_listed.store(u32::from(listed), Ordering::Relaxed);
    }

    /// Lists the group and its slot for walks, up to the top. The caller has made the grant known
    /// at each level.
    pub(crate) fn list_holder(&'static self, slot: usize) {
        // ORDERING: SeqCst; E1.
        fence(Ordering::SeqCst);
        let bit = 1 << (slot % BITS);
        // ORDERING: Relaxed; after the fence.
        if self.holders.slots.load(Ordering::Relaxed) & bit == 0 {
            // ORDERING: AcqRel; as an RMW it is ordered with the one of a walk.
            self.holders.slots.fetch_or(bit, Ordering::AcqRel);
        }
        let mut level = self;
        while let Some(up) = level.up() {
            interleave::point();
            if !level.is_listed() {
                let _lock = up.list_lock();
                if !level.is_listed() {
                    up.append(level);
                    level.set_listed(true);
                }
            }
            level = up;
        }
    }

    /// The next child that may hold prepaid bytes, pinned. `None` if `walk` has had the first one:
    /// then it has had all, unless another walk moved some to the end meanwhile.
    pub(crate) fn next_holder(&'static self, walk: u32) -> Option<&'static Node> {
        // ORDERING: Relaxed; a look without the lock. A walk for a refusal repeats it until no
        // grant is left.
        if NodeId(self.holders.first.load(Ordering::Relaxed)) == TOP {
            return None;
        }
        let _lock = self.list_lock();
        // ORDERING: Relaxed; a number of this list's walks, under its lock.
        let child = self
            .child(get(&self.holders.first))
            .filter(|child| child.holders.walk.load(Ordering::Relaxed) != walk)?;
        // It is not released while it is listed (I2).
        child.pin_inner();
        // ORDERING: as above.
        child.holders.walk.store(walk, Ordering::Relaxed);
        self.unlink(child);
        self.append(child);
        Some(child)
    }

    /// Takes the group off its list, if no grant is left in it.
    pub(crate) fn unlist_holder(&'static self) {
        let Some(up) = self.up().filter(|_| self.is_listed()) else { return };
        if self.counter.prepaid_most() > 0 {
            return;
        }
        let _lock = up.list_lock();
        if !self.is_listed() {
            return;
        }
        self.set_listed(false);
        if !mutation::active(Mutation::UnlistDoesNotLookAgain) {
            // ORDERING: SeqCst; E1.
            fence(Ordering::SeqCst);
        }
        interleave::point();
        if self.counter.prepaid_most() > 0 && !mutation::active(Mutation::UnlistDoesNotLookAgain) {
            self.set_listed(true);
        } else {
            up.unlink(self);
        }
    }

    /// Takes a removed group off its list for good: no grant is left in it, and no thread holds it
    /// that could make one. Whether that is done.
    pub(crate) fn is_unlisted_for_good(&'static self) -> bool {
        self.unlist_holder();
        !self.is_listed()
    }

    /// Takes the slots that may have open stocks. The caller puts those back that it leaves.
    pub(crate) fn take_slots(&self) -> HolderSlots {
        // ORDERING: AcqRel RMW; Acquire: the grants before the bits are seen.
        let bits = self.holders.slots.swap(0, Ordering::AcqRel);
        if !mutation::active(Mutation::SlotsAreTakenWithoutFence) {
            // ORDERING: SeqCst; E1.
            fence(Ordering::SeqCst);
        }
        HolderSlots(bits)
    }

    /// Puts a slot back.
    pub(crate) fn put_slot(&self, slot: usize) {
        // ORDERING: AcqRel; as in `list_holder`.
        self.holders.slots.fetch_or(1 << (slot % BITS), Ordering::AcqRel);
    }
}

/// Slots that may have open stocks.
#[derive(Clone, Copy)]
pub(crate) struct HolderSlots(u64);

impl HolderSlots {
    /// All slots.
    pub(crate) const ALL: HolderSlots = HolderSlots(u64::MAX);

    pub(crate) fn contains(self, slot: usize) -> bool {
        self.0 & (1 << (slot % BITS)) != 0
    }
}
