//! The seed's two scripts with charges: writers fill their caches page by page below a limit, and room is made from the caches of all.
//!
//! Each charge is timed, and each callback within it. The rest of a charge, above the time of the same charges without a
//! limit, is the cost of making room. A reclaim from the same caches by hand, after each run, tells the walks' part of it. The
//! remainder is drains and waiting; a drain of all stocks by hand tells its size if each refusal made one.
//!
//! - I1. After each run the caches' pages are the parent's usage, and that is within its limit; each page was charged unless a charge was refused.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use memgroup::{Config, Group, Hierarchy, SlotSource};

use super::{FILE_BYTES, GROUPS, GROUPS_LATER, LIMIT_BYTES, WRITERS, WRITERS_FIRST};
use crate::harness::cache::{self, BATCH, Locked, PAGE, Spent, Tenant, Timed};
use crate::harness::prelude::*;

/// The way to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    /// There is no limit, so none is made: the cost of a charge by itself.
    Unlimited,
    /// None: a charge that does not fit is refused, and its writer gives up.
    NoReclaim,
    /// The writer that was refused walks over all groups, and tries a lock of all for reading at each: the kernel up to 6.3.
    LockOfGroups,
    /// The same walk without the lock.
    PlainWalk,
    /// Each call of a shrinker tries a lock of all for reading.
    Lock,
    Engine,
}

impl Mode {
    const ALL: [(Mode, &str); 6] = [
        (Mode::Unlimited, "no limit"),
        (Mode::NoReclaim, "no reclaim (control)"),
        (Mode::LockOfGroups, "lock tried at each group (control)"),
        (Mode::PlainWalk, "plain walk (control)"),
        (Mode::Lock, "lock tried at each call (control)"),
        (Mode::Engine, "shrinkers"),
    ];

    fn name(self) -> &'static str {
        Mode::ALL[self as usize].1
    }
}

/// Reclaims by hand after each run.
const BY_HAND: u64 = 32;

/// One of the seed's two scripts.
#[derive(Debug, Clone, Copy)]
struct Size {
    script: &'static str,
    groups: usize,
    writers: usize,
    limit_bytes: u64,
}

/// The counts of one thread.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    charges: u64,
    refusals: u64,
    /// From the first writer to the last.
    ticks: u64,
    charge_ticks: u64,
    spent: Spent,
}

/// Groups below a parent with a limit, each with a cache.
struct Writers {
    tenants: Vec<Tenant>,
    parent: Group,
    /// Of the tenants, those that write.
    writers: usize,
    next: AtomicUsize,
    mode: Mode,
    lock: Arc<RwLock<()>>,
    _hierarchy: Hierarchy,
}

impl Writers {
    fn build(mode: Mode, slots: SlotSource, size: Size) -> Result<Writers> {
        let config = Config::with_slots(slots).groups_max(size.groups as u32 + 3);
        let max = (mode != Mode::Unlimited).then_some(size.limit_bytes);
        let reclaim = mode == Mode::Lock || mode == Mode::Engine;
        // The engine's refusals drain all stocks, which would hide the walk that follows.
        let walks = matches!(mode, Mode::LockOfGroups | Mode::PlainWalk);
        let config = if walks { config.stock_cap_bytes(0) } else { config };
        let (hierarchy, parent) = limited_parent(config.reclaim(reclaim), max)?;
        let lock = Arc::new(RwLock::new(()));
        let tenant = |at| {
            let name = format!("g{at}");
            match mode {
                Mode::Lock => Tenant::new(&parent, &name, |pages| Locked(Arc::clone(&lock), Timed(pages))),
                _ => Tenant::new(&parent, &name, Timed),
            }
        };
        let tenants = (0..size.groups).map(tenant).collect::<Result<Vec<_>, _>>()?;
        let (writers, next) = (size.writers, AtomicUsize::new(0));
        Ok(Writers { tenants, parent, writers, next, mode, lock, _hierarchy: hierarchy })
    }

    /// Charges a page; in the controls that walk themselves, as often as a walk frees something.
    fn add_page(&self, tenant: &Tenant, cursor: &mut usize) -> bool {
        while tenant.add_page().is_err() {
            let walks = matches!(self.mode, Mode::LockOfGroups | Mode::PlainWalk);
            if !walks || !self.walk(cursor) {
                return false;
            }
        }
        true
    }

    /// Visits groups from the cursor on until a cache has given pages; whether one has.
    fn walk(&self, cursor: &mut usize) -> bool {
        (0..self.tenants.len()).any(|_| {
            *cursor = (*cursor + 1) % self.tenants.len();
            let _held = match self.mode {
                // A writer of the lock would end the walk here.
                Mode::LockOfGroups => self.lock.try_read().ok(),
                _ => None,
            };
            self.tenants[*cursor].pages.give_back(BATCH).is_some_and(|bytes| bytes > 0)
        })
    }

