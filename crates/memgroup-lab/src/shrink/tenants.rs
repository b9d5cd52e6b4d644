//! The tenants of the case under pressure: databases below a parent, kept within bounds in one way, and the checks of each window.
//!
//! - I1. Each answer of each statement is right (`harness::sqlite`, I1); no limit is ever passed; the bytes that the engine counts as reclaimed are those that the
//!   caches say they gave and that were uncharged meanwhile; and when all is closed nothing is charged.
//! - I2. All tenants of all runs are in the one hierarchy that SQLite serves.
//! - I3. The probe cannot tell its size, so it keeps its mark in the largest class: a walk from its group calls it before any cache, and never asks it
//!   for bytes.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memgroup::{
    Charge, Count, Freshness, Group, GroupShrinker, Hierarchy, Reach, Shrinker, ShrinkerConfig, Statistics,
    stats,
};

use crate::harness::cache::Silent;
use crate::harness::prelude::*;

/// Bytes of a tenant's share that are left beside its pages: the connection's own blocks grow a little while it works.
const BESIDE_PAGES: u64 = 64 << 10;
/// Bytes of a buffer: those of a page.
const BUFFER: u64 = 4096;
/// Bytes of a buffer that needs room by itself, and how many are charged after a window.
const LARGE: u64 = 64 << 10;
const LARGE_COUNT: u64 = 8;

std::thread_local! {
    static PROBED: Cell<u64> = const { Cell::new(0) };
}

/// A shrinker that sees each walk come by: it tells a thread whether its charge had shrinkers make room.
fn probe() -> impl Shrinker {
    Silent(|| {
        PROBED.set(PROBED.get() + 1);
        Count::Unknown
    })
}

/// How many tenants there are, and how long they run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) tenants: usize,
    /// Of each database, a page each.
    pub(super) rows: i64,
    /// Statements of a long turn and of a short one, and the windows of each case that count.
    pub(super) long: u64,
    short: u64,
    pub(super) windows: usize,
}

impl Size {
    pub(super) fn of(lab: &Lab<'_>) -> Size {
        let full = Size { tenants: 8, rows: 1_000, long: 8_000, short: 500, windows: 10 };
        let tiny = Size { tenants: 4, rows: 400, long: 300, short: 20, windows: 1 };
        lab.pick(tiny, Size { windows: 3, ..full }, full)
    }

    /// The limit of all: half of the bytes that they would cache.
    pub(super) fn max_bytes(self, needs: Needs) -> u64 {
        needs.all_bytes * self.tenants as u64 / 2
    }

    /// Each case's turns; windows of short turns have several rounds. A thread more than tenants would have none.
    pub(super) fn turns(self, threads: usize) -> Vec<Turns> {
        let rounds = (self.long / self.short / 4).max(1);
        let of = |threads| [(self.long, 1), (self.short, rounds)].map(|of| (threads, of));
        let all = [1, threads.min(self.tenants)].into_iter().flat_map(of);
        let turns = all.map(|(threads, (statements, rounds))| Turns { threads, statements, rounds });
        turns.collect::<BTreeSet<Turns>>().into_iter().collect()
    }
}

/// The turns of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turns {
    pub(super) threads: usize,
    /// Statements of a turn.
    pub(super) statements: u64,
    /// Turns of each tenant.
    pub(super) rounds: u64,
}

/// The way that keeps a tenant's cache within bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Bounds {
    /// SQLite alone: each cache is told its share in pages. The way without reclaim.
    Shares,
    /// Each tenant has a limit, its share, and makes room from its own cache.
    Limits,
    /// Only all tenants together have a limit, and room is made from every cache below it.
    Common,
}

impl Bounds {
    pub(super) const ALL: [(Bounds, &str); 3] = [
        (Bounds::Shares, "fixed shares, no reclaim (control)"),
        (Bounds::Limits, "a limit each"),
        (Bounds::Common, "a common limit"),
    ];

    pub(super) fn name(self) -> &'static str {
        Bounds::ALL[self as usize].1
    }
}

/// Bytes of one tenant by itself, and with all of its database in its cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needs {
    bare_bytes: u64,
    all_bytes: u64,
    pages: u64,
}

