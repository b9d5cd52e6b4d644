//! What a flush takes for each group and slot that changed: with few and many groups, few and many slots, few and all of them changed.
//!
//! Another thread, on another CPU, changes the statistics, so that each line comes from there. Then the root is flushed, and the time
//! is divided by the number of changed groups and slots.
//!
//! - I1. After each flush the root has what was added, and a second flush finds nothing.

use std::sync::{Arc, Mutex, MutexGuard};

use memgroup::{Config, Freshness, Group, Hierarchy, Reach, Statistics};
use memgroup_percpu::pin_virtual;

use super::updates::subsystem;
use crate::Error;
use crate::harness::Lab;
use crate::harness::clock;
use crate::harness::machine::virtual_slots;
use crate::harness::report::{Check, params};
use crate::harness::stats::Summary;
use crate::harness::table::{Table, count, figure_or_dash};
use crate::harness::tree::child;

const SLOT_COUNTS: [usize; 3] = [2, 8, 128];
const GROUP_COUNTS: [usize; 3] = [10, 1_000, 10_000];
const STAT_COUNTS: [usize; 2] = [8, 48];
/// The most per-CPU memory that one hierarchy may take here.
const BYTES_MAX: usize = 256 << 20;

/// What one flush may take, for each group and slot that changed: so much a statistic, and so much a line that comes from another CPU.
const NS_A_STAT: f64 = 4.0;
const NS_A_LINE: f64 = 10.0;

/// Lines of one group on one slot: its statistics, and the mark.
fn lines(stats: usize) -> usize {
    (stats * 8).div_ceil(64) + 1
}

fn goal_ns(stats: usize) -> f64 {
    NS_A_STAT * stats as f64 + NS_A_LINE * lines(stats) as f64
}

struct House {
    hierarchy: Hierarchy,
    groups: Vec<Group>,
    statistics: Statistics,
    added: i64,
}

impl House {
    fn build(slots: usize, groups: usize, stats: usize) -> Result<House, Error> {
        let source = virtual_slots(slots)?;
        let config = Config::with_slots(source).groups_max(groups as u32 + 2);
        let hierarchy = Hierarchy::new(config).map_err(|why| Error::setup("the hierarchy", why))?;
        let statistics =
            hierarchy.register(subsystem(stats)).map_err(|why| Error::setup("the subsystem", why))?;
        let parent = child(&hierarchy.root(), "parent")?;
        let groups =
            (0..groups).map(|n| child(&parent, &format!("group{n}"))).collect::<Result<Vec<_>, _>>()?;
        Ok(House { hierarchy, groups, statistics, added: 0 })
    }

    /// Changes every statistic of the first groups on the first slots.
    fn change(&mut self, groups: usize, slots: usize) {
        let stats = self.statistics.stats().len();
        for slot in 0..slots {
            let _pin = pin_virtual(slot);
            for group in &self.groups[..groups] {
                (0..stats).for_each(|stat| self.statistics.add(group, stat, 1));
            }
        }
        self.added += (groups * slots) as i64;
    }

    /// Nanoseconds of one flush of the root.
    fn flush(&self, clock: clock::Clock, reading: u64) -> f64 {
        let root = self.hierarchy.root();
        let begin = clock::now_ordered();
        self.statistics.flush(&root);
        clock.ns((clock::now_ordered() - begin).saturating_sub(reading) as f64)
    }

    fn check(&self) -> Result<(), Error> {
        for stat in 0..self.statistics.stats().len() {
            let sum = self.statistics.get(&self.hierarchy.root(), stat, Reach::Subtree, Freshness::Flushed);
            if sum != self.added {
                return Err(Error::Wrong(format!(
                    "statistic {stat} of the root is {sum} after a flush, {} was added",
                    self.added
                )));
            }
        }
        Ok(())
    }
}

/// What was measured in one house.
struct Line {
    slots: usize,
    groups: usize,
    stats: usize,
    /// All groups changed on all slots, in nanoseconds for each of both.
    all: Option<Summary>,
    /// The same without what a flush of a single change takes.
    more: Option<f64>,
    /// One group changed on one slot, in nanoseconds.
    one: Option<Summary>,
    /// Nothing changed, in nanoseconds.
    none: Option<Summary>,
}

pub(super) fn run(lab: &mut Lab<'_>, slots: Option<usize>, groups: Option<usize>) -> Result<(), Error> {
    let slot_counts = slots.map_or_else(|| SLOT_COUNTS.to_vec(), |slots| vec![slots]);
    let group_counts = groups.map_or_else(|| GROUP_COUNTS.to_vec(), |groups| vec![groups]);
    let mut lines_measured = Vec::new();
    let mut left_out = Vec::new();
    for &stats in &STAT_COUNTS {
        for &slots in &slot_counts {
            for &groups in group_counts.iter().filter(|&&groups| !lab.args.tiny || groups <= 10) {
                if slots * groups * stats * 8 > BYTES_MAX {
                    left_out.push(format!("{} groups on {slots} slots with {stats}", count(groups as u64)));
                    continue;
                }
                lines_measured.push(measure(lab, slots, groups, stats)?);
            }
        }
    }
    show(lab, &lines_measured, &left_out)?;
    check(lab, &lines_measured);
    Ok(())
}

