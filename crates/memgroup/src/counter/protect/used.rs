//! Used: the protected bytes that a group uses now, and their sums over the children of a group.
//!
//! ```text
//!   child   settings: min, low                  parent   sums over its children
//!           min(usage, setting) ── recorded ── difference ──▶ used min, used low, unfilled
//! ```
//!
//! A thread that changed the usage of a group with a setting compares the recorded values with
//! those that are due. Mostly they are the same, because usage lies above the setting. Otherwise
//! the thread swaps the new value in, and adds the difference to the parent's sum, so that two
//! threads at once count nothing twice. Then it reads the usage *again*, and repeats this until
//! nothing has changed.
//!
//! - I1. At rest: recorded = min(usage, setting) in each group, and each sum of a parent is the
//!   sum over its children.
//! - I2. Settings change under the tree lock. A group that is not online has none, and nothing is
//!   recorded for it.
//! - I3. No thread records in the place of a released group. A recording thread counts itself in
//!   `recorders` and checks that `ONLINE` is set there. A removal clears `ONLINE` and waits for
//!   the recording threads, which are in the middle of a few instructions.
//! - I4. For a group that has only a weight, only the changes between no usage and some are
//!   recorded. The last of these records the right value: its thread reads a usage that is at
//!   least as new as its own change, and the thread of a later change records after it. A charge
//!   that is taken back records in any case.
//! - B1. A sum may be off by the values that are being recorded at that moment. A negative sum
//!   counts as zero.
//! - E1. The chain of RMWs on the word of the usage orders everything. Let X make the last swap.
//!   After it X reads the usage by an RMW, so X sees every change of the usage before that read. A
//!   later change acquires the swap by its own RMW, so its thread sees the recorded value. A
//!   setter takes part by such an RMW, after it has stored the setting. Of two threads the later
//!   one sees what the earlier one did, so the last one finds that all is right. Loom:
//!   `records_right_values_at_rest`.
//! - E2. `recorders`: enter ↔ offline, RMWs of one word. Loom:
//!   `waits_for_recording_threads_on_removal`.

use memgroup_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use memgroup_sync::grace::Lent;
use memgroup_sync::spin::Wait;
use memgroup_sync::{CachePadded, interleave};

use crate::base::id::{GroupId, NodeId};
use crate::base::limit::{BYTES_MAX, LARGEST_RESERVE};
use crate::base::mutation::{self, Mutation};
use crate::tree::node::Node;
use crate::tree::parts::{HierarchyPart, Key, NodePart, Part};
use crate::tree::shared::Shared;
use crate::tree::topology::Tree;

/// The kinds of recorded values.
pub(crate) const MIN: usize = 0;
pub(crate) const LOW: usize = 1;
/// The bytes of the larger of the two that the group has not charged, at most `LARGEST_RESERVE`.
pub(crate) const UNFILLED: usize = 2;
/// The weight of the group in the fair shares of the group above, while it holds memory.
pub(crate) const WEIGHT: usize = 3;
/// The bytes of its `min` that the group has not charged, as far as they can be reserved.
pub(crate) const UNFILLED_MIN: usize = 4;
const KINDS: usize = 5;

/// A bit in `recorders`: the group is online. The other bits count the recording threads.
const ONLINE: u32 = 1 << 31;

/// The settings of a group, its use of them, and the sums over its children.
pub(crate) struct Used {
    min: AtomicU64,
    low: AtomicU64,
    /// The weight among the fair shares of the group above; 0 if that group gives none.
    weight: AtomicU64,
    /// The factor of the fair shares of the children (`share`); 0 if they have none.
    factor: AtomicU64,
    /// Whether the whole unused `min` of each child is left free for it.
    reserves_min: AtomicBool,
    /// The place of the child that has the most for its weight, as `share` last saw it. This is a
    /// hint. 0, the place of the root, stands for none.
    largest: AtomicU32,
    /// An upper bound of the bytes that are charged to the group itself, while it gives shares
    /// (`share`).
    own: AtomicU64,
    given: AtomicU64,
    taken: AtomicU64,
    /// The id of the last sibling that bytes were given to, in two words. The halves of two
    /// different ids name no group.
    given_to: (AtomicU64, AtomicU32),
    recorded: [AtomicU64; KINDS],
    recorders: AtomicU32,
    sums: CachePadded<[AtomicU64; KINDS]>,
}

