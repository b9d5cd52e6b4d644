//! SQLite under memory pressure: tenants whose page caches would take twice what there is, a few busy at a time and the others idle.
//!
//! What Rapoport and Morton asked for in the letter's thread, as far as it can be measured here: statements a second, bytes freed for a second of CPU
//! time, and how long those charges take that have to make room. Whoever has its turn reads and changes its whole database, so it would have all of it cached, and
//! room is made from the caches of those whose turn is over. Databases are in files that the system caches too: what a page that had to go costs is a read of 4 KiB
//! from the system's memory, not from a disk, so the gain of a larger cache is at its smallest here.
//!
//! - *A common limit* is the engine as it is meant to be used. *A limit each* makes room in the same way, but each tenant only from its own cache: what is
//!   left of the gain without anything shared. *Fixed shares* are the control: SQLite's own bound on each cache, with which nothing is ever reclaimed.
//! - The lock around all lists, the other experiments' control, is not among them: the shrinkers of SQLite's caches are registered by `memgroup-sqlite` itself,
//!   and there is no place between the engine and them where a lock could be tried. Nor would it say much: it costs a try for each visit, beside a
//!   call that frees sixteen pages, and nothing here registers or removes while it runs.
//! - With several threads a page is often freed by another thread than the one that allocated it, and goes back to the allocator under a lock of the
//!   latter's arena. Counted by their stacks, with glibc, nearly all calls in which tenants' threads waited for a lock or woke who did are of those: 1,697 in a run, 6 of
//!   the engine's (where refusers take turns), and 45 times a connection gave way to who was shrinking its cache.
//! - I1. Each answer of each statement is what it should be (`tenants`, I1); no limit is ever passed; what the engine counts as reclaimed is what the
//!   caches say they gave and what was uncharged meanwhile; and when all is closed nothing is charged.

mod probe;
mod show;
mod tenants;
mod turns;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::tenants::{Bounds, House, Needs};
use self::turns::{Freed, Part, Told, Turns};
use crate::Error;
use crate::harness::Lab;
use crate::harness::quantiles::Times;
use crate::harness::report::{Check, ratio};
use crate::harness::sqlite::Sqlite;
use crate::harness::stats::Summary;

/// How much there is, and how long it runs.
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
        match (lab.args.tiny, lab.args.quick) {
            (true, _) => Size { tenants: 4, rows: 400, long: 300, short: 20, windows: 1 },
            (_, true) => Size { windows: 3, ..full },
            (_, false) => full,
        }
    }

    /// Each case's turns; windows of short turns have several rounds.
    fn turns(self, threads: usize) -> Vec<Turns> {
        let rounds = (self.long / self.short / 4).max(1);
        // Nobody else has a tenant.
        let mut all: Vec<Turns> = [1, threads.min(self.tenants)]
            .into_iter()
            .flat_map(|threads| {
                let long = Turns { threads, statements: self.long, rounds: 1 };
                [long, Turns { statements: self.short, rounds, ..long }]
            })
            .collect();
        all.dedup();
        all
    }
}

/// One line of the tables.
#[derive(Default)]
struct Found {
    /// Of a turn, times the threads.
    statements_a_second: Vec<f64>,
    reads_a_statement: Vec<f64>,
    reclaimed_a_statement: Vec<f64>,
    /// Of statements, in nanoseconds.
    statements: Times,
    /// Of those in which room was made, and of charges of buffers that made room; all windows together, because there are few in one.
    stalled: Vec<f64>,
    stalls: Vec<f64>,
    by_hand: Freed,
    scan_ns: u64,
    reclaimed: u64,
    refusals: u64,
}

impl Found {
    fn add(&mut self, lab: &Lab<'_>, turns: Turns, part: &Part, told: Told, by_hand: Freed) {
        let ns = |&ticks: &u64| lab.clock.ns(ticks as f64);
        let statements = part.statements.len() as f64;
        let at_once = (turns.threads as u64 * turns.statements) as f64;
        self.statements_a_second.extend(part.turns.iter().map(|ticks| at_once * 1e9 / ns(ticks)));
        self.reads_a_statement.push(told.reads as f64 / statements);
        self.reclaimed_a_statement.push(told.reclaimed as f64 / statements);
        self.statements.push(part.statements.iter().map(ns).collect());
        self.stalled.extend(part.stalled.iter().map(ns));
        self.stalls.extend(part.stalls.iter().map(ns));
        self.by_hand.bytes += by_hand.bytes;
        self.by_hand.cpu_ns += by_hand.cpu_ns;
        self.scan_ns += told.scan_ns;
        self.reclaimed += told.reclaimed;
        self.refusals += told.refusals;
    }

