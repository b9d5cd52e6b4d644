//! The letter's script with charges: writers fill their caches page by page below a limit, and room is made from the caches of all.
//!
//! Each charge is timed, and each callback within it. What is in charges and not in callbacks, above what the same charges take without a
//! limit, is what making room takes. What of it the walks take is told by a reclaim from the same caches by hand, after each run, which walks alike. The
//! rest is drains and waiting; a drain of all stocks by hand tells what it would be if each refusal made one.
//!
//! - I1. After each run the caches' pages are the parent's usage, and that is within its limit; what was not refused was charged.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use memgroup::{Config, Group, Hierarchy, SlotSource, UNLIMITED};

use super::cache::{self, Locked, PAGE, Spent, Tenant, Timed};
use super::seed;
use crate::Error;
use crate::harness::Lab;
use crate::harness::clock;
use crate::harness::crew::Start;
use crate::harness::report::{Check, params, ratio};
use crate::harness::stats::Summary;
use crate::harness::table::{Table, count, figure_or_dash};
use crate::harness::tree::{child, limit};

/// How room is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    /// There is no limit, so none is made: what a charge takes by itself.
    Unlimited,
    /// None: a charge that does not fit is refused, and its writer gives up.
    NoReclaim,
    /// Each call of a shrinker tries a lock of all for reading.
    Lock,
    Engine,
}

impl Mode {
    const ALL: [Mode; 4] = [Mode::Unlimited, Mode::NoReclaim, Mode::Lock, Mode::Engine];

    fn name(self) -> &'static str {
        match self {
            Mode::Unlimited => "no limit",
            Mode::NoReclaim => "no reclaim (control)",
            Mode::Lock => "lock tried at each call (control)",
            Mode::Engine => "shrinkers",
        }
    }
}

/// What one thread, or one run, did.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    charges: u64,
    refusals: u64,
    /// From the first writer to the last.
    ticks: u64,
    charge_ticks: u64,
    spent: Spent,
    /// Of one walk, and of one drain, by hand, afterwards.
    walk_ticks: f64,
    drain_ticks: f64,
}

impl Part {
    fn with(self, other: Part) -> Part {
        let (one, two) = (self.spent, other.spent);
        Part {
            charges: self.charges + other.charges,
            refusals: self.refusals + other.refusals,
            ticks: self.ticks + other.ticks,
            charge_ticks: self.charge_ticks + other.charge_ticks,
            spent: Spent {
                ticks: one.ticks + two.ticks,
                counts: one.counts + two.counts,
                scans: one.scans + two.scans,
            },
            walk_ticks: self.walk_ticks + other.walk_ticks,
            drain_ticks: self.drain_ticks + other.drain_ticks,
        }
    }
}

/// Groups below a parent with a limit, each with a cache.
struct House {
    tenants: Vec<Tenant>,
    parent: Group,
    /// Of the tenants, those that write.
    writers: usize,
    next: AtomicUsize,
    _hierarchy: Hierarchy,
}

/// Reclaims by hand after each run.
const BY_HAND: u64 = 32;

impl House {
    fn build(mode: Mode, slots: SlotSource, size: Size) -> Result<House, Error> {
        let config =
            Config::with_slots(slots).groups_max(size.groups as u32 + 3).reclaim(mode != Mode::NoReclaim);
        let hierarchy = Hierarchy::new(config).map_err(|error| Error::setup("the hierarchy", error))?;
        let parent = child(&hierarchy.root(), "parent")?;
        limit(&parent, if mode == Mode::Unlimited { UNLIMITED } else { size.limit_bytes })?;
        let lock = Arc::new(RwLock::new(()));
        let tenant = |at| {
            let name = format!("g{at}");
            match mode {
                Mode::Lock => Tenant::new(&parent, &name, |pages| Locked(Arc::clone(&lock), Timed(pages))),
                _ => Tenant::new(&parent, &name, Timed),
            }
        };
        let tenants = (0..size.groups).map(tenant).collect::<Result<Vec<_>, _>>()?;
        Ok(House { tenants, parent, writers: size.writers, next: AtomicUsize::new(0), _hierarchy: hierarchy })
    }