impl Needs {
    /// Measures a tenant that has no limit.
    pub(super) fn measure(hierarchy: &Hierarchy, rows: i64) -> Result<Needs> {
        let directory = Directory::make()?;
        let group = child(&hierarchy.root(), &unique("alone"))?;
        let mut tenant = Tenant::open(&group, &directory.file(0), rows, None)?;
        // With the statements prepared, and next to no page.
        tenant.look_up(1)?;
        tenant.sum(1)?;
        tenant.update(1)?;
        tenant.connection.execute_batch("PRAGMA shrink_memory").or_wrong(STATEMENT)?;
        let bare_bytes = group.usage_exact();
        tenant.check_all()?;
        let pages = tenant.connection.query_row("PRAGMA page_count", [], |row| row.get::<_, i64>(0));
        let pages = pages.or_wrong(STATEMENT)? as u64;
        let needs = Needs { bare_bytes, all_bytes: group.usage_exact(), pages };
        tenant.close()?;
        remove_tree(&group)?;
        let is_cached = needs.all_bytes >= needs.bare_bytes + pages * 4096;
        ensure(is_cached, || format!("a database of {pages} pages is all cached, and {needs:?}"))?;
        Ok(needs)
    }

    /// Pages for which a share of so many bytes has room, beside the rest.
    fn pages_in(self, share_bytes: u64) -> u64 {
        let page_bytes = (self.all_bytes - self.bare_bytes).div_ceil(self.pages);
        share_bytes.saturating_sub(self.bare_bytes + BESIDE_PAGES) / page_bytes
    }
}

/// Tenants below a parent, kept within bounds in one way.
pub(super) struct Tenants {
    pub(super) bounds: Bounds,
    tenants: Vec<Mutex<Tenant>>,
    parent: Group,
    hierarchy: Hierarchy,
    probes: Vec<GroupShrinker>,
    _directory: Directory,
}

/// The work of one thread. Times are in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) statements: Vec<f64>,
    /// Of those, the statements in which room was made.
    pub(super) stalled: Vec<f64>,
    /// Charges of buffers that made room.
    pub(super) stalls: Vec<f64>,
    /// Whole turns.
    pub(super) turns: Vec<f64>,
    usage_max: u64,
}

/// The engine's figures of some tenants, or of a window, by name.
pub(super) type Figures = BTreeMap<&'static str, u64>;

impl Tenants {
    /// Tenants that may have half of the bytes that they would cache.
    pub(super) fn build(hierarchy: &Hierarchy, bounds: Bounds, needs: Needs, size: Size) -> Result<Tenants> {
        let (directory, max_bytes) = (Directory::make()?, size.max_bytes(needs));
        let parent = child(&hierarchy.root(), &unique("pressure"))?;
        limit(&parent, max_bytes)?;
        let share_bytes = max_bytes / size.tenants as u64;
        let cached_pages = (bounds == Bounds::Shares).then(|| needs.pages_in(share_bytes));
        let open = |at: usize| {
            let group = child(&parent, &format!("t{at}"))?;
            if bounds != Bounds::Common {
                limit(&group, share_bytes)?;
            }
            Tenant::open(&group, &directory.file(at), size.rows, cached_pages).map(Mutex::new)
        };
        let tenants = (0..size.tenants).map(open).collect::<Result<Vec<_>>>()?;
        // Every walk of a refused charge comes by a probe.
        let refusing = if bounds == Bounds::Common { vec![parent.clone()] } else { parent.children() };
        let add = |group: &Group| group.add_shrinker(ShrinkerConfig::new("probe"), probe()).set_up("a probe");
        let probes: Vec<_> = refusing.iter().map(add).collect::<Result<_>>()?;
        probes.iter().for_each(GroupShrinker::mark);
        Ok(Tenants { bounds, tenants, parent, hierarchy: hierarchy.clone(), probes, _directory: directory })
    }

