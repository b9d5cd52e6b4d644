//! Freeze: keeps every stock of a subtree closed while a charge decides on its refusal. The drains
//! that a freeze begins with are here, too.
//!
//! A freeze sets FROZEN in the level's word, so that no new grant passes the level. Then it
//! empties the open stocks below until no grant is left there. From then until the freeze ends,
//! the level's usage consists of live charges, and of charges and uncharges under way. The refusal
//! guarantee (G1) rests on this. A freeze visits only groups with open stocks.
//!
//! - I1. Only one thread at a time freezes a level, under the level's lock (`Shared::level_lock`).
//!   A thread that holds this lock may take the tree lock, but not the lock of another level.
//! - I2. FROZEN is needed for progress only: without it, stocks could be opened as fast as they
//!   are emptied. The grants alone make a refusal right (`charge::slow`).
//! - P1. A freeze waits only for threads that are between two of their instructions, hold no lock
//!   and call no user code, and for other threads' drains, which take no longer than its own.

use memgroup_sync::MutexGuard;
use memgroup_sync::spin::Wait;

use crate::base::mutation::{self, Mutation};
use crate::control::{aftermath, held_back, release};
use crate::stock::drain::Drained;
use crate::tree::handle::Group;
use crate::tree::name::NAME_MAX;
use crate::tree::node::Node;
use crate::tree::topology::ROOT;

/// Empties open stocks of `top` and the groups below it until `wanted` bytes came back or no open
/// stock is left. The caller must hold `top`, and must not hold the tree lock.
pub(crate) fn drain(top: &'static Node, wanted: u64) -> Drained {
    let mut taken = Drained { bytes: held_back::collect(top, 1), stocks: 0 };
    if top.counter.prepaid_most() == 0 || taken.bytes >= wanted {
        return taken;
    }
    walk(top, |node| {
        taken = taken.and(aftermath::drain(node));
        taken.bytes < wanted
    });
    taken
}

/// Empties stocks for a charge that lacks `missing` bytes at `top`, and keeps stocks below `top`
/// from being opened again at once. Otherwise a group whose charges are refused in a loop would
/// take all its neighbours' stocks each time.
pub(crate) fn drain_for_charge(top: &'static Node, missing: u64) -> u64 {
    let taken = drain(top, missing);
    top.counter.cool(taken.stocks);
    taken.bytes
}

/// Visits `top` and the groups below it that may have open stocks until `visit` returns `false`.
/// The walk holds each group while it visits it.
fn walk(top: &'static Node, mut visit: impl FnMut(&'static Node) -> bool) {
    let number = top.shared().next_walk();
    let mut path = Path { top, at: top };
    let mut goes_on = visit(top);
    loop {
        let child = if goes_on { path.at.next_holder(number) } else { None };
        if let Some(child) = child {
            path.at = child;
            goes_on = visit(child);
        } else if !path.climb() {
            return;
        }
    }
}

/// The path of a walk from its top to the group that it visits. The walk holds the groups below
/// the top. Dropping the path releases them, also when `visit` panics.
struct Path {
    top: &'static Node,
    at: &'static Node,
}

impl Path {
    /// Moves to the parent, and returns whether the path was below its top.
    fn climb(&mut self) -> bool {
        let left = self.at;
        let up = left.up().filter(|_| !std::ptr::eq(left, self.top));
        left.unlist_holder();
        let Some(up) = up else { return false };
        self.at = up;
        release::unpin(left);
        true
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        while self.climb() {}
    }
}

/// Empties all stocks of `top` and the groups below it, and waits until no grant is left there.
/// The caller must have set a mark that keeps new grants from passing `top`.
fn empty(top: &'static Node) -> Drained {
    let mut all = Drained { bytes: held_back::close(top), stocks: 0 };
    let mut wait = Wait::new();
    loop {
        all = all.and(drain(top, u64::MAX));
        let ends_early = mutation::active(Mutation::RefusalIgnoresPending)
            || mutation::active(Mutation::RefusalSkipsEmptyStocks);
        if top.counter.prepaid_most() == 0 || ends_early {
            return all;
        }
        wait.wait();
    }
}

/// Empties the stocks of `top` and of every group below it that is online.
pub(crate) fn drain_all(top: &'static Node) -> u64 {
    let own = FrozenLevel::new(top).taken.bytes;
    let shared = top.shared();
    if top.id() != ROOT || shared.config.account_root() {
        return own;
    }
    // The groups below are not charged to the root. Nothing may be allocated while the tree lock is
    // held, because an allocator that charges may need the lock.
    let (mut all, mut last) = (own, String::with_capacity(NAME_MAX));
    let mut next = String::with_capacity(NAME_MAX);
    loop {
        let child = {
            let tree = shared.tree.lock_behind();
            let after = Some(last.as_str()).filter(|last| !last.is_empty());
            let child = tree.children_after(ROOT, after).next();
            child.map(|(name, id)| {
                next.push_str(name);
                Group::pinned(shared.made(id))
            })
        };
        let Some(child) = child else { return all };
        all += FrozenLevel::new(child.node()).taken.bytes;
        std::mem::swap(&mut last, &mut next);
        next.clear();
    }
}

