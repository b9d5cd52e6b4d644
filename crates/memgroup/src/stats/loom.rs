//! Models of the statistics: every interleaving of a few calls, with up to three preemptions.
//!
//! The oracles are the promise of a `Fresh` read, and sums at rest. A thread knows its own
//! additions and those made before it began: a read contains all of them. Each fault of `mutation`
//! must make its model fail.

mod copies;
mod flushes;
mod hits;
mod moves;
mod registrations;
mod releases;
mod updates;

use crate::charge::loom::{COUNTED, config, obtain};
use crate::state::config::Config;
use crate::state::stats::Reach;
use crate::state::stats::stat::{Stat, Subsystem};
use crate::state::stats::store::{StatEntry, StatStore};
use crate::stats::{flush, update};
use crate::tree::node::Node;
use crate::tree::shared::Shared;

/// The number of the subsystem that models add to; before it is the one that charges are counted
/// in.
const NUMBER: usize = 1;

static SUBSYSTEMS: [Subsystem; 2] =
    [COUNTED[0], Subsystem { name: "model", stats: &[Stat::gauge("first"), Stat::gauge("second")] }];

/// A hierarchy of so many groups, in which statistics can be added to.
fn hierarchy(slots: usize, groups_max: u32) -> &'static Shared {
    obtain(Config { builtin: &SUBSYSTEMS, ..config(slots, groups_max) })
}

/// A child of `parent` with a record of the model's statistics.
fn child(parent: &'static Node, name: &str) -> &'static Node {
    let node = parent.shared().create(parent, name).unwrap();
    alloc_record(node);
    node
}

fn alloc_record(node: &'static Node) {
    let _tree = node.shared().tree.lock();
    entry(node).alloc_record(node.id().0, 0);
}

fn store(node: &'static Node) -> &'static StatStore {
    node.shared().statistics.store(NUMBER)
}

fn entry(node: &'static Node) -> &'static StatEntry {
    node.entry(store(node))
}

/// Adds to the first statistic.
fn add(node: &'static Node, delta: i64) {
    update::add(node, NUMBER, 0, delta);
}

/// Flushes the subtree of `node` if it may have changed.
fn refresh(node: &'static Node) {
    flush::refresh(store(node), node);
}

/// The first statistic as a `Fresh` read finds it.
fn fresh(node: &'static Node, reach: Reach) -> i64 {
    refresh(node);
    entry(node).flushed().peek(reach, 0)
}

/// The same with all that is below.
fn total(node: &'static Node) -> i64 {
    fresh(node, Reach::Subtree)
}
