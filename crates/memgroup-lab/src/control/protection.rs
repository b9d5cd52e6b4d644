//! How long one pass takes over the effective protection of many groups, each of which has a `min` and a `low`.
//!
//! - I1. Groups are filled in breadth first, so a tree of fan-out f has as many groups as one of another shape; only its depth differs.
//! - I2. Before each pass the usage of some groups has changed, so that nothing can be had from the pass before.
//! - I3. The pass is right: what it says of each group is what is found by a way of its own up from that group, and the
//!   children of no group are protected with more than it is.

use std::collections::BTreeMap;

use memgroup::{Charge, Config, Group, Hierarchy, Protection};

use super::{PASS_MS_MOST, add_quantiles, calls};
use crate::Error;
use crate::harness::quantiles::Quantiles;
use crate::harness::report::{Check, params};
use crate::harness::table::{Table, count};
use crate::harness::tree::child;
use crate::harness::{Lab, clock};

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
    fn build(lab: &mut Lab<'_>, groups: usize, fan_out: usize) -> Result<Protected, Error> {
        let config = Config::with_slots(lab.slots).groups_max(groups as u32 + 1).stock_cap_bytes(0);
        let hierarchy = Hierarchy::new(config).map_err(|why| Error::setup("the hierarchy", why))?;
        let (mut all, mut held): (Vec<Group>, Vec<Charge>) = (Vec::new(), Vec::new());
        let mut levels = vec![0_usize; groups];
        for index in 0..groups {
            let above = (index / fan_out).checked_sub(1);
            let parent = above.map_or_else(|| hierarchy.root(), |above| all[above].clone());
            levels[index] = above.map_or(0, |above| levels[above]) + 1;
            let group = child(&parent, &format!("g{index}"))?;
            let failed = |why: &dyn std::fmt::Display| Error::setup(group.path(), why);
            let mut up_to = |most: u64| lab.random.next() % (most + 1);
            // Of the first level it is less than what is below asks for, and deeper now more, now less: all rules are used.
            group.set_min(up_to(HELD_MOST)).map_err(|why| failed(&why))?;
            group.set_low(up_to(2 * HELD_MOST)).map_err(|why| failed(&why))?;
            held.push(group.try_charge(1 + up_to(HELD_MOST - 1)).map_err(|why| failed(&why))?);
            all.push(group);
        }
        let levels = levels.into_iter().max().unwrap_or(0);
        Ok(Protected { hierarchy, groups: all, held, levels })
    }

    /// Some groups hold something else (I2).
    fn change(&mut self, lab: &mut Lab<'_>) -> Result<(), Error> {
        for _ in 0..CHANGED {
            let at = (lab.random.next() % self.groups.len() as u64) as usize;
            let bytes = 1 + lab.random.next() % HELD_MOST;
            let charge = self.groups[at].try_charge(bytes);
            self.held[at] = charge.map_err(|why| Error::Wrong(format!("a charge without a limit: {why}")))?;
        }
        Ok(())
    }

    /// What a pass says is right (I3).
    fn check(&self) -> Result<(), Error> {
        let root = self.hierarchy.root();
        let pass: BTreeMap<u32, Protection> =
            root.protections().into_iter().map(|(id, protection)| (id.as_u32(), protection)).collect();
        if pass.len() != self.groups.len() {
            return Err(Error::Wrong(format!(
                "a pass over {} groups found the protection of {}",
                self.groups.len(),
                pass.len()
            )));
        }
        let mut sums: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for group in &self.groups {
            let (found, right) = (pass.get(&group.id().as_u32()), group.protection());
            if found != Some(&right) {
                return Err(Error::Wrong(format!(
                    "a pass says of {} {found:?}, it is {right:?}",
                    group.path()
                )));
            }
            if let Some(parent) = group.parent().filter(|parent| parent.id() != root.id()) {
                let sum = sums.entry(parent.id().as_u32()).or_default();
                (sum.0, sum.1) = (sum.0 + right.min, sum.1 + right.low);
            }
        }
        let over = sums.iter().find(|(id, sum)| {
            let own = pass.get(*id).copied().unwrap_or_default();
            sum.0 > own.min || sum.1 > own.low
        });
        match over {
            Some((id, sum)) => Err(Error::Wrong(format!(
                "the children of group {id} are protected with {sum:?} in all, it with {:?}",
                pass.get(id)
            ))),
            None => Ok(()),
        }
    }

    /// Nothing is charged any more, at no level.
    fn end(self) -> Result<(), Error> {
        drop(self.held);
        let root = self.hierarchy.root();
        for group in self.groups.iter().chain([&root]) {
            crate::harness::tree::expect_bytes(group, "usage at the end", group.usage(), 0)?;
        }
        Ok(())
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let groups = lab.args.groups.unwrap_or(if lab.args.tiny { 50 } else { 10_000 });
    let square = groups.isqrt().max(2);
    let mut table = Table::new(
        format!("effective protection of {} groups, each with min and low: ms a pass", count(groups as u64)),
        ["tree", "levels", "p50", "p99", "max"],
    );
    // A chain of twos is as deep as a hierarchy allows by default with 10,000 groups.
    for (name, fan_out) in [
        ("all below the root", groups.max(2)),
        ("the square root of them side by side", square),
        ("ten below each", 10),
        ("two below each", if groups > 10_000 { 4 } else { 2 }),
    ] {
        let mut tree = Protected::build(lab, groups, fan_out)?;
        tree.check()?;
        let (root, clock) = (tree.hierarchy.root(), lab.clock);
        let mut times = Vec::new();
        for _ in 0..calls(lab, 120, 600) {
            tree.change(lab)?;
            let begin = clock::now_ordered();
            let pass = root.protections();
            times.push(clock.ns((clock::now_ordered() - begin) as f64));
            if pass.len() != groups {
                return Err(Error::Wrong(format!("a pass over {groups} groups found {}", pass.len())));
            }
        }
        tree.check()?;
        let what = params([("groups", groups.into()), ("fan-out", fan_out.into())]);
        let quantiles = Quantiles::of(times);
        let name = if name.starts_with("two") && fan_out > 2 { "four below each" } else { name };
        let cells = add_quantiles(lab, name, &what, quantiles, 1e6);
        table.row([name.to_owned(), tree.levels.to_string()].into_iter().chain(cells).collect());
        let check = format!("protection of {} groups, {name}", count(groups as u64));
        let ms = quantiles.map(|ns| ns.p50 / 1e6);
        lab.report.checks.push(Check::at_most(check, ms, PASS_MS_MOST, "ms"));
        tree.end()?;
    }
    table.note(format!(
        "between two passes {CHANGED} groups get another usage. One thread; the goal is for p50, as a pass waits for the tree's lock and for the system's scheduler as anything does"
    ));
    lab.print(&table)
}