impl Used {
    pub(crate) fn new() -> Used {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        Used {
            min: AtomicU64::new(0),
            low: AtomicU64::new(0),
            weight: AtomicU64::new(0),
            factor: AtomicU64::new(0),
            reserves_min: AtomicBool::new(false),
            largest: AtomicU32::new(0),
            own: AtomicU64::new(0),
            given: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            given_to: (AtomicU64::new(0), AtomicU32::new(0)),
            recorded: zeros(),
            recorders: AtomicU32::new(ONLINE),
            sums: CachePadded::new(zeros()),
        }
    }

    pub(crate) fn min(&self) -> u64 {
        // ORDERING: Relaxed, here and in `low` and `weight`, because each is a number by itself. E1
        // orders them with the recorded values.
        self.min.load(Ordering::Relaxed)
    }

    pub(crate) fn low(&self) -> u64 {
        self.low.load(Ordering::Relaxed)
    }

    /// Returns the weight of the group's fair share, or 0 if it has none.
    pub(crate) fn weight(&self) -> u64 {
        self.weight.load(Ordering::Relaxed)
    }

    /// Returns the factor of the fair shares of the children, or 0 if they have none.
    pub(crate) fn factor(&self) -> u64 {
        // ORDERING: Relaxed, here and below, because each of these settings and hints is a number
        // by itself.
        self.factor.load(Ordering::Relaxed)
    }

    /// Sets the factor. The caller must hold the level's lock, so that it is the only setter.
    pub(crate) fn set_factor(&self, factor: u64) {
        self.factor.store(factor, Ordering::Relaxed);
    }

    pub(crate) fn reserves_min(&self) -> bool {
        self.reserves_min.load(Ordering::Relaxed)
    }

    pub(crate) fn set_reserves_min(&self, _tree: &Tree, is_on: bool) {
        self.reserves_min.store(is_on, Ordering::Relaxed);
    }

    /// Returns the place of the child that was last found to have the most. The caller must check
    /// it.
    pub(crate) fn largest(&self) -> NodeId {
        NodeId(self.largest.load(Ordering::Relaxed))
    }

    pub(crate) fn set_largest(&self, id: NodeId) {
        self.largest.store(id.0, Ordering::Relaxed);
    }

    pub(crate) fn own(&self) -> u64 {
        // ORDERING: Relaxed, here and below, because `own` is a sum of differences, which lags
        // behind those that are being added.
        self.own.load(Ordering::Relaxed)
    }

