//! What it costs to have groups: making and removing one among many, adding to a statistic, the charge pair.
//!
//! An access reads where the record is and stands in a section meanwhile, so that records can move. Measured beside: the same
//! where they are told not to, and the additions that a machine can do at best.
//!
//! - I1. What was added is in the sums, and nothing is left charged; else the run ends with an error.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use memgroup_percpu::{PerCpu, SlotSource};

use super::calls::{self, Calls};
use super::groups::{Groups, Member, Mode, Plan};
use super::kernel::Anchor;
use super::script::Script;
use super::seed;
use crate::Error;
use crate::harness::Lab;
use crate::harness::clock;
use crate::harness::random::Random;
use crate::harness::report::{Check, params};
use crate::harness::stats::Summary;
use crate::harness::table::{Table, count, figure};
use crate::harness::window::{Variant, Work};

/// Calls of making and removing that are timed, for each of the effort's calls.
const PAIRS_A_CALL: usize = 10;
const STATISTIC: usize = 100;

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
    let mut table =
        Table::new(format!("making and removing one group beside {there} others"), calls::COLUMNS);
    let mut row = |lab: &mut Lab<'_>, variant: &str, name: &str, call: &'static str, calls: Calls| {
        table.row(calls.row(format!("{name}: {call}")));
        let params = |of: &str| params([("groups", script.groups().into()), ("of", of.into())]);
        lab.report.add(variant, params("each call"), call, "us", calls.us);
        lab.report.add_count(variant, params("all calls, mean"), call, "us", calls.mean_us);
    };
    for mode in COMPARED {
        let timed = time_groups(lab, script, Plan { mode, ..plan })?;
        for (call, calls) in timed {
            row(lab, mode.name(), mode.name(), call, calls);
        }
        if mode == Mode::Relocated {
            let slower = timed[2].1.us.median.max(timed[3].1.us.median);
            let name = format!("making and removing a group beside {there}, median");
            lab.report.checks.push(Check::at_most(name, Some(slower), 5.0, "us"));
        }
    }
    if let Some(cleared) = time_clearing(lab, plan) {
        row(lab, "no group", "no group", "clearing its records' bytes on all slots", cleared);
    }
    if let Some(anchor) = anchor {
        let release = format!("Linux {}", anchor.release);
        row(lab, "kernel", &release, "mkdir", anchor.mkdir);
        row(lab, "kernel", &release, "rmdir", anchor.rmdir);
    }
    match anchor {
        Some(anchor) => table.note(format!(
            "Linux takes {} us for both (medians)",
            figure(anchor.mkdir.us.median + anchor.rmdir.us.median)
        )),
        None => table.note(format!(
            "Linux takes about {} us to make and remove a memory cgroup on one machine; --kernel measures it on this one",
            figure(seed::KERNEL_PAIR_US)
        )),
    }
    table.note("of all others: the group that is removed is drawn from those that are there, all of which were used on every slot; its records wait for the next group, so nothing goes back here. A new group has a stock word; the records of its statistics are found and cleared when it is first charged or added to. What removals take in which much goes back stands above, under \"what a removal took\"");
    lab.print(&table)
}

/// The calls that are timed, in their order.
const CALLS: [&str; 4] = ["create", "remove", "create and remove", "the same, of all others"];

/// Times creations, removals, both, and both where the group that is removed is another than the new one.
fn time_groups(
    lab: &mut Lab<'_>,
    script: Script,
    plan: Plan,
) -> Result<[(&'static str, Calls); CALLS.len()], Error> {
    let mut groups = Groups::new(plan)?;
    let others =
        script.in_order().map(|name| groups.create_used(&name)).collect::<Result<Vec<Member>, Error>>()?;
    let (calls, random) = (lab.effort.calls * PAIRS_A_CALL, Random::new(lab.random.next()));
    let work = Mutex::new(Some((groups, others, random)));
    let (groups, others, ticks) = lab
        .crew
        .run(1, move |_| {
            let work = work.lock().ok().and_then(|mut work| work.take());
            let (mut groups, mut others, mut random) = work.ok_or_else(again)?;
            let ticks = time_calls(&mut groups, &mut others, &mut random, calls)?;
            Ok::<_, Error>((groups, others, ticks))
        })
        .remove(0)?;
    for member in others {
        member.remove()?;
    }
    groups.maintain();
    groups.check_gone()?;
    let us = |ticks: &[f64]| ticks.iter().map(|&ticks| lab.clock.ns(ticks) / 1e3).collect::<Vec<f64>>();
    let mut timed = Vec::new();
    for (call, ticks) in CALLS.into_iter().zip(&ticks) {
        timed.push((call, Calls::of(&us(ticks)).ok_or_else(again)?));
    }
    timed.try_into().map_err(|_| again())
}

/// Times what a group that is used cannot do without: as many bytes as its records have on all slots are cleared, in one piece.
fn time_clearing(lab: &Lab<'_>, plan: Plan) -> Option<Calls> {
    let mut bytes = vec![1_u8; plan.record_bytes() as usize * plan.slots.slots()];
    let reading = clock::reading_ticks();
    let times_us: Vec<f64> = (0..lab.effort.calls * PAIRS_A_CALL)
        .map(|_| {
            let begin = clock::now_ordered();
            std::hint::black_box(&mut bytes).fill(0);
            let ticks = (clock::now_ordered() - begin).saturating_sub(reading);
            lab.clock.ns(ticks as f64) / 1e3
        })
        .collect();
    Calls::of(&times_us)
}

/// Ticks of each call, by [`CALLS`].
fn time_calls(
    groups: &mut Groups,
    others: &mut [Member],
    random: &mut Random,
    calls: usize,
) -> Result<[Vec<f64>; CALLS.len()], Error> {
    let reading = clock::reading_ticks();
    let between = |begin: u64, end: u64| (end - begin).saturating_sub(reading) as f64;
    let mut ticks = [(); CALLS.len()].map(|()| Vec::with_capacity(calls));
    for call in 0..calls {
        let name = format!("new_{call}");
        let begin = clock::now_ordered();
        let member = groups.create(&name)?;
        let made = clock::now_ordered();
        member.remove()?;
        let end = clock::now_ordered();
        for (ticks, taken) in ticks.iter_mut().zip([(begin, made), (made, end), (begin, end)]) {
            ticks.push(between(taken.0, taken.1));
        }
    }
    for call in 0..calls {
        let name = format!("another_{call}");
        let drawn = (random.next() % others.len() as u64) as usize;
        let begin = clock::now_ordered();
        let new = groups.create(&name)?;
        std::mem::replace(&mut others[drawn], new).remove()?;
        ticks[3].push(between(begin, clock::now_ordered()));
    }
    Ok(ticks)
}

fn again() -> Error {
    Error::Wrong("a job of one thread ran twice".to_owned())
}

/// Measures adding to a statistic and the charge pair, on the machine's slots, where records may move and where not.
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
        lines.push((format!("add to a statistic, {}", house.mode.name()), house.adds.clone()));
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
    checks.push(Check::at_most("adding to a statistic through a handle, 1 thread", medians[1], 3.5, "ns"));
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
        let sum = member.level(STATISTIC).map_or(0, |level| level.value());
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
        let level =
            self.0.level(STATISTIC).ok_or_else(|| Error::Wrong("nothing is registered".to_owned()))?;
        for _ in 0..count {
            level.add(1);
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
