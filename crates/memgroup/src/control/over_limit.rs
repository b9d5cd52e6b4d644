//! Over the limit: a group with usage above its limit has no stock in its subtree. Nor has a group at which a charge waits.
//!
//! A limit that is lowered under load, or passed by a forced charge, leaves usage above it. If frees then refilled the stock and charges spent from
//! it, a busy tenant could stay above its new limit for ever, without one miss. The kernel drains once when `memory.max` is written, and has that
//! hole. Here the stocks of the subtree stay CLOSED until usage is within the limit. Every uncharge goes to the counters and lowers usage, and every
//! charge is checked. While a charge waits for room (`waiters`) they stay CLOSED so that every uncharge serves it.
//!
//! - I1. A counter's OVER mark, and the closing and opening that go with it, change under the tree lock.
//! - I2. A stock is opened only if its group is online and no level of its chain is marked OVER.
//! - I3. Where a charge waits, the mark stays until none does.
//! - B1. An uncharge by a drain does not check the mark. The mark may stay until the next uncharge.

use crate::base::mutation::{self, Mutation};
use crate::control::freeze::freeze;
use crate::control::{aftermath, dry_run, waiters};
use crate::counter::chain;
use crate::stock::open::open;
use crate::tree::node::Node;
use crate::tree::topology::Tree;

/// After a limit changed, or a charge waits no more. It closes the subtree if usage without the stocks is above the limit, or a charge waits. Else
/// it opens the subtree.
pub(crate) fn update(tree: &Tree, node: &'static Node) {
    let is_over = || {
        let seen = node.counter.read();
        seen.usage > seen.max || node.waiting.is_held()
    };
    if is_over() {
        aftermath::drain_counted_in(tree, node);
    }
    let seen = node.counter.read();
    match (is_over(), seen.over) {
        (true, false) if seen.is_dry_run => dry_run::let_charges_pass(tree, node),
        (true, false) if !mutation::active(Mutation::OverLimitLeavesStocksOpen) => {
            node.counter.mark_over(true);
            node.shared().counted_in(tree, node).for_each(|node| _ = aftermath::close(node));
        }
        (false, true) => {
            node.counter.mark_over(false);
            node.shared().counted_in(tree, node).for_each(open);
        }
        _ => {}
    }
    _ = waiters::serve(node);
}

/// Freezes the subtree of `node` before a charge waits there. From then on every uncharge there goes to the counters and finds the mark, until
/// `update` finds that no charge waits.
pub(crate) fn close_for_waiter(tree: &Tree, node: &'static Node) {
    if !node.counter.read().over {
        node.counter.mark_over(true);
    }
    freeze(tree, node);
}

/// After a forced charge: closes the subtree of every level that is above its limit now.
pub(crate) fn close_if_over(node: &'static Node) {
    if newly_over(node).next().is_some() {
        close_if_over_held(&node.shared().tree.lock(), node);
    }
}

/// `close_if_over` for a caller that holds the tree lock.
pub(crate) fn close_if_over_held(tree: &Tree, node: &'static Node) {
    newly_over(node).for_each(|level| update(tree, level));
}

fn newly_over(node: &'static Node) -> impl Iterator<Item = &'static Node> {
    chain::levels(node).filter(|level| {
        let seen = level.counter.read();
        seen.usage > seen.max && !seen.over
    })
}

/// After an uncharge from a level that is marked OVER: serves the charges that wait there. If none does, and usage is within the limit again, opens
/// the subtree's stocks.
#[cold]
pub(crate) fn after_uncharge(node: &'static Node) {
    if waiters::serve(node) {
        return;
    }
    let seen = node.counter.read();
    if seen.over && seen.usage <= dry_run::reopens_at(seen) {
        update(&node.shared().tree.lock(), node);
    }
}
