//! Held back: bytes that are charged, and that an allocator keeps on each thread for its next blocks. See [`crate::block`].
//!
//! They are like stocks, but the allocator has them. So the engine asks for them where it empties stocks.
//!
//! - I1. A holder's bytes are charged. So they keep their group, until the engine has uncharged them.
//! - I2. Bytes are taken from a holder once: each is taken out by an RMW of the holder's word, and uncharged by the thread that took it out.
//! - E1. A group becomes offline, or a charge waits at it ↔ a holder begins to hold bytes of it. The engine marks the group, fences, and looks at the
//!   holder. The holder puts in its owner, fences, and looks at the group (`may_hold`). One of the two sees the other. So after a removal no
//!   bytes are held back, and after the begin of a wait each uncharge comes to the counters.

use std::collections::HashMap;
use std::sync::OnceLock;

use memgroup_sync::atomic::{Ordering, fence};

use crate::control::{aftermath, oom, waiters};
use crate::counter::chain;
use crate::tree::node::Node;
use crate::tree::owner::Owner;

/// The answer to a holder that shows the bytes that it holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// It keeps them.
    Nothing,
    /// It gives them, and may hold back more.
    Bytes,
    /// It gives them, and holds nothing back for this owner until [`Owner::may_hold`] is asked again.
    Close,
}

/// An allocator that holds bytes back, on all threads.
pub trait Holder: Sync {
    /// Shows each word with bytes held back, or with an owner for which some may be, to `ask`. Where the answer says so, it takes the bytes out
    /// by an RMW, and then gives those that were there to `taken`. It waits for nothing, and allocates nothing.
    fn visit(&self, ask: &mut dyn FnMut(Owner, u64) -> Take, taken: &mut dyn FnMut(Owner, u64));
}

static HOLDER: OnceLock<&'static dyn Holder> = OnceLock::new();

/// Registers the one allocator of the process that holds bytes back. Whether it is the first, or the same again.
pub fn register(holder: &'static dyn Holder) -> bool {
    std::ptr::addr_eq(*HOLDER.get_or_init(|| holder), holder)
}

/// Shows all bytes held back to `add`, with the group that they are charged to; a look. `add` allocates nothing.
fn each(mut add: impl FnMut(Owner, u64)) {
    if let Some(holder) = HOLDER.get() {
        let mut look = |owner: Owner, bytes| {
            add(owner, bytes);
            Take::Nothing
        };
        holder.visit(&mut look, &mut |_, _| ());
    }
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
    if HOLDER.get().is_some() {
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
    if HOLDER.get().is_none() || sum(top) < missing {
        return 0;
    }
    take(top, Take::Bytes)
}

/// Uncharges all bytes held back in the subtree of `top`. No bytes are held back there from now on for groups that may not. The caller holds
/// `top`, and not the tree lock.
pub(crate) fn close(top: &'static Node) -> u64 {
    take(top, Take::Close)
}

/// The same of the group alone, for a caller that holds it and the tree lock.
pub(crate) fn retire(node: &'static Node) {
    let Some(holder) = HOLDER.get() else { return };
    // ORDERING: SeqCst fence; E1.
    fence(Ordering::SeqCst);
    let ask = |owner: Owner, _| if std::ptr::eq(owner.node(), node) { Take::Close } else { Take::Nothing };
    holder.visit(&mut { ask }, &mut |owner, bytes| chain::uncharge_held(owner.node(), bytes));
}

fn take(top: &'static Node, how: Take) -> u64 {
    let Some(holder) = HOLDER.get() else { return 0 };
    // ORDERING: SeqCst fence; E1.
    fence(Ordering::SeqCst);
    let mut all = 0;
    let ask = |owner: Owner, _| if counts_in(owner, top) { how } else { Take::Nothing };
    holder.visit(&mut { ask }, &mut |owner, bytes| {
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
    aftermath::unpin(node);
}

impl Owner {
    /// Whether bytes of the group may be held back now: it is online, and no charge waits for room at it or above it. A holder asks this after it
    /// has put the owner in, and takes its bytes out again after a no.
    pub fn may_hold(self) -> bool {
        // ORDERING: SeqCst fence; E1.
        fence(Ordering::SeqCst);
        !self.node().counter.is_offline() && !chain::levels(self.node()).any(|level| level.waiting.is_held())
    }
}
