//! Groups that come and go: a short life on one thread and on several, and the wall time of each of many removals.

use memgroup::{Config, Group};

use super::ledger::Kind;
use super::maps::{CasMap, MutexMap, Names};
use super::{PAGE, many_groups};
use crate::harness::prelude::*;

/// Microseconds of a life on one thread.
const LIFE_US_MOST: f64 = 0.4;
/// Lives a second on several threads over those on one.
const SCALE_LEAST: f64 = 1.5;
/// Microseconds of a removal, p99.99.
const REMOVAL_US_MOST: f64 = 100.0;
/// Names that a thread uses in turn.
const NAMES: usize = 64;

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    lives(lab)?;
    removals(lab)
}

/// A name of 16 bytes.
pub(super) fn name_of(number: usize) -> String {
    format!("tenant-{number:09}")
}

/// Groups of the engine below a parent of four levels with its children, by the name that makes them.
struct Tenants {
    hierarchy: memgroup::Hierarchy,
    parent: Group,
}

impl Tenants {
    fn build(lab: &Lab<'_>, groups: usize, on_removal: bool) -> Result<Tenants> {
        let config = Config::with_slots(lab.slots).groups_max(groups as u32 + 1_000);
        let hierarchy = hierarchy(config.maintain_on_removal(on_removal))?;
        let parent = child(&child(&hierarchy.root(), "level1")?, "parent")?;
        Ok(Tenants { hierarchy, parent })
    }

    fn create(&self, name: &str) -> Result<Group> {
        let group = child(&self.parent, name)?;
        drop(group.try_charge(PAGE).or_wrong("a charge without a limit")?);
        Ok(group)
    }

    fn live(&self, name: &str) -> Result<()> {
        self.create(name)?.remove().or_wrong("failed to remove an empty group")
    }
}

