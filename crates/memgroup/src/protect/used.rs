//! Used: what of its protection a group uses now, and the sums of that over the groups right below one.
//!
//! ```text
//!   child   settings: min, low          parent   sums over its children
//!           usage ── min(usage, setting) ── recorded ── difference ──▶ used min, used low, unfilled
//! ```
//!
//! Whoever changed the usage of a group that has a setting compares what should be recorded with what is. Mostly it is the same: usage lies above
//! the setting. Else the new value is swapped in, and the difference to what was there goes to the parent, so that two who come at once
//! count nothing twice. Then it looks at the usage *again*, and repeats that until nothing has changed.
//!
//! - I1. At rest: recorded = min(usage, setting) in each group, and each sum of a parent is the sum over its children.
//! - I2. Settings change under the tree lock; a group that is not online has none, and nothing is recorded for it.
//! - I3. Nobody records in a place whose group is released: who records counts in `turn` meanwhile, where it finds `ONLINE`; a removal
//!   takes `ONLINE` away and waits for those that are there. They are in the middle of a few instructions.
//! - B1. A sum may be off by what is being recorded, for that moment; below zero counts as zero.
//! - E1. The chain of RMWs on the word of the usage orders it all. Let X make the last swap; after it comes X's look at the usage, an RMW. A change of
//!   the usage before that look is seen by it. A change after it acquires the swap with its own RMW, so its look at what is recorded sees that. A setter
//!   takes part by such an RMW, after it has stored. Of two the later one sees the earlier, and the last one finds that all is as it should be.
//!   Loom: `what_is_recorded_is_right_at_rest`.
//! - E2. `turn`: enter ↔ offline, RMWs of one word. Loom: `a_removal_waits_for_who_records`.

use memgroup_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use memgroup_sync::spin::Wait;
use memgroup_sync::{CachePadded, interleave};

use super::reserve::LARGEST_RESERVE;
use crate::mutation::{self, Mutation};
use crate::node::Node;
use crate::tree::Tree;
use crate::wait;

/// What is recorded.
pub(super) const MIN: usize = 0;
pub(super) const LOW: usize = 1;
/// What the group has not charged of the larger of the two; no more than a reserve can be.
pub(super) const UNFILLED: usize = 2;
const KINDS: usize = 3;

/// In `turn`: the group is online. The rest counts who records.
const ONLINE: u32 = 1 << 31;

/// Settings of a group, what it uses of them, and the sums over its children.
pub(crate) struct Used {
    min: AtomicU64,
    low: AtomicU64,
    recorded: [AtomicU64; KINDS],
    turn: AtomicU32,
    /// Bytes that reclaim has asked caches of the group and below for, in calls that have not returned (`spare`).
    pub(super) asked: AtomicU64,
    sums: CachePadded<[AtomicU64; KINDS]>,
}

impl Used {
    pub(crate) fn new() -> Used {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        Used {
            min: AtomicU64::new(0),
            low: AtomicU64::new(0),
            recorded: zeros(),
            turn: AtomicU32::new(0),
            asked: AtomicU64::new(0),
            sums: CachePadded::new(zeros()),
        }
    }

    /// For a new group in the place; the caller holds the tree lock. The one before left nothing (I2), nor have its children.
    pub(crate) fn reset(&self) {
        // ORDERING: Release; pairs with the Acquire in `enter`: who is late for the group before finds this one's parent.
        self.turn.fetch_or(ONLINE, Ordering::Release);
    }

    pub(crate) fn min(&self) -> u64 {
        // ORDERING: Relaxed; a number by itself, and E1 orders it where it matters.
        self.min.load(Ordering::Relaxed)
    }

    pub(crate) fn low(&self) -> u64 {
        // ORDERING: Relaxed, as in `min`.
        self.low.load(Ordering::Relaxed)
    }

    /// Up to where the group is within its protection.
    pub(super) fn claim(&self) -> u64 {
        self.min().max(self.low())
    }

