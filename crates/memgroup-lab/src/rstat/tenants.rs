//! A process of SQLite tenants: two children of one group run statements, and one reader reads the group's cpu statistics.
//!
//! SQLite has one allocator in a process, which serves one hierarchy, so each kind of trees has a process. It takes orders from its
//! standard input and answers on its standard output, a line each:
//!
//! ```text
//!   20000                  ──▶  so many reads, while the children work
//!   171.4 0.031 2873       ◀──  nanoseconds of the reader's CPU time for one, flushes of cpu's tree for one, statements meanwhile
//! ```
//!
//! It ends with its input. Between two orders its threads sleep.
//!
//! - I1. Every statement was a scope of its group, and the statistics say so.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use memgroup::stats::{cpu, io};
use memgroup::{Config, Freshness, Group, Hierarchy, Reach};
use memgroup_sqlite::{TenantConnection, TenantError};

use crate::harness::crew::Crew;
use crate::harness::os::thread_cpu_ns;
use crate::harness::tree::child;
use crate::{Error, Trees};

pub(super) const CHILDREN: usize = 2;
const ROWS: u32 = 20_000;

/// What one order found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Slice {
    /// The reader's CPU time for a read.
    pub(super) ns: f64,
    /// Flushes of cpu's tree for a read.
    pub(super) flushes: f64,
    pub(super) statements: u64,
}

impl Slice {
    /// Reads an answer back.
    pub(super) fn parse(line: &str) -> Option<Slice> {
        let mut words = line.split_whitespace();
        let slice = Slice {
            ns: words.next()?.parse().ok()?,
            flushes: words.next()?.parse().ok()?,
            statements: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(slice)
    }
}

impl std::fmt::Display for Slice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.ns, self.flushes, self.statements)
    }
}

/// Serves until the orders end.
pub(super) fn serve(trees: Trees, orders: impl BufRead, answers: &mut dyn Write) -> Result<(), Error> {
    let (house, crew) = (Arc::new(House::build(trees)?), Crew::start(2)?);
    let mut statements = 0;
    for order in orders.lines() {
        let order = order.map_err(|source| Error::System { what: "read an order".to_owned(), source })?;
        let reads = order.trim().parse().ok().filter(|&reads: &u64| reads > 0).ok_or_else(|| {
            Error::Argument(format!("take the order {order:?}: it must be a number of reads, at least 1"))
        })?;
        let slice = house.slice(&crew, reads)?;
        statements += slice.statements;
        house.check(statements)?;
        writeln!(answers, "{slice}").and_then(|()| answers.flush()).map_err(Error::Output)?;
    }
    Ok(())
}

/// The groups and their databases.
struct House {
    hierarchy: Hierarchy,
    parent: Group,
    children: Vec<Group>,
    directory: Directory,
}

impl House {
    fn build(trees: Trees) -> Result<House, Error> {
        let config = Config::new().separate_trees(trees == Trees::Separate);
        let hierarchy = Hierarchy::new(config).map_err(|why| Error::setup("the hierarchy", why))?;
        memgroup_sqlite::install(&hierarchy).map_err(|why| Error::setup("SQLite", why))?;
        let parent = child(&hierarchy.root(), "parent")?;
        let children =
            (0..CHILDREN).map(|n| child(&parent, &format!("child{n}"))).collect::<Result<Vec<_>, _>>()?;
        let house = House { hierarchy, parent, children, directory: Directory::make()? };
        (0..CHILDREN).try_for_each(|index| house.fill(index))?;
        Ok(house)
    }

    fn fill(&self, index: usize) -> Result<(), Error> {
        let filled = self.open(index)?.execute_batch(&format!(
            "CREATE TABLE items (id INTEGER PRIMARY KEY, class INTEGER, text TEXT);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})
             INSERT INTO items SELECT i, i % 97, hex(randomblob(100)) FROM n;"
        ));
        filled.map_err(failed)
    }

    fn open(&self, index: usize) -> Result<TenantConnection, Error> {
        let file = self.directory.file(index);
        let connection = TenantConnection::open(&self.children[index], file).map_err(failed)?;
        // A small cache, so that pages are read again and again.
        connection.execute_batch("PRAGMA cache_size = 50;").map_err(failed)?;
        Ok(connection)
    }

    /// Reads on the crew's first thread while the children work on the second's CPU.
    fn slice(self: &Arc<House>, crew: &Crew, reads: u64) -> Result<Slice, Error> {
        let (house, turn) = (Arc::clone(self), Turn::default());
        let parts = crew.run(2, move |thread| {
            if thread == 1 {
                return house.work_all(&turn).map(|statements| Slice { ns: 0.0, flushes: 0.0, statements });
            }
            turn.wait_for_all();
            let (ns, flushes) = house.read(reads);
            turn.end();
            Ok(Slice { ns, flushes, statements: 0 })
        });
        let parts = parts.into_iter().collect::<Result<Vec<_>, Error>>()?;
        Ok(Slice { statements: parts[1].statements, ..parts[0] })
    }

