//! The cover letter's second experiment: two children build, and a reader reads their parent's cpu
//! statistics. SQLite statements stand in for the kernel builds (17.2 s for a million reads before
//! the patches, 6.5 s after). The speed of the builds themselves, which the letter's last
//! experiment is about, is measured in the same slices and in others without a reader.
//!
//! SQLite has one allocator in a process, which serves one hierarchy, so each kind of trees has a
//! process of its own, and the two alternate. Such a process takes orders from its standard input
//! and answers on its standard output, a line each:
//!
//! ```text
//!   20000                       ──▶  read 20,000 times while the children work; 0: let them work without a reader
//!   171.4 0.031 2873 0.0614     ◀──  ns of the reader's CPU time for a read, flushes of cpu's tree for a read,
//!                                    the children's statements, and seconds of the children's CPU time
//! ```
//!
//! It ends with its input. Between two orders its threads sleep.
//!
//! - I1. Every statement was a scope of its group, and the statistics say so.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use memgroup::stats::{cpu, io};
use memgroup::{Config, Freshness, Group, Hierarchy, Reach};
use memgroup_sqlite::{InstallError, Installed, TenantConnection};

use super::{BUILDS, READS, SEED, Shift, Slices, read_beside, seed_gain, timed_reads};
use crate::args::{Trees, word};
use crate::harness::prelude::*;

const CHILDREN: usize = 2;
const ROWS: u64 = 20_000;
/// How long the children work without a reader.
const ALONE: Duration = Duration::from_millis(200);

/// The answer to one order.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Slice {
    /// The figures of [`timed_reads`].
    read: [f64; 2],
    statements: f64,
    /// Of the children's CPU time.
    seconds: f64,
}

impl Slice {
    fn parse(line: &str) -> Option<Slice> {
        let words = line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>()?;
        let [ns, flushes, statements, seconds] = words[..] else { return None };
        Some(Slice { read: [ns, flushes], statements, seconds })
    }
}

impl std::fmt::Display for Slice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} {}", self.read[0], self.read[1], self.statements, self.seconds)
    }
}

