//! A start storm: tenants start one after the other with eight caches each, while the parent is over its limit and room is made from the caches
//! of those before.
//!
//! The control is one read-write lock around all lists: who registers has it alone, who makes room tries it at each group and has it over the
//! group's callbacks. Its charges are refused as without reclaim, and its own walk makes the room.
//!
//! - I1. At the end the caches' pages are the parent's usage, within its limit, and no page was refused for good.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use memgroup::{Config, Group, GroupShrinker, Hierarchy, ShrinkerConfig, SlotSource};

use super::cache::{BATCH, PAGE, Pages};
use crate::Error;
use crate::harness::crew::Start;
use crate::harness::quantiles::Times;
use crate::harness::report::{Check, params, ratio};
use crate::harness::stats::Summary;
use crate::harness::table::{Table, count, figure_or_dash};
use crate::harness::tree::{child, limit};
use crate::harness::{Lab, clock};

/// Tenants that start.
const TENANTS: usize = 500;
/// Caches of each.
const CACHES: usize = 8;
/// Pages that each cache begins with.
const PAGES: u64 = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Engine,
    Lock,
}

impl Mode {
    const BOTH: [Mode; 2] = [Mode::Engine, Mode::Lock];

    fn name(self) -> &'static str {
        match self {
            Mode::Engine => "shrinkers",
            Mode::Lock => "read-write lock (control)",
        }
    }
}

/// All tenants' caches, as the control has them.
type Lists = RwLock<Vec<Vec<Arc<Pages>>>>;

struct House {
    mode: Mode,
    lists: Lists,
    next: AtomicUsize,
    tenants: usize,
    parent: Group,
    hierarchy: Hierarchy,
}

/// What one thread started, and how long each registration took, in ticks.
#[derive(Default)]
struct Part {
    shrinkers: Vec<GroupShrinker>,
    caches: Vec<Arc<Pages>>,
    groups: Vec<Group>,
    register: Vec<u64>,
    /// Groups whose lock could not be had.
    passed_by: u64,
    ticks: u64,
}

impl House {
    fn build(mode: Mode, slots: SlotSource, tenants: usize) -> Result<House, Error> {
        let config = Config::with_slots(slots).groups_max(tenants as u32 + 3).reclaim(mode == Mode::Engine);
        let hierarchy = Hierarchy::new(config).map_err(|error| Error::setup("the hierarchy", error))?;
        let parent = child(&hierarchy.root(), "parent")?;
        // Room for one tenant in ten.
        limit(&parent, (tenants as u64 / 10).max(1) * CACHES as u64 * PAGES * PAGE)?;
        let lists = (0..tenants).map(|_| Vec::new()).collect();
        Ok(House { mode, lists: RwLock::new(lists), next: AtomicUsize::new(0), tenants, parent, hierarchy })
    }

    /// One thread's part: tenant after tenant, until all are started.
    fn start(&self) -> Result<Part, Error> {
        let (mut part, begin, reading) = (Part::default(), clock::now(), clock::reading_ticks());
        loop {
            // ORDERING: Relaxed; a number by itself, and an exchange gives each to one.
            let tenant = self.next.fetch_add(1, Ordering::Relaxed);
            if tenant >= self.tenants {
                break;
            }
            let group = child(&self.parent, &format!("t{tenant}"))?;
            for _ in 0..CACHES {
                let pages = Arc::<Pages>::default();
                let before = clock::now_ordered();
                let shrinker = self.register(tenant, &group, &pages)?;
                part.register.push((clock::now_ordered() - before).saturating_sub(reading));
                for _ in 0..PAGES {
                    if self.charge(&group, &pages, &mut part)?
                        && let Some(shrinker) = &shrinker
                    {
                        shrinker.mark();
                    }
                }
                part.shrinkers.extend(shrinker);
                part.caches.push(pages);
            }
            part.groups.push(group);
        }
        Ok(Part { ticks: clock::now() - begin, ..part })
    }

    fn register(
        &self,
        tenant: usize,
        group: &Group,
        pages: &Arc<Pages>,
    ) -> Result<Option<GroupShrinker>, Error> {
        match self.mode {
            Mode::Engine => group
                .add_shrinker(ShrinkerConfig::new(String::new()).batch_bytes(BATCH), Arc::clone(pages))
                .map(Some)
                .map_err(|error| Error::setup("a shrinker", error)),
            Mode::Lock => {
                let mut lists = self.lists.write().unwrap_or_else(PoisonError::into_inner);
                lists[tenant].push(Arc::clone(pages));
                Ok(None)
            }
        }
    }

    /// Charges a page and puts it into a cache; whether it was the first there.
    fn charge(&self, group: &Group, pages: &Pages, part: &mut Part) -> Result<bool, Error> {
        loop {
            match group.try_charge(PAGE) {
                Ok(page) => return Ok(pages.push(page)),
                Err(error) if self.mode == Mode::Engine => {
                    return Err(Error::Wrong(format!("a page was refused while caches were full: {error}")));
                }
                Err(_) => self.make_room(part),
            }
        }
    }

