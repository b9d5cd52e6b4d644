//! Two storms of charges below a limit, in which room is made from the groups' caches: by the
//! engine, or as the kernel does it ([`Kernel`]).
//!
//! - [`letter`] is the cover letter's script: 2,000 groups below one limit of 200 MiB, and 1,000
//!   writers of a file each, all of them runnable at once (`dd ... &`). Before the patches 80.7 %
//!   of the kernel's cycles were in the lock and the walk, after them 14.6 % in the walk. A writer
//!   is a thread. There are far more threads than CPUs, so a thread that holds the lock may lose
//!   its CPU, and a thread that mounts waits for it and keeps all walks out meanwhile: the letter's
//!   case (b). One thread mounts throughout: it registers and removes shrinkers. The thread's
//!   second script has a limit of 4 GiB above 3,000 MiB of files: its reclaim comes from the files'
//!   inodes and other memory that is not charged here, so it is left out.
//! - [`start`] is the start of an overcommitted node, which Tkhai names in the thread as the real
//!   case: containers start one after the other and register their caches, while the parent is over
//!   its limit and room is made from the caches of those before. 500 of 2,000 groups start, with
//!   eight caches each. A group's first registration makes its table here, so it is shown apart.
//!
//! The control's threads walk themselves when a charge is refused; the settings of the groups, the
//! stock among them, are the same for both.
//!
//! - I1. At the end the caches' pages are the parent's usage, within its limit.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::thread::Builder;
use std::time::Duration;

use super::groups::{BATCH, Groups, Kernel, PAGE, Pages, Registered};
use super::{GROUPS, LOCK, OURS};
use crate::harness::prelude::*;

const VARIANTS: [&str; 2] = [OURS, LOCK];

const WRITERS: usize = 1_000;
/// The pages of a file.
const FILE_PAGES: u64 = (1 << 20) / PAGE;
const LIMIT_BYTES: u64 = 200 << 20;
const STACK_BYTES: usize = 128 << 10;
/// The pause of the thread that mounts.
const PAUSE: Duration = Duration::from_micros(200);

/// Groups that start.
const TENANTS: usize = 500;
/// The caches of each, and the pages that each of them begins with.
const CACHES: usize = 8;
const CACHE_PAGES: u64 = 32;

fn build(lab: &Lab<'_>, variant: usize, groups: usize, max_bytes: u64) -> Result<Groups<Pages>> {
    Groups::build(lab.slots, (variant > 0).then(|| Kernel::new(groups, None)), groups, max_bytes)
}

/// A thread that writes pages, and walks itself in the control.
#[derive(Default)]
struct Writer {
    /// The group that its walk is at.
    at: usize,
    /// Groups that were passed by because their lock was taken.
    passed_by: u64,
}

impl Writer {
    /// Charges a page into a cache; false if the engine refused it.
    fn write(
        &mut self,
        to: &Groups<Pages>,
        group: usize,
        (pages, registered): &(Arc<Pages>, Registered),
    ) -> bool {
        while !to.insert(group, pages, registered) {
            let Some(kernel) = &to.kernel else { return false };
            self.make_room(kernel, to.groups.len());
        }
        true
    }

    /// The control's walk: from group to group until a cache has given pages.
    fn make_room(&mut self, kernel: &Kernel<Pages>, groups: usize) {
        for _ in 0..groups {
            let mut given = 0;
            self.at = (self.at + 1) % groups;
            if !kernel.visit(self.at, |pages| given += pages.give_back(BATCH).unwrap_or(0)) {
                self.passed_by += 1;
            } else if given > 0 {
                return;
            }
        }
        std::thread::yield_now();
    }
}

