//! The cost of having groups: making and removing one among many, adding to a statistic, the charge pair.
//!
//! An access reads the place of the record and stands in a section meanwhile, so that records can move. Measured beside: the same
//! where they must not move, and the least that a machine needs for the additions.
//!
//! - I1. The sums are the additions, and nothing is left charged; else the run ends with an error.

use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::{Freshness, Reach, StatKey, Statistics};
use memgroup_percpu::PerCpu;

use super::Calls;
use super::groups::{Groups, Member, Mode, Plan};
use super::kernel::Kernel;
use super::script::Script;
use crate::harness::prelude::*;

/// Calls of making and removing that are timed, for each of the effort's calls.
const PAIRS_A_CALL: usize = 10;
const STATISTIC: usize = 100;
/// Microseconds to make and to remove one memory cgroup, on the machine on which Linux 6.18 was measured for this
/// project: it stands in where the running kernel is not asked.
const KERNEL_PAIR_US: f64 = 150.0;
/// The compared modes: nothing moves, and everything may.
const COMPARED: [Mode; 2] = [Mode::Kept, Mode::Relocated];

/// Times making and removing one group while the script's groups are there.
pub(super) fn groups(lab: &mut Lab<'_>, script: Script, plan: Plan, kernel: Option<&Kernel>) -> Result<()> {
    let there = count(script.groups() as u64);
    let title = format!("making and removing one group beside {there} others");
    let mut table = Table::new(title, Calls::COLUMNS);
    let mut row = |lab: &mut Lab<'_>, variant: &str, name: &str, call: &'static str, calls: Calls| {
        table.row(format!("{name}: {call}"), calls.cells());
        let params = |of: &str| json!({"groups": script.groups(), "of": of});
        lab.record(variant, params("each call")).summary(call, "us", Some(calls.us));
        lab.record(variant, params("all calls, mean")).value(call, "us", Some(calls.mean_us));
    };
    for mode in COMPARED {
        let timed = time_groups(lab, script, Plan { mode, ..plan })?;
        let slower = timed[2].1.us.median.max(timed[3].1.us.median);
        for (call, calls) in timed {
            row(lab, mode.name(), mode.name(), call, calls);
        }
        if mode == Mode::Relocated {
            let name = format!("making and removing a group beside {there}, median");
            lab.at_most(name, Some(slower), 5.0, "us");
        }
    }
    let cleared = time_clearing(lab, plan)?;
    row(lab, "no group", "no group", "clearing its records' bytes on all slots", cleared);
    let mut note = format!(
        "Linux takes about {} us to make and remove a memory cgroup on one machine; --kernel measures it on this one",
        figure(KERNEL_PAIR_US)
    );
    if let Some(kernel) = kernel {
        let release = format!("Linux {}", kernel.release);
        row(lab, "kernel", &release, "mkdir", kernel.mkdir);
        row(lab, "kernel", &release, "rmdir", kernel.rmdir);
        let both = kernel.mkdir.us.median + kernel.rmdir.us.median;
        note = format!("Linux takes {} us for both (medians)", figure(both));
    }
    table.note(note);
    table.note("of all others: the removed group is drawn from those that are there, all of which were used on every slot; its records wait for the next group, so no memory goes back here. A new group has a stock word; the records of its statistics are found and cleared when it is first charged or added to. Removals that give much memory back stand above, under \"what a removal took\"");
    lab.print(&table)
}

/// The calls that are timed, in their order.
const CALLS: [&str; 4] = ["create", "remove", "create and remove", "the same, of all others"];

/// Microseconds of creations, removals, both, and both where the removed group is another than the new one.
fn time_groups(lab: &mut Lab<'_>, script: Script, plan: Plan) -> Result<Vec<(&'static str, Calls)>> {
    let mut groups = Groups::new(plan)?;
    let mut others =
        script.names().map(|(name, _)| groups.create_used(&name)).collect::<Result<Vec<Member>>>()?;
    let (calls, mut random) = (lab.effort.calls * PAIRS_A_CALL, Random::new(lab.random.next()));
    let watch = lab.clock.stopwatch();
    let mut us = CALLS.map(|_| Vec::with_capacity(calls));
    lab.workers.run_one(|| {
        for call in 0..calls {
            let name = format!("new_{call}");
            let (create, member) = watch.time(|| groups.create(&name));
            let member = member?;
            let (remove, removed) = watch.time(|| member.remove());
            removed?;
            for (us, ns) in us.iter_mut().zip([create, remove, create + remove]) {
                us.push(ns / 1e3);
            }
        }
        for call in 0..calls {
            let name = format!("another_{call}");
            let drawn = (random.next() % others.len() as u64) as usize;
            let (ns, done) = watch.time(|| {
                let new = groups.create(&name)?;
                std::mem::replace(&mut others[drawn], new).remove()
            });
            done?;
            us[3].push(ns / 1e3);
        }
        Ok::<(), Error>(())
    })?;
    others.into_iter().try_for_each(Member::remove)?;
    groups.maintain();
    groups.check_gone()?;
    CALLS.into_iter().zip(&us).map(|(call, us)| Ok((call, Calls::of(us)?))).collect()
}