    /// One thread's part: writer after writer, until each has had its turn.
    fn write(&self, thread: usize) -> Part {
        let mut cursor = thread * self.tenants.len() / 2;
        cache::take_spent();
        let (mut part, begin) = (Part::default(), clock::now());
        // ORDERING: Relaxed; a number by itself, and the addition gives each writer to one thread.
        while let Some(tenant) = self.tenants[..self.writers].get(self.next.fetch_add(1, Ordering::Relaxed)) {
            for _ in 0..FILE_BYTES / PAGE {
                let before = clock::now();
                let charged = self.add_page(tenant, &mut cursor);
                part.charge_ticks += clock::now() - before;
                if !charged {
                    part.refusals += 1;
                    break;
                }
                part.charges += 1;
            }
        }
        Part { ticks: clock::now() - begin, spent: cache::take_spent(), ..part }
    }

    /// Ticks of one walk that makes room for a page, without its callbacks, and of one drain of all stocks.
    fn by_hand(&self) -> (f64, f64) {
        cache::take_spent();
        let begin = clock::now();
        for _ in 0..BY_HAND {
            self.parent.reclaim(PAGE, None);
        }
        let (walked, begin) = (clock::now() - begin, clock::now());
        for _ in 0..BY_HAND {
            self.parent.drain();
        }
        let (drained, callbacks) = (clock::now() - begin, cache::take_spent().ticks);
        let each = |ticks: u64| ticks as f64 / BY_HAND as f64;
        (each(walked.saturating_sub(callbacks)), each(drained))
    }

    /// Everything is accounted for (I1).
    fn check(&self, mode: Mode, charges: u64, refusals: u64) -> Result<()> {
        let (name, cached) = (mode.name(), self.tenants.iter().map(|one| one.pages.bytes()).sum::<u64>());
        let (usage, max) = (self.parent.usage_exact(), self.parent.max().unwrap_or(u64::MAX));
        ensure(usage == cached && usage <= max, || {
            format!("{name}: the parent's usage is {usage} bytes of {max}, its caches hold {cached}")
        })?;
        let all = self.writers as u64 * (FILE_BYTES / PAGE);
        ensure(refusals > 0 || charges == all, || {
            format!("{name}: {charges} pages were charged and none refused, {all} were written")
        })
    }
}

type ByMode = BTreeMap<(Mode, usize), Samples>;

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    run_script(lab, "the cover letter's script", GROUPS, WRITERS_FIRST)?;
    run_script(lab, "the thread's script, with the limit of the cover letter's", GROUPS_LATER, WRITERS)
}

fn run_script(lab: &mut Lab<'_>, script: &'static str, all_groups: usize, all_writers: usize) -> Result<()> {
    let groups = lab.args.groups.unwrap_or(if lab.args.tiny { 20 } else { all_groups });
    // In short with fewer writers, among as many groups.
    let share = if lab.args.quick { 8 } else { 1 };
    let writers = (groups * all_writers / all_groups / share).max(1);
    // As full as with all the groups of the scripts.
    let bytes = LIMIT_BYTES / all_writers as u64 * writers as u64;
    let size = Size { script, groups, writers, limit_bytes: (bytes / PAGE).max(512) * PAGE };
    let threads = lab.args.threads();
    let mut cases: Vec<(Mode, usize)> =
        Mode::ALL.into_iter().flat_map(|(mode, _)| [(mode, 1), (mode, threads)]).collect();
    cases.dedup();
    let mut found = ByMode::new();
    lab.in_turns(if lab.args.tiny { 1 } else { 3 }, cases.len(), |lab, case| {
        let (mode, threads) = cases[case];
        storm(lab, mode, threads, size, found.entry((mode, threads)).or_default())
    })?;
    show(lab, size, threads, &found)
}