    /// Reads so many times: nanoseconds of this thread's CPU time, and flushes of cpu's tree, for one.
    fn read(&self, reads: u64) -> (f64, f64) {
        let statistics = self.hierarchy.cpu();
        let mut values = [0; cpu::NR_SCOPES + 1];
        let (before, flushed) = (thread_cpu_ns(), statistics.flushes());
        for _ in 0..reads {
            statistics.read(&self.parent, Reach::Subtree, Freshness::Fresh, &mut values);
            std::hint::black_box(&values);
        }
        let ns = thread_cpu_ns() - before;
        (ns as f64 / reads as f64, (statistics.flushes() - flushed) as f64 / reads as f64)
    }

    /// A thread for each child; the statements that were made.
    fn work_all(&self, turn: &Turn) -> Result<u64, Error> {
        std::thread::scope(|threads| {
            let work = |index| {
                let made = self.work(index, turn);
                // A child that failed does not keep the reader waiting.
                turn.come(usize::from(made.is_err()));
                made
            };
            let workers: Vec<_> = (0..CHILDREN).map(|index| threads.spawn(move || work(index))).collect();
            let joined = workers.into_iter().map(|worker| worker.join());
            joined
                .map(|made| made.map_err(|_| Error::Wrong("a child's thread panicked".to_owned()))?)
                .sum::<Result<u64, Error>>()
        })
    }

    /// Statements in turn until told to end: look-ups, a sort, a group-by; how many.
    fn work(&self, index: usize, turn: &Turn) -> Result<u64, Error> {
        let connection = self.open(index)?;
        let mut made = 0;
        turn.come(1);
        while turn.lasts() {
            let id = (made * 7919) % u64::from(ROWS) + 1;
            let answer = match made % 50 {
                0 => {
                    connection.query_row("SELECT count(DISTINCT text) FROM items WHERE class = 3", [], first)
                }
                25 => connection.query_row(
                    "SELECT max(total) FROM (SELECT sum(id) AS total FROM items GROUP BY class)",
                    [],
                    first,
                ),
                _ => connection.query_row("SELECT length(text) FROM items WHERE id = ?1", [id as i64], first),
            };
            answer.map_err(failed)?;
            made += 1;
        }
        Ok(made)
    }

    /// Every statement was a scope of its group, and pages of files were read (I1).
    fn check(&self, statements: u64) -> Result<(), Error> {
        let scopes = self.hierarchy.cpu().get(&self.parent, cpu::NR_SCOPES, Reach::Subtree, Freshness::Fresh);
        let reads = self.hierarchy.io().get(&self.parent, io::RIOS, Reach::Subtree, Freshness::Fresh);
        if (scopes as u64) < statements || reads <= 0 {
            return Err(Error::Wrong(format!(
                "{statements} statements were {scopes} scopes and {reads} reads in the parent's statistics"
            )));
        }
        Ok(())
    }
}

/// When the children work.
#[derive(Default)]
struct Turn {
    ready: AtomicUsize,
    done: AtomicBool,
}

impl Turn {
    fn come(&self, children: usize) {
        // ORDERING: Release; pairs with the Acquire of the reader.
        self.ready.fetch_add(children, Ordering::Release);
    }

    fn wait_for_all(&self) {
        // ORDERING: Acquire; pairs with the Release of each child.
        while self.ready.load(Ordering::Acquire) < CHILDREN {
            std::thread::yield_now();
        }
    }

    fn end(&self) {
        // ORDERING: Release; the flag alone is handed over.
        self.done.store(true, Ordering::Release);
    }

    fn lasts(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release of the reader.
        !self.done.load(Ordering::Acquire)
    }
}

fn first(row: &rusqlite::Row<'_>) -> rusqlite::Result<i64> {
    row.get(0)
}

fn failed(why: TenantError) -> Error {
    Error::Wrong(format!("a statement failed: {why}"))
}

/// A directory of its own for the databases, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn make() -> Result<Directory, Error> {
        let path = std::env::temp_dir().join(format!("memgroup-lab-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|source| Error::System {
            what: format!("make the directory {} for databases", path.display()),
            source,
        })?;
        Ok(Directory(path))
    }

    fn file(&self, index: usize) -> impl AsRef<Path> {
        self.0.join(format!("child{index}.sqlite"))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What stays is a file in the directory for such files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_reads_back() {
        let slice = Slice { ns: 171.25, flushes: 0.5, statements: 12 };
        assert_eq!(Slice::parse(&slice.to_string()), Some(slice));
        for line in ["", "1 2", "1 2 x", "1 2 3 4"] {
            assert_eq!(Slice::parse(line), None, "{line:?}");
        }
    }

    /// One test, because SQLite serves one hierarchy in a process.
    #[test]
    fn a_process_answers_each_order_and_refuses_what_is_none() {
        let mut answers = Vec::new();
        let error = serve(Trees::Unified, &b"200\n300\nmany\n"[..], &mut answers).unwrap_err();
        assert_eq!(error.to_string(), "take the order \"many\": it must be a number of reads, at least 1");
        let answers = String::from_utf8(answers).unwrap();
        let slices: Vec<_> = answers.lines().map(|line| Slice::parse(line).expect(line)).collect();
        assert_eq!(slices.len(), 2, "{answers}");
        assert!(slices.iter().all(|slice| slice.ns > 0.0 && slice.flushes <= 1.0), "{answers}");
    }
}
