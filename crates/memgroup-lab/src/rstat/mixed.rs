//! The letter's second experiment, with SQLite statements in place of kernel builds: two children work, one reader reads their parent's
//! cpu statistics.
//!
//! SQLite has one allocator in a process, so one hierarchy serves both lines here. The control's reader flushes all subsystems before
//! it reads one, as a single tree would have it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use memgroup::stats::{cpu, io};
use memgroup::{Config, Freshness, Group, Hierarchy, Reach};
use memgroup_sqlite::{TenantConnection, TenantError};

use super::seed;
use crate::Error;
use crate::harness::Lab;
use crate::harness::os::thread_cpu_ns;
use crate::harness::report::{Check, params, ratio};
use crate::harness::stats::Summary;
use crate::harness::table::{Table, count, figure_or_dash};
use crate::harness::tree::child;

const CHILDREN: usize = 2;
const ROWS: u32 = 20_000;

/// The groups, made once in a process: SQLite's memory is charged to them for good.
struct House {
    hierarchy: Hierarchy,
    parent: Group,
    children: Vec<Group>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    All,
    CpuAlone,
}

impl Reader {
    const BOTH: [Reader; 2] = [Reader::All, Reader::CpuAlone];

    fn name(self) -> &'static str {
        match self {
            Reader::All => "all flushed (control)",
            Reader::CpuAlone => "cpu alone",
        }
    }
}

/// What one slice found.
struct Slice {
    /// The reader's CPU time for a read.
    ns: f64,
    statements: u64,
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let house = match House::build()? {
        Ok(house) => Arc::new(house),
        Err(why) => return lab.paragraph(&format!("\nnote: no SQLite statements in this process: {why}")),
    };
    let directory = Directory::make()?;
    for index in 0..CHILDREN {
        house.fill(index, &directory.file(index))?;
    }
    let (rounds, reads) = match (lab.args.tiny, lab.args.quick) {
        (true, _) => (1, 500),
        (_, true) => (5, seed::READS / 5),
        (_, false) => (20, seed::READS),
    };
    let mut samples = [Vec::new(), Vec::new()];
    let mut statements = 0;
    for _ in 0..rounds {
        let mut order = [0, 1];
        lab.random.shuffle(&mut order);
        for index in order {
            let slice = slice(lab, &house, &directory, Reader::BOTH[index], reads)?;
            samples[index].push(slice.ns);
            statements += slice.statements;
        }
    }
    house.check(statements)?;
    show(lab, &samples.map(|samples| Summary::of(&samples)), statements)
}

impl House {
    /// None where SQLite serves somebody else in this process already; the text says why.
    fn build() -> Result<Result<House, String>, Error> {
        // Each run has a parent of its own.
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let hierarchy = match memgroup_sqlite::installed() {
            Some(installed) => installed.hierarchy().clone(),
            None => Hierarchy::new(Config::new()).map_err(|why| Error::setup("the hierarchy", why))?,
        };
        if let Err(why) = memgroup_sqlite::install(&hierarchy) {
            return Ok(Err(why.to_string()));
        }
        // ORDERING: Relaxed; a number of one's own.
        let parent = child(&hierarchy.root(), &format!("lab{}", RUNS.fetch_add(1, Ordering::Relaxed)))?;
        let children =
            (0..CHILDREN).map(|n| child(&parent, &format!("child{n}"))).collect::<Result<Vec<_>, _>>()?;
        Ok(Ok(House { hierarchy, parent, children }))
    }

    fn fill(&self, index: usize, file: &Path) -> Result<(), Error> {
        let connection = self.open(index, file)?;
        let filled = connection.execute_batch(&format!(
            "CREATE TABLE items (id INTEGER PRIMARY KEY, class INTEGER, text TEXT);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})
             INSERT INTO items SELECT i, i % 97, hex(randomblob(100)) FROM n;"
        ));
        filled.map_err(failed)
    }

    fn open(&self, index: usize, file: &Path) -> Result<TenantConnection, Error> {
        let connection = TenantConnection::open(&self.children[index], file).map_err(failed)?;
        // A small cache, so that pages are read again and again.
        connection.execute_batch("PRAGMA cache_size = 50;").map_err(failed)?;
        Ok(connection)
    }

