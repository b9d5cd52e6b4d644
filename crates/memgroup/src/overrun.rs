//! Overrun: a group whose usage is above its limit, or at which somebody waits for room, has no stock anywhere below it.
//!
//! A limit that is lowered under load, or passed by a forced charge, leaves usage above it. If frees then refilled the stock
//! and charges spent from it, a busy tenant could stay above its new limit for ever without a single miss: the kernel drains
//! once when `memory.max` is written, and has that hole. Here the stocks of the subtree stay CLOSED until usage is within the
//! limit: every uncharge goes to the counters and brings it down, every charge is checked and refused. While a charge waits for room (`wait`) they stay
//! CLOSED for another reason: so that every uncharge comes by and serves it.
//!
//! - I1. A counter's OVER mark, and the closing and opening that go with it, change under the tree lock.
//! - I2. A stock is opened only if its group is online and no level of its chain is marked OVER.
//! - I3. Where somebody waits the mark stays until nobody does.
//! - B1. An uncharge by a drain, which does not look, can leave the mark a little too long: until the next uncharge.

use crate::measure;
use crate::mutation::{self, Mutation};
use crate::node::Node;
use crate::stock::drain;
use crate::tree::Tree;
use crate::wait;

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

/// After a limit changed: closes the subtree if usage is above it even without the stocks, opens it if it is not.
pub(crate) fn settle(tree: &Tree, node: &'static Node) {
    let over = |node: &Node| {
        let seen = node.counter.read();
        seen.usage > seen.max || node.control.waiting.is_held()
    };
    if over(node) {
        drain::counted_in(tree, node);
    }
    let (marked, over) = (node.counter.read().over, over(node));
    if over && !marked && node.counter.read().measured {
        measure::close(tree, node);
    } else if over && !marked && !mutation::active(Mutation::OverrunLeavesStocksOpen) {
        node.counter.mark_over(true);
        each(tree, node, |node| {
            drain::close(node);
        });
    } else if marked && !over {
        node.counter.mark_over(false);
        each(tree, node, open);
    }
    wait::serve(node);
}

/// Somebody is about to wait at `node`: closes the subtree, and waits for who is between a stock there and the counters. From then on every uncharge there goes to the counters
/// and finds the mark. `settle` opens it again when nobody waits any more.
pub(crate) fn hold(tree: &Tree, node: &'static Node) {
    if !node.counter.read().over {
        node.counter.mark_over(true);
        each(tree, node, |node| {
            drain::close(node);
        });
    }
    each(tree, node, drain::wait_settled);
}

fn each(tree: &Tree, top: &'static Node, act: impl Fn(&'static Node)) {
    top.shared.counted_in(tree, top).for_each(act);
}

/// After a forced charge: closes the subtree of every level that it took above its limit.
pub(crate) fn begin_if_over(node: &'static Node) {
    if levels_newly_over(node).next().is_some() {
        begin_if_over_held(&node.shared.tree.lock(), node);
    }
}

/// `begin_if_over` for a caller that holds the tree lock.
pub(crate) fn begin_if_over_held(tree: &Tree, node: &'static Node) {
    levels_newly_over(node).for_each(|level| settle(tree, level));
}

fn levels_newly_over(node: &'static Node) -> impl Iterator<Item = &'static Node> {
    std::iter::successors(Some(node), |level| level.up()).filter(|level| {
        let seen = level.counter.read();
        seen.usage > seen.max && !seen.over
    })
}

/// After an uncharge from a level that is marked OVER: serves who waits there; where nobody does, opens the subtree's stocks if it is within its limit again.
#[cold]
pub(crate) fn look(node: &'static Node) {
    if wait::serve(node) {
        return;
    }
    let seen = node.counter.read();
    if seen.over && seen.usage <= measure::reopens_at(seen) {
        settle(&node.shared.tree.lock(), node);
    }
}
