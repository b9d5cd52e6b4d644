//! Held back: bytes that are charged, and that an allocator keeps on each thread for its next blocks. See [`crate::block`].
//!
//! They are like stocks, but the allocator has them. So the engine asks for them where it empties stocks.
//!
//! - I1. A holder's bytes are charged. So they keep their group, until the engine has uncharged them.
//! - I2. Bytes are taken from a holder once: each is taken out by an RMW of the holder's word, and uncharged by the thread that took it out.
//! - I3. Beside a charge that waits, a slot holds bytes back only if they could not help: if the
//!   charge that asks for least at the level would not fit although all slots gave theirs
//!   (`may_hold_beside`). Each such slot holds at most `BESIDE_MOST`, and the level counts them
//!   (`beside`). Whatever may let a waiter fit closes them first: bytes that come back to the level
//!   (`after_fall`), a waiter that asks for less (`after_enqueue`), and a change of the limit or of
//!   the number of waiters (`close`).
//! - E1. A group becomes offline, or a charge waits at it ↔ a holder begins to hold bytes of it.
//!   The engine marks the group, fences, and looks at the holder. The holder puts in its owner,
//!   fences, and looks at the group (`may_hold`, `may_hold_beside`). One of the two sees the other.
//!   So after a removal no slot is open that its thread would not close at its next block, and
//!   after the begin of a wait each uncharge comes to the counters, unless it could not help (I3).
//!   Loom: `a_waiter_gets_the_bytes_that_a_slot_holds_back`.

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

/// The answer to a holder that shows the bytes that it holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// It keeps them.
    Nothing,
    /// It gives them, and may hold back more.
    Bytes,
    /// It gives them, and holds nothing back for this owner until [`Owner::may_hold`] is asked again.
    Close,
    /// The same, but it disturbs no other thread for that: where another thread's stores are in the
    /// way, that thread itself gives the bytes back, at its next block.
    CloseSoon,
}

/// An allocator that holds bytes back, on all threads.
pub trait Holder: Sync {
    /// Shows each word with bytes held back, or with an owner for which some may be, to `ask`. Where the answer says so, it takes the bytes out
    /// by an RMW, and then gives those that were there to `taken`. It waits for nothing, and allocates nothing.
    fn visit(&self, ask: &mut dyn FnMut(Owner, u64) -> Take, taken: &mut dyn FnMut(Owner, u64));

