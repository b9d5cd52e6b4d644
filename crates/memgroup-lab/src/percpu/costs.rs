//! What it costs to have groups: making and removing one among many, adding to a counter, the charge pair.
//!
//! An access reads where the record is and stands in a section meanwhile, so that records can move. Measured beside: the same
//! where they are told not to, and the additions that a machine can do at best.
//!
//! - I1. What was added is in the sums, and nothing is left charged; else the run ends with an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memgroup_percpu::{PerCpu, SlotSource};

use super::groups::{Groups, Member, Mode, Plan};
use super::kernel::Anchor;
use super::script::Script;
use super::seed;
use crate::Error;
use crate::harness::Lab;
use crate::harness::clock;
use crate::harness::report::{Check, params};
use crate::harness::stats::Summary;
use crate::harness::table::{Table, count, figure, figure_or_dash};
use crate::harness::window::{Variant, Work};

/// Calls of making and removing that are timed, for each of the effort's calls.
const PAIRS_A_CALL: usize = 10;
const COUNTER: u32 = 100;

/// The modes whose costs are compared: nothing moves, and everything may.
const COMPARED: [Mode; 2] = [Mode::Kept, Mode::Relocated];

/// Times making and removing one group while the script's groups are there.
pub(super) fn groups(
    lab: &mut Lab<'_>,
    script: Script,
    plan: Plan,
    anchor: Option<&Anchor>,
) -> Result<(), Error> {
    let there = count(script.groups() as u64);
    let columns = ["us a group", "median", "min", "p90", "calls"];
    let mut table = Table::new(format!("making and removing one group beside {there} others"), columns);
    let row = |table: &mut Table, name: String, us: Option<Summary>| {
        let of = |part: fn(Summary) -> f64| figure_or_dash(us.map(part));
        let calls = count(us.map_or(0, |us| us.count) as u64);
        table.row(vec![name, of(|us| us.median), of(|us| us.min), of(|us| us.p90), calls]);
    };
    for mode in COMPARED {
        let ns = time_groups(lab, script, Plan { mode, ..plan })?;
        row(&mut table, mode.name().to_owned(), ns.map(|ns| ns.scaled(1e-3)));
        let params = params([("groups", script.groups().into())]);
        let clock = lab.clock;
        lab.report.add_time(&clock, mode.name(), params, "create and remove", ns);
        if mode == Mode::Relocated {
            let us = ns.map(|ns| ns.median / 1e3);
            let name = format!("making and removing a group beside {there}, median");
            lab.report.checks.push(Check::at_most(name, us, 5.0, "us"));
        }
    }
    match anchor {
        Some(anchor) => {
            row(&mut table, format!("Linux {}: mkdir", anchor.release), Some(anchor.mkdir_us));
            row(&mut table, format!("Linux {}: rmdir", anchor.release), Some(anchor.rmdir_us));
        }
        None => table.note(format!(
            "Linux takes about {} us to make and remove a memory cgroup on one machine; --kernel measures it on this one",
            figure(seed::KERNEL_PAIR_US)
        )),
    }
    table.note("the record is taken, cleared on every slot and given back; a median leaves out the removals that give pages back, p90 and beyond show them");
    lab.print(&table)
}

fn time_groups(lab: &Lab<'_>, script: Script, plan: Plan) -> Result<Option<Summary>, Error> {
    let mut groups = Groups::new(plan)?;
    let others =
        script.in_order().map(|name| groups.create(&name)).collect::<Result<Vec<Member>, Error>>()?;
    let calls = lab.effort.calls * PAIRS_A_CALL;
    let reading = clock::reading_ticks();
    let (groups, ticks) = lab
        .crew
        .run(1, {
            let groups = std::sync::Mutex::new(Some(groups));
            move |_| {
                let mut groups = groups.lock().ok().and_then(|mut groups| groups.take()).ok_or_else(again)?;
                let mut ticks = Vec::with_capacity(calls);
                for call in 0..calls {
                    let name = format!("new_{call}");
                    let begin = clock::now_ordered();
                    groups.create(&name)?.remove()?;
                    ticks.push((clock::now_ordered() - begin).saturating_sub(reading) as f64);
                }
                Ok::<_, Error>((groups, ticks))
            }
        })
        .remove(0)?;
    for member in others {
        member.remove()?;
    }
    groups.maintain();
    groups.check_gone()?;
    Ok(Summary::of(&ticks.into_iter().map(|ticks| lab.clock.ns(ticks)).collect::<Vec<_>>()))
}

fn again() -> Error {
    Error::Wrong("a job of one thread ran twice".to_owned())
}

