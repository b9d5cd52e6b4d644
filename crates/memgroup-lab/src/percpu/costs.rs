//! What records that can move cost: making and removing a group among many, and what a charging
//! thread pays while another one has memory moved and given back.
//!
//! - I1. The sums are the additions and nothing is left charged, otherwise the run ends with an
//!   error.

use std::sync::atomic::{AtomicBool, Ordering};

use memgroup::{Freshness, Reach, StatKey};

use super::groups::{Groups, Member, Mode, Plan};
use super::script::Script;
use crate::harness::prelude::*;

/// The statistic that is added to.
const STATISTIC: usize = 100;

/// Makes a group and removes another one, drawn from the script's groups, all of which were used on
/// every slot.
pub(super) fn groups(lab: &mut Lab<'_>, script: Script, plan: Plan) -> Result<()> {
    let there = count(script.groups() as u64);
    let title = format!("making a group and removing another one of {there}: us");
    let columns = ["", "create: p50", "p99", "max", "remove: p50", "p99", "max"];
    let mut table = Table::new(title, columns);
    for mode in [Mode::Kept, Mode::Relocated] {
        let mut groups = Groups::new(Plan { mode, ..plan })?;
        let mut others =
            script.names().map(|(name, _)| groups.create_used(&name)).collect::<Result<Vec<Member>>>()?;
        let (mut random, watch) = (Random::new(lab.random.next()), lab.clock.stopwatch());
        let mut times = [Vec::new(), Vec::new()];
        lab.workers.run_one(|| {
            for call in 0..lab.effort.calls * 10 {
                let drawn = (random.next() % others.len() as u64) as usize;
                let (ns, new) = watch.time(|| groups.create(&format!("new_{call}")));
                let another = std::mem::replace(&mut others[drawn], new?);
                times[0].push(ns);
                let (ns, removed) = watch.time(|| another.remove());
                removed?;
                times[1].push(ns);
            }
            Ok::<(), Error>(())
        })?;
        others.into_iter().try_for_each(Member::remove)?;
        groups.maintain();
        groups.check_gone()?;
        let mut cells = Vec::new();
        let quantiles = times.map(Quantiles::of);
        for (call, quantiles) in ["create", "remove"].into_iter().zip(quantiles) {
            let params = json!({"call": call, "groups": script.groups()});
            cells.extend(lab.record(mode.name(), params).quantiles(quantiles, 1e3));
        }
        table.row(mode.name(), cells);
        if let (Mode::Relocated, [Some(create), Some(remove)]) = (mode, quantiles) {
            let us = (create.p50 + remove.p50) / 1e3;
            lab.at_most(format!("making and removing a group beside {there}, p50"), Some(us), 5.0, "us");
        }
    }
    table.note("a new group has a stock word; the records of its statistics are made when it is first charged or added to");
    lab.print(&table)
}

/// One group three counters deep.
struct Leaf {
    groups: Groups,
    member: Member,
    key: StatKey,
}

impl Leaf {
    fn build(plan: Plan) -> Result<Leaf> {
        let mut groups = Groups::new(plan)?;
        let member = groups.create("leaf")?;
        limit(&member.group, FAR_BYTES)?;
        let key = member.statistics.keys().nth(STATISTIC).ok_or("none").or_wrong("a registered statistic")?;
        Ok(Leaf { groups, member, key })
    }

    fn add(&self) {
        self.member.statistics.add(&self.member.group, self.key, 1);
    }

    /// The sum is the additions (I1), and nothing is left.
    fn check(self, added: u64) -> Result<()> {
        let sum = self.member.statistics.get(&self.member.group, self.key, Reach::Local, Freshness::Fresh);
        expect(format_args!("additions, {}", self.groups.plan.mode.name()), sum, added as i64)?;
        self.member.remove()?;
        self.groups.check_gone()
    }
}

/// What another CPU does beside a charging thread.
const BESIDE: [(&str, Option<Mode>, bool); 4] = [
    ("a thread that computes (control)", None, false),
    ("groups come and go, nothing goes back (control)", Some(Mode::Kept), false),
    ("the same, removals give back", Some(Mode::Relocated), false),
    ("the same, maintain after each cycle", Some(Mode::Relocated), true),
];
/// Groups that come in a cycle, and those of them that go.
const COME: usize = 100;
const GO: usize = 90;
/// Pairs and additions that are timed together.
const BATCH: u64 = 64;