    pub(crate) fn add_own(&self, bytes: u64) {
        self.own.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Replaces `known` by the bytes found. Returns `false` if a charge was added in between.
    pub(crate) fn correct_own(&self, known: u64, found: u64) -> bool {
        self.own.compare_exchange(known, found, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Counts `bytes` that a cache of the group gave for a charge of `to`, a sibling.
    pub(crate) fn count_given(&self, bytes: u64, to: GroupId) {
        // ORDERING: Relaxed, here and in the next two functions, because these are figures of a
        // report.
        self.given.fetch_add(bytes, Ordering::Relaxed);
        self.given_to.0.store(to.generation(), Ordering::Relaxed);
        self.given_to.1.store(to.node(), Ordering::Relaxed);
    }

    pub(crate) fn count_taken(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes that caches of the group gave for siblings, the bytes that those gave for
    /// it, and the sibling that the last of its bytes were given to.
    pub(crate) fn exchanged(&self) -> (u64, u64, Option<GroupId>) {
        let [given, taken, generation] =
            [&self.given, &self.taken, &self.given_to.0].map(|word| word.load(Ordering::Relaxed));
        let node = NodeId(self.given_to.1.load(Ordering::Relaxed));
        (given, taken, (given > 0).then(|| GroupId::new(node, generation)))
    }

    /// Returns the usage up to which the group is within its protection.
    pub(crate) fn claim(&self) -> u64 {
        self.min().max(self.low())
    }

    /// Returns the recorded value of one kind.
    pub(crate) fn recorded(&self, kind: usize) -> u64 {
        // ORDERING: Relaxed, because by E1 the value is not older than the last swap before the
        // usage that the thread has seen.
        self.recorded[kind].load(Ordering::Relaxed)
    }

    /// Returns the sum of one kind over the children (B1).
    pub(crate) fn sum(&self, kind: usize) -> u64 {
        // ORDERING: Relaxed, because the sum may be a moment old.
        (self.sums[kind].load(Ordering::Relaxed) as i64).max(0) as u64
    }

    /// Returns the values that are due at this usage.
    fn due(&self, usage: u64) -> [u64; KINDS] {
        let unfilled = self.claim().saturating_sub(usage).min(LARGEST_RESERVE);
        let weight = if usage > 0 { self.weight() } else { 0 };
        // The largest setting protects all bytes, so it is not a number of bytes to reserve.
        let reserved = Some(self.min()).filter(|&min| min < BYTES_MAX).unwrap_or(0);
        let unfilled_min = reserved.saturating_sub(usage).min(LARGEST_RESERVE);
        [usage.min(self.min()), usage.min(self.low()), unfilled, weight, unfilled_min]
    }

    /// Records the values that are due at this usage, here and in the parent's sums. Returns
    /// whether any was different.
    fn record(&self, usage: u64, parent: Option<&Node>) -> bool {
        let mut was_different = false;
        for (kind, due) in self.due(usage).into_iter().enumerate() {
            if self.recorded(kind) == due {
                continue;
            }
            interleave::point();
            // ORDERING: Relaxed, both: the read of the usage that follows publishes the swap, and
            // orders it with other threads (E1). Differences add up in any order.
            let before = self.recorded[kind].swap(due, Ordering::Relaxed);
            interleave::point();
            if let Some(parent) = parent {
                parent.used().sums[kind].fetch_add(due.wrapping_sub(before), Ordering::Relaxed);
            }
            was_different = true;
        }
        was_different
    }
}

/// A recording thread, counted in `recorders`.
struct Recorder<'a>(&'a Used);

impl Recorder<'_> {
    /// Counts the thread as recording. Returns `None` if the group is not online (I3).
    fn enter(used: &Used) -> Option<Recorder<'_>> {
        // ORDERING: AcqRel. Acquire pairs with the Release in `reset`, and Release with the RMW in
        // `close` (E2). Weaker, this thread could record with the parent of the group before.
        let before = used.recorders.fetch_add(1, Ordering::AcqRel);
        let recorder = Recorder(used);
        (before & ONLINE != 0 || mutation::active(Mutation::RecorderIgnoresOffline)).then_some(recorder)
    }
}

impl Drop for Recorder<'_> {
    fn drop(&mut self) {
        // ORDERING: Release pairs with the Acquire in `close`, which must see the recorded values.
        self.0.recorders.fetch_sub(1, Ordering::Release);
    }
}

/// Records after the usage of a group rose by `bytes` to `usage`.
pub(crate) fn usage_rose(node: &'static Node, usage: u64, bytes: u64) {
    if is_recorded(node, usage, bytes) {
        record_if_different(node);
    }
}

/// Returns whether a rise of the usage by `bytes` to `usage` is recorded.
#[inline(always)]
pub(crate) fn is_recorded(node: &'static Node, usage: u64, bytes: u64) -> bool {
    node.marks.is_recorded(usage == bytes)
}

/// Records after the usage of a group fell. The group may be released by now, and its place be
/// another's, for which this does no harm.
#[inline(always)]
pub(crate) fn usage_fell(node: &'static Node) {
    if node.marks.is_protected() || (node.marks.is_weighed() && node.counter.usage() == 0) {
        record_if_different(node);
    }
}

/// Records after a charge of the group was taken back, which no other call records. Because of it
/// another charge may have found a usage above 0.
pub(crate) fn usage_taken_back(node: &'static Node) {
    if node.marks.is_protected() || node.marks.is_weighed() {
        record_if_different(node);
    }
}