    fn is_any(&self) -> bool {
        self.claim() > 0
    }

    /// Of one kind, what is recorded for the group.
    pub(super) fn recorded(&self, kind: usize) -> u64 {
        // ORDERING: Relaxed; by E1 not older than the last swap that the usage that was seen tells of.
        self.recorded[kind].load(Ordering::Relaxed)
    }

    /// Of one kind, the sum over the groups right below (B1).
    pub(super) fn sum(&self, kind: usize) -> u64 {
        // ORDERING: Relaxed; a sum that may be a moment old.
        (self.sums[kind].load(Ordering::Relaxed) as i64).max(0) as u64
    }

    /// What is to be recorded with so much usage.
    fn wanted(&self, usage: u64) -> [u64; KINDS] {
        let unfilled = self.claim().saturating_sub(usage).min(LARGEST_RESERVE);
        [usage.min(self.min()), usage.min(self.low()), unfilled]
    }

    /// Records what is to be recorded with so much usage, here and in the parent's sums. Whether anything was different.
    fn record(&self, usage: u64, parent: Option<&Node>) -> bool {
        let mut was_different = false;
        for (kind, wanted) in self.wanted(usage).into_iter().enumerate() {
            if self.recorded(kind) == wanted {
                continue;
            }
            interleave::point();
            // ORDERING: Relaxed; the look at the usage that follows is what publishes it, and what orders it with others (E1).
            let before = self.recorded[kind].swap(wanted, Ordering::Relaxed);
            interleave::point();
            if let Some(parent) = parent {
                // ORDERING: Relaxed; differences add up in any order.
                parent.control.used.sums[kind].fetch_add(wanted.wrapping_sub(before), Ordering::Relaxed);
            }
            was_different = true;
        }
        was_different
    }

    /// Counts as one who records, if the group is online (I3).
    fn enter(&self) -> Option<Turn<'_>> {
        // ORDERING: AcqRel; Acquire pairs with `reset`; Release: for `close` (E2).
        let before = self.turn.fetch_add(1, Ordering::AcqRel);
        let turn = Turn { used: self };
        (before & ONLINE != 0 || mutation::active(Mutation::RecorderIgnoresOffline)).then_some(turn)
    }

    /// Nobody records from here on.
    fn close(&self) {
        // ORDERING: AcqRel; who enters later finds the mark gone (E2).
        self.turn.fetch_and(!ONLINE, Ordering::AcqRel);
        let mut wait = Wait::new();
        // ORDERING: Acquire; pairs with the Release in `Turn::drop`: with the count at zero all that was recorded is seen.
        while self.turn.load(Ordering::Acquire) != 0 && !mutation::active(Mutation::RecorderIgnoresOffline) {
            wait.wait();
        }
    }
}

/// Somebody records.
struct Turn<'a> {
    used: &'a Used,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // ORDERING: Release; pairs with the Acquire in `close`.
        self.used.turn.fetch_sub(1, Ordering::Release);
    }
}

/// After the usage of a group rose or fell. The group may be released by now, and its place another's, for which it does no harm.
#[inline(always)]
pub(crate) fn usage_changed(node: &'static Node) {
    if node.marks.is_protected() {
        settle_if_different(node);
    }
}

#[cold]
#[inline(never)]
fn settle_if_different(node: &'static Node) {
    let used = &node.control.used;
    // Mostly usage moves above the setting, and this is all.
    if used.wanted(node.counter.usage()) == std::array::from_fn(|kind| used.recorded(kind)) {
        return;
    }
    interleave::point();
    if let Some(_turn) = used.enter() {
        settle(node);
    }
}