/// Measures adding to a counter and the charge pair, on the machine's slots, where records may move and where not.
pub(super) fn accesses(lab: &mut Lab<'_>, plan: Plan) -> Result<(), Error> {
    let plan = Plan { slots: lab.slots, groups: 1, ..plan };
    let houses = COMPARED
        .map(|mode| House::build(Plan { mode, ..plan }))
        .into_iter()
        .collect::<Result<Vec<House>, Error>>()?;
    let bare = Arc::new(Bare { word: AtomicU64::new(0) });
    let slotted = Arc::new(Slotted { words: PerCpu::new(lab.slots.slots()), slots: lab.slots });
    let mut lines: Vec<(String, Arc<dyn Work>)> = Vec::new();
    for house in &houses {
        lines.push((format!("add to a counter, {}", house.mode.name()), house.adds.clone()));
    }
    lines.push(("an addition to the slot's word, no group".to_owned(), slotted));
    lines.push(("a bare addition to one word".to_owned(), bare));
    for house in &houses {
        lines.push((format!("charge pair, depth 3, {}", house.mode.name()), house.pairs.clone()));
    }
    let variants: Vec<Variant> = lines
        .iter()
        .flat_map(|(_, work)| [1, 2].map(|threads| Variant::of(Arc::clone(work), threads)))
        .collect();
    let measured = lab.interleave(&variants)?;

    let columns = ["ns: median (min..p90)", "1 thread", "2 threads, same group"];
    let mut table = Table::new("using a group's record through its handle", columns);
    let mut medians = Vec::new();
    for ((name, _), both) in lines.iter().zip(measured.chunks_exact(2)) {
        table.row(vec![name.clone(), cell(both[0].ns), cell(both[1].ns)]);
        medians.push(both[0].ns.map(|ns| ns.median));
        for (threads, measured) in [1, 2].into_iter().zip(both) {
            let clock = lab.clock;
            lab.report.add_time(&clock, name, params([("threads", threads.into())]), "access", measured.ns);
        }
    }
    for (house, first) in houses.into_iter().zip([0, 2]) {
        house.check(measured[first].ops + measured[first + 1].ops)?;
    }
    table.note("every access stands in a section, so that a record is given back only after its last reader, whether records may move or not; nothing is moved while this is measured");
    let checks = &mut lab.report.checks;
    checks.push(Check::at_most("adding to a counter through a handle, 1 thread", medians[1], 3.5, "ns"));
    checks.push(Check::at_most("charge pair, depth 3, relocation possible", medians[5], 6.0, "ns"));
    lab.print(&table)
}

fn cell(ns: Option<Summary>) -> String {
    ns.map_or_else(
        || "-".to_owned(),
        |ns| format!("{} ({}..{})", figure(ns.median), figure(ns.min), figure(ns.p90)),
    )
}

/// One group three counters deep, and the work on it.
struct House {
    mode: Mode,
    groups: Groups,
    member: Arc<Member>,
    adds: Arc<Adds>,
    pairs: Arc<Pairs>,
}

impl House {
    fn build(plan: Plan) -> Result<House, Error> {
        let mut groups = Groups::new(plan)?;
        let member = groups.create("leaf")?;
        member.limit_far()?;
        let member = Arc::new(member);
        let (adds, pairs) = (Arc::new(Adds(Arc::clone(&member))), Arc::new(Pairs(Arc::clone(&member))));
        Ok(House { mode: plan.mode, groups, member, adds, pairs })
    }

    /// The sum is what was added (I1), and nothing is left.
    fn check(self, added: u64) -> Result<(), Error> {
        let House { mode, groups, member, adds, pairs } = self;
        let sum = member.sum(COUNTER);
        if u64::try_from(sum) != Ok(added) {
            return Err(Error::Wrong(format!("{added} additions of one, {}, sum up to {sum}", mode.name())));
        }
        drop((adds, pairs));
        // Windows hold their work until they are all dropped; then this is the last.
        if let Some(member) = Arc::into_inner(member) {
            member.remove()?;
            groups.check_gone()?;
        }
        Ok(())
    }
}

struct Adds(Arc<Member>);

impl Work for Adds {
    fn batch(&self, _: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
        for _ in 0..count {
            self.0.add(COUNTER, 1);
        }
        Ok(count)
    }
}

struct Pairs(Arc<Member>);

impl Work for Pairs {
    fn batch(&self, _: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
        for _ in 0..count {
            self.0.pair()?;
        }
        Ok(count)
    }
}

struct Slotted {
    words: PerCpu<AtomicU64>,
    slots: SlotSource,
}

impl Work for Slotted {
    fn batch(&self, _: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
        for _ in 0..count {
            // ORDERING: Relaxed; a statistic orders nothing.
            self.words.get(self.slots.current()).fetch_add(1, Ordering::Relaxed);
        }
        Ok(count)
    }
}

struct Bare {
    word: AtomicU64,
}

impl Work for Bare {
    fn batch(&self, _: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
        for _ in 0..count {
            // ORDERING: Relaxed; a statistic orders nothing.
            self.word.fetch_add(1, Ordering::Relaxed);
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Page;

    #[test]
    fn an_addition_that_is_missing_from_the_sum_is_a_wrong_result() {
        let built = || {
            let house = House::build(Plan::new(Mode::Relocated, Page::K4, SlotSource::detect(), 1)).unwrap();
            house.adds.batch(0, &mut 0, 1000).unwrap();
            house.pairs.batch(0, &mut 0, 1000).unwrap();
            house
        };
        built().check(1000).unwrap();
        assert!(matches!(built().check(1001), Err(Error::Wrong(_))));
    }
}