#[cold]
#[inline(never)]
fn record_if_different(node: &'static Node) {
    let Some(used) = node.find_used() else { return };
    // Mostly usage changes above the setting, and nothing else is needed.
    if used.due(node.counter.usage()) == std::array::from_fn(|kind| used.recorded(kind)) {
        return;
    }
    interleave::point();
    if let Some(_recorder) = Recorder::enter(&used) {
        record_until_stable(node);
    }
}

/// Records until nothing has changed in between (E1). The caller must have entered, or hold the
/// tree lock with the group online.
fn record_until_stable(node: &'static Node) {
    let (used, parent) = (node.used(), node.parent());
    let mut usage = node.counter.usage();
    while used.record(usage, parent) && !mutation::active(Mutation::RecorderDoesNotLookAgain) {
        interleave::point();
        usage = node.counter.usage_now();
    }
}

/// Changes the settings of an online group. Bytes that were left free for it may be free for
/// others afterwards.
pub(crate) fn set(tree: &Tree, node: &'static Node, min: u64, low: u64) {
    change(tree, node, |used| {
        // ORDERING: Relaxed, both, and in `set_weight`, because the RMW on the usage in `change`
        // publishes them (E1).
        used.min.store(min, Ordering::Relaxed);
        used.low.store(low, Ordering::Relaxed);
    });
}

/// Changes the weight of an online group's fair share; 0 takes the share away.
pub(crate) fn set_weight(tree: &Tree, node: &'static Node, weight: u64) {
    change(tree, node, |used| used.weight.store(weight, Ordering::Relaxed));
}

fn change(tree: &Tree, node: &'static Node, store: impl FnOnce(&Used)) {
    let used = node.used();
    // The parent's part is made here, because a charge must not allocate.
    let _sums = node.parent().map(Node::used);
    let settings = || (used.claim() > 0, used.weight() > 0);
    let (was_protected, was_weighed) = settings();
    store(&used);
    let (is_protected, is_weighed) = settings();
    if is_weighed && !was_weighed {
        node.marks.weigh(tree, true);
    }
    if is_protected && !was_protected {
        node.marks.protect(tree, true);
        count(tree, node, true);
    }
    node.counter.usage_now();
    record_until_stable(node);
    if was_protected && !is_protected {
        count(tree, node, false);
        node.marks.protect(tree, false);
    }
    if was_weighed && !is_weighed {
        node.marks.weigh(tree, false);
    }
}

fn count(tree: &Tree, node: &'static Node, is_set: bool) {
    // ORDERING: Relaxed, as in `Protected::is_any`.
    node.shared().protected().0.fetch_add(if is_set { 1 } else { u32::MAX }, Ordering::Relaxed);
    if let Some(parent) = node.parent() {
        parent.marks.count_protected_child(tree, is_set);
    }
}

/// Ends recording for a group that goes offline and has no settings any more.
pub(crate) fn close(node: &'static Node) {
    let Some(used) = node.find_used() else { return };
    // ORDERING: AcqRel RMW: a thread that enters later finds the mark cleared, and one that entered
    // before is in the count that is read below (E2).
    used.recorders.fetch_and(!ONLINE, Ordering::AcqRel);
    let mut wait = Wait::new();
    // ORDERING: Acquire pairs with the Release in `Recorder::drop`: when the count is zero, all
    // recorded values are seen.
    while used.recorders.load(Ordering::Acquire) != 0 && !mutation::active(Mutation::RecorderIgnoresOffline) {
        wait.wait();
    }
    // A thread that was about to record an old setting has checked the usage again before it left.
    debug_assert!((0..KINDS).all(|kind| used.recorded(kind) == 0));
}

impl Part for Used {
    /// Resets the part for a new group in the place. The caller must hold the tree lock. The group
    /// before has left nothing (I2), and neither have its children.
    fn reset(&self) {
        // ORDERING: Release pairs with the Acquire in `enter`: a thread that is late for the group
        // before must find the parent of this one.
        self.recorders.fetch_or(ONLINE, Ordering::Release);
        // ORDERING: Relaxed, all, because they are published with the group.
        self.largest.store(0, Ordering::Relaxed);
        for figure in [&self.own, &self.given, &self.taken] {
            figure.store(0, Ordering::Relaxed);
        }
    }
}