    /// Statements in turn until told to end: look-ups, a sort, a group-by; how many.
    fn work(&self, index: usize, file: &Path, ready: &AtomicUsize, done: &AtomicBool) -> Result<u64, Error> {
        let connection = self.open(index, file)?;
        let mut made = 0;
        // ORDERING: Release; pairs with the Acquire of the reader.
        ready.fetch_add(1, Ordering::Release);
        // ORDERING: Acquire; pairs with the Release of the reader.
        while !done.load(Ordering::Acquire) {
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

    /// The statistics are plausible: every statement was a scope of its group, and read pages of its file.
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

fn first(row: &rusqlite::Row<'_>) -> rusqlite::Result<i64> {
    row.get(0)
}

fn failed(why: TenantError) -> Error {
    Error::Wrong(format!("a statement failed: {why}"))
}

/// Reads on the crew's first thread while the children work on the second's CPU.
fn slice(
    lab: &Lab<'_>,
    house: &Arc<House>,
    directory: &Directory,
    reader: Reader,
    reads: u64,
) -> Result<Slice, Error> {
    let (ready, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let files: Vec<_> = (0..CHILDREN).map(|index| directory.file(index)).collect();
    let (house, statements) = (Arc::clone(house), AtomicU64::new(0));
    let shared = Arc::new((ready, done, statements));
    let counts = Arc::clone(&shared);
    let parts = lab.crew.run(2, move |thread| {
        let (ready, done, statements) = &*counts;
        if thread == 0 {
            // ORDERING: Acquire; pairs with the Release of each child.
            while ready.load(Ordering::Acquire) < CHILDREN {
                std::thread::yield_now();
            }
            let ns = read(&house, reader, reads);
            // ORDERING: Release; the flag alone is handed over.
            done.store(true, Ordering::Release);
            return Ok(ns);
        }
        std::thread::scope(|threads| {
            let workers: Vec<_> = files
                .iter()
                .enumerate()
                .map(|(index, file)| {
                    let house = &house;
                    threads.spawn(move || {
                        let made = house.work(index, file, ready, done);
                        // ORDERING: Release, as above: a child that failed does not keep the reader waiting.
                        ready.fetch_add(usize::from(made.is_err()), Ordering::Release);
                        made
                    })
                })
                .collect();
            for worker in workers {
                let made =
                    worker.join().map_err(|_| Error::Wrong("a child's thread panicked".to_owned()))??;
                // ORDERING: Relaxed; read after the threads are joined.
                statements.fetch_add(made, Ordering::Relaxed);
            }
            Ok(0.0)
        })
    });
    let mut parts = parts.into_iter().collect::<Result<Vec<f64>, Error>>()?;
    // ORDERING: Relaxed, as above.
    Ok(Slice { ns: parts.remove(0) / reads as f64, statements: shared.2.load(Ordering::Relaxed) })
}

fn read(house: &House, reader: Reader, reads: u64) -> f64 {
    let (cpu_statistics, others) = (house.hierarchy.cpu(), [house.hierarchy.memory(), house.hierarchy.io()]);
    let mut values = [0; cpu::NR_SCOPES + 1];
    let before = thread_cpu_ns();
    for _ in 0..reads {
        if reader == Reader::All {
            others.iter().for_each(|statistics| statistics.flush(&house.parent));
        }
        cpu_statistics.read(&house.parent, Reach::Subtree, Freshness::Fresh, &mut values);
        std::hint::black_box(&values);
    }
    (thread_cpu_ns() - before) as f64
}

fn show(lab: &mut Lab<'_>, ns: &[Option<Summary>; 2], statements: u64) -> Result<(), Error> {
    let mut table = Table::new(
        "one reader of a parent's cpu statistics, two children run SQLite statements: the reader's own CPU time",
        ["", "ns a read", "min", "p90", "s for 1 M reads"],
    );
    for (reader, ns) in Reader::BOTH.into_iter().zip(ns) {
        let cell = |of: fn(&Summary) -> f64| figure_or_dash(ns.as_ref().map(of));
        let million = ns.map(|ns| ns.median * seed::READS as f64 / 1e9);
        table.row(vec![
            reader.name().to_owned(),
            cell(|ns| ns.median),
            cell(|ns| ns.min),
            cell(|ns| ns.p90),
            figure_or_dash(million),
        ]);
        if let Some(ns) = ns {
            lab.report.add(reader.name(), params([("children", CHILDREN.into())]), "mixed read", "ns", *ns);
        }
    }
    table.note(format!(
        "{} statements; each is a scope, so cpu changes as often as memory and io do. The seed, two kernel builds: {} s before, {} s after",
        count(statements),
        figure_or_dash(seed::SEED.figures[2].before),
        figure_or_dash(seed::SEED.figures[2].after)
    ));
    let [all, alone] = ns.map(|ns| ns.map(|ns| ns.median));
    lab.report.checks.push(Check::at_least(
        "reading cpu beside SQLite statements: all flushed over cpu alone",
        ratio(all, alone),
        1.0,
        "x",
    ));
    lab.print(&table)
}

/// A directory of its own for the databases, removed at the end.
struct Directory(std::path::PathBuf);

impl Directory {
    fn make() -> Result<Directory, Error> {
        // ORDERING: Relaxed; a number of one's own.
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("memgroup-lab-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|source| Error::System {
            what: format!("make the directory {} for databases", path.display()),
            source,
        })?;
        Ok(Directory(path))
    }

    fn file(&self, index: usize) -> std::path::PathBuf {
        self.0.join(format!("child{index}.sqlite"))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What stays is a file in the directory for such files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
