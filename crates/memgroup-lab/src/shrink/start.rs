//! A start storm: tenants start one after the other with eight caches each, while the parent is over its limit and room is made from the caches
//! of those before.
//!
//! The control is one read-write lock around all lists. A thread that registers has it alone; a thread that makes room tries it at each group and
//! has it over the group's callbacks. Its charges are refused as without reclaim, and its own walk makes the room.
//!
//! - I1. At the end the caches' pages are the parent's usage, within its limit, and no page was refused for good.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use memgroup::{Charge, Config, Group, GroupShrinker, Hierarchy, ShrinkerConfig};

use crate::harness::cache::{BATCH, PAGE, Pages};
use crate::harness::prelude::*;

/// Tenants that start.
const TENANTS: usize = 500;
/// Caches of each.
const CACHES: usize = 8;
/// Pages that each cache begins with.
const PAGES: u64 = 32;
/// The engine and the control.
const VARIANTS: [&str; 2] = ["shrinkers", "read-write lock (control)"];

struct Storm {
    /// The engine makes room; else the control does.
    by_engine: bool,
    /// All tenants' caches, in the control.
    lists: RwLock<Vec<Vec<Arc<Pages>>>>,
    next: AtomicUsize,
    tenants: usize,
    parent: Group,
    hierarchy: Hierarchy,
}

/// The shrinkers, caches and groups that one thread started, and its times.
#[derive(Default)]
struct Part {
    shrinkers: Vec<GroupShrinker>,
    caches: Vec<Arc<Pages>>,
    groups: Vec<Group>,
    register_ns: Vec<f64>,
    /// Groups passed by because their lock was taken.
    passed_by: u64,
    ticks: u64,
}

impl Storm {
    fn build(lab: &Lab<'_>, by_engine: bool, tenants: usize) -> Result<Storm> {
        let config = Config::with_slots(lab.slots).groups_max(tenants as u32 + 3);
        // Room for one tenant in ten.
        let max_bytes = (tenants as u64 / 10).max(1) * CACHES as u64 * PAGES * PAGE;
        let (hierarchy, parent) = limited_parent(config.reclaim(by_engine), max_bytes)?;
        let lists = RwLock::new((0..tenants).map(|_| Vec::new()).collect());
        Ok(Storm { by_engine, lists, next: AtomicUsize::new(0), tenants, parent, hierarchy })
    }

    /// One thread's part: tenant after tenant, until all are started.
    fn start(&self, watch: Stopwatch) -> Result<Part> {
        let (mut part, begin) = (Part::default(), clock::now());
        // ORDERING: Relaxed; a number by itself, and the addition gives each tenant to one thread.
        let next = || Some(self.next.fetch_add(1, Ordering::Relaxed)).filter(|&tenant| tenant < self.tenants);
        while let Some(tenant) = next() {
            let group = child(&self.parent, &format!("t{tenant}"))?;
            for _ in 0..CACHES {
                let pages = Arc::<Pages>::default();
                let (ns, shrinker) = watch.time(|| self.register(tenant, &group, &pages));
                part.register_ns.push(ns);
                let shrinker = shrinker?;
                for _ in 0..PAGES {
                    let page = self.charge(&group, &mut part)?;
                    pages.push(page, || shrinker.iter().for_each(GroupShrinker::mark));
                }
                part.shrinkers.extend(shrinker);
                part.caches.push(pages);
            }
            part.groups.push(group);
        }
        part.ticks = clock::now() - begin;
        Ok(part)
    }

    fn register(&self, tenant: usize, group: &Group, pages: &Arc<Pages>) -> Result<Option<GroupShrinker>> {
        if self.by_engine {
            let config = ShrinkerConfig::new(String::new()).batch_bytes(BATCH);
            return group.add_shrinker(config, Arc::clone(pages)).map(Some).set_up("a shrinker");
        }
        let mut lists = self.lists.write().unwrap_or_else(PoisonError::into_inner);
        lists[tenant].push(Arc::clone(pages));
        Ok(None)
    }

    /// Charges a page.
    fn charge(&self, group: &Group, part: &mut Part) -> Result<Charge> {
        loop {
            match group.try_charge(PAGE) {
                Ok(page) => return Ok(page),
                Err(why) if self.by_engine => {
                    return Err(why).or_wrong("a page was refused while caches were full");
                }
                Err(_) => self.make_room(part),
            }
        }
    }