static USED: Key<NodePart, Used> = Key::new(NodePart::Used, Used::new);

impl Node {
    /// Returns the group's settings and its use of them, or `None` if neither it nor a child ever
    /// had a setting.
    pub(crate) fn find_used(&self) -> Option<Lent<'_, Used>> {
        self.find_part(&USED)
    }

    /// Returns the group's settings and its use of them.
    pub(crate) fn used(&self) -> Lent<'_, Used> {
        self.part(&USED)
    }
}

/// The number of groups of a hierarchy that have a setting, or give shares. While it is 0, nothing
/// is computed.
pub(crate) struct Protected(AtomicU32);

impl Protected {
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        // ORDERING: Relaxed, because a reclaim that runs while the first setting is made may miss
        // it.
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Protected {
    /// Counts that a group gives shares from here on, or gives none any more.
    pub(crate) fn count_sharing(&self, is_on: bool) {
        // ORDERING: Relaxed, as in `is_any`.
        self.0.fetch_add(if is_on { 1 } else { u32::MAX }, Ordering::Relaxed);
    }
}

impl Part for Protected {}

static PROTECTED: Key<HierarchyPart, Protected> =
    Key::new(HierarchyPart::Protected, || Protected(AtomicU32::new(0)));

impl Shared {
    /// Returns the number of groups that have a setting or give shares.
    pub(crate) fn protected(&self) -> &Protected {
        self.parts.get(&PROTECTED)
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::base::limit::BYTES_MAX;
    use crate::counter::protect::used::*;
    use crate::state::config::Config;
    use crate::tree::handle::Hierarchy;

    fn recorded(group: &crate::Group) -> [u64; 3] {
        std::array::from_fn(|kind| group.node().used().recorded(kind))
    }

    fn sums(group: &crate::Group) -> [u64; 3] {
        std::array::from_fn(|kind| group.node().used().sum(kind))
    }

    #[test]
    fn follows_usage_settings_and_removal() {
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
        assert!(hierarchy.root().node().shared().protected().is_any());
        a.set_min(0).unwrap();
        assert_eq!((recorded(&a), sums(&parent)), ([0, 0, 0], [0, 0, 0]));
        assert!(!a.node().marks.is_protected() && !parent.node().marks.is_protected_below());
        assert!(!hierarchy.root().node().shared().protected().is_any());
    }

    #[test]
    fn counts_the_weight_of_a_share_while_the_group_holds_memory() {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        parent.set_share(8).unwrap();
        let (a, b) = (parent.create("a").unwrap(), parent.create("b").unwrap());
        b.set_weight(300).unwrap();
        let weights = || parent.node().used().sum(WEIGHT);
        assert_eq!(weights(), 0);
        let (held, other) = (a.try_charge(1).unwrap(), b.try_charge(1).unwrap());
        assert_eq!(weights(), 400);
        b.set_weight(50).unwrap();
        assert_eq!(weights(), 150);
        drop(held);
        assert_eq!(weights(), 50);
        b.remove().unwrap();
        assert_eq!(weights(), 0, "a removed group has no share");
        drop(other);
        let _held = a.try_charge(1).unwrap();
        parent.set_share(None).unwrap();
        assert_eq!(weights(), 0);
        assert!(!a.node().marks.is_weighed() && !parent.node().marks.keeps_free());
        let gone = hierarchy.create("/gone").unwrap();
        gone.set_share(8).unwrap();
        assert!(hierarchy.shared().protected().is_any());
        gone.remove().unwrap();
        assert!(!hierarchy.shared().protected().is_any(), "a removed group gives no shares");
    }

    #[test]
    fn records_at_most_the_largest_reserve_as_unfilled() {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        let groups: Vec<_> = (0..8).map(|i| parent.create(&i.to_string()).unwrap()).collect();
        groups.iter().for_each(|group| group.set_min(BYTES_MAX).unwrap());
        let _charge = groups[0].try_charge(77).unwrap();
        assert_eq!(recorded(&groups[0]), [77, 0, LARGEST_RESERVE]);
        assert_eq!(sums(&parent), [77, 0, 8 * LARGEST_RESERVE]);
    }
}
