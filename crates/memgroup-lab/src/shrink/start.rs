//! The start of an overcommitted node, which Tkhai names in the thread as the real case: containers
//! start one after the other and register their caches, while the parent is over its limit and room
//! is made from the caches of those before.
//!
//! 500 of 2,000 groups start, with eight caches each. The control is the kernel up to 6.3 in all
//! that a registration does: the shrinker gets a number, and with every 64th number each group gets
//! larger arrays of marks and deferred counts (`expand_shrinker_info`), all of it under the write
//! lock. A thread that makes room tries the lock at each group and holds it over the callbacks of
//! the marked shrinkers.
//!
//! A group's first registration makes its table here, so it is shown apart.
//!
//! - I1. At the end the caches' pages are the parent's usage, within its limit, and no page was
//!   refused for good.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use memgroup::{Charge, Config, Group, GroupShrinker, Hierarchy, ShrinkerConfig};

use super::{GROUPS, LOCK, OURS};
use crate::harness::cache::{BATCH, PAGE, Pages};
use crate::harness::prelude::*;

/// Groups that start.
const TENANTS: usize = 500;
/// The caches of each, and the pages that each of them begins with.
const CACHES: usize = 8;
const PAGES: u64 = 32;
/// Shrinkers of one word of marks.
const UNIT: usize = 64;

/// The control: all shrinkers by number, and each group's marks and deferred counts.
struct Kernel {
    caches: Vec<Arc<Pages>>,
    infos: Vec<Info>,
}

#[derive(Default)]
struct Info {
    marks: Vec<u64>,
    deferred: Vec<u64>,
}

impl Kernel {
    fn register(&mut self, tenant: usize, pages: &Arc<Pages>) {
        let number = self.caches.len();
        if number.is_multiple_of(UNIT) {
            for info in &mut self.infos {
                info.marks.reserve_exact(1);
                info.marks.push(0);
                info.deferred.reserve_exact(UNIT);
                info.deferred.resize(number + UNIT, 0);
            }
        }
        self.caches.push(Arc::clone(pages));
        self.infos[tenant].marks[number / UNIT] |= 1 << (number % UNIT);
    }

    /// Has a group's marked caches give back; the bytes.
    fn shrink(&self, tenant: usize) -> u64 {
        let words = self.infos[tenant].marks.iter().enumerate().filter(|(_, bits)| **bits != 0);
        let marked = words.flat_map(|(word, &bits)| {
            (0..UNIT).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * UNIT + bit)
        });
        marked.filter_map(|number| self.caches[number].give_back(BATCH)).sum()
    }
}

struct Storm {
    /// The control; without it the engine makes room.
    kernel: Option<RwLock<Kernel>>,
    groups: Vec<Group>,
    next: AtomicUsize,
    tenants: usize,
    parent: Group,
    hierarchy: Hierarchy,
}

/// What one thread started, and its times.
#[derive(Default)]
struct Part {
    shrinkers: Vec<GroupShrinker>,
    caches: Vec<Arc<Pages>>,
    /// Nanoseconds of the groups' first registrations, and of all others.
    register_ns: [Vec<f64>; 2],
    /// Groups passed by because their lock was taken.
    passed_by: u64,
    ticks: u64,
}

impl Storm {
    fn build(lab: &Lab<'_>, by_engine: bool, groups: usize, tenants: usize) -> Result<Storm> {
        let config = Config::with_slots(lab.slots).groups_max(groups as u32 + 3);
        // Room for one tenant in ten.
        let max_bytes = (tenants as u64 / 10).max(1) * CACHES as u64 * PAGES * PAGE;
        let (hierarchy, parent) = limited_parent(config.reclaim(by_engine), max_bytes)?;
        let infos = (0..groups).map(|_| Info::default()).collect();
        let kernel = (!by_engine).then(|| RwLock::new(Kernel { caches: Vec::new(), infos }));
        let groups = children(&parent, "t", groups)?;
        Ok(Storm { kernel, groups, next: AtomicUsize::new(0), tenants, parent, hierarchy })
    }

    /// One thread's part: tenant after tenant, until all are started.
    fn start(&self, watch: Stopwatch) -> Result<Part> {
        let (mut part, begin) = (Part::default(), clock::now());
        // ORDERING: Relaxed; a number by itself, and the addition gives each tenant to one thread.
        let next = || Some(self.next.fetch_add(1, Ordering::Relaxed)).filter(|&tenant| tenant < self.tenants);
        while let Some(tenant) = next() {
            for cache in 0..CACHES {
                let pages = Arc::<Pages>::default();
                let (ns, shrinker) = watch.time(|| self.register(tenant, &pages));
                part.register_ns[usize::from(cache > 0)].push(ns);
                let shrinker = shrinker?;
                for _ in 0..PAGES {
                    let page = self.charge(&self.groups[tenant], &mut part)?;
                    pages.push(page, || shrinker.iter().for_each(GroupShrinker::mark));
                }
                part.shrinkers.extend(shrinker);
                part.caches.push(pages);
            }
        }
        part.ticks = clock::now() - begin;
        Ok(part)
    }

    fn register(&self, tenant: usize, pages: &Arc<Pages>) -> Result<Option<GroupShrinker>> {
        let Some(kernel) = &self.kernel else {
            let config = ShrinkerConfig::new(String::new()).batch_bytes(BATCH);
            return self.groups[tenant]
                .add_shrinker(config, Arc::clone(pages))
                .map(Some)
                .set_up("a shrinker");
        };
        kernel.write().unwrap_or_else(PoisonError::into_inner).register(tenant, pages);
        Ok(None)
    }

