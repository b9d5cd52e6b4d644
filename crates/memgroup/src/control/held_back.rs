//! Held back: charged bytes that an allocator keeps on each thread for its next blocks. See
//! [`crate::block`].
//!
//! They are like prepaid bytes, but the allocator holds them, so the engine asks it for them
//! wherever it empties stocks.
//!
//! - I1. A holder's bytes are charged, so they keep their group until the engine has uncharged
//!   them.
//! - I2. Bytes are taken from a holder once: an RMW of the holder's word takes them out, and the
//!   thread that made it uncharges them.
//! - I3. While a charge waits, a slot holds bytes back only if they could not help: even the
//!   charge that asks for least at the level would not fit if all slots returned theirs
//!   (`may_hold_beside`). Each such slot holds at most `BESIDE_MOST`, and the level counts these
//!   slots (`beside`). Whatever may let a waiter fit closes them first: bytes that come back to
//!   the level (`after_fall`), a waiter that asks for less (`after_enqueue`), and a change of the
//!   limit or of the number of waiters (`close`).
//! - E1. A group becomes offline, or a charge waits at it ↔ a holder begins to hold bytes of it.
//!   The engine marks the group, fences, and reads the holder's words. The holder writes its
//!   owner, fences, and reads the group's state (`may_hold`, `may_hold_beside`). At least one of
//!   the two sees the other's write. So after a removal each open slot is one that its thread
//!   closes at its next block. After the begin of a wait each uncharge reaches the counters,
//!   unless it could not help (I3). Loom: `a_waiter_gets_the_bytes_that_a_slot_holds_back`.

use std::collections::HashMap;
use std::sync::OnceLock;

use memgroup_sync::atomic::{Ordering, fence};

use crate::base::mutation::{self, Mutation};
use crate::control::{oom, release, waiters};
use crate::counter::chain;
use crate::tree::node::Node;
use crate::tree::owner::Owner;
use crate::tree::shared::Shared;

/// The most bytes that a slot holds back beside a charge that waits.
const BESIDE_MOST: u64 = 1024;

/// The answer to a holder that shows the bytes it holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// The holder keeps them.
    Nothing,
    /// The holder returns them, and may hold back more.
    Bytes,
    /// The holder returns them, and must hold nothing back for this owner until it has asked
    /// [`Owner::may_hold`] again.
    Close,
    /// The same, without disturbing other threads. If another thread is storing to its word, that
    /// thread returns the bytes itself, at its next block.
    CloseSoon,
}

/// An allocator that holds bytes back on all threads.
pub trait Holder: Sync {
    /// Shows `ask` each word that has bytes held back, or an owner for which it may have some. If
    /// the answer says so, it takes the bytes out by an RMW, and then passes those that were there
    /// to `taken`. It must not wait or allocate.
    fn visit(&self, ask: &mut dyn FnMut(Owner, u64) -> Take, taken: &mut dyn FnMut(Owner, u64));

    /// Called when a hierarchy was made, by a thread that holds no lock of the engine. The
    /// allocator may use it for what it prepares once.
    fn begin(&self) {}
}

static HOLDER: OnceLock<&'static dyn Holder> = OnceLock::new();

#[cfg(not(memgroup_loom))]
#[inline]
fn holder() -> Option<&'static dyn Holder> {
    HOLDER.get().copied()
}

// All threads of one model run on the thread of its test.
#[cfg(memgroup_loom)]
std::thread_local! {
    /// The holder of the model that runs.
    pub(crate) static HOLDER_OF_MODEL: std::cell::Cell<Option<&'static dyn Holder>> =
        const { std::cell::Cell::new(None) };
}

#[cfg(memgroup_loom)]
fn holder() -> Option<&'static dyn Holder> {
    HOLDER_OF_MODEL.get()
}

/// Registers the one allocator of the process that holds bytes back. Returns whether it is the
/// first, or the same again.
pub fn register(holder: &'static dyn Holder) -> bool {
    std::ptr::addr_eq(*HOLDER.get_or_init(|| holder), holder)
}

/// Shows `add` all bytes held back, each with the group that they are charged to. The bytes may
/// change at any time. `add` must not allocate.
fn each(mut add: impl FnMut(Owner, u64)) {
    if let Some(holder) = holder() {
        let mut show = |owner: Owner, bytes| {
            add(owner, bytes);
            Take::Nothing
        };
        holder.visit(&mut show, &mut |_, _| ());
    }
}

/// Lets the allocator prepare for a new hierarchy. The caller must hold no lock.
pub(crate) fn begin() {
    holder().into_iter().for_each(|holder| holder.begin());
}

