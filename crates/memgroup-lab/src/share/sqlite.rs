//! The mixes with SQLite: small tenants with a database each, and a runaway with a sort that never ends.
//!
//! - I1. Each answer of each statement is right, or the run ends with an error.
//! - I2. A small tenant caches all its database. Its statement sorts a third of it, so it needs less than [`super::NEED`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use memgroup::Hierarchy;
use memgroup_sqlite::{TenantConnection, TenantError};

use super::mix::{Case, Length, Seen, mixes, together};
use super::players::{PATIENCE, PAUSE, rest};
use super::{End, Scene, Tally};
use crate::harness::prelude::*;

const ROWS: i64 = 200;
const SORTED: i64 = 64;
/// LIMIT keeps the inner order: SQLite sorts.
const SQL: &str = "SELECT sum(length(text)) FROM (SELECT text FROM items WHERE id >= ?1 AND id < ?2 ORDER BY value LIMIT -1)";
/// Rows of so many bytes, more than there ever is memory for, that are sorted; in the control the same time is computed.
const RUNAWAY: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100000000)
     SELECT max(blob) FROM (SELECT i, zeroblob(?1) AS blob FROM n ORDER BY i * 7919 % 100003 LIMIT -1 OFFSET 1)";
const CONTROL: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1000)
     SELECT max(length(hex(zeroblob(?1)))) FROM n";
/// The runaway fills the parent with so many rows.
const RUNAWAY_ROWS: u64 = 64;
const CONTROL_BYTES: u64 = 8_000;

/// How a run of a statement ended; another error of SQLite's is a wrong result.
fn end_of<T>(tally: &mut Tally, ended: &Result<T, TenantError>) -> Result<End> {
    let end = match ended {
        Ok(_) => End::Done,
        Err(TenantError::OutOfMemory(_)) => End::Refused,
        Err(TenantError::Killed(_)) => End::Stopped,
        Err(other) => return Err(Error::Wrong(format!("{STATEMENT}: {other}"))),
    };
    if let Err(why) = ended {
        tally.why.get_or_insert_with(|| why.to_string());
    }
    tally.add(end);
    Ok(end)
}

/// One statement of a small tenant.
fn statement(
    connection: &TenantConnection,
    waits: bool,
    id: i64,
    clock: Clock,
    tally: &mut Tally,
) -> Result<()> {
    let (began, mut tries) = (clock::now(), 0);
    let mut work = |conn: &rusqlite::Connection| {
        tries += 1;
        conn.prepare_cached(SQL)?.query_row([id, id + SORTED], |row| row.get::<_, i64>(0))
    };
    let answer =
        if waits { connection.run_until(Instant::now() + PATIENCE, work) } else { connection.run(&mut work) };
    tally.again += tries - 1;
    match end_of(tally, &answer)? {
        End::Done => tally.times.push(clock.ns((clock::now() - began) as f64)),
        End::Refused | End::Stopped => std::thread::sleep(PAUSE),
    }
    answer.map_or(Ok(()), |sum| expect("the length of some texts", sum, SORTED * 3_000))
}

fn slice(
    lab: &Lab<'_>,
    hierarchy: &Hierarchy,
    small: usize,
    length: Length,
    case: Case,
    seed: u64,
) -> Result<Seen> {
    let (directory, scene) = (Directory::make()?, Scene::set(hierarchy, case.setting, small)?);
    let open = |(number, group)| {
        let connection = connect(group, &directory.file(number), ROWS, None)?;
        Ok((connection, Tally::default(), Random::new(seed + number as u64)))
    };
    let mut tenants = scene.small.iter().enumerate().map(open).collect::<Result<Vec<_>>>()?;
    let runaway = TenantConnection::open_in_memory(&scene.large).or_wrong(STATEMENT)?;
    runaway.execute_batch("PRAGMA temp_store = MEMORY").or_wrong(STATEMENT)?;
    let (stop, clock) = (runaway.interrupt_handle(), lab.clock);
    let one = |(connection, tally, random): &mut (TenantConnection, Tally, Random)| {
        let id = (random.next() >> 8) as i64 % (ROWS - SORTED) + 1;
        statement(connection, case.waits, id, clock, tally)?;
        rest(random, small);
        Ok(())
    };
    let sql = if case.demand { RUNAWAY } else { CONTROL };
    let bytes = if case.demand { scene.max() / RUNAWAY_ROWS } else { CONTROL_BYTES };
    let other = |(runaway, tally): &mut (TenantConnection, Tally), over: &AtomicBool| {
        let answer = runaway.query_row(sql, [bytes as i64], |row| row.get_ref(0).map(drop));
        // ORDERING: Relaxed; it publishes nothing but itself.
        if over.load(Ordering::Relaxed) { Ok(()) } else { end_of(tally, &answer).map(drop) }
    };
    let mut large = (runaway, Tally::default());
    let ns = together(clock, length.slice, &mut tenants, &mut large, one, other, || stop.interrupt())?;
    let (mut connections, mut tallies) = (vec![large.0], Vec::new());
    for (connection, tally, _) in tenants {
        connections.push(connection);
        tallies.push(tally);
    }
    let seen = Seen::of(&scene, ns, tallies, large.1)?;
    connections.into_iter().try_for_each(|connection| connection.close().or_wrong(STATEMENT))?;
    scene.end()?;
    Ok(seen)
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let sqlite = Sqlite::take(lab.slots)?;
    let tiny = vec![(1, Length::of(20, 1))];
    let quick = vec![(1, Length::of(250, 2)), (8, Length::of(250, 2)), (24, Length::of(250, 2))];
    let full = [(1, 500, 5), (8, 500, 5), (24, 800, 5), (200, 5_000, 2)];
    let full = full.map(|(small, ms, rounds)| (small, Length::of(ms, rounds))).to_vec();
    for (small, length) in lab.pick(tiny, quick, full) {
        mixes(lab, "SQLite", "again", small, length, |lab, case, seed| {
            slice(lab, &sqlite.hierarchy, small, length, case, seed)
        })?;
    }
    Ok(())
}