    /// One thread's part: writer after writer, until each has had its turn.
    fn write(&self) -> Part {
        cache::take_spent();
        let (mut part, begin) = (Part::default(), clock::now());
        loop {
            // ORDERING: Relaxed; a number by itself, and an exchange gives each to one.
            let writer = self.next.fetch_add(1, Ordering::Relaxed);
            if writer >= self.writers {
                break;
            }
            let tenant = &self.tenants[writer];
            for _ in 0..seed::FILE_BYTES / PAGE {
                let before = clock::now();
                let charged = tenant.add_page();
                part.charge_ticks += clock::now() - before;
                if charged.is_err() {
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
    fn check(&self, mode: Mode, part: Part) -> Result<(), Error> {
        let wrong = |what: String| Err(Error::Wrong(format!("{}: {what}", mode.name())));
        let cached: u64 = self.tenants.iter().map(|tenant| tenant.pages.bytes()).sum();
        let (usage, max) = (self.parent.usage_exact(), self.parent.max());
        if usage != cached || usage > max {
            return wrong(format!("the parent's usage is {usage} bytes of {max}, its caches hold {cached}"));
        }
        let all = self.writers as u64 * (seed::FILE_BYTES / PAGE);
        if part.refusals == 0 && part.charges != all {
            return wrong(format!(
                "{} pages were charged and none refused, {all} were written",
                part.charges
            ));
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy)]
struct Size {
    groups: usize,
    writers: usize,
    limit_bytes: u64,
}

/// One line of the table.
#[derive(Default)]
struct Found {
    charges_a_second: Vec<f64>,
    ns_a_charge: Vec<f64>,
    callback_ns: Vec<f64>,
    walk_ns: Vec<f64>,
    drain_ns: Vec<f64>,
    refusals: Vec<f64>,
    scans: Vec<f64>,
    total_ns: Vec<f64>,
}

type ByMode = BTreeMap<(Mode, usize), Found>;

pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let groups = lab.args.groups.unwrap_or(if lab.args.tiny { 20 } else { seed::GROUPS_LATER });
    // In short with fewer writers, among as many groups.
    let share = if lab.args.quick { 8 } else { 1 };
    let writers = (groups * seed::WRITERS / seed::GROUPS_LATER / share).max(1);
    // As full as with all the groups of the scripts.
    let bytes = seed::LIMIT_BYTES / seed::WRITERS as u64 * writers as u64;
    let size = Size { groups, writers, limit_bytes: (bytes / PAGE).max(512) * PAGE };
    let rounds = if lab.args.tiny { 1 } else { 3 };
    let threads = lab.args.threads();
    let mut cases: Vec<(Mode, usize)> =
        Mode::ALL.into_iter().flat_map(|mode| [(mode, 1), (mode, threads)]).collect();
    cases.dedup();
    let mut found = ByMode::new();
    for _ in 0..rounds {
        lab.random.shuffle(&mut cases);
        for &(mode, threads) in &cases {
            let part = storm(lab, mode, threads, size)?;
            let one = found.entry((mode, threads)).or_default();
            let ns = |ticks: u64| lab.clock.ns(ticks as f64);
            let each = |amount: f64| amount / (part.charges + part.refusals).max(1) as f64;
            // All threads run from the first to the last, so their time is theirs together.
            one.charges_a_second.push(part.charges as f64 / (ns(part.ticks) / threads as f64) * 1e9);
            one.ns_a_charge.push(each(ns(part.charge_ticks)));
            one.callback_ns.push(each(ns(part.spent.ticks)));
            // Room for one page takes a walk that ends with its first scan.
            one.walk_ns.push(each(lab.clock.ns(part.walk_ticks) * part.spent.scans as f64));
            one.drain_ns.push(lab.clock.ns(part.drain_ticks));
            one.total_ns.push(each(ns(part.ticks)));
            one.refusals.push(part.refusals as f64);
            one.scans.push(each(part.spent.scans as f64));
        }
    }
    show(lab, size, threads, &found)
}

/// One run, on a house of its own.
fn storm(lab: &Lab<'_>, mode: Mode, threads: usize, size: Size) -> Result<Part, Error> {
    let house = Arc::new(House::build(mode, lab.slots, size)?);
    let (writing, start) = (Arc::clone(&house), Start::new(threads));
    let lead = lab.clock.ticks_per_us() * 10;
    let parts = lab.crew.run(threads, move |_| {
        start.wait(lead);
        writing.write()
    });
    let part = parts.into_iter().fold(Part::default(), Part::with);
    house.check(mode, part)?;
    let (walk_ticks, drain_ticks) = house.by_hand();
    Ok(Part { walk_ticks, drain_ticks, ..part })
}

fn median(samples: &[f64]) -> Option<f64> {
    Summary::of(samples).map(|summary| summary.median)
}

/// What making room takes for a charge, in nanoseconds.
#[derive(Default)]
struct Room {
    walk: Option<f64>,
    /// Beyond walks and callbacks.
    rest: Option<f64>,
    /// The walks' share of all time.
    walk_share: Option<f64>,
}

impl Room {
    fn of(found: &ByMode, mode: Mode, threads: usize) -> Room {
        let of =
            |mode, what: fn(&Found) -> &[f64]| found.get(&(mode, threads)).and_then(|one| median(what(one)));
        let walk = of(mode, |one| &one.walk_ns);
        let parts = [of(Mode::Unlimited, |one| &one.ns_a_charge), of(mode, |one| &one.callback_ns), walk];
        let parts: Option<f64> = parts.into_iter().sum();
        let rest = of(mode, |one| &one.ns_a_charge).zip(parts).map(|(all, parts)| (all - parts).max(0.0));
        Room { walk, rest, walk_share: ratio(walk, of(mode, |one| &one.total_ns)) }
    }
}

fn show(lab: &mut Lab<'_>, size: Size, all: usize, found: &ByMode) -> Result<(), Error> {
    let mut table = Table::new(
        format!(
            "{} writers of {} pages each in {} groups, {} MiB for all",
            count(size.writers as u64),
            seed::FILE_BYTES / PAGE,
            count(size.groups as u64),
            count(size.limit_bytes >> 20)
        ),
        [
            "room is made by; threads",
            "charges/s",
            "ns each",
            "calls",
            "walks",
            "rest",
            "a drain",
            "scans",
            "refused",
        ],
    );
    for (&(mode, threads), one) in found {
        let room = match mode {
            Mode::Unlimited | Mode::NoReclaim => Room::default(),
            Mode::Lock | Mode::Engine => Room::of(found, mode, threads),
        };
        let cell = |samples: &[f64]| figure_or_dash(median(samples));
        table.row(vec![
            format!("{}; {threads}", mode.name()),
            cell(&one.charges_a_second),
            cell(&one.ns_a_charge),
            cell(&one.callback_ns),
            figure_or_dash(room.walk),
            figure_or_dash(room.rest),
            cell(&one.drain_ns),
            cell(&one.scans),
            count(median(&one.refusals).unwrap_or(0.0) as u64),
        ]);
        let what = || params([("threads", threads.into()), ("groups", size.groups.into())]);
        let mut add = |metric, unit, samples: &[f64]| {
            if let Some(summary) = Summary::of(samples) {
                lab.report.add(mode.name(), what(), metric, unit, summary);
            }
        };
        add("charges", "1/s", &one.charges_a_second);
        add("charge", "ns", &one.ns_a_charge);
        add("callbacks of a charge", "ns", &one.callback_ns);
        add("refusals", "", &one.refusals);
        for (metric, ns) in [
            ("walks of a charge", room.walk),
            ("rest of a charge", room.rest),
            ("a drain of all stocks", median(&one.drain_ns)),
        ] {
            if let Some(ns) = ns {
                lab.report.add_count(mode.name(), what(), metric, "ns", ns);
            }
        }
    }
    let share = Room::of(found, Mode::Engine, all).walk_share.map(|share| share * 100.0);
    table.note(format!(
        "ns of a charge, and in it: calls of shrinkers; walks, by what one takes by hand; the rest above a charge without a limit, which is drains and waiting. A drain: of all stocks, once, by hand. Scans: for a charge. The walks have {} % of all threads' time. In the seed's two scripts the lock and the walk had 80.7 and 64.3 % of the kernel's cycles, and the walk 14.6 and 17.0 % without the lock",
        figure_or_dash(share)
    ));
    lab.print(&table)?;
    let of = |mode, threads| found.get(&(mode, threads));
    let refused =
        |threads| of(Mode::Engine, threads).and_then(|one| one.refusals.iter().copied().reduce(f64::max));
    let speed = |threads| of(Mode::Engine, threads).and_then(|one| median(&one.charges_a_second));
    let lock = of(Mode::Lock, all).and_then(|one| median(&one.charges_a_second));
    let checks = &mut lab.report.checks;
    checks.push(Check::at_most(
        "refusals where caches have room to give, most of any run",
        refused(all),
        0.0,
        "",
    ));
    let gain = ratio(speed(all), speed(1));
    if all > 1 {
        let name = format!("charges a second under pressure, {all} threads over 1");
        checks.push(Check::at_least(name, gain, 1.0, "x"));
        let name = "charges a second under pressure, over a lock tried, all threads";
        checks.push(Check::at_least(name, ratio(speed(all), lock), 1.0, "x"));
    }
    Ok(())
}