/// Returns the bytes held back in the subtree of `top`, which may change at any time.
pub(crate) fn sum(top: &'static Node) -> u64 {
    let mut sum = 0;
    each(|owner, bytes| sum += if counts_in(owner, top) { bytes } else { 0 });
    sum
}

/// Returns the bytes held back in each of these groups itself, read in one pass. The caller must
/// hold the groups.
pub(crate) fn of_each(nodes: impl ExactSizeIterator<Item = &'static Node>) -> Vec<u64> {
    let mut held = vec![0; nodes.len()];
    if holder().is_some() {
        let rows: HashMap<*const Node, usize> = nodes.map(std::ptr::from_ref).zip(0..).collect();
        each(|owner, bytes| {
            if let Some(&row) = rows.get(&std::ptr::from_ref(owner.node())) {
                held[row] += bytes;
            }
        });
    }
    held
}

/// Uncharges the bytes held back in the subtree of `top` if they are at least `missing`, and
/// returns them. The caller must hold `top`, and must not hold the tree lock.
pub(crate) fn collect(top: &'static Node, missing: u64) -> u64 {
    if holder().is_none() || sum(top) < missing {
        return 0;
    }
    take(top, Take::Bytes)
}

/// Uncharges all bytes held back in the subtree of `top`. From now on, slots there hold bytes back
/// only for groups that still may. The caller must hold `top`, and must not hold the tree lock.
pub(crate) fn close(top: &'static Node) -> u64 {
    take(top, Take::Close)
}

/// Does the same for a removed group. The caller must hold the group and the tree lock. Bytes that
/// other threads still hold back keep the group dying until these threads return them at their
/// next block, or `settle_removed` takes them. Returns the bytes that went back, because charges
/// that wait above may fit now.
#[must_use]
pub(crate) fn retire(node: &'static Node) -> u64 {
    let Some(holder) = holder() else { return 0 };
    // ORDERING: SeqCst fence, between the group's mark and the reads of the holder's words. Its
    // partner is the fence in `may_hold` (E1). Without it a slot could stay open after the removal.
    fence(Ordering::SeqCst);
    let ask =
        |owner: Owner, _| if std::ptr::eq(owner.node(), node) { Take::CloseSoon } else { Take::Nothing };
    let mut back = 0;
    holder.visit(&mut { ask }, &mut |owner, bytes| {
        back += bytes;
        chain::uncharge_held(owner.node(), bytes);
    });
    back
}

/// Takes the bytes held back for removed groups of the hierarchy, because they keep these groups
/// dying. The caller must not hold the tree lock.
pub(crate) fn settle_removed(shared: &'static Shared) {
    take_where(|owner, bytes| {
        let node = owner.node();
        if bytes > 0 && node.counter.is_offline() && node.is_of(shared) { Take::Close } else { Take::Nothing }
    });
}

/// Closes the slots whose bytes could help a charge that waits at `at` (I3), after bytes came back
/// to its counter by an RMW. The caller may hold locks.
#[inline]
pub(crate) fn after_fall(at: &'static Node) {
    if may_help(at) && !mutation::active(Mutation::FallLeavesSlotsOpen) {
        close(at);
    }
}

/// Returns whether bytes that slots hold back could help a charge that waits at `at`, after bytes
/// came back to its counter by an RMW.
#[inline]
pub(crate) fn may_help(at: &'static Node) -> bool {
    if holder().is_none() {
        return false;
    }
    // ORDERING: SeqCst fence, then Relaxed. The fence separates the fall of usage from the read of
    // `beside`. Its partner is the fence in `may_hold_beside` (E1): without it, a slot could be
    // allowed by the old usage while this thread doesn't see its count yet.
    fence(Ordering::SeqCst);
    let slots = at.rare().beside.load(Ordering::Relaxed);
    slots > 0 && !is_far(at, slots)
}

/// Does the same after a charge began to wait in the queue of `at`. The caller must not hold the
/// queue's lock.
pub(crate) fn after_enqueue(at: &'static Node) {
    after_fall(at);
}

/// Returns whether no charge that waits at `at` would fit even if this many slots returned their
/// bytes.
fn is_far(at: &'static Node, slots: u32) -> bool {
    let seen = at.counter.read();
    let asked = seen.usage.saturating_add(at.counter.least_waiting());
    !seen.offline && !seen.is_dry_run && asked > seen.max.saturating_add(u64::from(slots) * BESIDE_MOST)
}

