//! Copy: copies the values of one subsystem in many groups, as they were together at one moment.
//!
//! - I1. The turn to flush is held for `GROUPS_A_PIECE` groups at a time. Flushes and releases in between save the values that they are about
//!   to change (`state::stats::tree_copy`).
//! - I2. One thread at a time copies. It allocates before and after. While it waits for the turn, it holds the turn to copy, which no
//!   thread waits for with another lock.

use crate::state::stats::store::StatStore;
use crate::state::stats::tree_copy::TreeCopy;
use crate::stats::flush;
use crate::tree::node::Node;

/// Groups that are copied with the turn held once.
const GROUPS_A_PIECE: usize = if cfg!(memgroup_loom) {
    1
} else if cfg!(memgroup_yields) {
    8
} else {
    128
};

/// Copies the first values, so many, of groups that the caller holds: for each its own values, then those of its subtree.
///
/// With `flushed`, the subtree of that group is flushed before.
pub(crate) fn copy(
    store: &'static StatStore,
    flushed: Option<&'static Node>,
    stats: usize,
    nodes: impl ExactSizeIterator<Item = &'static Node> + Clone,
) -> Vec<i64> {
    let Some(first) = nodes.clone().next() else { return Vec::new() };
    let copy = TreeCopy::new(store, stats, nodes.clone().map(|node| node.id().0));
    let one_at_a_time = store.updates.lock_copies();
    let mut turn = match flushed {
        Some(top) => flush::flush(store, top),
        None => flush::lock(store.updates, first.shared()),
    };
    turn.begin_copy(copy);
    let mut nodes = nodes.peekable();
    loop {
        nodes.by_ref().take(GROUPS_A_PIECE).for_each(|node| turn.save(node, store));
        if nodes.peek().is_none() {
            break;
        }
        turn = turn.let_others_in();
    }
    let copy = turn.end_copy();
    drop((turn, one_at_a_time));
    copy.map(TreeCopy::into_values).unwrap_or_default()
}