/// Times the least work of a group that is used: as many bytes as its records have on all slots are cleared, in one piece.
fn time_clearing(lab: &Lab<'_>, plan: Plan) -> Result<Calls> {
    let mut bytes = vec![1_u8; plan.record_bytes() as usize * plan.slots.slots()];
    let watch = lab.clock.stopwatch();
    let mut clear = || watch.time(|| std::hint::black_box(&mut bytes).fill(0)).0 / 1e3;
    Calls::of(&(0..lab.effort.calls * PAIRS_A_CALL).map(|_| clear()).collect::<Vec<f64>>())
}

/// Measures adding to a statistic and the charge pair, on the machine's slots, where records may move and where not.
pub(super) fn accesses(lab: &mut Lab<'_>, plan: Plan) -> Result<()> {
    let (slots, plan) = (lab.slots, Plan { slots: lab.slots, groups: 1, ..plan });
    let [kept, relocated] = COMPARED.map(|mode| Leaf::build(Plan { mode, ..plan }));
    let (kept, relocated) = (kept?, relocated?);
    let (words, word) = (PerCpu::<AtomicU64>::new(slots.slots()), AtomicU64::new(0));
    // ORDERING: Relaxed, both; a statistic orders nothing.
    let slotted = each(|| Ok(words.get(slots.current()).fetch_add(1, Ordering::Relaxed)));
    let bare = each(|| Ok(word.fetch_add(1, Ordering::Relaxed)));
    let [name_kept, name_relocated] = COMPARED.map(Mode::name);
    let columns = ["ns: median (min..p90)", "1 thread", "2 threads, same group", ""];
    let mut table = Table::new("using a group's record through its handle", columns);
    let measured = {
        let rows: [(&str, &Work<'_>); 6] = [
            (&format!("add to a statistic, {name_kept}"), &|_, _, count| kept.add(count)),
            (&format!("add to a statistic, {name_relocated}"), &|_, _, count| relocated.add(count)),
            ("an addition to the slot's word, no group", &slotted),
            ("a bare addition to one word", &bare),
            (&format!("charge pair, depth 3, {name_kept}"), &each(|| kept.member.pair())),
            (&format!("charge pair, depth 3, {name_relocated}"), &each(|| relocated.member.pair())),
        ];
        lab.compare(&mut table, "access", json!({}), 2, lab.effort.windows, &rows)?
    };
    let added = |row: usize| measured[row].iter().map(|one| one.ops).sum();
    kept.check(added(0))?;
    relocated.check(added(1))?;
    table.note("every access stands in a section, so that a record is given back only after its last reader, whether records may move or not; nothing is moved while this is measured");
    let one_thread = |row: usize| median(measured[row][0].ns);
    lab.at_most("adding to a statistic through a handle, 1 thread", one_thread(1), 3.5, "ns");
    lab.at_most("charge pair, depth 3, relocation possible", one_thread(5), 6.0, "ns");
    lab.print(&table)
}

/// One group three counters deep.
struct Leaf {
    groups: Groups,
    member: Member,
}

impl Leaf {
    fn build(plan: Plan) -> Result<Leaf> {
        let mut groups = Groups::new(plan)?;
        let member = groups.create("leaf")?;
        limit(&member.group, FAR_BYTES)?;
        Ok(Leaf { groups, member })
    }

    fn statistic(&self) -> Result<(&Statistics, StatKey)> {
        let key = |of: &Statistics| of.keys().nth(STATISTIC);
        let found = self.member.statistics.as_ref().and_then(|of| Some((of, key(of)?)));
        found.ok_or("none").or_wrong("a registered statistic")
    }

    fn add(&self, count: u64) -> Result<u64> {
        let (statistics, key) = self.statistic()?;
        for _ in 0..count {
            statistics.add(&self.member.group, key, 1);
        }
        Ok(count)
    }

    /// The sum is the additions (I1), and nothing is left.
    fn check(self, added: u64) -> Result<()> {
        let (statistics, key) = self.statistic()?;
        let sum = statistics.get(&self.member.group, key, Reach::Local, Freshness::Fresh);
        expect(format_args!("additions, {}", self.groups.plan.mode.name()), sum, added as i64)?;
        self.member.remove()?;
        self.groups.check_gone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::Page;
    use memgroup_percpu::SlotSource;

    #[test]
    fn fails_when_an_addition_is_missing_from_the_sum() {
        let built = || {
            let leaf = Leaf::build(Plan::new(Mode::Relocated, Page::K4, SlotSource::detect(), 1)).unwrap();
            leaf.add(1000).unwrap();
            (0..1000).for_each(|_| leaf.member.pair().unwrap());
            leaf
        };
        built().check(1000).unwrap();
        assert!(matches!(built().check(1001), Err(Error::Wrong(_))));
    }
}
