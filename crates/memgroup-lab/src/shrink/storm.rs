//! The cover letter's script: 2,000 groups below one limit of 200 MiB, and 1,000 writers of a file
//! each, all of them runnable at once (`dd ... &`). Before the patches 80.7 % of the kernel's
//! cycles were in the lock and the walk, after them 14.6 % in the walk.
//!
//! A writer is a thread. It charges its file page by page into its group's cache, and room is made
//! from the caches of all groups. There are far more threads than CPUs, so a thread that holds the
//! lock may lose its CPU, and a thread that mounts waits for it and keeps all walks out meanwhile:
//! the letter's case (b). One thread mounts throughout: it registers and removes shrinkers.
//!
//! The kernel's way is a lock tried at each group and held over the callbacks. The controls'
//! writers walk themselves when a charge is refused; the settings of the groups, the stock among
//! them, are the same for all. The thread's second script has a limit of 4 GiB above 3,000 MiB of
//! files: its reclaim comes from the files' inodes and other memory that is not charged here, so it
//! is left out.
//!
//! - I1. After each run the caches' pages are the parent's usage, within its limit. Each page was
//!   charged unless a charge was refused.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::thread::Builder;
use std::time::Duration;

use memgroup::{Config, Hierarchy, ShrinkerConfig, SlotSource};

use super::{GROUPS, LOCK, OURS};
use crate::harness::cache::{BATCH, PAGE, Tenant, idle};
use crate::harness::prelude::*;

const WRITERS: usize = 1_000;
/// The pages of a file.
const FILE_PAGES: u64 = (1 << 20) / PAGE;
const LIMIT_BYTES: u64 = 200 << 20;
const STACK_BYTES: usize = 128 << 10;
/// The pause of the thread that mounts.
const PAUSE: Duration = Duration::from_micros(200);

/// How room is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The writer that was refused walks over all groups, tries a lock of all for reading at each,
    /// and holds it over the callback.
    Lock,
    /// The same walk without the lock.
    Plain,
    Engine,
}

const MODES: [(Mode, &str); 3] =
    [(Mode::Lock, LOCK), (Mode::Plain, "no lock (control)"), (Mode::Engine, OURS)];

/// The work of all writers together.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    charges: u64,
    refusals: u64,
    /// Groups that were passed by because their lock was taken.
    passed_by: u64,
    /// How often the kernel took a writer off its CPU.
    switched: u64,
    cpu_ns: u64,
}

/// Groups below a parent with a limit, each with a cache.
struct Storm {
    mode: Mode,
    tenants: Vec<Tenant>,
    hierarchy: Hierarchy,
    parent: memgroup::Group,
    /// The lock of all groups, and the list that a thread that mounts changes under it.
    lock: RwLock<Vec<u64>>,
}

impl Storm {
    fn build(mode: Mode, slots: SlotSource, groups: usize, max_bytes: u64) -> Result<Storm> {
        let config = Config::with_slots(slots).groups_max(groups as u32 + 3);
        let (hierarchy, parent) = limited_parent(config.reclaim(mode == Mode::Engine), max_bytes)?;
        let tenant = |at| Tenant::new(&parent, &format!("g{at}"), |pages| pages);
        let tenants = (0..groups).map(tenant).collect::<Result<Vec<_>>>()?;
        Ok(Storm { mode, tenants, hierarchy, parent, lock: RwLock::new(Vec::new()) })
    }