    /// A hierarchy was made, by a thread that holds no lock of the engine. For what the allocator
    /// prepares once.
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

/// Registers the one allocator of the process that holds bytes back. Whether it is the first, or the same again.
pub fn register(holder: &'static dyn Holder) -> bool {
    std::ptr::addr_eq(*HOLDER.get_or_init(|| holder), holder)
}

/// Shows all bytes held back to `add`, with the group that they are charged to; a look. `add` allocates nothing.
fn each(mut add: impl FnMut(Owner, u64)) {
    if let Some(holder) = holder() {
        let mut look = |owner: Owner, bytes| {
            add(owner, bytes);
            Take::Nothing
        };
        holder.visit(&mut look, &mut |_, _| ());
    }
}

/// A hierarchy was made. The caller holds no lock.
pub(crate) fn begin() {
    holder().into_iter().for_each(|holder| holder.begin());
}

/// The bytes held back in the subtree of `top`; a look.
pub(crate) fn sum(top: &'static Node) -> u64 {
    let mut sum = 0;
    each(|owner, bytes| sum += if counts_in(owner, top) { bytes } else { 0 });
    sum
}

/// The bytes held back in each of these groups itself, by one look. The caller holds the groups.
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

/// Uncharges the bytes held back in the subtree of `top`, if they are at least `missing`. Returns them. The caller holds `top`, and not the tree lock.
pub(crate) fn collect(top: &'static Node, missing: u64) -> u64 {
    if holder().is_none() || sum(top) < missing {
        return 0;
    }
    take(top, Take::Bytes)
}

/// Uncharges all bytes held back in the subtree of `top`. No bytes are held back there from now on for groups that may not. The caller holds
/// `top`, and not the tree lock.
pub(crate) fn close(top: &'static Node) -> u64 {
    take(top, Take::Close)
}

/// The same of a group that was removed, for a caller that holds it and the tree lock. Bytes that
/// other threads hold back keep the group dying, until their threads give them back at their next
/// block, or `settle_removed` takes them. Returns the bytes that went back: charges that wait above
/// may fit now.
#[must_use]
pub(crate) fn retire(node: &'static Node) -> u64 {
    let Some(holder) = holder() else { return 0 };
    // ORDERING: SeqCst fence; E1.
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

/// Takes the bytes held back for removed groups of the hierarchy, which keep those groups dying.
/// The caller does not hold the tree lock.
pub(crate) fn settle_removed(shared: &'static Shared) {
    take_where(|owner, bytes| {
        let node = owner.node();
        if bytes > 0 && node.counter.is_offline() && node.is_of(shared) { Take::Close } else { Take::Nothing }
    });
}

/// After bytes came back to the counter of `at` by an RMW, while charges wait there: no slot may
/// hold back what could help one of them (I3). The caller may hold locks.
#[inline]
pub(crate) fn after_fall(at: &'static Node) {
    if holder().is_none() {
        return;
    }
    // ORDERING: SeqCst fence; as in E1: the fall, and then the look.
    fence(Ordering::SeqCst);
    // ORDERING: Relaxed; after the fence.
    let slots = at.rare().beside.load(Ordering::Relaxed);
    if slots > 0 && !is_far(at, slots) && !mutation::active(Mutation::FallLeavesSlotsOpen) {
        close(at);
    }
}

/// After a charge began to wait in the queue of `at`. The caller does not hold the queue's lock.
pub(crate) fn after_enqueue(at: &'static Node) {
    after_fall(at);
}

/// Whether no charge that waits at `at` would fit even if so many slots gave back their bytes.
fn is_far(at: &'static Node, slots: u32) -> bool {
    let seen = at.counter.read();
    let asked = seen.usage.saturating_add(at.counter.least_waiting());
    !seen.offline && !seen.is_dry_run && asked > seen.max.saturating_add(u64::from(slots) * BESIDE_MOST)
}

fn take(top: &'static Node, how: Take) -> u64 {
    if holder().is_some() && how == Take::Close {
        // ORDERING: AcqRel; Acquire: a slot that was counted was open before, and is seen below.
        // One that is counted later is counted.
        top.rare().beside.swap(0, Ordering::AcqRel);
    }
    take_where(|owner, _| if counts_in(owner, top) { how } else { Take::Nothing })
}

fn take_where(mut ask: impl FnMut(Owner, u64) -> Take) -> u64 {
    let Some(holder) = holder() else { return 0 };
    // ORDERING: SeqCst fence; E1.
    fence(Ordering::SeqCst);
    let mut all = 0;
    holder.visit(&mut ask, &mut |owner, bytes| {
        all += bytes;
        uncharge(owner.node(), bytes);
    });
    all
}

/// Whether bytes of `owner` count at `top`. Until its bytes are taken the owner may be stale, and the answer be that of another group. Then the bytes
/// taken are still those of the owner that the word had.
fn counts_in(owner: Owner, top: &'static Node) -> bool {
    chain::levels(owner.node()).any(|level| std::ptr::eq(level, top))
}

/// Uncharges bytes that hold their group, as a drain does: under the lock of a level, too.
fn uncharge(node: &'static Node, bytes: u64) {
    if bytes == 0 {
        return;
    }
    node.pin_inner();
    chain::uncharge_held(node, bytes);
    chain::levels(node).for_each(|level| {
        oom::after_uncharge(level);
        // No waker is called here: another thread's record may be stopped.
        waiters::serve_freed_untold(level);
    });
    release::unpin(node);
}

impl Owner {
    /// Whether bytes of the group may be held back now: it is online, and no charge waits for room at it or above it. A holder asks this after it
    /// has put the owner in, and takes its bytes out again after a no.
    pub fn may_hold(self) -> bool {
        // ORDERING: SeqCst fence; E1.
        fence(Ordering::SeqCst);
        !self.node().counter.is_offline() && !self.is_held_up()
    }

    /// Returns whether a charge waits for room at the group or above it; a look.
    pub fn is_held_up(self) -> bool {
        chain::levels(self.node()).any(|level| level.waiting.is_held())
    }

    /// The most bytes of one slot where [`may_hold_beside`](Owner::may_hold_beside) says yes.
    pub const BESIDE_MOST: u64 = BESIDE_MOST;

    /// Returns whether one more slot may hold bytes of the group back beside the charges that wait
    /// for room at it or above it: [`BESIDE_MOST`](Owner::BESIDE_MOST) at most. A thread that frees
    /// and allocates in turn needs no more. A holder asks this after it has put the owner in, where
    /// [`may_hold`](Owner::may_hold) said no, and takes its bytes out again after a no. The thread
    /// says whether the slot `is_counted`: open since it was allowed to be so the last time.
    pub fn may_hold_beside(self, is_counted: bool) -> bool {
        let waited = || chain::levels(self.node()).filter(|level| level.waiting.is_held());
        // ORDERING: Relaxed; a look. A no is always right, and one that counts nothing leaves
        // nothing for the next fall to close.
        let is_near = |level: &'static Node| {
            !is_far(level, level.rare().beside.load(Ordering::Relaxed).saturating_add(1))
        };
        if !is_counted && waited().any(is_near) {
            return false;
        }
        let counted_now = waited().filter(|_| !is_counted);
        counted_now.for_each(|level| {
            // ORDERING: AcqRel; Release: the slot is open, for a thread that takes the count
            // (`take`).
            level.rare().beside.fetch_add(1, Ordering::AcqRel);
        });
        if !mutation::active(Mutation::HoldsBesideWithoutFence) {
            // ORDERING: SeqCst fence; E1, I3.
            fence(Ordering::SeqCst);
        }
        // ORDERING: Relaxed; after the fence.
        let may = |level: &'static Node| is_far(level, level.rare().beside.load(Ordering::Relaxed).max(1));
        !self.node().counter.is_offline() && waited().all(may)
    }
}