fn lives(lab: &mut Lab<'_>) -> Result<()> {
    let many = lab.pick(10, 10_000, 10_000);
    let names: Vec<Vec<String>> = (0..lab.args.threads())
        .map(|thread| (0..NAMES).map(|name| format!("thread{thread}-{name:05}")).collect())
        .collect();
    let mut table = Table::new(
        "create a group, charge and free 4 KiB, remove it; us",
        ["beside; threads", "memgroup", "over CAS", "groups/s over 1 thread", "CAS map", "mutex map"],
    );
    for beside in [0, many] {
        let tenants = Tenants::build(lab, beside, true)?;
        let (cas, mutex) = (CasMap::new(), MutexMap::default());
        for number in 0..beside {
            let name = name_of(number);
            tenants.create(&name)?;
            [&cas as &dyn Names, &mutex].into_iter().try_for_each(|names| names.create(&name))?;
        }
        let turn = |thread: usize, cursor: &mut usize, count, live: &dyn Fn(&str) -> Result<()>| {
            for _ in 0..count {
                live(&names[thread][*cursor])?;
                *cursor = (*cursor + 1) % NAMES;
            }
            Ok(count)
        };
        let of_engine = |thread: usize, cursor: &mut usize, count| {
            turn(thread, cursor, count, &|name| tenants.live(name))
        };
        let of_cas =
            |thread: usize, cursor: &mut usize, count| turn(thread, cursor, count, &|name| cas.live(name));
        let of_mutex =
            |thread: usize, cursor: &mut usize, count| turn(thread, cursor, count, &|name| mutex.live(name));
        let works: [&Work<'_>; 3] = [&of_engine, &of_cas, &of_mutex];
        let threads = lab.one_and_all();
        let variants: Vec<Variant<'_>> = threads
            .iter()
            .flat_map(|&threads| works.iter().map(move |&work| Variant::of(work, threads)))
            .collect();
        let measured = lab.interleave(&variants)?;
        show_lives(lab, &mut table, beside, &threads, &measured);
        check_empty(&tenants.hierarchy)?;
        expect("bytes and groups of the controls", (cas.usage(), mutex.usage()), (0, 0))?;
        expect("groups left by the engine", tenants.parent.children().len(), beside)?;
        expect("groups left by the controls", (cas.list(), mutex.list()), (beside, beside))?;
        note_windows(&mut table, &measured);
    }
    table.note("CAS map: names in a hash map behind a mutex, each with a line that is charged outside the lock. Mutex map: names and counters behind one mutex. Medians hide the few removals that give memory back; the next table shows them");
    lab.print(&table)
}

fn show_lives(lab: &mut Lab<'_>, table: &mut Table, beside: usize, threads: &[usize], measured: &[Measured]) {
    let alone: Vec<Option<f64>> = measured[..3].iter().map(|one| median(one.ns)).collect();
    for (&threads, of) in threads.iter().zip(measured.chunks_exact(3)) {
        let params = json!({"threads": threads, "beside": beside});
        for (kind, one) in [Kind::Engine, Kind::Cas, Kind::Mutex].into_iter().zip(of) {
            lab.record(kind.name(), params.clone()).time("life", one.ns);
        }
        let ns: Vec<Option<f64>> = of.iter().map(|one| median(one.ns)).collect();
        let scale = ratio(alone[0], ns[0]).map(|scale| scale * threads as f64);
        let name = if beside == 0 { "nothing".to_owned() } else { counted(beside as u64, "group") };
        let cells = [
            us_or_dash(ns[0]),
            times(ratio(ns[0], ns[1])),
            times(scale),
            us_or_dash(ns[1]),
            us_or_dash(ns[2]),
        ];
        table.row(format!("{name}; {threads}"), cells);
        if beside > 0 {
            continue;
        }
        if threads == 1 {
            let us = ns[0].map(|ns| ns / 1e3);
            lab.at_most("create, charge and remove, 1 thread", us, LIFE_US_MOST, "us");
        } else {
            lab.at_least(
                format!("create, charge and remove, {threads} threads over 1"),
                scale,
                SCALE_LEAST,
                "x",
            );
        }
    }
}

/// Times each removal; nanoseconds, and how many were disturbed. One during which the kernel took the thread off its CPU counts with its CPU
/// time.
fn timed<G>(
    watch: Stopwatch,
    groups: Vec<G>,
    mut remove: impl FnMut(&G) -> Result<()>,
) -> Result<(Vec<f64>, u64)> {
    let (mut times, mut disturbed) = (Vec::with_capacity(groups.len()), 0);
    for group in groups {
        let (usage, cpu) = (ThreadUsage::now(), thread_cpu_ns());
        let (ns, removed) = watch.time(|| remove(&group));
        removed?;
        let cpu_ns = (thread_cpu_ns() - cpu) as f64;
        let is_whole = usage.is_undisturbed();
        disturbed += u64::from(!is_whole);
        times.push(if is_whole { ns } else { ns.min(cpu_ns) });
    }
    Ok((times, disturbed))
}

fn removals(lab: &mut Lab<'_>) -> Result<()> {
    let (groups, rounds) = (many_groups(lab), lab.pick(1, 1, 3));
    let cases = ["memgroup", "memgroup, without maintenance", "CAS map", "mutex map"];
    let mut found: Vec<(Vec<f64>, u64)> = vec![Default::default(); cases.len()];
    let watch = lab.clock.stopwatch();
    lab.in_turns(rounds, cases.len(), |lab, case| {
        let names = (0..groups).map(name_of);
        let (times, disturbed) = match case {
            0 | 1 => {
                let tenants = Tenants::build(lab, groups, case == 0)?;
                let timed = lab.workers.run_one(|| {
                    let made = names.map(|name| tenants.create(&name)).collect::<Result<Vec<_>>>()?;
                    timed(watch, made, |group| group.remove().or_wrong("failed to remove an empty group"))
                })?;
                check_empty(&tenants.hierarchy)?;
                timed
            }
            _ => {
                let map: Box<dyn Names> =
                    if case == 2 { Box::new(CasMap::new()) } else { Box::new(MutexMap::default()) };
                lab.workers.run_one(|| {
                    let made: Vec<String> = names.collect();
                    made.iter().try_for_each(|name| map.create(name))?;
                    timed(watch, made, |name| map.remove(name))
                })?
            }
        };
        found[case].0.extend(times);
        found[case].1 += disturbed;
        Ok(())
    })?;
    let mut table = Table::new(
        format!("removals of {} groups, one after the other: us of wall time", count(groups as u64)),
        ["", "p50", "p99", "p99.99", "max", "removals", "disturbed"],
    );
    for (name, (times, disturbed)) in cases.into_iter().zip(found) {
        let removals = times.len() as u64;
        let of = Quantiles::of(times);
        let mut record = lab.record(name, json!({"groups": groups}));
        let p9999 = record.us("p9999", of.map(|of| of.p9999));
        let [p50, p99, max] = record.quantiles(of, 1e3);
        table.row(name, [p50, p99, p9999, max, count(removals), count(disturbed)]);
        if name == cases[0] {
            let name = format!("remove(), p99.99 of {}", count(groups as u64));
            lab.at_most(name, of.map(|of| of.p9999 / 1e3), REMOVAL_US_MOST, "us");
        }
    }
    table.note("each group was charged. Without maintenance: maintain_on_removal(false). Disturbed: the kernel took the thread off its CPU; such a removal counts with its CPU time");
    lab.print(&table)
}
