//! SQLite in an experiment: a database in a file, with a page cache that would like to hold all of
//! it.
//!
//! - I1. Each row's value and text follow from its number, and each update is counted here, so
//!   every right answer is known.
//! - I2. SQLite serves one hierarchy in a process, so the groups of all experiments with SQLite are
//!   in one.

#![allow(unsafe_code)]

use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use memgroup::{Config, Group, Hierarchy};
use memgroup_sqlite::TenantConnection;
use rusqlite::Connection;
use tempfile::TempDir;

use super::prelude::*;

/// A row's value is taken modulo this.
const VALUES: i64 = 100_003;
/// Rows that a sum goes over.
const SUMMED: i64 = 16;

/// SQLite in this process. One run at a time has it, because its figures are the hierarchy's.
pub(crate) struct Sqlite {
    pub(crate) hierarchy: Hierarchy,
    _turn: MutexGuard<'static, ()>,
}

impl Sqlite {
    /// The hierarchy that SQLite is installed in, for the life of the process (I2); the first call
    /// makes it.
    pub(crate) fn take(config: Config) -> Result<Sqlite> {
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = lock(&TURN);
        if let Some(installed) = memgroup_sqlite::installed() {
            return Ok(Sqlite { hierarchy: installed.hierarchy().clone(), _turn });
        }
        let hierarchy = fixture::hierarchy(config)?;
        // SAFETY: SQLite is used through `Sqlite::take` only, and no other call of it goes on while
        // this one holds the lock.
        unsafe { memgroup_sqlite::install_unchecked(&hierarchy, None) }.set_up("SQLite")?;
        Ok(Sqlite { hierarchy, _turn })
    }
}

/// One tenant, used by one thread at a time.
pub(crate) struct Tenant {
    pub(crate) connection: TenantConnection,
    /// How often each row was updated.
    updates: Vec<i64>,
}

impl Tenant {
    /// Makes a database of so many rows, a page each, and opens it with a cache of `cached_pages`.
    pub(crate) fn open(group: &Group, file: &Path, rows: i64, cached_pages: i64) -> Result<Tenant> {
        fill(file, rows).set_up(file.display())?;
        let connection = TenantConnection::open(group, file).or_wrong(STATEMENT)?;
        let set = format!(
            "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF; PRAGMA cache_size = {cached_pages}"
        );
        connection.execute_batch(&set).or_wrong(STATEMENT)?;
        Ok(Tenant { connection, updates: vec![0; rows as usize] })
    }

    fn rows(&self) -> i64 {
        self.updates.len() as i64
    }

    /// Most are look-ups; one in 16 changes a row, one in 64 sums some.
    pub(crate) fn use_one(&mut self, random: u64) -> Result<()> {
        let id = (random >> 8) as i64 % self.rows() + 1;
        match random % 64 {
            0 => self.read(id, (id + SUMMED - 1).min(self.rows())),
            kind if kind % 16 == 1 => self.update(id),
            _ => self.read(id, id),
        }
    }

    /// Sums the values and the updates of the rows from one to another.
    fn read(&self, first: i64, last: i64) -> Result<()> {
        const SQL: &str =
            "SELECT sum(value), sum(updates) FROM items WHERE id BETWEEN ?1 AND ?2 AND length(text) = 3000";
        let found = self.connection.run(|conn| {
            let mut statement = conn.prepare_cached(SQL)?;
            statement.query_row([first, last], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))
        });
        let updates = self.updates[first as usize - 1..last as usize].iter().sum();
        let right = ((first..=last).map(value).sum(), updates);
        let path = self.connection.group().path();
        expect(format_args!("{path}: rows {first} to {last}"), found.or_wrong(STATEMENT)?, right)
    }

    /// Changes one row.
    fn update(&mut self, id: i64) -> Result<()> {
        const SQL: &str = "UPDATE items SET updates = updates + 1 WHERE id = ?1";
        let changed = self.connection.run(|conn| conn.prepare_cached(SQL)?.execute([id]));
        self.updates[id as usize - 1] += 1;
        expect(format_args!("rows that an update of row {id} changes"), changed.or_wrong(STATEMENT)?, 1)
    }

    /// Reads every row.
    pub(crate) fn check_all(&self) -> Result<()> {
        self.read(1, self.rows())
    }
}

/// Makes a table of so many rows, a page each. It is charged to no group: a transaction of that
/// size exceeds the limits.
fn fill(file: &Path, rows: i64) -> rusqlite::Result<()> {
    Connection::open(file)?.execute_batch(&format!(
        "PRAGMA page_size = 4096; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
         CREATE TABLE items (id INTEGER PRIMARY KEY, value INTEGER, updates INTEGER, text TEXT);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
         INSERT INTO items SELECT i, i * 7919 % {VALUES}, 0, printf('%08d', i) || hex(zeroblob(1496)) FROM n"
    ))
}

fn value(id: i64) -> i64 {
    id * 7919 % VALUES
}

/// The step that a wrong result names when SQLite refuses a statement.
pub(crate) const STATEMENT: &str = "a statement failed";

/// A directory of its own for databases, removed when it is dropped.
pub(crate) fn directory() -> Result<TempDir> {
    tempfile::tempdir().map_err(Error::system("make a directory for databases"))
}