    /// The control's walk: from group to group until a batch was given back.
    fn make_room(&self, part: &mut Part) {
        for tenant in 0..self.tenants {
            if let Ok(lists) = self.lists.try_read() {
                if lists[tenant].iter().filter_map(|pages| pages.give_back(BATCH)).sum::<u64>() > 0 {
                    return;
                }
            } else {
                part.passed_by += 1;
            }
        }
        std::thread::yield_now();
    }

    /// Everything is accounted for (I1).
    fn check(&self, parts: &[Part]) -> Result<()> {
        let cached: u64 = parts.iter().flat_map(|part| &part.caches).map(|pages| pages.bytes()).sum();
        let (usage, max) = (self.parent.usage_exact(), self.parent.max().unwrap_or(u64::MAX));
        let registered: usize = parts.iter().map(|part| part.register_ns.len()).sum();
        ensure(usage == cached && usage <= max && registered == self.tenants * CACHES, || {
            let name = VARIANTS[usize::from(!self.by_engine)];
            format!(
                "{name}: the parent's usage is {usage} bytes of {max}, its caches hold {cached}; {registered} of them were registered"
            )
        })
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let (tenants, rounds) = lab.pick((20, 1), (TENANTS, 5), (TENANTS, 21));
    let mut found = <[(Blocks, Samples); 2]>::default();
    lab.in_turns(rounds, 2, |lab, variant| {
        let (register, samples) = &mut found[variant];
        let mut parts = storm(lab, variant == 0, tenants)?;
        register.push(parts.iter_mut().flat_map(|part| std::mem::take(&mut part.register_ns)).collect());
        let longest = parts.iter().map(|part| part.ticks).max().unwrap_or(0);
        samples.push("storm", lab.clock.ns(longest as f64) / 1e6);
        samples.push("passed by", parts.iter().map(|part| part.passed_by as f64).sum());
        Ok(())
    })?;
    show(lab, tenants, &found)
}

/// One run; everything it made is gone when it returns, except the times.
fn storm(lab: &Lab<'_>, by_engine: bool, tenants: usize) -> Result<Vec<Part>> {
    let (storm, threads) = (Storm::build(lab, by_engine, tenants)?, lab.args.threads());
    let (lead, watch) = (lab.clock.ticks_per_us() * 10, lab.clock.stopwatch());
    let mut parts = lab.workers.run_together(threads, lead, |_, _| storm.start(watch))?;
    storm.check(&parts)?;
    // Caches before their shrinkers and groups, and the hierarchy last.
    parts.iter().flat_map(|part| &part.caches).for_each(|pages| pages.clear());
    for part in &mut parts {
        (part.caches, part.shrinkers, part.groups) = (Vec::new(), Vec::new(), Vec::new());
    }
    expect("bytes charged where nothing is held", storm.hierarchy.root().usage_exact(), 0)?;
    Ok(parts)
}

fn show(lab: &mut Lab<'_>, tenants: usize, found: &[(Blocks, Samples); 2]) -> Result<()> {
    let threads = lab.args.threads();
    let tenants = count(tenants as u64);
    let mut table = Table::new(
        format!(
            "a start storm: {tenants} tenants with {CACHES} caches each on {threads} threads, room for one in ten"
        ),
        ["", "register, us: p50", "p99", "max", "storm, ms", "groups passed by"],
    );
    for (variant, (register, samples)) in VARIANTS.into_iter().zip(found) {
        let params = |call: &str| json!({"meanwhile": "start storm", "call": call});
        let mut row = lab.record(variant, params("register"));
        let register_us = row.blocks(register);
        let storm = lab.record(variant, params("start")).medians(samples, [("storm", "ms")]);
        let passed_by = count(samples.median("passed by").unwrap_or(0.0) as u64);
        table.row(variant, register_us.into_iter().chain(storm).chain([passed_by]));
    }
    table.note("quantiles as above. Passed by: a registration held the lock of the group when room was to be made; its caches were not asked");
    lab.print(&table)?;
    let [ours, control] = [0, 1].map(|index: usize| median(found[index].0.p99()));
    let name = "registering in a start storm, p99, over the read-write lock";
    lab.at_most(name, ratio(ours, control), 1.0, "x");
    Ok(())
}