/// Records until nothing has changed meanwhile (E1). The caller has entered, or holds the tree lock with the group online.
fn settle(node: &'static Node) {
    let (used, parent) = (&node.control.used, node.parent());
    let mut usage = node.counter.usage();
    while used.record(usage, parent) {
        if mutation::active(Mutation::RecorderDoesNotLookAgain) {
            return;
        }
        interleave::point();
        usage = node.counter.usage_now();
    }
}

/// Changes the settings of an online group.
pub(super) fn set(tree: &Tree, node: &'static Node, min: u64, low: u64) {
    let used = &node.control.used;
    let (was_any, is_any) = (used.is_any(), min.max(low) > 0);
    // ORDERING: Relaxed, both; published by the look at the usage below (E1).
    used.min.store(min, Ordering::Relaxed);
    used.low.store(low, Ordering::Relaxed);
    if is_any && !was_any {
        count(tree, node, true);
    }
    node.counter.usage_now();
    settle(node);
    if was_any && !is_any {
        count(tree, node, false);
    }
    // What was left free for it may be room for others now.
    wait::serve_chain(node);
}

fn count(tree: &Tree, node: &'static Node, is_set: bool) {
    node.marks.protect(tree, is_set);
    node.shared.protected.count(tree, is_set);
    if let Some(parent) = node.parent() {
        parent.marks.count_protected_child(tree, is_set);
    }
}

/// A group goes offline: it is protected no more, and nobody records anything for it.
pub(crate) fn clear(tree: &Tree, node: &'static Node) {
    set(tree, node, 0, 0);
    node.control.used.close();
    // Whoever was about to record an old setting has looked again, before it left.
    debug_assert!((0..KINDS).all(|kind| node.control.used.recorded(kind) == 0));
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::hierarchy::Hierarchy;

    fn recorded(group: &crate::Group) -> [u64; KINDS] {
        std::array::from_fn(|kind| group.node().control.used.recorded(kind))
    }

    fn sums(group: &crate::Group) -> [u64; KINDS] {
        std::array::from_fn(|kind| group.node().control.used.sum(kind))
    }

    #[test]
    fn what_is_used_follows_usage_settings_and_removal() {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        let (a, b) = (parent.create("a").unwrap(), parent.create("b").unwrap());
        let charge = a.try_charge(700).unwrap();
        assert_eq!(recorded(&a), [0, 0, 0]);
        a.set_min(500).unwrap();
        a.set_low(1000).unwrap();
        assert_eq!((recorded(&a), sums(&parent)), ([500, 700, 300], [500, 700, 300]));
        let other = b.try_charge(10).unwrap();
        b.set_low(20).unwrap();
        assert_eq!((recorded(&b), sums(&parent)), ([0, 10, 10], [500, 710, 310]));
        drop(charge);
        assert_eq!((recorded(&a), sums(&parent)), ([0, 0, 1000], [0, 10, 1010]));
        b.remove().unwrap();
        assert_eq!((recorded(&b), sums(&parent)), ([0, 0, 0], [0, 0, 1000]));
        drop(other);
        a.set_low(0).unwrap();
        assert!(hierarchy.root().node().shared.protected.is_any());
        a.set_min(0).unwrap();
        assert_eq!((recorded(&a), sums(&parent)), ([0, 0, 0], [0, 0, 0]));
        assert!(!a.node().marks.is_protected() && !parent.node().marks.is_protected_below());
        assert!(!hierarchy.root().node().shared.protected.is_any());
    }

    #[test]
    fn an_unlimited_setting_uses_what_is_charged_and_wants_no_more_than_a_reserve_can_be() {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        let groups: Vec<_> = (0..8).map(|i| parent.create(&i.to_string()).unwrap()).collect();
        groups.iter().for_each(|group| group.set_min(crate::UNLIMITED).unwrap());
        let _charge = groups[0].try_charge(77).unwrap();
        assert_eq!(recorded(&groups[0]), [77, 0, LARGEST_RESERVE]);
        assert_eq!(sums(&parent), [77, 0, 8 * LARGEST_RESERVE]);
    }
}
