//! Models of the statistics: every interleaving of a few calls, with up to three preemptions.
//!
//! The oracles are what a `Fresh` read promises, and sums at rest. A thread knows what it has added itself and what was added before it
//! began: all of that is in what it reads. Each fault of `mutation` must make its model fail.

mod copies;
mod flushes;
mod hits;
mod moves;
mod registrations;
mod releases;
mod updates;

use super::side::Reach;
use super::stat::{Stat, Subsystem};
use super::store::{Entry, Store};
use super::{flush, update};
use crate::config::Config;
use crate::node::Node;
use crate::shared::Shared;
use crate::stock::loom::{COUNTED, config, obtain};
use memgroup_sync::grace;

/// The number of the subsystem that models add to; before it is the one that charges are counted in.
const NUMBER: usize = 1;

static SUBSYSTEMS: [Subsystem; 2] =
    [COUNTED[0], Subsystem { name: "model", stats: &[Stat::gauge("first"), Stat::gauge("second")] }];

/// A hierarchy of so many groups, in which statistics can be added to.
fn hierarchy(slots: usize, groups_max: u32) -> &'static Shared {
    obtain(Config { builtin: &SUBSYSTEMS, ..config(slots, groups_max) })
}

/// A child of `parent` with a record of the model's statistics.
fn child(parent: &'static Node, name: &str) -> &'static Node {
    let node = parent.shared.create(parent, name).unwrap();
    furnish(node);
    node
}

fn furnish(node: &'static Node) {
    let _tree = node.shared.tree.lock();
    entry(node).furnish(node, 0);
}

fn store(node: &'static Node) -> &'static Store {
    node.shared.statistics.store(NUMBER)
}

fn entry(node: &'static Node) -> &'static Entry {
    node.entry(store(node))
}

/// Adds to the first statistic.
fn add(node: &'static Node, delta: i64) {
    update::add(node, NUMBER, 0, delta);
}

/// Flushes what is below `node`, if need be.
fn refresh(node: &'static Node) {
    flush::refresh(store(node), node);
}

/// The first statistic as a `Fresh` read finds it.
fn fresh(node: &'static Node, reach: Reach) -> i64 {
    refresh(node);
    entry(node).side(&grace::enter()).peek(reach, 0)
}

/// The same with all that is below.
fn total(node: &'static Node) -> i64 {
    fresh(node, Reach::Subtree)
}