    /// One writer: writes its file so many times.
    fn write(&self, writer: usize, times: u64) -> Part {
        let (mut part, mut cursor) = (Part::default(), writer * 2);
        let tenant = &self.tenants[writer];
        'file: for _ in 0..times * FILE_PAGES {
            while tenant.add_page().is_err() {
                if self.mode == Mode::Engine {
                    part.refusals += 1;
                    break 'file;
                }
                self.walk(&mut cursor, &mut part.passed_by);
            }
            part.charges += 1;
        }
        part.switched = ThreadUsage::now().switches_involuntary;
        part.cpu_ns = thread_cpu_ns();
        part
    }

    /// Visits groups from the cursor on until a cache has given pages.
    fn walk(&self, cursor: &mut usize, passed_by: &mut u64) {
        for _ in 0..self.tenants.len() {
            *cursor = (*cursor + 1) % self.tenants.len();
            let held = (self.mode == Mode::Lock).then(|| self.lock.try_read());
            if held.as_ref().is_some_and(|held| held.is_err()) {
                *passed_by += 1;
            } else if self.tenants[*cursor].pages.give_back(BATCH).is_some_and(|bytes| bytes > 0) {
                return;
            }
        }
        std::thread::yield_now();
    }

    /// Mounts and unmounts until `stop`; the nanoseconds of each of both together.
    fn mount(&self, watch: Stopwatch, stop: &AtomicBool) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        // ORDERING: Relaxed; the flag alone is handed over.
        while !stop.load(Ordering::Relaxed) {
            let (ns, done) = watch.time(|| match self.mode {
                Mode::Engine => {
                    let added =
                        self.tenants[0].group.add_shrinker(ShrinkerConfig::new(String::new()), idle());
                    added.set_up("a shrinker")?.remove().or_wrong("a removal")
                }
                Mode::Lock => {
                    let write = || self.lock.write().unwrap_or_else(PoisonError::into_inner);
                    write().push(1);
                    write().pop();
                    Ok(())
                }
                _ => Ok(()),
            });
            done?;
            times.push(ns);
            std::thread::sleep(PAUSE);
        }
        Ok(times)
    }

    /// Lets the writers run at once, as many as the system starts; their number, their work, the
    /// nanoseconds from the first to the last, and the times of the mounts.
    fn run(&self, lab: &Lab<'_>, writers: usize, times: u64) -> Result<(usize, Part, f64, Vec<f64>)> {
        let (gate, stop, watch) = (RwLock::new(()), AtomicBool::new(false), lab.clock.stopwatch());
        std::thread::scope(|threads| {
            let closed = gate.write();
            let start = |writer| {
                let gate = &gate;
                Builder::new().stack_size(STACK_BYTES).spawn_scoped(threads, move || {
                    drop(gate.read());
                    (self.write(writer, times), clock::now())
                })
            };
            let started: Vec<_> = (0..writers).map_while(|writer| start(writer).ok()).collect();
            let mounts = threads.spawn(|| self.mount(watch, &stop));
            let begin = clock::now();
            drop(closed);
            let (mut sum, mut end, number) = (Part::default(), begin, started.len());
            for thread in started {
                let (part, ended) = thread.join().map_err(|_| "panic").or_wrong("a writer")?;
                sum.charges += part.charges;
                sum.refusals += part.refusals;
                sum.passed_by += part.passed_by;
                sum.switched += part.switched;
                sum.cpu_ns += part.cpu_ns;
                end = end.max(ended);
            }
            // ORDERING: Relaxed; as above.
            stop.store(true, Ordering::Relaxed);
            let mounts = mounts.join().map_err(|_| "panic").or_wrong("the thread that mounts")??;
            Ok((number, sum, lab.clock.ns((end - begin) as f64), mounts))
        })
    }

    /// Everything is accounted for (I1).
    fn check(&self, part: Part, pages: u64) -> Result<()> {
        let (name, cached) = (self.mode, self.tenants.iter().map(|one| one.pages.bytes()).sum::<u64>());
        let (usage, max) = (self.parent.usage_exact(), self.parent.max().unwrap_or(u64::MAX));
        ensure(usage == cached && usage <= max, || {
            format!("{name:?}: the parent's usage is {usage} bytes of {max}, its caches hold {cached}")
        })?;
        ensure(part.refusals > 0 || part.charges == pages, || {
            format!("{name:?}: {} pages were charged and none refused, {pages} were written", part.charges)
        })?;
        self.tenants.iter().for_each(|tenant| tenant.pages.clear());
        expect("bytes charged where nothing is held", self.hierarchy.root().usage_exact(), 0)
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let groups = lab.pick(20, GROUPS, GROUPS);
    let writers = (groups * WRITERS / GROUPS).clamp(1, WRITERS);
    let max_bytes = (LIMIT_BYTES / WRITERS as u64 * writers as u64).max(2 << 20) / PAGE * PAGE;
    let (times, rounds) = lab.pick((4, 1), (4, 3), (8, 9));
    let mut found = MODES.map(|_| (Samples::default(), Blocks::default()));
    let mut fewest = writers;
    lab.in_turns(rounds, MODES.len(), |lab, index| {
        let storm = Storm::build(MODES[index].0, lab.slots, groups, max_bytes)?;
        let (started, part, ns, mounts) = storm.run(lab, writers, times)?;
        storm.check(part, started as u64 * times * FILE_PAGES)?;
        let (samples, times) = &mut found[index];
        samples.push("charges", part.charges as f64 / ns * 1e9);
        samples.push("charge", part.cpu_ns as f64 / part.charges.max(1) as f64);
        samples.push("passed by", part.passed_by as f64);
        samples.push("switched out", part.switched as f64);
        samples.push("refusals", part.refusals as f64);
        times.push(mounts);
        fewest = fewest.min(started);
        Ok(())
    })?;
    show(lab, [fewest, groups], times, max_bytes, &found)
}

