//! SQLite in an experiment: a database in a file, with a page cache that would like to hold all of it.
//!
//! - I1. Each row's value and text follow from its number, and each update is counted here, so every answer is known beforehand.
//! - I2. SQLite serves one hierarchy in a process, so all groups of all experiments that have SQLite are in one.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memgroup::{Config, Group, Hierarchy, SlotSource};
use memgroup_sqlite::{TenantConnection, TenantError};
use rusqlite::{Connection, Params};

use super::tree::child;
use crate::Error;

/// What a row's value is taken modulo.
const VALUES: i64 = 100_003;
/// Rows that a sum goes over.
const SUMMED: i64 = 16;

/// SQLite in this process, which one run at a time has: its figures are the hierarchy's.
pub(crate) struct Sqlite {
    pub(crate) hierarchy: Hierarchy,
    _turn: MutexGuard<'static, ()>,
}

impl Sqlite {
    /// The hierarchy that SQLite is installed in, for the life of the process (I2).
    pub(crate) fn take(slots: SlotSource) -> Result<Sqlite, Error> {
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(installed) = memgroup_sqlite::installed() {
            return Ok(Sqlite { hierarchy: installed.hierarchy().clone(), _turn });
        }
        let hierarchy =
            Hierarchy::new(Config::with_slots(slots)).map_err(|why| Error::setup("the hierarchy", why))?;
        memgroup_sqlite::install(&hierarchy).map_err(|why| Error::setup("SQLite", why))?;
        Ok(Sqlite { hierarchy, _turn })
    }
}

/// One tenant, who works on one thread at a time.
pub(crate) struct Tenant {
    pub(crate) connection: TenantConnection,
    pub(crate) buffers: Group,
    /// How often each row was updated.
    updates: Vec<i64>,
}

impl Tenant {
    /// Makes a database of so many rows, and opens it with a cache of `cached_pages`, or for all of it.
    pub(crate) fn open(
        group: &Group,
        file: &Path,
        rows: i64,
        cached_pages: Option<u64>,
    ) -> Result<Tenant, Error> {
        fill(file, rows).map_err(|why| Error::setup(file.display(), why))?;
        let connection = TenantConnection::open(group, file).map_err(failed)?;
        let cached_pages = cached_pages.unwrap_or(rows as u64 * 2);
        let set = format!(
            "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF; PRAGMA cache_size = {cached_pages}"
        );
        connection.execute_batch(&set).map_err(failed)?;
        let buffers = child(group, "buffers")?;
        Ok(Tenant { connection, buffers, updates: vec![0; rows as usize] })
    }

    pub(crate) fn rows(&self) -> i64 {
        self.updates.len() as i64
    }

    /// One row by its number.
    pub(crate) fn look_up(&mut self, id: i64) -> Result<(), Error> {
        const SQL: &str = "SELECT value, updates, substr(text, 1, 8) FROM items WHERE id = ?1";
        let found = self.connection.run(|conn| {
            let mut statement = conn.prepare_cached(SQL)?;
            statement.query_row([id], |row| {
                let text = row.get_ref(2)?.as_str()?;
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, text.parse::<i64>().ok()))
            })
        });
        self.expect("a look-up", id, found, (value(id), self.updates[id as usize - 1], Some(id)))
    }

    /// Some rows from one on.
    pub(crate) fn sum(&mut self, id: i64) -> Result<(), Error> {
        const SQL: &str = "SELECT sum(value), sum(updates) FROM items WHERE id BETWEEN ?1 AND ?2";
        let last = (id + SUMMED - 1).min(self.rows());
        let found = self.connection.run(|conn| two(conn, SQL, [id, last]));
        let right = (
            (id..=last).map(value).sum::<i64>(),
            self.updates[id as usize - 1..last as usize].iter().sum::<i64>(),
        );
        self.expect("a sum", id, found, right)
    }

    /// Changes a row.
    pub(crate) fn update(&mut self, id: i64) -> Result<(), Error> {
        const SQL: &str = "UPDATE items SET updates = updates + 1 WHERE id = ?1";
        let changed = self.connection.run(|conn| conn.prepare_cached(SQL)?.execute([id]));
        self.updates[id as usize - 1] += 1;
        self.expect("an update", id, changed, 1)
    }

    /// Reads every row.
    pub(crate) fn check_all(&mut self) -> Result<(), Error> {
        const SQL: &str = "SELECT sum(value), sum(updates) FROM items WHERE length(text) = 3000";
        let found = self.connection.run(|conn| two(conn, SQL, []));
        let right = ((1..=self.rows()).map(value).sum::<i64>(), self.updates.iter().sum::<i64>());
        self.expect("a sum of all", 1, found, right)
    }

    fn expect<T: PartialEq + std::fmt::Debug>(
        &self,
        what: &str,
        id: i64,
        found: Result<T, TenantError>,
        right: T,
    ) -> Result<(), Error> {
        let found = found.map_err(failed)?;
        if found == right {
            return Ok(());
        }
        let group = self.connection.group().path();
        Err(Error::Wrong(format!("{group}: {what} of row {id} is {found:?}, it should be {right:?}")))
    }

    pub(crate) fn close(self) -> Result<(), Error> {
        self.connection.close().map_err(failed)
    }
}

/// A table of so many rows, a page each. Nobody's group pays: a transaction of that size has no room within bounds.
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

fn two(conn: &Connection, sql: &str, params: impl Params) -> rusqlite::Result<(i64, i64)> {
    conn.prepare_cached(sql)?.query_row(params, |row| Ok((row.get(0)?, row.get(1)?)))
}

pub(crate) fn failed(why: TenantError) -> Error {
    Error::Wrong(format!("a statement failed: {why}"))
}

/// Removes a group with all that is below it.
pub(crate) fn remove(group: &Group) -> Result<(), Error> {
    group.children().iter().try_for_each(remove)?;
    group.remove().map_err(|why| Error::Wrong(format!("failed to remove {}: {why}", group.path())))
}

/// A name that nothing else in the process has.
pub(crate) fn unique(what: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // ORDERING: Relaxed; a number by itself.
    format!("{what}{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A directory of its own for databases, removed at the end.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn make() -> Result<Directory, Error> {
        let name = format!("memgroup-lab-{}-{}", std::process::id(), unique("databases"));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).map_err(|source| Error::System {
            what: format!("make the directory {} for databases", path.display()),
            source,
        })?;
        Ok(Directory(path))
    }

    pub(crate) fn file(&self, index: usize) -> PathBuf {
        self.0.join(format!("t{index}.sqlite"))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What stays is a file in the directory for such files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
