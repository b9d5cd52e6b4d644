//! SQLite under memory pressure: tenants with page caches that would take twice the limit, a few busy at a time and the others idle.
//!
//! Rapoport and Morton asked for it in the seed's thread: statements a second, bytes freed for a second of CPU
//! time, and the length of those charges that have to make room. A tenant in its turn reads and changes its whole database, so it would cache all of it, and
//! room is made from the caches of tenants after their turn. Databases are in files that the system caches too: a page that had to go costs a read of 4 KiB
//! from the system's memory, not from a disk, so the gain of a larger cache is at its smallest here.
//!
//! ```text
//!   parent, limited ──┬── t0: its connection ── buffers: charged beside it, and timed
//!                     ├── t1 ...
//! ```
//!
//! - *A common limit* is the engine as it is meant to be used. *A limit each* makes room in the same way, but each tenant only from its own cache: the
//!   gain without anything shared. *Fixed shares* are the control: SQLite's own bound on each cache, with which nothing is ever reclaimed.
//! - The lock around all lists, the other experiments' control, is not among them: `memgroup-sqlite` registers the shrinkers of SQLite's caches itself,
//!   and there is no place between the engine and them for a lock. It would also show little: it costs a try for each visit, beside a
//!   call that frees sixteen pages, and nothing here registers or removes while it runs.
//! - Most statements are look-ups, one in 16 changes a row, one in 64 sums some. A statement has made room if a walk of its thread came by the
//!   probe. SQLite's own charges cannot be timed from here, so beside each statement a buffer of a page is charged, too, and
//!   timed by itself. A reading of CPU time takes as long as a statement, so it is taken after each window, when no tenant is busy and all is full.
//! - With several threads a page is often freed by another thread than the one that allocated it, and goes back to the allocator under a lock of the
//!   latter's arena. Counted by their stacks, with glibc, nearly all calls in which tenants' threads waited for a lock or woke a waiter are of those: 1,697 in a
//!   run, 6 of the engine's, and 45 times a connection gave way to a thread that shrank its cache.
//! - I1. Each answer of each statement is right (`harness::sqlite`, I1); no limit is ever passed; the bytes that the engine counts as reclaimed are those that the
//!   caches say they gave and that were uncharged meanwhile; and when all is closed nothing is charged.
//! - I2. All tenants of all runs are in the one hierarchy that SQLite serves.
//! - I3. The probe cannot tell its size, so it keeps its mark in the largest class: a walk from its group calls it before any cache, and never asks it
//!   for bytes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::harness::{
    Blocks, Directory, Lab, OrFail, Quantiles, Random, Result, STATEMENT, Samples, Sqlite, Table, Tenant,
    child, clock, count, ensure, expect_bytes, figure, figure_or_dash, json, limit, median, ratio,
    remove_tree, thread_cpu_ns, unique,
};
use memgroup::{
    Ask, Charge, Count, Freshness, Group, GroupShrinker, Hierarchy, Reach, Scan, Shrinker, ShrinkerConfig,
    Statistics, stats,
};

/// Bytes of a tenant's share that are left beside its pages: the connection's own blocks grow a little while it works.
const BESIDE_PAGES: u64 = 64 << 10;
/// Bytes of a buffer: those of a page.
const BUFFER: u64 = 4096;
/// Bytes of a buffer that needs room by itself, and how many are charged after a window.
const LARGE: u64 = 64 << 10;
const LARGE_COUNT: u64 = 8;

/// How many tenants there are, and how long they run.
#[derive(Debug, Clone, Copy)]
struct Size {
    tenants: usize,
    /// Of each database, a page each.
    rows: i64,
    /// Statements of a long turn and of a short one, and the windows of each case that count.
    long: u64,
    short: u64,
    windows: usize,
}

impl Size {
    fn of(lab: &Lab<'_>) -> Size {
        let full = Size { tenants: 8, rows: 1_000, long: 8_000, short: 500, windows: 10 };
        let tiny = Size { tenants: 4, rows: 400, long: 300, short: 20, windows: 1 };
        lab.pick(tiny, Size { windows: 3, ..full }, full)
    }