    fn tenant(&self, at: usize) -> MutexGuard<'_, Tenant> {
        lock(&self.tenants[at])
    }

    /// One window: the parts of its threads, and the engine's figures.
    pub(super) fn window(&self, lab: &Lab<'_>, turns: Turns, seed: u64) -> Result<(Vec<Part>, Figures)> {
        let before = self.figures();
        let clock = lab.clock;
        let parts = lab.workers.run_together(turns.threads, clock.ticks_per_us() * 10, |thread, _| {
            self.work(turns, thread, seed, |ticks| clock.ns(ticks as f64))
        })?;
        let figures: Figures =
            self.figures().into_iter().map(|(name, now)| (name, now - before[name])).collect();
        let [reclaimed, claimed, freed] = ["reclaimed", "claimed", "freed"].map(|name| figures[name]);
        let name = self.bounds.name();
        // No other tenants were busy.
        ensure(reclaimed == claimed && freed == claimed, || {
            format!(
                "{name}: caches say they gave {claimed} bytes, {freed} were uncharged in their calls, and {reclaimed} were counted as reclaimed"
            )
        })?;
        ensure(self.bounds != Bounds::Shares || reclaimed == 0, || {
            format!("{reclaimed} bytes were reclaimed where caches keep to their shares")
        })?;
        self.check_bounds()?;
        let max = self.parent.max().unwrap_or(u64::MAX);
        let most = parts.iter().map(|part| part.usage_max).max().unwrap_or(0);
        ensure(most <= max, || format!("{name}: {most} bytes were charged in all, {max} may be"))?;
        Ok((parts, figures))
    }

    /// One thread's part: its tenants in turn, in another order each round.
    fn work(&self, turns: Turns, thread: usize, seed: u64, ns: impl Fn(u64) -> f64) -> Result<Part> {
        let mut own: Vec<usize> = (thread..self.tenants.len()).step_by(turns.threads).collect();
        let mut random = Random::new(seed ^ (thread as u64) << 32);
        let mut part = Part::default();
        for _ in 0..turns.rounds {
            random.shuffle(&mut own);
            for &at in &own {
                let mut tenant = self.tenant(at);
                let begin = clock::now();
                for _ in 0..turns.statements {
                    let (probed, before) = (PROBED.get(), clock::now());
                    let charged = tenant.buffers.try_charge(BUFFER);
                    let ticks = clock::now() - before;
                    part.usage_max = part.usage_max.max(self.parent.usage());
                    drop(charged);
                    part.stalls.extend((PROBED.get() != probed).then(|| ns(ticks)));
                    let (probed, before) = (PROBED.get(), clock::now());
                    make_statement(&mut tenant, random.next())?;
                    let time = ns(clock::now() - before);
                    part.statements.push(time);
                    part.stalled.extend((PROBED.get() != probed).then_some(time));
                }
                part.turns.push(ns(clock::now() - begin));
            }
        }
        Ok(part)
    }

    /// Charges large buffers for one tenant while no tenant is busy: the freed bytes, and the nanoseconds of CPU time.
    pub(super) fn by_hand(&self, lab: &Lab<'_>, seed: u64) -> Result<(u64, u64)> {
        lab.workers.run_one(|| {
            let tenant = self.tenant(seed as usize % self.tenants.len());
            let (memory, buffers) = (self.hierarchy.memory(), &tenant.buffers);
            let gained = || memory.get(buffers, stats::memory::GAINED, Reach::Local, Freshness::Fresh) as u64;
            let (gained_before, before) = (gained(), thread_cpu_ns());
            let charged: Result<Vec<Charge>, _> =
                (0..LARGE_COUNT).map(|_| buffers.try_charge(LARGE)).collect();
            let cpu_ns = thread_cpu_ns() - before;
            let _held = charged.or_wrong("a buffer was refused while caches were full")?;
            Ok((gained() - gained_before, cpu_ns))
        })
    }

    fn figures(&self) -> Figures {
        let (memory, io, shrinkers) =
            (self.hierarchy.memory(), self.hierarchy.io(), self.hierarchy.shrinkers());
        let of_all =
            |of: &Statistics, stat| of.get(&self.parent, stat, Reach::Subtree, Freshness::Fresh) as u64;
        Figures::from([
            // Bytes that the engine counts as reclaimed, that caches say they gave, and that were uncharged in their calls.
            ("reclaimed", of_all(&memory, stats::memory::RECLAIMED)),
            ("claimed", shrinkers.iter().map(|shrinker| shrinker.claimed_bytes).sum()),
            ("freed", shrinkers.iter().map(|shrinker| shrinker.freed_bytes).sum()),
            ("scan ns", shrinkers.iter().map(|shrinker| shrinker.time.as_nanos() as u64).sum()),
            ("reads", of_all(&io, stats::io::RIOS)),
            // Of all charges, SQLite's own too: SQLite goes on without a page that is refused, and no answer would show it.
            ("refusals", of_all(&memory, stats::memory::REFUSALS)),
        ])
    }

    /// Everything is within its bounds, and always was.
    fn check_bounds(&self) -> Result<()> {
        for group in std::iter::once(self.parent.clone()).chain(self.parent.children()) {
            let (peak, (usage, max)) = (group.peak(), group.usage_and_max());
            let max = max.unwrap_or(u64::MAX);
            ensure(usage.max(peak) <= max, || {
                let (name, path) = (self.bounds.name(), group.path());
                format!("{name}: {path} has {usage} bytes, had {peak}, and may have {max}")
            })?;
        }
        Ok(())
    }

    /// Reads every row once more, closes all and removes the groups: nothing is charged any more.
    pub(super) fn end(self) -> Result<()> {
        drop(self.probes);
        for tenant in self.tenants {
            let mut tenant = tenant.into_inner().unwrap_or_else(PoisonError::into_inner);
            tenant.check_all()?;
            tenant.close()?;
        }
        remove_empty(&self.parent)
    }
}

