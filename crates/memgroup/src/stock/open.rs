//! Open: whether a group may have stocks, and opening them again.

use crate::stock::drain;
use crate::tree::node::Node;

/// Opens the stocks of `node`, unless it is offline or a level of its chain is above its limit.
pub(crate) fn open(node: &'static Node) {
    if may_open(node) {
        drain::reopen(node);
    }
}

/// A new group has a stock if `open` would give it one, else none from its first moment.
pub(crate) fn open_or_close(node: &'static Node) {
    if may_open(node) {
        drain::reopen(node);
    } else {
        drain::close(node);
    }
}

/// Whether the group is online and no level of its chain is above its limit.
pub(crate) fn may_open(node: &'static Node) -> bool {
    let held = std::iter::successors(Some(node), |level| level.up()).any(|level| level.counter.read().over);
    !held && !node.counter.is_offline()
}