pub(super) fn letter(lab: &mut Lab<'_>) -> Result<()> {
    let groups = lab.pick(20, GROUPS, GROUPS);
    let writers = (groups * WRITERS / GROUPS).clamp(1, WRITERS);
    let max_bytes = (LIMIT_BYTES / WRITERS as u64 * writers as u64).max(2 << 20) / PAGE * PAGE;
    let (times, rounds) = lab.pick((4, 1), (4, 3), (8, 9));
    let mut fewest = writers;
    let found = lab.sample(rounds, 2, |lab, variant, found| {
        let to = build(lab, variant, groups, max_bytes)?;
        let cache = |group| {
            let pages = Arc::<Pages>::default();
            to.register(group, &pages).map(|registered| (pages, registered))
        };
        let caches = (0..groups).map(cache).collect::<Result<Vec<_>>>()?;
        let (gate, stop, watch) = (RwLock::new(()), AtomicBool::new(false), lab.clock.stopwatch());
        let write = |number: usize| {
            let mut writer = Writer { at: number * 2, passed_by: 0 };
            drop(gate.read());
            let pages = (0..times * FILE_PAGES).take_while(|_| writer.write(&to, number, &caches[number]));
            let (charges, switched) = (pages.count() as u64, ThreadUsage::now().switches_involuntary);
            [charges, writer.passed_by, switched, thread_cpu_ns(), clock::now()]
        };
        // ORDERING: Relaxed, here and below; the flag alone is handed over.
        let goes_on = || Some(()).filter(|()| !stop.load(Ordering::Relaxed));
        let mount = |()| {
            let (ns, done) = watch.time(|| to.remove(to.register(0, &Arc::default())?));
            std::thread::sleep(PAUSE);
            done.map(|()| ns)
        };
        let (begin, parts, mounts) = std::thread::scope(|threads| {
            let (closed, write) = (gate.write(), &write);
            let start = |number| {
                Builder::new().stack_size(STACK_BYTES).spawn_scoped(threads, move || write(number)).ok()
            };
            // As many as the system starts.
            let started: Vec<_> = (0..writers).map_while(start).collect();
            let mounts = threads.spawn(|| std::iter::from_fn(goes_on).map(mount).collect::<Result<Vec<_>>>());
            let begin = clock::now();
            drop(closed);
            let parts: Vec<_> = started.into_iter().map(|thread| thread.join()).collect();
            // ORDERING: Relaxed; only the flag matters, and the join publishes the results.
            stop.store(true, Ordering::Relaxed);
            (begin, parts, mounts.join())
        });
        let panicked = "a thread of the storm";
        let mounts = mounts.map_err(|_| "panic").or_wrong(panicked)??;
        let parts =
            parts.into_iter().collect::<Result<Vec<_>, _>>().map_err(|_| "panic").or_wrong(panicked)?;
        to.end(caches.iter().map(|cache| &*cache.0))?;
        let [charges, passed_by, switched, cpu_ns] =
            [0, 1, 2, 3].map(|of: usize| parts.iter().map(|part| part[of]).sum::<u64>() as f64);
        let end = parts.iter().map(|part| part[4]).max().unwrap_or(begin);
        let refused = parts.iter().filter(|part| part[0] < times * FILE_PAGES).count();
        found.push("charges", charges / lab.clock.ns((end - begin) as f64) * 1e9);
        found.push("a charge", cpu_ns / charges.max(1.0));
        found.push("passed by", passed_by);
        found.push("switched out", switched);
        found.push("refusals", refused as f64);
        found.block("mount", mounts, 1e3);
        fewest = fewest.min(parts.len());
        Ok(())
    })?;
    let title = format!(
        "the cover letter's script: {} runnable threads on {} CPUs, each writes 1 MiB {times} times; {} groups, {} MiB for all",
        count(fewest as u64),
        lab.workers.cpus,
        count(groups as u64),
        count(max_bytes >> 20)
    );
    let columns = [
        ("charges", "1/s"),
        ("a charge", "ns"),
        ("passed by", ""),
        ("switched out", ""),
        ("refusals", ""),
        ("mount p50", "us"),
        ("mount p99", "us"),
    ];
    let rows = VARIANTS.into_iter().zip(&found);
    let rows = rows.map(|(name, found)| (name, name, json!({"writers": fewest, "groups": groups}), found));
    lab.show(title, &columns, rows, "charges/s by the clock, from the first writer to the last; ns of all writers' CPU time for a charge, with its walks. Passed by: groups whose lock a mount held or waited for. Switched: how often the kernel took a writer off its CPU. Mount: a registration and a removal by one more thread")?;
    let refused = found[0].of("refusals").iter().copied().reduce(f64::max);
    lab.at_most("a storm: writers refused while caches have bytes", refused, 0.0, "");
    let [speed, mount] = ["charges", "mount p99"].map(|of| found[0].over(&found[1], of));
    lab.at_least("a storm: charges/s over the lock", speed, 1.0, "x");
    lab.at_most("a storm: p99 of a mount over the lock", mount, 1.0, "x");
    Ok(())
}