    /// Bytes that charges by hand set free, for a second of CPU time in them.
    fn freed_a_cpu_second(&self) -> Option<f64> {
        ratio(Some(self.by_hand.bytes as f64 * 1e9), Some(self.by_hand.cpu_ns as f64))
    }

    /// Bytes that caches gave, for a second in their calls.
    fn freed_a_scan_second(&self) -> Option<f64> {
        ratio(Some(self.reclaimed as f64 * 1e9), Some(self.scan_ns as f64))
    }

    fn speed(&self) -> Option<f64> {
        Summary::of(&self.statements_a_second).map(|speed| speed.median)
    }
}

type ByCase = BTreeMap<(Turns, Bounds), Found>;

pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let size = Size::of(lab);
    let sqlite = Sqlite::take(lab.slots)?;
    let needs = Needs::measure(&sqlite.hierarchy, size.rows)?;
    let max_bytes = needs.all_bytes() * size.tenants as u64 / 2;
    let build = |bounds| House::build(&sqlite.hierarchy, bounds, needs, size.tenants, size.rows, max_bytes);
    let houses: Vec<Arc<House>> =
        Bounds::ALL.into_iter().map(|bounds| build(bounds).map(Arc::new)).collect::<Result<_, Error>>()?;
    let turns = size.turns(lab.args.threads());
    let mut cases: Vec<(Turns, &Arc<House>)> =
        turns.iter().flat_map(|&turns| houses.iter().map(move |house| (turns, house))).collect();
    let mut found = ByCase::new();
    // The first round fills the caches and counts for nothing.
    for round in 0..=size.windows {
        lab.random.shuffle(&mut cases);
        for &(turns, house) in &cases {
            let seed = lab.random.next();
            let (part, told) = turns::window(lab, house, turns, seed)?;
            if house.bounds == Bounds::Shares && told.reclaimed > 0 {
                let bytes = told.reclaimed;
                return Err(Error::Wrong(format!(
                    "{bytes} bytes were reclaimed where caches keep to their shares"
                )));
            }
            let freed = match house.bounds {
                Bounds::Shares => Freed::default(),
                Bounds::Limits | Bounds::Common => turns::by_hand(lab, house, seed)?,
            };
            if round > 0 {
                found.entry((turns, house.bounds)).or_default().add(lab, turns, &part, told, freed);
            }
        }
    }
    drop(cases);
    for house in houses {
        alone(house).end()?;
    }
    show::print(lab, size, max_bytes, &found)?;
    show::record(lab, &found);
    check(lab, size, &found);
    Ok(())
}

/// The house, when the crew has let go of it: a thread that has answered is about to.
fn alone(mut house: Arc<House>) -> House {
    loop {
        house = match Arc::try_unwrap(house) {
            Ok(house) => return house,
            Err(shared) => shared,
        };
        std::thread::yield_now();
    }
}

fn check(lab: &mut Lab<'_>, size: Size, found: &ByCase) {
    let mut checks = Vec::new();
    for turns in size.turns(lab.args.threads()).into_iter().filter(|turns| turns.statements == size.long) {
        let speed = |bounds| found.get(&(turns, bounds)).and_then(Found::speed);
        checks.push(Check::at_least(
            format!("SQLite statements a second, common limit over shares, threads: {}", turns.threads),
            ratio(speed(Bounds::Common), speed(Bounds::Shares)),
            1.0,
            "x",
        ));
    }
    let refusals: u64 = found.values().map(|one| one.refusals).sum();
    checks.push(Check::at_most(
        "charges refused, SQLite's and beside it, where caches have room",
        Some(refusals as f64),
        0.0,
        "",
    ));
    lab.report.checks.extend(checks);
}