    fn charge(&self, group: &Group, part: &mut Part) -> Result<Charge> {
        loop {
            match (group.try_charge(PAGE), &self.kernel) {
                (Ok(page), _) => return Ok(page),
                (Err(_), Some(kernel)) => self.make_room(kernel, &mut part.passed_by),
                (Err(why), None) => return Err(why).or_wrong("a page was refused while caches were full"),
            }
        }
    }

    /// The control's walk: from group to group until a cache has given pages.
    fn make_room(&self, kernel: &RwLock<Kernel>, passed_by: &mut u64) {
        for tenant in 0..self.groups.len() {
            match kernel.try_read() {
                Ok(kernel) if kernel.shrink(tenant) > 0 => return,
                Ok(_) => {}
                Err(_) => *passed_by += 1,
            }
        }
        std::thread::yield_now();
    }

    /// Everything is accounted for (I1), and nothing is left when the caches are empty.
    fn check(&self, parts: &mut [Part]) -> Result<()> {
        let cached: u64 = parts.iter().flat_map(|part| &part.caches).map(|pages| pages.bytes()).sum();
        let (usage, max) = (self.parent.usage_exact(), self.parent.max().unwrap_or(u64::MAX));
        let registered: usize = parts.iter().flat_map(|part| &part.register_ns).map(Vec::len).sum();
        ensure(usage == cached && usage <= max && registered == self.tenants * CACHES, || {
            format!(
                "a start storm: the parent's usage is {usage} bytes of {max}, its caches hold {cached}; {registered} of them were registered"
            )
        })?;
        for part in parts {
            part.caches.drain(..).for_each(|pages| pages.clear());
            part.shrinkers.clear();
        }
        expect("bytes charged where nothing is held", self.hierarchy.root().usage_exact(), 0)
    }
}

/// The figures of one variant: the groups' first registrations, all others, and the storms.
type Found = ([Blocks; 2], Samples);

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let (groups, tenants, rounds) = lab.pick((40, 20, 1), (GROUPS, TENANTS, 3), (GROUPS, TENANTS, 15));
    let (mut found, threads) = (<[Found; 2]>::default(), lab.args.threads());
    lab.in_turns(rounds, 2, |lab, variant| {
        let storm = Storm::build(lab, variant == 0, groups, tenants)?;
        let (lead, watch) = (lab.clock.ticks_per_us() * 10, lab.clock.stopwatch());
        let mut parts = lab.workers.run_together(threads, lead, |_, _| storm.start(watch))?;
        storm.check(&mut parts)?;
        let (blocks, samples) = &mut found[variant];
        for (at, block) in blocks.iter_mut().enumerate() {
            block.push(parts.iter_mut().flat_map(|part| std::mem::take(&mut part.register_ns[at])).collect());
        }
        let longest = parts.iter().map(|part| part.ticks).max().unwrap_or(0);
        samples.push("storm", lab.clock.ns(longest as f64) / 1e6);
        samples.push("passed by", parts.iter().map(|part| part.passed_by as f64).sum());
        Ok(())
    })?;
    let title = format!(
        "a start storm: {tenants} of {} groups start, with {CACHES} caches each, on {threads} threads; room for one in ten",
        count(groups as u64)
    );
    let columns = ["us", "first: p50", "p99", "max", "others: p50", "p99", "max", "storm, ms", "passed by"];
    let mut table = Table::new(title, columns);
    for (variant, (blocks, samples)) in [OURS, LOCK].into_iter().zip(&found) {
        let mut cells = Vec::new();
        for (call, times) in ["first registration", "registration"].into_iter().zip(blocks) {
            let mut row = lab.record(variant, json!({"call": call, "beside": "start storm"}));
            row.value("max", "ns", times.max());
            cells.extend(row.blocks(times));
        }
        let mut row = lab.record(variant, json!({"tenants": tenants, "groups": groups}));
        cells.extend(row.medians(samples, [("storm", "ms"), ("passed by", "")]));
        table.row(variant, cells);
    }
    table.note("registering a group's first cache, and others: medians of the storms' p50 and p99, and the largest of all. In the control one registration of 64 makes every group's arrays larger, and the others wait for it. Passed by: groups whose lock a registration held or waited for when room was to be made");
    lab.print(&table)?;
    for (at, name) in ["a group's first registration", "a further registration"].into_iter().enumerate() {
        let p99 = |variant: usize| median(found[variant].0[at].p99());
        let name = format!("{name} in a start storm, p99, over the lock");
        lab.at_most(name, ratio(p99(0), p99(1)), 1.0, "x");
    }
    let storm = |variant: usize| found[variant].1.median("storm");
    lab.at_most("a start storm over the lock's", ratio(storm(0), storm(1)), 1.0, "x");
    lab.at_most(
        "the slowest registration in a start storm",
        found[0].0.iter().filter_map(Blocks::max).reduce(f64::max).map(|ns| ns / 1e3),
        1_000.0,
        "us",
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_the_arrays_of_all_groups_with_every_64th_shrinker() {
        let mut kernel = Kernel { caches: Vec::new(), infos: vec![Info::default(), Info::default()] };
        let pages = Arc::<Pages>::default();
        (0..65).for_each(|_| kernel.register(1, &pages));
        for info in &kernel.infos {
            assert_eq!((info.marks.len(), info.deferred.len()), (2, 128));
        }
        assert_eq!(
            (kernel.infos[0].marks.as_slice(), kernel.infos[1].marks.as_slice()),
            (&[0, 0][..], &[u64::MAX, 1][..])
        );
        assert_eq!(kernel.shrink(1), 0);
    }
}