fn measure(lab: &mut Lab<'_>, slots: usize, groups: usize, stats: usize) -> Result<Line, Error> {
    let mut house = House::build(slots, groups, stats)?;
    // First additions make records, and first flushes touch what they write to.
    house.change(groups, slots);
    house.statistics.flush(&house.hierarchy.root());
    house.check()?;
    let house = Arc::new(Mutex::new(house));
    let pairs = groups * slots;
    let rounds = match (lab.args.tiny, lab.args.quick) {
        (true, _) => 1,
        (_, true) => (200_000 / pairs).clamp(3, 50),
        (_, false) => (2_000_000 / pairs).clamp(7, 400),
    };
    let times = |lab: &Lab<'_>, groups, slots| -> Result<Option<Summary>, Error> {
        let ns = (0..rounds).map(|_| flush_remote(lab, &house, groups, slots));
        Ok(Summary::of(&ns.collect::<Result<Vec<f64>, Error>>()?))
    };
    let all = times(lab, groups, slots)?;
    let (one, none) = (times(lab, 1, 1)?, times(lab, 0, 0)?);
    let more =
        all.zip(one).filter(|_| pairs > 1).map(|(all, one)| (all.median - one.median) / (pairs - 1) as f64);
    let all = all.map(|ns| ns.scaled(1.0 / pairs as f64));
    Ok(Line { slots, groups, stats, all, more, one, none })
}

/// One flush on the crew's first thread of what its second has changed; one after the other, so that nobody waits in the time.
fn flush_remote(lab: &Lab<'_>, house: &Arc<Mutex<House>>, groups: usize, slots: usize) -> Result<f64, Error> {
    let changed = Arc::clone(house);
    let change = move |thread| {
        if thread == 1 {
            locked(&changed)?.change(groups, slots);
        }
        Ok::<(), Error>(())
    };
    lab.crew.run(2, change).into_iter().collect::<Result<(), Error>>()?;
    let (clock, flushed) = (lab.clock, Arc::clone(house));
    let flush = move |_| {
        let house = locked(&flushed)?;
        let ns = house.flush(clock, clock::reading_ticks());
        house.check()?;
        Ok::<f64, Error>(ns)
    };
    lab.crew.run(1, flush).remove(0)
}

fn locked(house: &Mutex<House>) -> Result<MutexGuard<'_, House>, Error> {
    house.lock().map_err(|_| Error::Wrong("a thread of the crew panicked".to_owned()))
}

fn show(lab: &mut Lab<'_>, measured: &[Line], left_out: &[String]) -> Result<(), Error> {
    let mut table = Table::new(
        "a flush of the root after another CPU changed every statistic of some groups on some slots",
        ["slots x groups x statistics", "all: ns each", "min", "each more", "goal", "one: ns", "none: ns"],
    );
    for line in measured {
        let cell = |ns: Option<Summary>, of: fn(Summary) -> f64| figure_or_dash(ns.map(of));
        table.row(vec![
            format!("{} x {} x {}", line.slots, count(line.groups as u64), line.stats),
            cell(line.all, |ns| ns.median),
            cell(line.all, |ns| ns.min),
            figure_or_dash(line.more),
            figure_or_dash(Some(goal_ns(line.stats))),
            cell(line.one, |ns| ns.median),
            cell(line.none, |ns| ns.median),
        ]);
        let what = |changed: &str| {
            params([
                ("slots", line.slots.into()),
                ("groups", line.groups.into()),
                ("statistics", line.stats.into()),
                ("changed", changed.into()),
            ])
        };
        for (changed, ns) in [("all", line.all), ("one", line.one), ("none", line.none)] {
            if let Some(ns) = ns {
                lab.report.add("separate trees", what(changed), "flush", "ns", ns);
            }
        }
    }
    table.note("each: of a group on a slot. One: a single group on a single slot changed, whatever there is; the flush's locks are in it, and the pass up to the root. Each more: what all take above that, for each more; its goal is 4 ns a statistic and 10 ns a line that comes from the other CPU");
    if !left_out.is_empty() {
        let mib = BYTES_MAX >> 20;
        table
            .note(format!("left out, their records would take more than {mib} MiB: {}", left_out.join("; ")));
    }
    lab.print(&table)
}

fn check(lab: &mut Lab<'_>, measured: &[Line]) {
    // A group's own part, which all its slots share, shows with few slots.
    for &stats in &STAT_COUNTS {
        let all = measured.iter().filter(|line| line.stats == stats);
        let worst = all.clone().filter_map(|line| line.more).reduce(f64::max);
        lab.report.checks.push(Check::at_most(
            format!("a flush, each more changed group and slot, {stats} statistics, worst"),
            worst,
            goal_ns(stats),
            "ns",
        ));
        let one = |line: &&Line| Some((line.slots * line.groups, line.one?.median));
        let ones: Vec<_> = all.filter_map(|line| one(&line)).collect();
        let (least, most) = (ones.iter().min_by_key(|one| one.0), ones.iter().max_by_key(|one| one.0));
        if let (Some(least), Some(most)) = (least, most)
            && least.0 < most.0
        {
            lab.report.checks.push(Check::at_most(
                format!("a flush of one change, {stats} statistics, {}x as much about", most.0 / least.0),
                Some(most.1 / least.1),
                2.0,
                "x",
            ));
        }
    }
}
