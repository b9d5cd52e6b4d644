//! How long one pass takes over the effective protection of many groups, each of which has a `min` and a `low`.
//!
//! - I1. Groups are filled in breadth first, so trees of every fan-out have the same number of groups; only their depths differ.
//! - I2. Before each pass the usage of some groups has changed, so that no result of the pass before can be used again.
//! - I3. The pass is right: for each group it finds the same as a climb from that group, and the
//!   children of no group are protected with more than the group is.

use std::collections::BTreeMap;

use memgroup::{Charge, Config, Group, Hierarchy, Protection};

use super::PASS_MS_MOST;
use crate::harness::prelude::*;

/// Groups that change between two passes.
const CHANGED: usize = 100;
const HELD_MOST: u64 = 64 << 10;

/// A tree in which each group has its settings and holds something.
struct Protected {
    hierarchy: Hierarchy,
    groups: Vec<Group>,
    held: Vec<Charge>,
    levels: usize,
}

impl Protected {
    fn build(lab: &mut Lab<'_>, groups: usize, fan_out: usize) -> Result<Protected> {
        let config = Config::with_slots(lab.slots).groups_max(groups as u32 + 1).stock_cap_bytes(0);
        let hierarchy = hierarchy(config)?;
        let (mut all, mut held): (Vec<Group>, Vec<Charge>) = (Vec::new(), Vec::new());
        let mut levels = vec![0_usize; groups];
        for index in 0..groups {
            let above = (index / fan_out).checked_sub(1);
            let parent = above.map_or_else(|| hierarchy.root(), |above| all[above].clone());
            levels[index] = above.map_or(0, |above| levels[above]) + 1;
            let group = child(&parent, &format!("g{index}"))?;
            let (path, mut up_to) = (group.path(), |most: u64| lab.random.next() % (most + 1));
            // The first level is set to less than its children ask for, deeper levels now to more, now to less: all rules are used.
            group.set_min(up_to(HELD_MOST)).set_up(&path)?;
            group.set_low(up_to(2 * HELD_MOST)).set_up(&path)?;
            held.push(group.try_charge(1 + up_to(HELD_MOST - 1)).set_up(&path)?);
            all.push(group);
        }
        let levels = levels.into_iter().max().unwrap_or(0);
        Ok(Protected { hierarchy, groups: all, held, levels })
    }

    /// Gives some groups another usage (I2).
    fn change(&mut self, lab: &mut Lab<'_>) -> Result<()> {
        for _ in 0..CHANGED {
            let at = (lab.random.next() % self.groups.len() as u64) as usize;
            let bytes = 1 + lab.random.next() % HELD_MOST;
            self.held[at] = self.groups[at].try_charge(bytes).or_wrong("a charge without a limit")?;
        }
        Ok(())
    }

    /// The results of a pass are right (I3).
    fn check(&self) -> Result<()> {
        let root = self.hierarchy.root();
        let pass = root.protections().into_iter().map(|(id, protection)| (id.as_u64(), protection));
        let pass: BTreeMap<u64, Protection> = pass.collect();
        expect("groups of a pass", pass.len(), self.groups.len())?;
        let of = |group: &Group| pass.get(&group.id().as_u64()).copied().unwrap_or_default();
        for group in &self.groups {
            let (own, right, path) = (of(group), group.protection(), group.path());
            expect(format_args!("the pass's protection of {path}"), own, right)?;
            let add = |(min, low), child| (min + of(child).min, low + of(child).low);
            let sum = group.children().iter().fold((0, 0), add);
            ensure(sum.0 <= own.min && sum.1 <= own.low, || {
                format!("the children of {path} are protected with {sum:?} in all, it with {own:?}")
            })?;
        }
        Ok(())
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let groups = lab.args.groups.unwrap_or(if lab.args.tiny { 50 } else { 10_000 });
    let shown = count(groups as u64);
    let title = format!("effective protection of {shown} groups, each with min and low: ms a pass");
    let mut table = Table::new(title, ["tree", "levels", "p50", "p99", "max"]);
    // A tree of twos is as deep as a hierarchy allows by default with 10,000 groups.
    let narrow = if groups > 10_000 { ("four below each", 4) } else { ("two below each", 2) };
    for (name, fan_out) in [
        ("all below the root", groups.max(2)),
        ("the square root of them side by side", groups.isqrt().max(2)),
        ("ten below each", 10),
        narrow,
    ] {
        let mut tree = Protected::build(lab, groups, fan_out)?;
        tree.check()?;
        let (root, watch, mut times) = (tree.hierarchy.root(), lab.clock.stopwatch(), Vec::new());
        for _ in 0..lab.pick(lab.effort.calls, 120, 600) {
            tree.change(lab)?;
            let (ns, pass) = watch.time(|| root.protections());
            times.push(ns);
            expect("groups of a pass", pass.len(), groups)?;
        }
        tree.check()?;
        let quantiles = Quantiles::of(times);
        let params = json!({"groups": groups, "fan-out": fan_out});
        let cells = lab.record(name, params).quantiles(quantiles, 1e6);
        table.row(name, [tree.levels.to_string()].into_iter().chain(cells));
        let ms = quantiles.map(|ns| ns.p50 / 1e6);
        lab.at_most(format!("protection of {shown} groups, {name}"), ms, PASS_MS_MOST, "ms");
        drop(tree.held);
        check_empty(&tree.hierarchy)?;
    }
    table.note(format!(
        "between two passes {CHANGED} groups get another usage. One thread. The goal is for p50: a pass waits for the tree's lock and for the system's scheduler, which p99 and the largest show"
    ));
    lab.print(&table)
}