/// A level without an open stock below it.
pub(crate) struct FrozenLevel {
    level: &'static Node,
    /// The bytes that went back, and the stocks that were open.
    pub(crate) taken: Drained,
    _lock: LevelLock,
}

pub(crate) type LevelLock = MutexGuard<'static, ()>;

impl FrozenLevel {
    /// Freezes a level for this thread. The caller must hold the level, and no level's lock.
    pub(crate) fn new(level: &'static Node) -> FrozenLevel {
        FrozenLevel::locked(level.shared().level_lock(level.id()), level)
    }

    /// Freezes a level for a caller that holds its lock.
    pub(crate) fn locked(lock: LevelLock, level: &'static Node) -> FrozenLevel {
        level.counter.freeze();
        // Made before the drain, because its drop must thaw the level if the drain panics.
        let mut frozen = FrozenLevel { level, taken: Drained::default(), _lock: lock };
        frozen.taken = empty(level);
        frozen
    }

    /// Keeps stocks closed for a while after the freeze, as [`drain_for_charge`] does.
    pub(crate) fn cools(&self) {
        self.level.counter.cool(self.taken.stocks);
    }
}

impl Drop for FrozenLevel {
    fn drop(&mut self) {
        self.level.counter.thaw();
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use memgroup_percpu::{SlotSource, pin_virtual};

    use crate::control::freeze::{FrozenLevel, drain, drain_for_charge};
    use crate::state::counter::Purpose;
    use crate::{Config, Group, Hierarchy, raw};

    /// A group below a parent, on one slot. More bytes were uncharged from it than it had charged.
    /// They are in its stock.
    fn parent_of_a_group_with_wrong_bytes() -> (Hierarchy, Group, Group) {
        let config = Config::with_slots(SlotSource::virtual_slots(1).unwrap());
        let hierarchy = Hierarchy::new(config).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        let group = parent.create("group").unwrap();
        let _pin = pin_virtual(0);
        group.try_charge(100).unwrap().into_parts();
        raw::uncharge(&group, 200);
        assert!(group.stock().prepaid_bytes > group.node().counter.usage());
        (hierarchy, parent, group)
    }

    #[test]
    fn a_drain_of_bytes_that_were_never_charged_takes_what_is_there_and_leaves_nothing_frozen_or_pinned() {
        let (hierarchy, parent, group) = parent_of_a_group_with_wrong_bytes();
        let held = parent.try_charge(1000).unwrap();
        parent.drain();
        assert!(!parent.node().counter.is_barred());
        assert_eq!(group.usage(), 0);
        group.remove().unwrap();
        drop(group);
        assert_eq!(hierarchy.shared().tree.lock().in_use(), 2, "the group is not released");
        drop(held);
        parent.drain();
        assert_eq!(parent.usage(), 0);
    }

    /// Two groups below a parent with a stock each, on one slot.
    fn parent_of_two_groups_with_stock() -> (Hierarchy, Group) {
        let config = Config::with_slots(SlotSource::virtual_slots(1).unwrap());
        let hierarchy = Hierarchy::new(config).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        for name in ["a", "b"] {
            drop(parent.create(name).unwrap().try_charge(100).unwrap());
        }
        (hierarchy, parent)
    }

    #[test]
    fn a_drain_visits_no_more_groups_than_it_needs_and_unlists_those_that_it_emptied() {
        let (_hierarchy, parent) = parent_of_two_groups_with_stock();
        let usage = parent.node().counter.usage();
        assert_eq!(drain(parent.node(), 1).stocks, 1);
        assert_eq!(parent.node().counter.usage(), usage / 2);
        assert_eq!(drain(parent.node(), u64::MAX).stocks, 1);
        assert!(parent.node().next_holder(u32::MAX).is_none(), "a later refusal would visit it");
    }

    #[test]
    fn no_stock_is_opened_for_some_charges_after_a_drain_for_a_charge() {
        let (_hierarchy, parent) = parent_of_two_groups_with_stock();
        drain_for_charge(parent.node(), u64::MAX);
        for _ in 0..32 {
            assert!(parent.node().counter.is_barred());
            parent.node().counter.try_charge(1, 0, Purpose::Charge).unwrap();
        }
        assert!(!parent.node().counter.is_barred());
        parent.node().counter.uncharge(32);
    }

    #[test]
    fn a_level_that_was_frozen_for_a_charge_cools() {
        let (_hierarchy, parent) = parent_of_two_groups_with_stock();
        FrozenLevel::new(parent.node()).cools();
        assert!(parent.node().counter.is_barred());
        drop(FrozenLevel::new(parent.node()));
        assert!(parent.node().counter.is_barred(), "it cools still");
    }
}