/// A thread charges and adds to one group, while groups of the same hierarchy come and go on
/// another CPU and maintenance moves records and gives pages back: the charged group's among them.
pub(super) fn beside_maintenance(lab: &mut Lab<'_>, plan: Plan) -> Result<()> {
    let (blocks, cycles) = lab.pick((1, 2), (5, 20), (15, 40));
    let mut found = BESIDE.map(|_| (Blocks::default(), Vec::new(), 0.0));
    lab.in_turns(blocks, BESIDE.len(), |lab, case| {
        let (_, mode, maintains) = BESIDE[case];
        let mode = mode.unwrap_or(Mode::Kept);
        let leaf = Leaf::build(Plan { mode, slots: lab.slots, groups: COME * (cycles + 1), ..plan })?;
        let (batches, added) = charge_beside(lab, &leaf, BESIDE[case].1.is_some(), maintains, cycles)?;
        let done = leaf.groups.hierarchy.maintained();
        // Otherwise the row would not measure what it is called.
        ensure(!maintains || (done.moved_bytes > 0 && done.depopulated_bytes > 0), || {
            format!("maintenance moved {} bytes and gave {} back", done.moved_bytes, done.depopulated_bytes)
        })?;
        leaf.check(added)?;
        let (times, means, moved) = &mut found[case];
        means.push(batches.iter().sum::<f64>() / batches.len() as f64);
        times.push(batches);
        *moved += done.moved_bytes as f64;
        Ok(())
    })?;
    let columns = ["on the other CPU", "ns: p50", "p99", "max", "mean", "moved kB"];
    let mut table =
        Table::new("a charge pair and an addition on one CPU, by what goes on on another", columns);
    for ((name, ..), (times, means, moved)) in BESIDE.into_iter().zip(&found) {
        let mut row = lab.record(name, json!({"call": "pair and addition"}));
        row.value("max", "ns", times.max());
        let [p50, p99] = [("p50", times.p50()), ("p99", times.p99())].map(|(metric, ns)| {
            row.summary(metric, "ns", ns);
            figure_or_dash(median(ns))
        });
        row.summary("mean", "ns", Summary::of(means));
        let moved = kib(*moved as u64 / blocks as u64);
        table.row(name, [p50, p99, figure_or_dash(times.max()), figure_or_dash(median_of(means)), moved]);
    }
    table.note(format!("each figure is of {BATCH} pairs with an addition, timed together and divided. A cycle makes {COME} groups, uses them and removes {GO}. Moved: in a run of {cycles} cycles"));
    lab.print(&table)?;
    let mean = |case: usize| median_of(&found[case].1);
    lab.at_most(
        "a pair beside maintenance, mean over beside the same without",
        ratio(mean(3), mean(1)),
        1.1,
        "x",
    );
    Ok(())
}

/// The nanoseconds of a pair and an addition, for each batch, and how many additions there were.
fn charge_beside(
    lab: &Lab<'_>,
    leaf: &Leaf,
    churns: bool,
    maintains: bool,
    cycles: usize,
) -> Result<(Vec<f64>, u64)> {
    let (done, watch) = (AtomicBool::new(false), lab.clock.stopwatch());
    let cycle_ticks = lab.clock.ticks_per_us() * 500;
    let churn = || {
        let mut staying = std::collections::VecDeque::new();
        for cycle in 0..cycles {
            if !churns {
                let until = clock::now() + cycle_ticks;
                while clock::now() < until {
                    std::hint::spin_loop();
                }
                continue;
            }
            let make = |number| -> Result<Member> {
                let member = leaf.groups.create_beside(&format!("beside{cycle}_{number}"))?;
                member.used().for_each(|key| member.statistics.add(&member.group, key, 1));
                member.pair()?;
                Ok(member)
            };
            let made = (0..COME).map(make).collect::<Result<Vec<_>>>()?;
            for (number, member) in made.into_iter().enumerate() {
                if number < GO { member.remove()? } else { staying.push_back(member) }
            }
            if maintains {
                leaf.groups.maintain();
            }
        }
        staying.into_iter().try_for_each(Member::remove)
    };
    let parts = lab.workers.try_run(2, |thread| {
        let (mut batches, mut added) = (Vec::new(), 0);
        if thread == 1 {
            let churned = churn();
            // ORDERING: Relaxed, both; the flag alone is handed over.
            done.store(true, Ordering::Relaxed);
            churned?;
        }
        while thread == 0 && !done.load(Ordering::Relaxed) {
            let (ns, worked) =
                watch.time(|| (0..BATCH).try_for_each(|_| leaf.member.pair().map(|()| leaf.add())));
            worked?;
            batches.push(ns / BATCH as f64);
            added += BATCH;
        }
        Ok((batches, added))
    })?;
    parts.into_iter().next().ok_or("none").or_wrong("two workers")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use memgroup::PageSize;
    use memgroup_percpu::SlotSource;

    #[test]
    fn fails_when_an_addition_is_missing_from_the_sum() {
        let built = || {
            let (mode, page, slots) = (Mode::Relocated, PageSize::Kib4, SlotSource::detect());
            let leaf = Leaf::build(Plan { mode, page, slots, groups: 1 }).unwrap();
            (0..1000).for_each(|_| leaf.add());
            (0..1000).for_each(|_| leaf.member.pair().unwrap());
            leaf
        };
        built().check(1000).unwrap();
        assert!(matches!(built().check(1001), Err(Error::Wrong(_))));
    }
}