/// One run, with groups of its own.
fn storm(lab: &Lab<'_>, mode: Mode, threads: usize, size: Size, found: &mut Samples) -> Result<()> {
    let writers = Writers::build(mode, lab.slots, size)?;
    let lead = lab.clock.ticks_per_us() * 10;
    let parts = lab.workers.run_together(threads, lead, |thread, _| Ok(writers.write(thread)))?;
    let sum = |of: fn(&Part) -> u64| parts.iter().map(of).sum::<u64>();
    let (charges, refusals) = (sum(|part| part.charges), sum(|part| part.refusals));
    writers.check(mode, charges, refusals)?;
    let (walk_ticks, drain_ticks) = writers.by_hand();
    let ns = |ticks: u64| lab.clock.ns(ticks as f64);
    let each = |amount: f64| amount / (charges + refusals).max(1) as f64;
    let (total_ns, scans) = (ns(sum(|part| part.ticks)), sum(|part| part.spent.scans) as f64);
    // All threads run from the first to the last, so their time is theirs together.
    found.push("charges", charges as f64 / (total_ns / threads as f64) * 1e9);
    found.push("charge", each(ns(sum(|part| part.charge_ticks))));
    found.push("callbacks of a charge", each(ns(sum(|part| part.spent.ticks))));
    // Room for one page takes a walk that ends with its first scan.
    found.push("walks of a charge", each(lab.clock.ns(walk_ticks) * scans));
    found.push("a drain of all stocks", lab.clock.ns(drain_ticks));
    found.push("all time of a charge", each(total_ns));
    found.push("refusals", refusals as f64);
    found.push("scans", each(scans));
    Ok(())
}

fn show(lab: &mut Lab<'_>, size: Size, all: usize, found: &ByMode) -> Result<()> {
    let columns =
        ["made by; threads", "charges/s", "ns each", "calls", "walks", "rest", "a drain", "scans", "refused"];
    let [writers, groups] = [size.writers, size.groups].map(|number| count(number as u64));
    let (pages, mib) = (FILE_BYTES / PAGE, count(size.limit_bytes >> 20));
    let title = format!(
        "{}: {writers} writers of {pages} pages each in {groups} groups, {mib} MiB for all",
        size.script
    );
    let mut table = Table::new(title, columns);
    for (&(mode, threads), one) in found {
        let makes_room = mode == Mode::Lock || mode == Mode::Engine;
        let walks = one.median("walks of a charge").filter(|_| makes_room);
        let unlimited = found.get(&(Mode::Unlimited, threads)).and_then(|one| one.median("charge"));
        let parts: Option<f64> = [unlimited, one.median("callbacks of a charge"), walks].into_iter().sum();
        let rest = one.median("charge").zip(parts).map(|(all, parts)| (all - parts).max(0.0));
        let mut row = lab
            .record(mode.name(), json!({"threads": threads, "groups": size.groups, "writers": size.writers}));
        let means = [("charges", "1/s"), ("charge", "ns"), ("callbacks of a charge", "ns"), ("refusals", "")];
        let [charges, charge, callbacks, _] = row.medians(one, means);
        let walks = row.value("walks of a charge", "ns", walks);
        let rest = row.value("rest of a charge", "ns", rest);
        let drain = row.value("a drain of all stocks", "ns", one.median("a drain of all stocks"));
        let scans = figure_or_dash(one.median("scans"));
        let refused = count(one.median("refusals").unwrap_or(0.0) as u64);
        let cells = [charges, charge, callbacks, walks, rest, drain, scans, refused];
        table.row(format!("{}; {threads}", mode.name()), cells);
    }
    let engine = |threads, name| found.get(&(Mode::Engine, threads)).and_then(|one| one.median(name));
    let share = ratio(engine(all, "walks of a charge"), engine(all, "all time of a charge"));
    table.note("plain walk: the engine without its stock and without reclaim; the writer that is refused walks over all groups itself, and tries a lock of all at each, or none");
    table.note(format!(
        "ns of a charge, and in it: calls of shrinkers; walks, by the cost of one by hand; the rest above a charge without a limit, which is drains and waiting. A drain: of all stocks, once, by hand. Scans: for a charge. The walks have {} % of all threads' time. In the seed's two scripts the lock and the walk had 80.7 and 64.3 % of the kernel's cycles, and the walk 14.6 and 17.0 % without the lock",
        figure_or_dash(share.map(|share| share * 100.0))
    ));
    lab.print(&table)?;
    let refusals = found.get(&(Mode::Engine, all)).into_iter().flat_map(|one| one.of("refusals"));
    let most = refusals.copied().reduce(f64::max);
    let beside = format!("{groups} groups");
    lab.at_most(format!("refusals where caches have bytes, most of any run, {beside}"), most, 0.0, "");
    if all > 1 {
        let speed = engine(all, "charges");
        let name = format!("charges/s under pressure, {all} threads over 1, {beside}");
        lab.at_least(name, ratio(speed, engine(1, "charges")), 1.0, "x");
        let lock = found.get(&(Mode::Lock, all)).and_then(|one| one.median("charges"));
        let name = format!("charges/s under pressure over a lock tried, all threads, {beside}");
        lab.at_least(name, ratio(speed, lock), 1.0, "x");
    }
    Ok(())
}