    /// Each case's turns; windows of short turns have several rounds. A thread more than tenants would have none.
    fn turns(self, threads: usize) -> Vec<Turns> {
        let rounds = (self.long / self.short / 4).max(1);
        let mut all = Vec::new();
        for threads in [1, threads.min(self.tenants)] {
            all.push(Turns { threads, statements: self.long, rounds: 1 });
            all.push(Turns { threads, statements: self.short, rounds });
        }
        all.dedup();
        all
    }
}

/// The turns of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turns {
    threads: usize,
    /// Statements of a turn.
    statements: u64,
    /// Turns of each tenant.
    rounds: u64,
}

/// The way that keeps a tenant's cache within bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Bounds {
    /// SQLite alone: each cache is told its share in pages. The way without reclaim.
    Shares,
    /// Each tenant has a limit, its share, and makes room from its own cache.
    Limits,
    /// Only all tenants together have a limit, and room is made from every cache below it.
    Common,
}

impl Bounds {
    const ALL: [(Bounds, &str); 3] = [
        (Bounds::Shares, "fixed shares, no reclaim (control)"),
        (Bounds::Limits, "a limit each"),
        (Bounds::Common, "a common limit"),
    ];

    fn name(self) -> &'static str {
        Bounds::ALL[self as usize].1
    }
}

/// A shrinker that holds nothing, and sees each walk come by: it tells a thread whether its charge had shrinkers make room.
struct Probe;

std::thread_local! {
    static PROBED: Cell<u64> = const { Cell::new(0) };
}

impl Shrinker for Probe {
    fn count(&self, _token: u64) -> Count {
        PROBED.set(PROBED.get() + 1);
        Count::Unknown
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        Scan::Stopped { bytes: 0 }
    }
}

/// Bytes of one tenant by itself, and with all of its database in its cache.
#[derive(Debug, Clone, Copy)]
struct Needs {
    bare_bytes: u64,
    all_bytes: u64,
    pages: u64,
}