    /// The control's walk: from group to group until a batch was given back.
    fn make_room(&self, part: &mut Part) {
        for tenant in 0..self.tenants {
            let Ok(lists) = self.lists.try_read() else {
                part.passed_by += 1;
                continue;
            };
            let given: u64 = lists[tenant].iter().filter_map(|pages| pages.give_back(BATCH)).sum();
            if given > 0 {
                return;
            }
        }
        std::thread::yield_now();
    }

    /// Everything is accounted for (I1).
    fn check(&self, parts: &[Part]) -> Result<(), Error> {
        let cached: u64 = parts.iter().flat_map(|part| &part.caches).map(|pages| pages.bytes()).sum();
        let (usage, max) = (self.parent.usage_exact(), self.parent.max());
        let registered: usize = parts.iter().map(|part| part.register.len()).sum();
        if usage == cached && usage <= max && registered == self.tenants * CACHES {
            return Ok(());
        }
        Err(Error::Wrong(format!(
            "{}: the parent's usage is {usage} bytes of {max}, its caches hold {cached}; {registered} of them were registered",
            self.mode.name()
        )))
    }
}

#[derive(Default)]
struct Found {
    register: Times,
    storm_ms: Vec<f64>,
    passed_by: Vec<f64>,
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let (tenants, rounds) = match (lab.args.tiny, lab.args.quick) {
        (true, _) => (20, 1),
        (_, true) => (TENANTS, 5),
        (_, false) => (TENANTS, 21),
    };
    let mut found = Mode::BOTH.map(|mode| (mode, Found::default()));
    for _ in 0..rounds {
        lab.random.shuffle(&mut found);
        for (mode, found) in &mut found {
            storm(lab, *mode, tenants, found)?;
        }
    }
    found.sort_by_key(|(mode, _)| *mode as usize);
    show(lab, tenants, &found)
}

fn storm(lab: &Lab<'_>, mode: Mode, tenants: usize, found: &mut Found) -> Result<(), Error> {
    let house = Arc::new(House::build(mode, lab.slots, tenants)?);
    let threads = lab.args.threads();
    let (starting, start, lead) = (Arc::clone(&house), Start::new(threads), lab.clock.ticks_per_us() * 10);
    let parts = lab.crew.run(threads, move |_| {
        start.wait(lead);
        starting.start()
    });
    let parts = parts.into_iter().collect::<Result<Vec<Part>, Error>>()?;
    house.check(&parts)?;
    let ns = |ticks: u64| lab.clock.ns(ticks as f64);
    found.register.push(parts.iter().flat_map(|part| &part.register).map(|&ticks| ns(ticks)).collect());
    found.storm_ms.push(parts.iter().map(|part| ns(part.ticks) / 1e6).fold(0.0, f64::max));
    found.passed_by.push(parts.iter().map(|part| part.passed_by as f64).sum());
    // Caches before their shrinkers and groups, and the hierarchy last.
    parts.iter().flat_map(|part| &part.caches).for_each(|pages| pages.clear());
    drop(parts);
    let usage = house.hierarchy.root().usage_exact();
    if usage == 0 {
        Ok(())
    } else {
        Err(Error::Wrong(format!("{usage} bytes are charged, and nothing is held")))
    }
}

fn show(lab: &mut Lab<'_>, tenants: usize, found: &[(Mode, Found)]) -> Result<(), Error> {
    let threads = lab.args.threads();
    let mut table = Table::new(
        format!(
            "a start storm: {} tenants with {CACHES} caches each on {threads} threads, room for one in ten",
            count(tenants as u64)
        ),
        ["", "register, us: p50", "p99", "max", "storm, ms", "groups passed by"],
    );
    let us = |ns: Option<f64>| figure_or_dash(ns.map(|ns| ns / 1e3));
    for (mode, found) in found {
        let (p50, p99, max) = (found.register.p50(), found.register.p99(), found.register.max());
        let storm = Summary::of(&found.storm_ms);
        table.row(vec![
            mode.name().to_owned(),
            us(p50.map(|ns| ns.median)),
            us(p99.map(|ns| ns.median)),
            us(max),
            figure_or_dash(storm.map(|ms| ms.median)),
            count(Summary::of(&found.passed_by).map_or(0, |passed| passed.median as u64)),
        ]);
        let what = |metric: &str| params([("meanwhile", "start storm".into()), ("call", metric.into())]);
        for (metric, ns) in [("p50", p50), ("p99", p99)] {
            if let Some(ns) = ns {
                lab.report.add(mode.name(), what("register"), metric, "ns", ns);
            }
        }
        if let Some(ms) = storm {
            lab.report.add(mode.name(), what("start"), "storm", "ms", ms);
        }
    }
    table.note("quantiles as above. Passed by: a group whose lock was held by who registered, when room was to be made; its caches were not asked");
    lab.print(&table)?;
    let p99 = |index: usize| found[index].1.register.p99().map(|ns| ns.median);
    lab.report.checks.push(Check::at_most(
        "registering in a start storm, p99, over the read-write lock",
        ratio(p99(0), p99(1)),
        1.0,
        "x",
    ));
    Ok(())
}