pub(super) fn start(lab: &mut Lab<'_>) -> Result<()> {
    let (groups, tenants, rounds) = lab.pick((40, 20, 1), (GROUPS, TENANTS, 3), (GROUPS, TENANTS, 15));
    let threads = lab.args.threads();
    let found = lab.sample(rounds, 2, |lab, variant, found| {
        // Room for one tenant in ten.
        let max_bytes = (tenants as u64 / 10).max(1) * CACHES as u64 * CACHE_PAGES * PAGE;
        let (to, next) = (build(lab, variant, groups, max_bytes)?, AtomicUsize::new(0));
        let (lead, watch) = (lab.clock.ticks_per_us() * 10, lab.clock.stopwatch());
        let parts = lab.workers.run_together(threads, lead, |_, _| {
            let (mut writer, mut caches, begin) = (Writer::default(), Vec::new(), clock::now());
            let mut times = [Vec::new(), Vec::new()];
            loop {
                // ORDERING: Relaxed; a number by itself, and the addition gives each tenant to one
                // thread.
                let tenant = next.fetch_add(1, Ordering::Relaxed);
                if tenant >= tenants {
                    return Ok((caches, times, writer.passed_by, clock::now() - begin));
                }
                for cache in 0..CACHES {
                    let pages = Arc::<Pages>::default();
                    let (ns, registered) = watch.time(|| to.register(tenant, &pages));
                    times[usize::from(cache > 0)].push(ns);
                    let cache = (pages, registered?);
                    let written = (0..CACHE_PAGES).all(|_| writer.write(&to, tenant, &cache));
                    ensure(written, || "a page was refused while caches were full".to_owned())?;
                    caches.push(cache);
                }
            }
        })?;
        let caches = || parts.iter().flat_map(|part| &part.0);
        expect("registered caches", caches().count(), tenants * CACHES)?;
        to.end(caches().map(|cache| &*cache.0))?;
        for (at, call) in ["first", "further"].into_iter().enumerate() {
            found.block(call, parts.iter().flat_map(|part| &part.1[at]).copied().collect(), 1e3);
        }
        let longest = parts.iter().map(|part| part.3).max().unwrap_or(0);
        found.push("storm", lab.clock.ns(longest as f64) / 1e6);
        found.push("passed by", parts.iter().map(|part| part.2 as f64).sum());
        Ok(())
    })?;
    let title = format!(
        "a start storm: {tenants} of {} groups start, with {CACHES} caches each, on {threads} threads; room for one in ten",
        count(groups as u64)
    );
    let columns = [
        ("first p50", "us"),
        ("first p99", "us"),
        ("first max", "us"),
        ("further p50", "us"),
        ("further p99", "us"),
        ("further max", "us"),
        ("storm", "ms"),
        ("passed by", ""),
    ];
    let rows = VARIANTS.into_iter().zip(&found);
    let rows = rows.map(|(name, found)| (name, name, json!({"beside": "start storm"}), found));
    lab.show(title, &columns, rows, "registering a group's first cache, and further ones: medians of the storms' p50 and p99, and the largest of all. In the control one registration of 64 makes every group's arrays larger, and the others wait for it. Passed by: groups whose lock a registration held or waited for when room was to be made")?;
    for (metric, name) in [
        ("first p99", "a group's first registration in a start storm, p99, over the lock"),
        ("further p99", "a further registration in a start storm, p99, over the lock"),
        ("storm", "a start storm over the lock's"),
    ] {
        lab.at_most(name, found[0].over(&found[1], metric), 1.0, "x");
    }
    let slowest = ["first max", "further max"].into_iter().filter_map(|max| found[0].median(max));
    lab.at_most("the slowest registration in a start storm", slowest.reduce(f64::max), 1_000.0, "us");
    Ok(())
}

#[cfg(test)]
mod tests {
    use memgroup::SlotSource;

    use super::*;

    #[test]
    fn makes_room_from_the_next_cache_that_has_pages() {
        let slots = SlotSource::virtual_slots(2).unwrap();
        let to = Groups::build(slots, Some(Kernel::new(3, None)), 3, 64 * PAGE).unwrap();
        let caches = [0, 2].map(|group| {
            let pages = Arc::<Pages>::default();
            let registered = to.register(group, &pages).unwrap();
            (pages, registered)
        });
        let mut writer = Writer::default();
        assert!((0..64).all(|_| writer.write(&to, 2, &caches[1])));
        assert_eq!(writer.at, 0, "there was room");
        assert!(writer.write(&to, 0, &caches[0]));
        assert_eq!((writer.at, writer.passed_by), (2, 0));
        assert_eq!(caches[1].0.bytes(), 64 * PAGE - BATCH);
        to.end(caches.iter().map(|cache| &*cache.0)).unwrap();
    }
}