impl Needs {
    /// Measures a tenant that has no limit.
    fn measure(hierarchy: &Hierarchy, rows: i64) -> Result<Needs> {
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
struct Tenants {
    bounds: Bounds,
    tenants: Vec<Mutex<Tenant>>,
    parent: Group,
    hierarchy: Hierarchy,
    probes: Vec<GroupShrinker>,
    _directory: Directory,
}

/// The work of one thread. Times are in nanoseconds.
#[derive(Debug, Default)]
struct Part {
    statements: Vec<f64>,
    /// Of those, the statements in which room was made.
    stalled: Vec<f64>,
    /// Charges of buffers that made room.
    stalls: Vec<f64>,
    /// Whole turns.
    turns: Vec<f64>,
    usage_max: u64,
}

/// The engine's figures of some tenants, or of a window.
#[derive(Debug, Clone, Copy, Default)]
struct Figures {
    /// Bytes that the engine counts as reclaimed, that caches say they gave, and that were uncharged in their calls.
    reclaimed: u64,
    claimed: u64,
    freed: u64,
    scan_ns: u64,
    reads: u64,
    /// Of all charges, SQLite's own too: SQLite goes on without a page that is refused, and no answer would show it.
    refusals: u64,
}

impl Tenants {
    /// Tenants that may have `max_bytes` together, each with a database of so many rows.
    fn build(
        hierarchy: &Hierarchy,
        bounds: Bounds,
        needs: Needs,
        size: Size,
        max_bytes: u64,
    ) -> Result<Tenants> {
        let directory = Directory::make()?;
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
        let add = |group: &Group| group.add_shrinker(ShrinkerConfig::new("probe"), Probe).set_up("a probe");
        let probes = refusing.iter().map(add).collect::<Result<Vec<_>>>()?;
        probes.iter().for_each(GroupShrinker::mark);
        Ok(Tenants { bounds, tenants, parent, hierarchy: hierarchy.clone(), probes, _directory: directory })
    }

    fn tenant(&self, at: usize) -> MutexGuard<'_, Tenant> {
        self.tenants[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One window: the parts of its threads, and the engine's figures.
    fn window(&self, lab: &Lab<'_>, turns: Turns, seed: u64) -> Result<(Vec<Part>, Figures)> {
        let before = self.figures();
        let clock = lab.clock;
        let parts = lab.workers.run_together(turns.threads, clock.ticks_per_us() * 10, |thread, _| {
            self.work(turns, thread, seed, |ticks| clock.ns(ticks as f64))
        })?;
        let now = self.figures();
        let figures = Figures {
            reclaimed: now.reclaimed - before.reclaimed,
            claimed: now.claimed - before.claimed,
            freed: now.freed - before.freed,
            scan_ns: now.scan_ns - before.scan_ns,
            reads: now.reads - before.reads,
            refusals: now.refusals - before.refusals,
        };
        let (Figures { reclaimed, claimed, freed, .. }, name) = (figures, self.bounds.name());
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
        let (max, most) = (
            self.parent.max().unwrap_or(u64::MAX),
            parts.iter().map(|part| part.usage_max).max().unwrap_or(0),
        );
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
    fn by_hand(&self, lab: &Lab<'_>, seed: u64) -> Result<(u64, u64)> {
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
        let (memory, io) = (self.hierarchy.memory(), self.hierarchy.io());
        let of_all =
            |of: &Statistics, stat| of.get(&self.parent, stat, Reach::Subtree, Freshness::Fresh) as u64;
        let mut figures = Figures {
            reclaimed: of_all(&memory, stats::memory::RECLAIMED),
            reads: of_all(&io, stats::io::RIOS),
            refusals: of_all(&memory, stats::memory::REFUSALS),
            ..Figures::default()
        };
        for shrinker in self.hierarchy.shrinkers() {
            figures.scan_ns += shrinker.time.as_nanos() as u64;
            figures.claimed += shrinker.claimed_bytes;
            figures.freed += shrinker.freed_bytes;
        }
        figures
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
    fn end(self) -> Result<()> {
        drop(self.probes);
        for tenant in self.tenants {
            let mut tenant = tenant.into_inner().unwrap_or_else(PoisonError::into_inner);
            tenant.check_all()?;
            tenant.close()?;
        }
        expect_bytes(&self.parent, "usage after all was closed", self.parent.usage_exact(), 0)?;
        self.parent.drain();
        expect_bytes(&self.parent, "usage after a drain", self.parent.usage(), 0)?;
        remove_tree(&self.parent)
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

/// The windows of one case.
#[derive(Default)]
struct Found {
    /// Figures of a window: statements a second of each turn, times the threads; reads and reclaimed bytes of a statement.
    samples: Samples,
    statements: Blocks,
    /// Statements in which room was made, and charges of buffers that made room; all windows together, because there are few in one.
    stalled: Vec<f64>,
    stalls: Vec<f64>,
    /// Bytes freed by hand, and the nanoseconds of CPU time.
    by_hand: (u64, u64),
    scan_ns: u64,
    reclaimed: u64,
    refusals: u64,
}

impl Found {
    fn add(&mut self, turns: Turns, parts: Vec<Part>, figures: Figures, by_hand: (u64, u64)) {
        let mut times = Vec::new();
        for part in parts {
            let at_once = (turns.threads as u64 * turns.statements) as f64;
            part.turns.iter().for_each(|ns| self.samples.push("statements", at_once * 1e9 / ns));
            times.extend(part.statements);
            self.stalled.extend(part.stalled);
            self.stalls.extend(part.stalls);
        }
        let statements = times.len() as f64;
        self.statements.push(times);
        self.samples.push("reads of a statement", figures.reads as f64 / statements);
        self.samples.push("reclaimed of a statement", figures.reclaimed as f64 / statements);
        self.by_hand = (self.by_hand.0 + by_hand.0, self.by_hand.1 + by_hand.1);
        self.scan_ns += figures.scan_ns;
        self.reclaimed += figures.reclaimed;
        self.refusals += figures.refusals;
    }
}

type ByCase = BTreeMap<(Turns, Bounds), Found>;

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let (size, sqlite) = (Size::of(lab), Sqlite::take(lab.slots)?);
    let needs = Needs::measure(&sqlite.hierarchy, size.rows)?;
    let max_bytes = needs.all_bytes * size.tenants as u64 / 2;
    let mut all = Vec::new();
    for (bounds, _) in Bounds::ALL {
        all.push(Tenants::build(&sqlite.hierarchy, bounds, needs, size, max_bytes)?);
    }
    let turns = size.turns(lab.args.threads());
    let mut found = ByCase::new();
    // The first round fills the caches and counts for nothing.
    for round in 0..=size.windows {
        lab.in_turns(1, turns.len() * all.len(), |lab, case| {
            let (turns, tenants) = (turns[case / all.len()], &all[case % all.len()]);
            let seed = lab.random.next();
            let (parts, figures) = tenants.window(lab, turns, seed)?;
            let reclaims = tenants.bounds != Bounds::Shares;
            let by_hand = if reclaims { tenants.by_hand(lab, seed)? } else { (0, 0) };
            if round > 0 {
                found.entry((turns, tenants.bounds)).or_default().add(turns, parts, figures, by_hand);
            }
            Ok(())
        })?;
    }
    all.into_iter().try_for_each(Tenants::end)?;
    show(lab, size, max_bytes, &found)?;
    for turns in turns.into_iter().filter(|turns| turns.statements == size.long) {
        let speed = |bounds| found.get(&(turns, bounds)).and_then(|one| one.samples.median("statements"));
        let name =
            format!("SQLite statements a second, common limit over shares, threads: {}", turns.threads);
        lab.at_least(name, ratio(speed(Bounds::Common), speed(Bounds::Shares)), 1.0, "x");
    }
    let refusals: u64 = found.values().map(|one| one.refusals).sum();
    let name = "charges refused, SQLite's and beside it, where caches have room";
    lab.at_most(name, Some(refusals as f64), 0.0, "");
    Ok(())
}

fn show(lab: &mut Lab<'_>, size: Size, max_bytes: u64, found: &ByCase) -> Result<()> {
    let case = "threads; turn; caches within";
    let mut speeds = Table::new(
        format!(
            "SQLite under pressure: {} tenants with {} pages each take turns of so many statements, {} MiB for all, half of what they would cache",
            size.tenants,
            count(size.rows as u64),
            figure(max_bytes as f64 / f64::from(1 << 20))
        ),
        [case, "statements/s", "reads each", "us: p50", "p99", "p99.9"],
    );
    let columns = [case, "KiB a statement", "GiB/CPU-s", "in calls"];
    let mut rooms = Table::new("the same: the reclaimed bytes, and their price", columns);
    let mut stalls = Table::new(
        "the same: how long it takes where room has to be made, us",
        [case, "statements: p50", "p99", "p99.9", "charges: p50", "p99", "p99.9"],
    );
    for (&(turns, bounds), one) in found {
        let (samples, quantiles) = (&one.samples, &one.statements);
        let params = json!({"threads": turns.threads, "turn": turns.statements});
        let mut row = lab.record(bounds.name(), params);
        for (metric, unit) in
            [("statements", "1/s"), ("reads of a statement", ""), ("reclaimed of a statement", "bytes")]
        {
            row.summary(metric, unit, samples.summary(metric));
        }
        let us = |ns: Option<f64>| figure_or_dash(ns.map(|ns| ns / 1e3));
        let mut cells =
            ["statements", "reads of a statement"].map(|name| figure_or_dash(samples.median(name))).to_vec();
        for (metric, ns) in [
            ("statement p50", quantiles.p50()),
            ("statement p99", quantiles.p99()),
            ("statement p999", quantiles.p999()),
        ] {
            row.summary(metric, "ns", ns);
            cells.push(us(median(ns)));
        }
        let a_second = |bytes: u64, ns: u64| ratio(Some(bytes as f64 * 1e9), Some(ns as f64));
        let (charges, calls) = (a_second(one.by_hand.0, one.by_hand.1), a_second(one.reclaimed, one.scan_ns));
        row.value("freed for a CPU second of charges", "bytes/s", charges);
        row.value("freed for a second in calls", "bytes/s", calls);
        let mut tails = Vec::new();
        for ([number, metrics @ ..], times) in [
            (["statements that made room", "their p50", "their p99", "their p999"], &one.stalled),
            (["charges that made room", "charges' p50", "charges' p99", "charges' p999"], &one.stalls),
        ] {
            row.count(number, "", times.len() as u64);
            tails.extend(metrics.into_iter().zip(tail(times)).map(|(metric, ns)| row.us(metric, ns)));
        }
        let name = format!("{}; {}; {}", turns.threads, count(turns.statements), bounds.name());
        speeds.row(&name, cells);
        if bounds != Bounds::Shares {
            let units =
                |bytes: Option<f64>, unit: u64| figure_or_dash(bytes.map(|bytes| bytes / unit as f64));
            let kib = units(samples.median("reclaimed of a statement"), 1 << 10);
            rooms.row(&name, [kib, units(charges, 1 << 30), units(calls, 1 << 30)]);
            stalls.row(&name, tails);
        }
    }
    speeds.note(
        "look-ups, one statement in 16 an update, one in 64 a sum over 16 rows; each answer is checked. Statements a second: of the median turn, times the threads. Reads: of 4 KiB, from files that the system has in its memory. Quantiles: the median of the windows'",
    );
    lab.print(&speeds)?;
    rooms.note(
        "GiB that are freed for a second of CPU time: whole charges, with their walks and drains, by the thread's CPU clock, of eight of 64 KiB after each window, when no tenant is busy and all is full; and in the caches' calls alone, during the windows, by the engine's clock, in which a thread that is switched out counts",
    );
    lab.print(&rooms)?;
    let all = |of: fn(&Found) -> &Vec<f64>| count(found.values().map(|one| of(one).len() as u64).sum());
    stalls.note(format!(
        "statements: {} in which room was made, with all their other work; charges: {} that made room, of a buffer of a page beside each statement, from the call to its return. SQLite's own, from within, are alike and cannot be timed from here. All windows together; a percentile takes as many as its name says: 100, or 1,000",
        all(|one| &one.stalled),
        all(|one| &one.stalls)
    ));
    lab.print(&stalls)
}

/// The middle, the ninety-ninth percentile and that of thousandths, of enough times for each.
fn tail(times: &[f64]) -> [Option<f64>; 3] {
    let quantiles = Quantiles::of(times.to_vec());
    let of_at_least = |least, of: fn(Quantiles) -> f64| quantiles.filter(|_| times.len() >= least).map(of);
    [of_at_least(1, |all| all.p50), of_at_least(100, |all| all.p99), of_at_least(1000, |all| all.p999)]
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, SlotSource};
    use std::sync::Arc;

    use super::super::cache::{PAGE, Pages};
    use super::*;
    use crate::Error;

    #[test]
    fn takes_as_many_times_for_a_percentile_as_its_name_says() {
        let times = |count: u32| (1..=count).map(f64::from).collect::<Vec<_>>();
        assert_eq!(tail(&times(0)), [None; 3]);
        assert_eq!(tail(&times(99)), [Some(50.0), None, None]);
        assert_eq!(tail(&times(100)), [Some(50.0), Some(99.0), None]);
        assert_eq!(tail(&times(1000)), [Some(500.0), Some(990.0), Some(999.0)]);
    }

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
        let probe = group.add_shrinker(ShrinkerConfig::new("probe"), Probe).unwrap();
        probe.mark();
        for _ in 0..64 {
            if pages.push(group.try_charge(PAGE).unwrap()) {
                registered.mark();
            }
        }
        assert_eq!(PROBED.get(), 0, "there was room");
        let charge = group.try_charge(PAGE).unwrap();
        assert!(PROBED.get() > 0, "room was made");
        drop(charge);
        pages.clear();
    }
}