fn take(top: &'static Node, how: Take) -> u64 {
    if holder().is_some() && how == Take::Close {
        // ORDERING: AcqRel. Acquire pairs with the addition in `may_hold_beside`: a slot whose
        // count is taken here was opened before, and the visit below sees it. Without it, the slot
        // could stay open uncounted. A slot that is counted later stays counted.
        top.rare().beside.swap(0, Ordering::AcqRel);
    }
    take_where(|owner, _| if counts_in(owner, top) { how } else { Take::Nothing })
}

fn take_where(mut ask: impl FnMut(Owner, u64) -> Take) -> u64 {
    let Some(holder) = holder() else { return 0 };
    // ORDERING: SeqCst fence, between the group's mark and the reads of the holder's words. Its
    // partner is the fence in `may_hold` and `may_hold_beside` (E1). Without it a slot could stay
    // open.
    fence(Ordering::SeqCst);
    let mut all = 0;
    holder.visit(&mut ask, &mut |owner, bytes| {
        all += bytes;
        uncharge(owner.node(), bytes);
    });
    all
}

/// Returns whether bytes of `owner` count at `top`. Until its bytes are taken, the owner may be
/// stale, and the answer that of another group. The bytes taken still belong to the owner in the
/// word.
fn counts_in(owner: Owner, top: &'static Node) -> bool {
    chain::levels(owner.node()).any(|level| std::ptr::eq(level, top))
}

/// Uncharges bytes that hold their group, as a drain does. The caller may hold the lock of a
/// level.
fn uncharge(node: &'static Node, bytes: u64) {
    if bytes == 0 {
        return;
    }
    node.pin_inner();
    chain::uncharge_held(node, bytes);
    chain::levels(node).for_each(|level| {
        oom::after_uncharge(level);
        // No waker is called here, because another thread's record may be stopped.
        waiters::serve_freed_untold(level);
    });
    release::unpin(node);
}

impl Owner {
    /// Returns whether bytes of the group may be held back now: it is online, and no charge waits
    /// for room at it or above it. A holder must ask this after it has written its owner, and must
    /// take its bytes out again if the answer is no.
    pub fn may_hold(self) -> bool {
        // ORDERING: SeqCst fence, between the holder's write of its owner and the reads of the
        // group. Its partners are the fences in `take_where` and `retire` (E1). Without it both
        // sides could miss each other, and a slot would hold bytes back that a waiter needs.
        fence(Ordering::SeqCst);
        !self.node().counter.is_offline() && !self.is_held_up()
    }

    /// Returns whether a charge waits for room at the group or above it. The answer may be
    /// outdated at once.
    pub fn is_held_up(self) -> bool {
        chain::levels(self.node()).any(|level| level.waiting.is_held())
    }

    /// The most bytes that one slot may hold back if [`may_hold_beside`](Owner::may_hold_beside)
    /// allows it.
    pub const BESIDE_MOST: u64 = BESIDE_MOST;

    /// Returns whether one more slot may hold bytes of the group back while charges wait for room
    /// at it or above it: at most [`BESIDE_MOST`](Owner::BESIDE_MOST), which is enough for a
    /// thread that frees and allocates in turn. A holder must ask this after it has written
    /// its owner and [`may_hold`](Owner::may_hold) said no, and must take its bytes out again
    /// if this says no, too. `is_counted` says that the slot has been open since it was last
    /// allowed, so it is counted already.
    pub fn may_hold_beside(self, is_counted: bool) -> bool {
        let waited = || chain::levels(self.node()).filter(|level| level.waiting.is_held());
        // ORDERING: Relaxed, because this read only saves work: a no is always right, and it leaves
        // no count behind for the next fall to close.
        let is_near = |level: &'static Node| {
            !is_far(level, level.rare().beside.load(Ordering::Relaxed).saturating_add(1))
        };
        if !is_counted && waited().any(is_near) {
            return false;
        }
        let counted_now = waited().filter(|_| !is_counted);
        counted_now.for_each(|level| {
            // ORDERING: AcqRel. Release pairs with the swap in `take`, so a thread that takes the
            // count sees that the slot is open.
            level.rare().beside.fetch_add(1, Ordering::AcqRel);
        });
        if !mutation::active(Mutation::HoldsBesideWithoutFence) {
            // ORDERING: SeqCst fence, between the count and the owner on one side and the reads
            // below on the other. Its partners are the fences in `after_fall`, `take_where` and
            // `retire` (E1, I3). Without it, a fall of usage and this slot could miss each other.
            // The reads after it are Relaxed.
            fence(Ordering::SeqCst);
        }
        let may = |level: &'static Node| is_far(level, level.rare().beside.load(Ordering::Relaxed).max(1));
        !self.node().counter.is_offline() && waited().all(may)
    }
}
