//! Over the limit: a group with usage above its limit has no open stock in its subtree. Nor has a
//! group at which a charge waits.
//!
//! A limit that is lowered under load, or passed by a forced charge, leaves usage above it. If
//! frees then refilled the stock and charges spent from it, a busy tenant could stay above its new
//! limit for ever, without one miss. The kernel drains once when `memory.max` is written, and has
//! that hole. Here no stock of the subtree is opened until usage is within the limit. Every
//! uncharge goes to the counters and lowers usage, and every charge is checked. While a charge
//! waits for room (`waiters`) none is opened, so that every uncharge serves it.
//!
//! - I1. A counter's OVER mark changes under the lock of its level. It is set while the level is
//!   frozen.
//! - I2. No grant passes a level that is marked OVER (`counter` I6).
//! - I3. Where a charge waits, the mark stays until none does.
//! - B1. An uncharge by a drain does not check the mark. The mark may stay until the next
//!   uncharge.

use crate::base::mutation::{self, Mutation};
use crate::control::freeze::{FrozenLevel, LevelLock};
use crate::control::{held_back, waiters};
use crate::counter::chain;
use crate::tree::node::Node;

fn is_over(node: &'static Node) -> bool {
    let seen = node.counter.read();
    seen.usage > seen.max || node.waiting.is_held()
}

/// Makes a change of the limit or of the waiting charges, one at a time. Then it sets the mark if
/// usage without the stocks is above the limit, or a charge waits; else it clears the mark. The
/// caller holds `node`, and neither the tree lock nor the lock of a level.
pub(crate) fn change<T>(node: &'static Node, change: impl FnOnce(&'static Node) -> T) -> T {
    let lock = node.shared().level_lock(node.id());
    let changed = change(node);
    if node.counter.read().over && !is_over(node) {
        node.counter.mark_over(false);
        if mutation::active(Mutation::MarkGoesWithoutALook) {
            return changed;
        }
    }
    if node.waiting.is_held() {
        held_back::close(node);
    }
    // Also after the mark is gone: a forced charge that found it has left the marking to this
    // thread.
    if is_over(node) && !node.counter.read().over {
        mark_if(lock, node, is_over);
    }
    changed
}

/// Empties the stocks of the subtree, and keeps them empty if `is_over` then.
pub(crate) fn mark_if(lock: LevelLock, node: &'static Node, is_over: impl FnOnce(&'static Node) -> bool) {
    let _frozen = FrozenLevel::locked(lock, node);
    if is_over(node) && !mutation::active(Mutation::OverLimitLeavesStocksOpen) {
        node.counter.mark_over(true);
    }
}

/// Looks whether usage is above the limit, and sets or clears the mark. Serves waiting charges.
pub(crate) fn update(node: &'static Node) {
    change(node, |_| ());
    _ = waiters::serve(node);
}

/// After a forced charge: marks every level that is above its limit now. The caller holds `node`.
pub(crate) fn mark_levels(node: &'static Node) {
    for level in chain::levels(node) {
        let seen = level.counter.read();
        if seen.usage > seen.max && !seen.over {
            update(level);
        }
    }
}

/// Returns whether there is something to do at a level that is marked OVER, after an uncharge by
/// this thread: a charge that waits there may fit, or usage is within the limit again. It takes no
/// lock, so most uncharges beside a charge that waits end here.
pub(crate) fn has_work(node: &'static Node) -> bool {
    if node.waiting.is_held() {
        if mutation::active(Mutation::FallFindsNoWaiter) {
            return false;
        }
        return waiters::may_fit(node) || held_back::may_help(node);
    }
    let seen = node.counter.read();
    seen.over && seen.usage <= seen.reopens_at()
}

/// Does that work: serves the charges that wait at the level, or clears the mark if none waits.
#[cold]
pub(crate) fn after_uncharge(node: &'static Node) {
    if !waiters::serve_freed(node) && has_work(node) {
        update(node);
    }
}
