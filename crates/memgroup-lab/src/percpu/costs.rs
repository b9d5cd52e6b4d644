//! What records that can move cost: making and removing a group among many, and what a charging
//! thread pays while another one has memory moved and given back.
//!
//! - I1. The sums are the additions and nothing is left charged, otherwise the run ends with an
//!   error.

use memgroup::{Freshness, Reach, StatKey};

use super::Script;
use super::groups::{Groups, Member, Mode, Plan};
use crate::harness::prelude::*;

/// The statistic that is added to.
const STATISTIC: usize = 100;

/// Makes a group and removes another one, drawn from the script's groups, all of which were used on
/// every slot.
pub(super) fn groups(lab: &mut Lab<'_>, script: Script, plan: Plan) -> Result<()> {
    let (there, modes) = (count(script.groups() as u64), [Mode::Kept, Mode::Relocated]);
    let found = lab.sample(1, 2, |lab, mode, found| {
        let groups = Groups::new(Plan { mode: modes[mode], ..plan })?;
        let mut others =
            script.names().map(|(name, _)| groups.create_used(&name)).collect::<Result<Vec<Member>>>()?;
        let (mut random, watch) = (Random::new(lab.random.next()), lab.clock.stopwatch());
        let (mut created, mut removed) = (Vec::new(), Vec::new());
        lab.workers.run_one(|| {
            for call in 0..lab.effort.calls * 10 {
                let drawn = (random.next() % others.len() as u64) as usize;
                let (ns, new) = watch.time(|| groups.create(&format!("new_{call}")));
                let another = std::mem::replace(&mut others[drawn], new?);
                created.push(ns);
                let (ns, done) = watch.time(|| another.remove());
                removed.push(ns);
                done?;
            }
            Ok::<(), Error>(())
        })?;
        others.into_iter().try_for_each(Member::remove)?;
        groups.maintain();
        groups.check_gone()?;
        found.block("create", created, 1e3);
        found.block("remove", removed, 1e3);
        Ok(())
    })?;
    let columns = ["create p50", "create p99", "create max", "remove p50", "remove p99", "remove max"];
    let rows = modes.into_iter().zip(&found);
    let rows =
        rows.map(|(mode, found)| (mode.name(), mode.name(), json!({"groups": script.groups()}), found));
    let title = format!("making a group and removing another one of {there}");
    lab.show(title, &columns.map(|metric| (metric, "us")), rows, "a new group has a stock word; the records of its statistics are made when it is first charged or added to")?;
    let both = found[1].median("create p50").zip(found[1].median("remove p50"));
    let both = both.map(|(create, remove)| create + remove);
    lab.at_most(format!("making and removing a group beside {there}, p50"), both, 5.0, "us");
    Ok(())
}

/// One group three counters deep.
struct Leaf {
    groups: Groups,
    member: Member,
    key: StatKey,
}

impl Leaf {
    fn build(plan: Plan) -> Result<Leaf> {
        let groups = Groups::new(plan)?;
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

/// What another CPU does beside a charging thread, and whether it calls `maintain`.
const BESIDE: [(&str, Mode, bool); 3] = [
    ("groups come and go, nothing goes back (control)", Mode::Kept, false),
    ("the same, removals give back", Mode::Relocated, false),
    ("the same, maintain after each cycle", Mode::Relocated, true),
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
    let found = lab.sample(blocks, BESIDE.len(), |lab, case, found| {
        let (_, mode, maintains) = BESIDE[case];
        let leaf = Leaf::build(Plan { mode, slots: lab.slots, groups: COME * (cycles + 1), ..plan })?;
        let watch = lab.clock.stopwatch();
        let churn = || come_and_go(&leaf.groups, cycles, maintains);
        let (_, batches) = lab.workers.beside(1, churn, |shift| {
            let mut batches = Vec::new();
            shift.begin(1);
            while shift.lasts() {
                let pair = |_| leaf.member.pair().map(|()| leaf.add());
                let (ns, worked) = watch.time(|| (0..BATCH).try_for_each(pair));
                worked?;
                batches.push(ns / BATCH as f64);
            }
            Ok(batches)
        })?;
        let done = leaf.groups.hierarchy.maintained();
        // Otherwise the row would not measure what it is called.
        ensure(!maintains || (done.moved_bytes > 0 && done.depopulated_bytes > 0), || {
            format!("maintenance moved {} bytes and gave {} back", done.moved_bytes, done.depopulated_bytes)
        })?;
        leaf.check(batches.len() as u64 * BATCH)?;
        found.push("mean", batches.iter().sum::<f64>() / batches.len() as f64);
        found.push("moved", done.moved_bytes as f64 / 1024.0);
        found.block("pair", batches, 1.0);
        Ok(())
    })?;
    let rows = BESIDE.into_iter().zip(&found);
    let rows = rows.map(|((name, ..), found)| (name, name, json!({"call": "pair and addition"}), found));
    let columns =
        [("pair p50", "ns"), ("pair p99", "ns"), ("pair max", "ns"), ("mean", "ns"), ("moved", "kB")];
    let note = format!(
        "each figure is of {BATCH} pairs with an addition, timed together and divided. A cycle makes {COME} groups, uses them and removes {GO}. Moved: in a run of {cycles} cycles"
    );
    lab.show("a charge pair and an addition on one CPU, by what goes on on another", &columns, rows, note)?;
    let over = found[2].over(&found[0], "mean");
    lab.at_most("a pair beside maintenance, mean over beside the same without", over, 1.1, "x");
    Ok(())
}

/// Groups are made, used and removed, cycle after cycle.
fn come_and_go(groups: &Groups, cycles: usize, maintains: bool) -> Result<()> {
    let mut staying = Vec::new();
    for cycle in 0..cycles {
        let make = |number| -> Result<Member> {
            let member = groups.create(&format!("beside{cycle}_{number}"))?;
            member.used().for_each(|key| member.statistics.add(&member.group, key, 1));
            member.pair().map(|()| member)
        };
        let mut made = (0..COME).map(make).collect::<Result<Vec<_>>>()?;
        staying.extend(made.split_off(GO));
        made.into_iter().try_for_each(Member::remove)?;
        if maintains {
            groups.maintain();
        }
    }
    staying.into_iter().try_for_each(Member::remove)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use memgroup::tuning::PageSize;
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
