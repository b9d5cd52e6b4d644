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

use memgroup::stats::{cpu, io};
use memgroup::{Config, Freshness, Group, Hierarchy, Reach};
use memgroup_sqlite::{InstallError, Installed, TenantConnection};

use super::{Turn, read_beside, timed_reads};
use crate::Trees;
use crate::harness::prelude::*;

pub(super) const CHILDREN: usize = 2;
const ROWS: u32 = 20_000;

/// The answer to one order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Slice {
    /// Figures of [`timed_reads`].
    pub(super) read: [f64; 2],
    pub(super) statements: u64,
}

impl Slice {
    /// Reads an answer back.
    pub(super) fn parse(line: &str) -> Option<Slice> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [ns, flushes, statements] = words[..] else { return None };
        let read = [ns.parse().ok()?, flushes.parse().ok()?];
        Some(Slice { read, statements: statements.parse().ok()? })
    }
}

impl std::fmt::Display for Slice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.read[0], self.read[1], self.statements)
    }
}

/// Serves until the orders end. `install` puts memgroup under SQLite.
pub(super) fn serve(
    trees: Trees,
    install: impl FnOnce(&Hierarchy) -> Result<Installed, InstallError>,
    orders: impl BufRead,
    answers: &mut dyn Write,
) -> Result<()> {
    let (tenants, workers) = (Tenants::build(trees, install)?, Workers::start(2)?);
    let mut statements = 0;
    for order in orders.lines() {
        let order = order.map_err(Error::system("read an order"))?;
        let reads = order.trim().parse().ok().filter(|&reads: &u64| reads > 0).ok_or_else(|| {
            Error::Argument(format!("take the order {order:?}: it must be a number of reads, at least 1"))
        })?;
        let work = |index, turn: &Turn| tenants.work(index, turn);
        let (read, made) = read_beside(&workers, CHILDREN, work, || tenants.read(reads))?;
        let slice = Slice { read, statements: made.into_iter().sum() };
        statements += slice.statements;
        tenants.check(statements)?;
        writeln!(answers, "{slice}").and_then(|()| answers.flush()).map_err(Error::Output)?;
    }
    Ok(())
}

/// The groups and their databases.
struct Tenants {
    hierarchy: Hierarchy,
    parent: Group,
    children: Vec<Group>,
    directory: Directory,
}

impl Tenants {
    fn build(
        trees: Trees,
        install: impl FnOnce(&Hierarchy) -> Result<Installed, InstallError>,
    ) -> Result<Tenants> {
        let hierarchy = hierarchy(Config::new().separate_trees(trees == Trees::Separate))?;
        install(&hierarchy).set_up("SQLite")?;
        let parent = child(&hierarchy.root(), "parent")?;
        let children = children(&parent, "child", CHILDREN)?;
        let tenants = Tenants { hierarchy, parent, children, directory: Directory::make()? };
        for index in 0..CHILDREN {
            let filled = tenants.open(index)?.execute_batch(&format!(
                "CREATE TABLE items (id INTEGER PRIMARY KEY, class INTEGER, text TEXT);
                 WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})
                 INSERT INTO items SELECT i, i % 97, hex(randomblob(100)) FROM n;"
            ));
            filled.or_wrong(STATEMENT)?;
        }
        Ok(tenants)
    }

    fn open(&self, index: usize) -> Result<TenantConnection> {
        let file = self.directory.file(index);
        let connection = TenantConnection::open(&self.children[index], file).or_wrong(STATEMENT)?;
        // A small cache, so that pages are read again and again.
        connection.execute_batch("PRAGMA cache_size = 50;").or_wrong(STATEMENT)?;
        Ok(connection)
    }

    fn read(&self, reads: u64) -> [f64; 2] {
        let (statistics, mut values) = (self.hierarchy.cpu(), [0; cpu::NR_SCOPES.index() + 1]);
        timed_reads(&statistics, reads, || {
            statistics.read(&self.parent, Reach::Subtree, Freshness::Fresh, &mut values);
            std::hint::black_box(&values);
        })
    }

    /// Runs statements until the turn ends: look-ups, a sort, a group-by; how many.
    fn work(&self, index: usize, turn: &Turn) -> Result<u64> {
        const SORT: &str = "SELECT count(DISTINCT text) FROM items WHERE class = 3";
        const GROUP: &str = "SELECT max(total) FROM (SELECT sum(id) AS total FROM items GROUP BY class)";
        const LOOK_UP: &str = "SELECT length(text) FROM items WHERE id = ?1";
        let connection = self.open(index)?;
        let first = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
        let mut made = 0;
        turn.begin(1);
        while turn.lasts() {
            let id = (made * 7919) % u64::from(ROWS) + 1;
            let answer = match made % 50 {
                0 => connection.query_row(SORT, [], first),
                25 => connection.query_row(GROUP, [], first),
                _ => connection.query_row(LOOK_UP, [id as i64], first),
            };
            answer.or_wrong(STATEMENT)?;
            made += 1;
        }
        Ok(made)
    }

    /// Every statement was a scope of its group, and pages of files were read (I1).
    fn check(&self, statements: u64) -> Result<()> {
        let scopes = self.hierarchy.cpu().get(&self.parent, cpu::NR_SCOPES, Reach::Subtree, Freshness::Fresh);
        let reads = self.hierarchy.io().get(&self.parent, io::RIOS, Reach::Subtree, Freshness::Fresh);
        ensure(scopes as u64 >= statements && reads > 0, || {
            format!("{statements} statements were {scopes} scopes and {reads} reads of the parent")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_slice_back() {
        let slice = Slice { read: [171.25, 0.5], statements: 12 };
        assert_eq!(Slice::parse(&slice.to_string()), Some(slice));
        for line in ["", "1 2", "1 2 x", "1 2 3 4"] {
            assert_eq!(Slice::parse(line), None, "{line:?}");
        }
    }

    /// One test, because SQLite serves one hierarchy in a process.
    #[test]
    fn answers_each_order_and_refuses_other_input() {
        let mut answers = Vec::new();
        let error =
            serve(Trees::Unified, install_in_test, &b"200\n300\nmany\n"[..], &mut answers).unwrap_err();
        assert_eq!(error.to_string(), "take the order \"many\": it must be a number of reads, at least 1");
        let answers = String::from_utf8(answers).unwrap();
        let slices: Vec<_> = answers.lines().map(|line| Slice::parse(line).expect(line)).collect();
        assert_eq!(slices.len(), 2, "{answers}");
        assert!(slices.iter().all(|slice| slice.read[0] > 0.0 && slice.read[1] <= 1.0), "{answers}");
    }
}
