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

use std::collections::BTreeMap;

use super::tenants::{Bounds, Figures, Needs, Part, Size, Tenants, Turns};
use crate::harness::prelude::*;

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
    sums: Figures,
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
        for (name, of) in [("reads of a statement", "reads"), ("reclaimed of a statement", "reclaimed")] {
            self.samples.push(name, figures[of] as f64 / statements);
        }
        self.by_hand = (self.by_hand.0 + by_hand.0, self.by_hand.1 + by_hand.1);
        figures.into_iter().for_each(|(name, more)| *self.sums.entry(name).or_default() += more);
    }
}

type ByCase = BTreeMap<(Turns, Bounds), Found>;

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let (size, sqlite) = (Size::of(lab), Sqlite::take(lab.slots)?);
    let needs = Needs::measure(&sqlite.hierarchy, size.rows)?;
    let build = |(bounds, _)| Tenants::build(&sqlite.hierarchy, bounds, needs, size);
    let all: Vec<Tenants> = Bounds::ALL.into_iter().map(build).collect::<Result<_>>()?;
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
    show(lab, size, size.max_bytes(needs), &found)?;
    for turns in turns.into_iter().filter(|turns| turns.statements == size.long) {
        let speed = |bounds| found.get(&(turns, bounds)).and_then(|one| one.samples.median("statements"));
        let name = "SQLite statements a second, common limit over shares, threads: ";
        lab.at_least(
            format!("{name}{}", turns.threads),
            ratio(speed(Bounds::Common), speed(Bounds::Shares)),
            1.0,
            "x",
        );
    }
    let refusals: u64 = found.values().map(|one| one.sums["refusals"]).sum();
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
    let columns = [case, "statements: p50", "p99", "p99.9", "charges: p50", "p99", "p99.9"];
    let mut stalls = Table::new("the same: how long it takes where room has to be made, us", columns);
    for (&(turns, bounds), one) in found {
        let (samples, quantiles) = (&one.samples, &one.statements);
        let params = json!({"threads": turns.threads, "turn": turns.statements});
        let mut row = lab.record(bounds.name(), params);
        let means =
            [("statements", "1/s"), ("reads of a statement", ""), ("reclaimed of a statement", "bytes")];
        let [speed, reads, _] = row.medians(samples, means);
        let mut cells = vec![speed, reads];
        for (metric, ns) in [
            ("statement p50", quantiles.p50()),
            ("statement p99", quantiles.p99()),
            ("statement p999", quantiles.p999()),
        ] {
            row.summary(metric, "ns", ns);
            cells.push(us_or_dash(median(ns)));
        }
        let a_second = |bytes: u64, ns: u64| ratio(Some(bytes as f64 * 1e9), Some(ns as f64));
        let (charges, calls) =
            (a_second(one.by_hand.0, one.by_hand.1), a_second(one.sums["reclaimed"], one.sums["scan ns"]));
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
    use super::*;

    #[test]
    fn takes_as_many_times_for_a_percentile_as_its_name_says() {
        let times = |count: u32| (1..=count).map(f64::from).collect::<Vec<_>>();
        assert_eq!(tail(&times(0)), [None; 3]);
        assert_eq!(tail(&times(99)), [Some(50.0), None, None]);
        assert_eq!(tail(&times(100)), [Some(50.0), Some(99.0), None]);
        assert_eq!(tail(&times(1000)), [Some(500.0), Some(990.0), Some(999.0)]);
    }
}