/// A process with one kind of trees; it ends when its input does.
struct Process {
    trees: Trees,
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Process {
    fn start(program: &Path, trees: Trees) -> Result<Process> {
        let mut child = Command::new(program)
            .args(["rstat", "--serve", &word(trees)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Error::system(format!("start {}", program.display())))?;
        let (orders, answers) = (child.stdin.take(), child.stdout.take().expect("the output is a pipe"));
        Ok(Process { trees, child, orders, answers: BufReader::new(answers) })
    }

    fn slice(&mut self, reads: u64) -> Result<Slice> {
        let mut answer = String::new();
        let orders = self.orders.as_mut().expect("the input is a pipe");
        // If the process has ended, its answer is empty and its end says more than a broken pipe.
        let _ = writeln!(orders, "{reads}").and_then(|()| orders.flush());
        self.answers.read_line(&mut answer).map_err(Error::system("read the tenants' answer"))?;
        let trees = self.trees.name();
        Slice::parse(&answer)
            .ok_or_else(|| format!("{answer:?} instead of four numbers"))
            .or_wrong(format_args!("the process of SQLite tenants with {trees} answered"))
    }

    fn end(mut self) -> Result<()> {
        self.orders = None;
        let status = self.child.wait().map_err(Error::system("wait for the tenants' process"))?;
        ensure(status.success(), || format!("the process of SQLite tenants ended with {status}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Ends the process after an error; one that was waited for already is not waited for again.
        self.orders = None;
        let _ = self.child.wait();
    }
}

/// The figures of one kind of trees.
#[derive(Default)]
struct Found {
    reader: Slices,
    /// Statements for a second of the children's CPU time: beside the reader, and without one.
    speeds: [Vec<f64>; 2],
    statements: f64,
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let Some(program) = lab.args.program.clone() else {
        return lab.paragraph("\nnote: no SQLite statements: they need processes of the program");
    };
    let (rounds, reads) = lab.pick((1, 500), (5, READS / 5), (20, READS));
    let processes = Trees::BOTH.into_iter().map(|trees| Process::start(&program, trees));
    let mut processes = processes.collect::<Result<Vec<_>>>()?;
    let mut found = <[Found; 2]>::default();
    lab.in_turns(rounds, 4, |_, index| {
        let (trees, alone) = (index / 2, index % 2 == 1);
        let slice = processes[trees].slice(if alone { 0 } else { reads })?;
        found[trees].speeds[usize::from(alone)].push(slice.statements / slice.seconds);
        found[trees].statements += slice.statements;
        if !alone {
            found[trees].reader.push(slice.read);
        }
        Ok(())
    })?;
    processes.into_iter().try_for_each(Process::end)?;
    show(lab, &found)
}

fn show(lab: &mut Lab<'_>, found: &[Found; 2]) -> Result<()> {
    let mut table = Table::new(
        "one reader of a parent's cpu statistics while two children run SQLite statements; both by their own CPU time",
        ["", "ns a read: median (min..p90)", "flushes", "statements/s beside it", "without a reader"],
    );
    for (trees, found) in Trees::BOTH.into_iter().zip(found) {
        let mut row = lab.record(trees.name(), json!({"reads": "cpu beside SQLite"}));
        let mut cells = found.reader.record(&mut row).to_vec();
        for (metric, speeds) in ["statements beside a reader", "statements"].into_iter().zip(&found.speeds) {
            row.summary(metric, "1/s", Summary::of(speeds));
            cells.push(figure_or_dash(median_of(speeds)));
        }
        table.row(trees.name(), cells);
    }
    let [before, after] = SEED.cells(BUILDS);
    let statements = count(found.iter().map(|found| found.statements as u64).sum());
    table.note(format!(
        "{statements} statements; each is a scope, so cpu changes as often as memory and io do. Flushes: the share of reads that found a change; the others are copies, and with one tree every charge is a change. Statements: for a second of the children's CPU time. The seed, two kernel builds: {before} s before, {after} s after, and the builds spent the same cycles on updates"
    ));
    lab.print(&table)?;
    let gain = ratio(median_of(&found[0].reader.ns), median_of(&found[1].reader.ns));
    lab.at_least("reading cpu beside SQLite: one tree over separate", gain, seed_gain(BUILDS), "x");
    let speed = |trees: usize| median_of(&found[trees].speeds[1]);
    lab.at_least("SQLite without a reader: separate trees over one", ratio(speed(1), speed(0)), 0.97, "x");
    Ok(())
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
        let reads: u64 = order.trim().parse().map_err(|_| {
            Error::Argument(format!("take the order {order:?}: it must be a number of reads, or 0"))
        })?;
        let work = |index, shift: &Shift| tenants.work(index, shift);
        let (read, made) = read_beside(&workers, CHILDREN, work, || tenants.read(reads))?;
        let (made, ns) = made.into_iter().fold((0, 0), |sums, one| (sums.0 + one.0, sums.1 + one.1));
        statements += made;
        tenants.check(statements)?;
        let slice = Slice { read, statements: made as f64, seconds: ns as f64 / 1e9 };
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
        if reads == 0 {
            std::thread::sleep(ALONE);
            return [0.0; 2];
        }
        let (statistics, mut values) = (self.hierarchy.cpu(), [0; cpu::NR_SCOPES.index() + 1]);
        timed_reads(&statistics, reads, || {
            statistics.read(&self.parent, Reach::Subtree, Freshness::Fresh, &mut values);
            std::hint::black_box(&values);
        })
    }

    /// Runs look-ups, sorts and groupings until the shift ends; returns how many, and the
    /// nanoseconds of CPU time that they took.
    fn work(&self, index: usize, shift: &Shift) -> Result<(u64, u64)> {
        const SORT: &str = "SELECT count(DISTINCT text) FROM items WHERE class = 3";
        const GROUP: &str = "SELECT max(total) FROM (SELECT sum(id) AS total FROM items GROUP BY class)";
        const LOOK_UP: &str = "SELECT length(text) FROM items WHERE id = ?1";
        let connection = self.open(index)?;
        let first = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
        let (mut made, before) = (0, thread_cpu_ns());
        shift.begin(1);
        while shift.lasts() {
            let id = (made * 7919) % ROWS + 1;
            let answer = match made % 50 {
                0 => connection.query_row(SORT, [], first),
                25 => connection.query_row(GROUP, [], first),
                _ => connection.query_row(LOOK_UP, [id as i64], first),
            };
            answer.or_wrong(STATEMENT)?;
            made += 1;
        }
        Ok((made, thread_cpu_ns() - before))
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
        let slice = Slice { read: [171.25, 0.5], statements: 12.0, seconds: 0.25 };
        assert_eq!(Slice::parse(&slice.to_string()), Some(slice));
        for line in ["", "1 2 3", "1 2 3 x", "1 2 3 4 5"] {
            assert_eq!(Slice::parse(line), None, "{line:?}");
        }
    }

    /// One test, because SQLite serves one hierarchy in a process.
    #[test]
    fn answers_each_order_and_refuses_other_input() {
        let mut answers = Vec::new();
        let error = serve(Trees::Unified, install_in_test, &b"200\n0\nmany\n"[..], &mut answers).unwrap_err();
        assert_eq!(error.to_string(), "take the order \"many\": it must be a number of reads, or 0");
        let answers = String::from_utf8(answers).unwrap();
        let slices: Vec<_> = answers.lines().map(|line| Slice::parse(line).expect(line)).collect();
        assert_eq!(slices.len(), 2, "{answers}");
        assert!(slices[0].read[0] > 0.0 && slices[0].read[1] <= 1.0, "{answers}");
        assert!(slices[1].read == [0.0; 2] && slices[1].statements > 0.0, "{answers}");
    }
}
