//! Copy: copies the values of one subsystem in many groups.
//!
//! - I1. The turn to flush is held for `GROUPS_A_PIECE` groups at a time, so the values of these
//!   are of one moment.
//! - I2. The pieces are copied from the last to the first, and a group comes before all groups
//!   below it. So a group's values are copied with those below it, or later, and each count is at
//!   least the sum of the counts below. Loom: `copies_a_group_after_those_below_it`.

use crate::base::mutation::{self, Mutation};
use crate::state::stats::store::StatStore;
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

/// Copies the first `stats` values of groups that the caller holds, parents before children. The
/// result has two rows for each group: its own values, and those of its subtree.
///
/// If there is a group `flushed`, its subtree is flushed first.
pub(crate) fn copy(
    store: &'static StatStore,
    flushed: Option<&'static Node>,
    stats: usize,
    nodes: &[&'static Node],
) -> Vec<i64> {
    let mut values = vec![0; nodes.len() * 2 * stats];
    let Some(first) = nodes.first() else { return values };
    let mut turn = match flushed {
        Some(top) => flush::flush(store, top),
        None => flush::lock(store.updates, first.shared()),
    };
    let mut end = nodes.len();
    loop {
        let begin = end.saturating_sub(GROUPS_A_PIECE);
        for at in begin..end {
            let at = if mutation::active(Mutation::CopyBeginsAtTheTop) { nodes.len() - 1 - at } else { at };
            nodes[at].entry(store).copy_both(&mut values[at * 2 * stats..][..2 * stats]);
        }
        if begin == 0 {
            return values;
        }
        end = begin;
        turn = turn.let_others_in();
    }
}
