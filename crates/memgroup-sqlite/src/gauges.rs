//! Memory by kind: SQLite's figures for the memory of one connection, as gauges of its group.
//!
//! ```text
//!   sqlite3_db_status ──▶ page cache, schema, statements ── difference to the last report ──▶ `memory` gauges of the group
//! ```
//!
//! The gauges of a group are the sums over its connections, so each connection stores its last
//! report and adds differences.
//!
//! SQLite walks all statements and all tables to answer, so a connection asks at the end of a run,
//! at most every [`INTERVAL_NS`], and for at most a hundredth of the time (`due_ns`). It reads the
//! coarse clock, which takes a few nanoseconds. If runs are so short that this clock does not tick
//! between two checks, only every eighth run checks.
//!
//! - I1. The report of a connection is subtracted before the connection is closed. So a group
//!   without connections has gauges of zero.
//! - B1. A gauge is as old as the last sample. Changes by later runs are missing, however large.
//!   After short runs, the check of a connection's first long run may once come seven runs late.
//! - B2. The kinds are SQLite's estimates. Schema and statements may lie in the connection's
//!   lookaside, which is charged once as a whole. The page cache includes neither its hash table
//!   nor pages that SQLite keeps for reuse. The gauges are those of the connection's group, even if
//!   another group was current and paid.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::time::Instant;

use memgroup::stats::memory;
use memgroup::{Group, StatKey};
use rusqlite::{Connection, ffi};

use crate::account::ACCOUNT;

/// Least time between two samples of a connection in use.
const INTERVAL_NS: u64 = 100_000_000;

/// Least time to the next sample, as a multiple of the last sample's duration.
const REST: u64 = 100;

/// Runs without a check of the clock, after two checks at the same tick.
const UNCHECKED_RUNS: u8 = 7;

/// A clock that costs a few nanoseconds and is right to a few milliseconds.
#[cfg(target_os = "linux")]
const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC_COARSE;
/// The monotonic clock.
#[cfg(not(target_os = "linux"))]
const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;

/// SQLite's figures for the memory of one connection; see
/// [`TenantConnection::sample`](crate::TenantConnection::sample).
///
/// They do not add up to the bytes charged for the connection. Missing are: sorters, temporary
/// tables and indices of a statement, the free part of the lookaside, the connection itself, its
/// open files, and all other allocations of SQLite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryKinds {
    /// The page caches of all its databases: main, temporary and attached.
    pub page_cache_bytes: u64,
    /// The parsed schemas of all its databases.
    pub schema_bytes: u64,
    /// Its prepared statements.
    pub statement_bytes: u64,
}

/// SQLite's figures, and their gauges among the `memory` statistics, in the order of the fields of
/// [`MemoryKinds`].
const KINDS: [(c_int, StatKey); 3] = [
    (ffi::SQLITE_DBSTATUS_CACHE_USED, memory::FILE),
    (ffi::SQLITE_DBSTATUS_SCHEMA_USED, memory::SCHEMA),
    (ffi::SQLITE_DBSTATUS_STMT_USED, memory::STATEMENTS),
];

/// A figure of SQLite for one connection.
fn status(conn: &Connection, figure: c_int) -> u64 {
    let (mut current, mut highest) = (0, 0);
    // SAFETY: the handle is used at once, and the connection is open.
    let db = unsafe { conn.handle() };
    // SAFETY: `db` is open, and the two places are ours. The call takes the connection's mutex,
    // which is recursive.
    unsafe { ffi::sqlite3_db_status64(db, figure, &raw mut current, &raw mut highest, 0) };
    u64::try_from(current).unwrap_or(0)
}

/// The last report of one connection to its group (I1).
#[derive(Default)]
pub(crate) struct Gauges {
    /// Bytes of each of [`KINDS`].
    reported: Cell<[u64; 3]>,
    due_ns: Cell<u64>,
    checked_ns: Cell<u64>,
    unchecked_runs: Cell<u8>,
}

impl Gauges {
    /// Reports at the end of a run, if a report is due. The first run reports.
    #[inline]
    pub(crate) fn after_run(&self, group: &Group, conn: &Connection) {
        match self.unchecked_runs.get() {
            0 => self.check(group, conn),
            left => self.unchecked_runs.set(left - 1),
        }
    }

    fn check(&self, group: &Group, conn: &Connection) {
        let now = now_ns();
        if now >= self.due_ns.get() {
            self.sample(group, conn);
        }
        if self.checked_ns.replace(now) == now {
            self.unchecked_runs.set(UNCHECKED_RUNS);
        }
    }

    /// Reports SQLite's figures now.
    #[cold]
    pub(crate) fn sample(&self, group: &Group, conn: &Connection) -> MemoryKinds {
        let began = Instant::now();
        let bytes = KINDS.map(|(figure, _)| status(conn, figure));
        self.report(group, bytes);
        let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let rest_ns = took_ns.saturating_mul(REST).max(INTERVAL_NS);
        self.due_ns.set(now_ns().saturating_add(rest_ns));
        let [page_cache_bytes, schema_bytes, statement_bytes] = bytes;
        MemoryKinds { page_cache_bytes, schema_bytes, statement_bytes }
    }

    /// Subtracts the last report, before the connection is closed.
    pub(crate) fn retract(&self, group: &Group) {
        self.report(group, [0; 3]);
    }

    fn report(&self, group: &Group, bytes: [u64; 3]) {
        let Some(account) = ACCOUNT.get() else { return };
        let before = self.reported.replace(bytes);
        for (((_, gauge), bytes), before) in KINDS.into_iter().zip(bytes).zip(before) {
            if bytes != before {
                account.memory.add(group, gauge, bytes as i64 - before as i64);
            }
        }
    }
}

/// Nanoseconds of [`CLOCK`]; 0, and so never due, if there is no such clock.
#[inline]
fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is ours.
    unsafe { libc::clock_gettime(CLOCK, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