fn show(
    lab: &mut Lab<'_>,
    [writers, groups]: [usize; 2],
    times: u64,
    max_bytes: u64,
    found: &[(Samples, Blocks); MODES.len()],
) -> Result<()> {
    let title = format!(
        "the cover letter's script: {} runnable threads on {} CPUs, each writes 1 MiB {times} times; {} groups, {} MiB for all",
        count(writers as u64),
        lab.workers.cpus,
        count(groups as u64),
        count(max_bytes >> 20)
    );
    let columns = [
        "room is made by",
        "charges/s",
        "CPU ns each",
        "passed by",
        "switched",
        "refused",
        "mount p50",
        "p99",
    ];
    let mut table = Table::new(title, columns);
    for ((mode, name), (samples, mounts)) in MODES.into_iter().zip(found) {
        let mut row = lab.record(name, json!({"writers": writers, "groups": groups}));
        let metrics =
            [("charges", "1/s"), ("charge", "ns"), ("passed by", ""), ("switched out", ""), ("refusals", "")];
        let mut cells = row.medians(samples, metrics).to_vec();
        let has_mounts = matches!(mode, Mode::Lock | Mode::Engine);
        let quantiles = [("mount p50", mounts.p50()), ("mount p99", mounts.p99())];
        cells.extend(quantiles.map(|(metric, ns)| row.us(metric, median(ns).filter(|_| has_mounts))));
        table.row(name, cells);
    }
    table.note("charges/s by the clock, from the first writer to the last; ns of all writers' CPU time for a charge, with its walks. Passed by: groups whose lock a mount held or waited for. Switched: how often the kernel took a writer off its CPU. Mount: us of a registration and a removal by one more thread");
    lab.print(&table)?;
    let refusals = found[2].0.of("refusals").iter().copied().reduce(f64::max);
    lab.at_most("a storm: writers refused while caches have bytes", refusals, 0.0, "");
    let speed = |mode: usize| found[mode].0.median("charges");
    lab.at_least("a storm: charges/s over the lock", ratio(speed(2), speed(0)), 1.0, "x");
    let p99 = |mode: usize| median(found[mode].1.p99());
    lab.at_most("a storm: p99 of a mount over the lock", ratio(p99(2), p99(0)), 1.0, "x");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_by_groups_while_a_mount_has_the_lock() {
        let slots = SlotSource::virtual_slots(2).unwrap();
        for (mode, passed) in [(Mode::Lock, 3), (Mode::Plain, 0)] {
            let storm = Storm::build(mode, slots, 3, 64 * PAGE).unwrap();
            storm.tenants[2].fill(64 * PAGE).unwrap();
            let (mut cursor, mut passed_by) = (0, 0);
            let held = storm.lock.write().unwrap();
            storm.walk(&mut cursor, &mut passed_by);
            drop(held);
            assert_eq!(
                (passed_by, storm.parent.usage_exact() == 64 * PAGE),
                (passed, passed > 0),
                "{mode:?}"
            );
        }
    }
}