fn make_statement(tenant: &mut Tenant, random: u64) -> Result<()> {
    let id = (random >> 8) as i64 % tenant.rows() + 1;
    match random % 64 {
        0 => tenant.sum(id),
        kind if kind % 16 == 1 => tenant.update(id),
        _ => tenant.look_up(id),
    }
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, SlotSource};
    use std::sync::Arc;

    use super::*;
    use crate::Error;
    use crate::harness::cache::{PAGE, Pages};

    fn hierarchy() -> Hierarchy {
        Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap()
    }

    /// No tenants, in a hierarchy of their own.
    fn no_tenants() -> Tenants {
        let hierarchy = hierarchy();
        let (parent, _directory) = (hierarchy.create("/parent").unwrap(), Directory::make().unwrap());
        let (tenants, probes) = (Vec::new(), Vec::new());
        Tenants { bounds: Bounds::Common, tenants, parent, hierarchy, probes, _directory }
    }

    #[test]
    fn fails_when_bytes_were_above_a_limit() {
        let tenants = no_tenants();
        let group = tenants.parent.create("tenant").unwrap();
        group.set_max(100).unwrap();
        tenants.check_bounds().unwrap();
        drop(group.charge_forced(200).unwrap());
        let error = tenants.check_bounds().unwrap_err();
        assert!(matches!(&error, Error::Wrong(text) if text.contains("may have 100")), "{error}");
    }

    #[test]
    fn fails_when_bytes_stay_after_all_is_closed() {
        no_tenants().end().unwrap();
        let tenants = no_tenants();
        let charge = tenants.parent.try_charge(10).unwrap();
        let error = tenants.end().unwrap_err();
        assert!(matches!(&error, Error::Wrong(text) if text.contains("is 10 bytes")), "{error}");
        drop(charge);
    }

    #[test]
    fn leaves_room_in_a_share_for_pages_and_the_rest() {
        let needs = Needs { bare_bytes: 100_000, all_bytes: 100_000 + 1_000 * 4_500, pages: 1_000 };
        let pages = needs.pages_in(needs.all_bytes / 2);
        assert!((450..500).contains(&pages), "{pages}");
        assert!(needs.bare_bytes + BESIDE_PAGES + pages * 4_500 <= needs.all_bytes / 2);
        assert_eq!(needs.pages_in(1), 0);
    }

    #[test]
    fn probes_a_charge_that_makes_room_and_no_other() {
        let group = hierarchy().create("/group").unwrap();
        group.set_max(64 * PAGE).unwrap();
        let pages = Arc::new(Pages::default());
        let registered = group.add_shrinker(ShrinkerConfig::new("pages"), Arc::clone(&pages)).unwrap();
        let probe = group.add_shrinker(ShrinkerConfig::new("probe"), probe()).unwrap();
        probe.mark();
        for _ in 0..64 {
            pages.push(group.try_charge(PAGE).unwrap(), || registered.mark());
        }
        assert_eq!(PROBED.get(), 0, "there was room");
        let charge = group.try_charge(PAGE).unwrap();
        assert!(PROBED.get() > 0, "room was made");
        drop(charge);
        pages.clear();
    }
}
