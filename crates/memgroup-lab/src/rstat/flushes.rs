//! The time of a flush for each group and slot that changed: with few and many groups, few and many slots, few and all of them changed.
//!
//! Another thread, on another CPU, changes the statistics, so that each line comes from there. Then the root is flushed, and the time
//! is divided by the number of changed groups and slots.
//!
//! - I1. After each flush the root's sums are the additions.

use memgroup::{Config, Freshness, Reach, Statistics};
use memgroup_percpu::pin_virtual;

use super::gauges;
use crate::harness::prelude::*;

const SLOT_COUNTS: [usize; 3] = [2, 8, 128];
const GROUP_COUNTS: [usize; 3] = [10, 1_000, 10_000];
const STAT_COUNTS: [usize; 2] = [8, 48];
/// The most per-CPU memory that one hierarchy may take here.
const BYTES_MAX: usize = 256 << 20;

/// The goal for each group and slot that changed: 4 ns a statistic, and 10 ns a line that comes from another CPU, its mark's included.
fn goal_ns(stats: usize) -> f64 {
    let lines = (stats * 8).div_ceil(64) + 1;
    4.0 * stats as f64 + 10.0 * lines as f64
}

/// Groups on some slots, and a subsystem of theirs.
struct Flushed {
    fixture: Fixture,
    statistics: Statistics,
    added: i64,
}

impl Flushed {
    fn build(slots: usize, groups: usize, stats: usize) -> Result<Flushed> {
        let fixture = Fixture::flat(Config::with_slots(virtual_slots(slots)?), groups)?;
        let statistics = fixture.hierarchy.register(gauges(stats)).set_up("the subsystem")?;
        Ok(Flushed { fixture, statistics, added: 0 })
    }

    /// Changes every statistic of the first groups on the first slots.
    fn change(&self, groups: usize, slots: usize) {
        for slot in 0..slots {
            let _pin = pin_virtual(slot);
            for group in &self.fixture.leaves[..groups] {
                self.statistics.keys().for_each(|key| self.statistics.add(group, key, 1));
            }
        }
    }

    /// Nanoseconds of one flush on the first worker after changes on the second, which are over when it begins.
    fn flush(&mut self, lab: &Lab<'_>, groups: usize, slots: usize) -> Result<f64> {
        lab.workers.run(2, |thread| {
            if thread == 1 {
                self.change(groups, slots)
            }
        });
        self.added += (groups * slots) as i64;
        let (watch, root) = (lab.clock.stopwatch(), self.fixture.hierarchy.root());
        lab.workers.run_one(|| {
            let (ns, _) = watch.time(|| self.statistics.flush(&root));
            for key in self.statistics.keys() {
                let sum = self.statistics.get(&root, key, Reach::Subtree, Freshness::Flushed);
                expect(format_args!("{} of the root after a flush", key.stat().name()), sum, self.added)?;
            }
            Ok(ns)
        })
    }
}

/// One row: the numbers of slots, groups and statistics, and the nanoseconds of a flush.
struct Row {
    slots: usize,
    groups: usize,
    stats: usize,
    /// All groups changed on all slots, for each of both; one group on one slot; nothing.
    flushes: [Option<Summary>; 3],
    /// All without the cost of a flush of a single change, for each further change.
    more: Option<f64>,
}

pub(super) fn run(lab: &mut Lab<'_>, slots: Option<usize>, groups: Option<usize>) -> Result<()> {
    let slot_counts = slots.map_or_else(|| SLOT_COUNTS.to_vec(), |slots| vec![slots]);
    let group_counts = groups.map_or_else(|| GROUP_COUNTS.to_vec(), |groups| vec![groups]);
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    for &stats in &STAT_COUNTS {
        for &slots in &slot_counts {
            for &groups in group_counts.iter().filter(|&&groups| !lab.args.tiny || groups <= 10) {
                if slots * groups * stats * 8 > BYTES_MAX {
                    left_out.push(format!("{} groups on {slots} slots with {stats}", count(groups as u64)));
                } else {
                    rows.push(measure(lab, slots, groups, stats)?);
                }
            }
        }
    }
    show(lab, &rows, &left_out)?;
    add_goals(lab, &rows);
    Ok(())
}

fn measure(lab: &Lab<'_>, slots: usize, groups: usize, stats: usize) -> Result<Row> {
    let mut flushed = Flushed::build(slots, groups, stats)?;
    // First additions make records, and first flushes touch the lines that they write.
    flushed.flush(lab, groups, slots)?;
    let pairs = groups * slots;
    let rounds = lab.pick(1, (200_000 / pairs).clamp(3, 50), (2_000_000 / pairs).clamp(7, 400));
    let mut times = |groups, slots| {
        let ns = (0..rounds).map(|_| flushed.flush(lab, groups, slots));
        Ok::<_, Error>(Summary::of(ns.collect::<Result<Vec<f64>>>()?))
    };
    let (all, one, none) = (times(groups, slots)?, times(1, 1)?, times(0, 0)?);
    let beyond = median(all).zip(median(one)).filter(|_| pairs > 1).map(|(all, one)| all - one);
    let more = beyond.map(|ns| ns / (pairs - 1) as f64);
    let flushes = [all.map(|ns| ns.scaled(1.0 / pairs as f64)), one, none];
    Ok(Row { slots, groups, stats, flushes, more })
}

fn show(lab: &mut Lab<'_>, rows: &[Row], left_out: &[String]) -> Result<()> {
    let columns = ["slots x groups x statistics", "all: ns each", "each more", "goal", "one: ns", "none: ns"];
    let mut table = Table::new(
        "a flush of the root after another CPU changed every statistic of some groups on some slots",
        columns,
    );
    for &Row { slots, groups, stats, flushes, more } in rows {
        for (changed, ns) in ["all", "one", "none"].into_iter().zip(flushes) {
            let params = json!({"slots": slots, "groups": groups, "statistics": stats, "changed": changed});
            lab.record("separate trees", params).summary("flush", "ns", ns);
        }
        let [_, one, none] = flushes.map(|ns| figure_or_dash(median(ns)));
        let cells = [spread(flushes[0]), figure_or_dash(more), figure(goal_ns(stats)), one, none];
        table.row(format!("{slots} x {} x {stats}", count(groups as u64)), cells);
    }
    table.note("each: of a group on a slot. One: a single group on a single slot changed; the flush's locks are in it, and the pass up to the root. Each more: the time of all above that, for each more; its goal is 4 ns a statistic and 10 ns a line that comes from the other CPU");
    if !left_out.is_empty() {
        let mib = BYTES_MAX >> 20;
        table
            .note(format!("left out, their records would take more than {mib} MiB: {}", left_out.join("; ")));
    }
    lab.print(&table)
}

fn add_goals(lab: &mut Lab<'_>, rows: &[Row]) {
    // A group's own part, which all its slots share, shows with few slots.
    for stats in STAT_COUNTS {
        let all = || rows.iter().filter(|row| row.stats == stats);
        let worst = all().filter_map(|row| row.more).reduce(f64::max);
        let name = format!("a flush, each more changed group and slot, {stats} statistics, worst");
        lab.at_most(name, worst, goal_ns(stats), "ns");
        let ones = || all().filter_map(|row| Some((row.slots * row.groups, median(row.flushes[1])?)));
        if let (Some(least), Some(most)) = (ones().min_by_key(|one| one.0), ones().max_by_key(|one| one.0))
            && least.0 < most.0
        {
            let times = most.0 / least.0;
            let name = format!("a flush of one change, {stats} statistics, {times}x as much about");
            lab.at_most(name, Some(most.1 / least.1), 2.0, "x");
        }
    }
}
