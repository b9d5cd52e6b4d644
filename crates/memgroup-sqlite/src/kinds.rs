//! Memory by kind: what SQLite can tell of the memory of one connection, as gauges of its group.
//!
//! ```text
//!   sqlite3_db_status ──▶ page cache, schema, statements ── what differs from the last time ──▶ feed::kind
//! ```
//!
//! The gauges of a group are the sums over its connections, so each connection keeps what it has reported and reports
//! differences. SQLite answers by walking: all statements, all tables; only the page cache is known without. So it is
//! asked at the end of a use, but not of every one: at most every [`INTERVAL_NS`], and at most for a hundredth of the
//! time (`due_ns`). The clock that says so is the coarse one, which is read, not calculated; and where uses are so short
//! that it does not tick from one look to the next, only every eighth use looks.
//!
//! - I1. Reported by a connection == what it would take back; it takes back all of it before it is closed, so a group
//!   without connections has gauges of zero.
//! - B1. A gauge is as old as the last sample: what the uses since have changed is missing, however much that is. A connection
//!   whose uses turn from short to long is looked at seven uses late, once.
//! - B2. The kinds are SQLite's estimates. Schema and statements may lie in the connection's lookaside, a block that
//!   is charged once, as a whole; the page cache counts neither its hash table nor pages put aside. They are told for
//!   the group of the connection, also where another group was in force and paid.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::time::Instant;

use memgroup::Group;
use rusqlite::{Connection, ffi};

use crate::feed::{self, Kind};

/// Least time between two samples of a connection that is in use.
const INTERVAL_NS: u64 = 100_000_000;

/// Least time to the next sample, in times what the last one took.
const REST: u64 = 100;

/// Uses that go without a look at the clock, after two looks between which it did not even tick.
const UNTIMED: u8 = 7;

/// A clock that costs a few nanoseconds and is right to a few milliseconds.
#[cfg(target_os = "linux")]
const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC_COARSE;
/// A clock.
#[cfg(not(target_os = "linux"))]
const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;

/// What SQLite tells of the memory of one connection; see
/// [`TenantConnection::sample`](crate::TenantConnection::sample).
///
/// What is missing from the sum to what the connection was charged: sorters, the temporary tables and indices of a
/// statement, the lookaside as far as it is free, the connection itself, its open files, and whatever else SQLite
/// allocates.
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

impl MemoryKinds {
    /// What SQLite says now.
    fn of(conn: &Connection) -> Self {
        MemoryKinds {
            page_cache_bytes: status(conn, ffi::SQLITE_DBSTATUS_CACHE_USED),
            schema_bytes: status(conn, ffi::SQLITE_DBSTATUS_SCHEMA_USED),
            statement_bytes: status(conn, ffi::SQLITE_DBSTATUS_STMT_USED),
        }
    }

    fn each(self) -> [(Kind, u64); 3] {
        [
            (Kind::PageCache, self.page_cache_bytes),
            (Kind::Schema, self.schema_bytes),
            (Kind::Statements, self.statement_bytes),
        ]
    }
}

/// A figure of SQLite's for one connection.
fn status(conn: &Connection, figure: c_int) -> u64 {
    let (mut current, mut highest) = (0, 0);
    // SAFETY: the handle is used at once, and the connection is open.
    let db = unsafe { conn.handle() };
    // SAFETY: `db` is open, and the two places are ours. It takes the connection's mutex, which is recursive.
    unsafe { ffi::sqlite3_db_status64(db, figure, &raw mut current, &raw mut highest, 0) };
    u64::try_from(current).unwrap_or(0)
}

/// What one connection has reported to its group (I1).
pub(crate) struct Gauges {
    reported: Cell<MemoryKinds>,
    due_ns: Cell<u64>,
    looked_ns: Cell<u64>,
    untimed: Cell<u8>,
}

impl Gauges {
    /// Nothing reported; the first use reports.
    pub(crate) fn new() -> Self {
        Gauges {
            reported: Cell::new(MemoryKinds::default()),
            due_ns: Cell::new(0),
            looked_ns: Cell::new(0),
            untimed: Cell::new(0),
        }
    }

    /// A use of the connection ends: reports, if it is time.
    #[inline]
    pub(crate) fn after_use(&self, group: &Group, conn: &Connection) {
        match self.untimed.get() {
            0 => self.look(group, conn),
            left => self.untimed.set(left - 1),
        }
    }

    fn look(&self, group: &Group, conn: &Connection) {
        let now = now_ns();
        if now >= self.due_ns.get() {
            self.sample(group, conn);
        }
        if self.looked_ns.replace(now) == now {
            self.untimed.set(UNTIMED);
        }
    }

    /// Reports what SQLite says now.
    #[cold]
    pub(crate) fn sample(&self, group: &Group, conn: &Connection) -> MemoryKinds {
        let began = Instant::now();
        let kinds = MemoryKinds::of(conn);
        self.report(group, kinds);
        let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let rest_ns = took_ns.saturating_mul(REST).max(INTERVAL_NS);
        self.due_ns.set(now_ns().saturating_add(rest_ns));
        kinds
    }

    /// Takes back what was reported: the connection is about to be closed.
    pub(crate) fn take_back(&self, group: &Group) {
        self.report(group, MemoryKinds::default());
    }

    fn report(&self, group: &Group, kinds: MemoryKinds) {
        let before = self.reported.replace(kinds);
        for ((kind, bytes), (_, bytes_before)) in kinds.each().into_iter().zip(before.each()) {
            let delta = bytes as i64 - bytes_before as i64;
            if delta != 0 {
                feed::kind(group, kind, delta);
            }
        }
    }
}

/// Nanoseconds of [`CLOCK`]; 0, and so never due, where there is none.
#[inline]
fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is ours.
    unsafe { libc::clock_gettime(CLOCK, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
