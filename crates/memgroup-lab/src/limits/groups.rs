//! Groups that come and go, and the memory that they take and leave.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex};

use memgroup::{Config, Freshness, Group, Hierarchy, Maintenance, Reach, stats::io};
use memgroup_percpu::pin_virtual;

use super::{LEVELS, PAGE, many_groups};
use crate::harness::ledger::CasLevel;
use crate::harness::prelude::*;

/// Slots of the process that measures memory.
const SLOTS: usize = 2;
const STAGES: [&str; 4] = ["live", "removed", "maintained", "dropped"];
const GONE: &str = "failed to remove an empty group";
const FITS: &str = "a charge without a limit";

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    lives(lab)?;
    removals(lab)?;
    memory(lab)
}

/// A name of 16 bytes.
fn name_of(number: usize) -> String {
    format!("tenant-{number:09}")
}

/// A parent with three counters to the root, the root's included.
fn parent(config: Config, groups: usize) -> Result<(Hierarchy, Group)> {
    // Groups that pass count until their memory is given to the next.
    let hierarchy = hierarchy(config.groups_max(2 * groups as u32 + 100_000))?;
    let parent = child(&child(&hierarchy.root(), "level1")?, "parent")?;
    Ok((hierarchy, parent))
}

fn charged(parent: &Group, name: &str) -> Result<Group> {
    let group = child(parent, name)?;
    drop(group.try_charge(PAGE).or_wrong(FITS)?);
    Ok(group)
}

/// The control: names in a map behind a mutex, each with a line that is charged outside of it.
struct CasMap {
    groups: Mutex<HashMap<Box<str>, Arc<CasLevel>>>,
    above: [CasLevel; LEVELS - 1],
}

impl CasMap {
    fn live(&self, name: &str) -> Result<()> {
        let line = Arc::new(CasLevel::new(FAR_BYTES, 0));
        let before = lock(&self.groups).insert(name.into(), Arc::clone(&line));
        let levels = || std::iter::once(&*line).chain(&self.above);
        let took = levels().all(|level| level.take(PAGE));
        levels().for_each(|level| level.give(PAGE));
        let after = lock(&self.groups).remove(name);
        ensure(before.is_none() && took && after.is_some(), || format!("the control lost the group {name}"))
    }
}

/// The life of a group of a name.
type Live<'l> = dyn Fn(&str) -> Result<()> + Sync + 'l;

fn lives(lab: &mut Lab<'_>) -> Result<()> {
    let (hierarchy, parent) = parent(Config::with_slots(lab.slots), 0)?;
    let above = std::array::from_fn(|_| CasLevel::new(FAR_BYTES, 0));
    let cas = CasMap { groups: Mutex::default(), above };
    let names: Vec<Vec<String>> =
        (0..lab.args.threads()).map(|thread| (0..64).map(|at| name_of(thread * 64 + at)).collect()).collect();
    let lives: [(_, &Live<'_>); 2] = [
        ("CAS map (control)", &|name| cas.live(name)),
        ("memgroup", &|name| charged(&parent, name)?.remove().or_wrong(GONE)),
    ];
    let (threads, params) = (lab.args.threads(), json!({}));
    let cases = lives.iter().flat_map(|(by, live)| {
        let names = &names;
        let work = move |thread: usize, cursor: &mut usize, count| {
            for _ in 0..count {
                live(&names[thread][*cursor])?;
                *cursor = (*cursor + 1) % 64;
            }
            Ok(count)
        };
        Case::scaled(threads, "a life", by, &params, work)
    });
    let text = [
        "create a group, charge and free 4 KiB, remove it",
        "CAS map: names in a hash map behind a mutex, each with a line that is charged outside of it",
    ];
    let found = lab.measure(text, lab.effort.windows, cases.collect(), [], |_, _, _| [])?;
    let [one, all] = found.scale(threads, "a life", "memgroup");
    lab.at_most("create, charge and remove, 1 thread", one.map(|ns| ns / 1e3), 0.4, "us");
    if threads > 1 {
        let scale = ratio(one, all).map(|scale| scale * threads as f64);
        lab.at_least(format!("groups a second, {threads} threads over 1"), scale, 1.5, "x");
    }
    expect("groups left by the engine", parent.children().len(), 0)?;
    expect("groups and bytes left by the control", (lock(&cas.groups).len(), cas.above[0].usage()), (0, 0))?;
    check_empty(&hierarchy)
}

/// The removal of many groups, one after the other.
fn removals(lab: &mut Lab<'_>) -> Result<()> {
    let groups = many_groups(lab.args);
    let (hierarchy, parent) = parent(Config::with_slots(lab.slots), groups)?;
    let made = (0..groups).map(|number| charged(&parent, &name_of(number))).collect::<Result<Vec<_>>>()?;
    let watch = lab.clock.stopwatch();
    let removed = lab
        .workers
        .run_one(|| made.iter().map(|group| timed_removal(watch, group)).collect::<Result<Vec<_>>>())?;
    let of = Quantiles::of(removed).ok_or("none").or_wrong("removals")?;
    let names = ["removal p50", "removal p99", "removal p99.99", "removal max"];
    let us = [of.p50, of.p99, of.p9999, of.max].map(|ns| ns / 1e3);
    let found = Samples::from([0, 1, 2, 3].map(|at| (names[at], us[at])));
    let title = format!("removals of {} groups, one after the other: wall time", count(groups as u64));
    let rows = [("remove()", "memgroup", json!({}), &found)];
    lab.show(title, &names.map(|name| (name, "us")), rows, "memory that goes back to the system goes back in these removals. One during which the kernel took the thread off its CPU counts with its CPU time")?;
    lab.at_most("remove(), p99.99", Some(us[2]), 100.0, "us");
    drop(made);
    check_empty(&hierarchy)
}

/// Nanoseconds of a removal.
fn timed_removal(watch: Stopwatch, group: &Group) -> Result<f64> {
    let (usage, cpu) = (ThreadUsage::now(), thread_cpu_ns());
    let (ns, removed) = watch.time(|| group.remove());
    removed.or_wrong(GONE)?;
    let cpu_ns = (thread_cpu_ns() - cpu) as f64;
    Ok(if usage.is_undisturbed() { ns } else { ns.min(cpu_ns) })
}

/// Prints the resident bytes at each of the [`STAGES`]. It runs in a process that has done nothing
/// else, so no memory is used again.
pub(super) fn memory_of(groups: usize, out: &mut dyn Write) -> Result<()> {
    // The handles are the program's. Their pages become resident now, because each is written.
    let mut handles: Vec<Option<Group>> = (0..groups).map(|_| std::hint::black_box(None)).collect();
    let start = resident_bytes()?;
    let mut reach = || writeln!(out, "{}", resident_bytes()?.saturating_sub(start)).map_err(Error::Output);
    let (hierarchy, parent) = parent(Config::with_slots(virtual_slots(SLOTS)?), groups)?;
    for (number, handle) in handles.iter_mut().enumerate() {
        let group = child(&parent, &name_of(number))?;
        for slot in 0..SLOTS {
            let _pin = pin_virtual(slot);
            drop(group.try_charge(PAGE).or_wrong(FITS)?);
            hierarchy.io().add(&group, io::RBYTES, 1);
        }
        *handle = Some(group);
    }
    reach()?;
    let written = hierarchy.io().get(&parent, io::RBYTES, Reach::Subtree, Freshness::Fresh);
    expect("statistics written by the groups", written, (groups * SLOTS) as i64)?;
    expect_bytes(&parent, "usage of the groups", parent.usage_exact(), 0)?;
    handles.iter_mut().filter_map(Option::take).try_for_each(|group| group.remove().or_wrong(GONE))?;
    reach()?;
    hierarchy.maintain(Maintenance::new().all());
    reach()?;
    drop((parent, hierarchy));
    reach()
}

fn memory(lab: &mut Lab<'_>) -> Result<()> {
    if !lab.has_program("bytes of a group")? {
        return Ok(());
    }
    let (groups, bytes) = (many_groups(lab.args), lab.process::<4>(&["limits", "--memory-of-groups"])?);
    let found = Samples::from([0, 1, 2, 3].map(|at| (STAGES[at], bytes[at] / groups as f64)));
    let title = format!("resident bytes for each of {} groups on {SLOTS} slots", count(groups as u64));
    let rows = [("memgroup", "memory of a group", json!({}), &found)];
    lab.show(title, &STAGES.map(|stage| (stage, "bytes")), rows, "of a process that has done nothing else, without the program's code. Each group has a name of 16 bytes, was charged and wrote a statistic on both slots, and was freed. Dropped: the hierarchy is. The system frees memory some time after a program gave it back")?;
    lab.at_most("bytes of a live group", found.median("live"), 600.0, "bytes");
    for (stage, most) in [(1, 30.0), (2, 10.0), (3, 1.0)] {
        let left = bytes[stage] / bytes[0] * 100.0;
        lab.at_most(format!("left of them, {}", STAGES[stage]), Some(left), most, "%");
    }
    Ok(())
}
