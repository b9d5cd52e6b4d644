//! The letter's second experiment, with SQLite statements in place of kernel builds: two children work, one reader reads their parent's
//! cpu statistics. Each kind of trees has a process of its own (`tenants`); they take turns.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::seed;
use super::tenants::{CHILDREN, Slice};
use crate::harness::Lab;
use crate::harness::report::{Check, params, ratio};
use crate::harness::stats::Summary;
use crate::harness::table::{Table, count, figure_or_dash};
use crate::{Error, Trees};

/// What the letter gained for its reader beside two kernel builds.
const SEED_GAIN: f64 = 2.65;

/// A process of SQLite tenants; it ends when its input does.
struct Process {
    trees: Trees,
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Process {
    fn start(program: &Path, trees: Trees) -> Result<Process, Error> {
        let mut child = Command::new(program)
            .args(["lab", "rstat", "--serve", trees.word()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|source| Error::System { what: format!("start {}", program.display()), source })?;
        let (orders, answers) = (child.stdin.take(), child.stdout.take().expect("the output is a pipe"));
        Ok(Process { trees, child, orders, answers: BufReader::new(answers) })
    }

    fn slice(&mut self, reads: u64) -> Result<Slice, Error> {
        let mut answer = String::new();
        let orders = self.orders.as_mut().expect("the input is a pipe");
        // Where the process has ended already, its answer is nothing, and how it ended says more than a broken pipe.
        let _ = writeln!(orders, "{reads}").and_then(|()| orders.flush());
        self.answers
            .read_line(&mut answer)
            .map_err(|source| Error::System { what: "read the tenants' answer".to_owned(), source })?;
        Slice::parse(&answer).ok_or_else(|| {
            Error::Wrong(format!(
                "the process of SQLite tenants with {} answered {answer:?} instead of three numbers",
                self.trees.name()
            ))
        })
    }

    fn end(mut self) -> Result<(), Error> {
        self.orders = None;
        let status = self
            .child
            .wait()
            .map_err(|source| Error::System { what: "wait for the tenants' process".to_owned(), source })?;
        if status.success() {
            Ok(())
        } else {
            Err(Error::Wrong(format!("the process of SQLite tenants ended with {status}")))
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Ends it where an error came between; one that has ended is not found.
        self.orders = None;
        let _ = self.child.wait();
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let Some(program) = lab.args.program.clone() else {
        return lab.paragraph("\nnote: no SQLite statements: they need processes of the program memgroup");
    };
    let (rounds, reads) = match (lab.args.tiny, lab.args.quick) {
        (true, _) => (1, 500),
        (_, true) => (5, seed::READS / 5),
        (_, false) => (20, seed::READS),
    };
    let mut processes = Trees::BOTH
        .map(|trees| Process::start(&program, trees))
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let mut slices = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        let mut order = [0, 1];
        lab.random.shuffle(&mut order);
        for index in order {
            slices[index].push(processes[index].slice(reads)?);
        }
    }
    processes.into_iter().try_for_each(Process::end)?;
    show(lab, &slices)
}

fn show(lab: &mut Lab<'_>, slices: &[Vec<Slice>; 2]) -> Result<(), Error> {
    let summary =
        |slices: &[Slice], of: fn(&Slice) -> f64| Summary::of(&slices.iter().map(of).collect::<Vec<_>>());
    let ns = [0, 1].map(|index| summary(&slices[index], |slice| slice.ns));
    let flushes = [0, 1].map(|index| summary(&slices[index], |slice| slice.flushes));
    let mut table = Table::new(
        "one reader of a parent's cpu statistics, two children run SQLite statements: the reader's own CPU time",
        ["", "ns a read", "min", "p90", "flushes", "s for 1 M reads"],
    );
    for ((trees, ns), flushes) in Trees::BOTH.into_iter().zip(ns).zip(flushes) {
        let cell = |of: fn(&Summary) -> f64| figure_or_dash(ns.as_ref().map(of));
        let million = ns.map(|ns| ns.median * seed::READS as f64 / 1e9);
        table.row(vec![
            trees.name().to_owned(),
            cell(|ns| ns.median),
            cell(|ns| ns.min),
            cell(|ns| ns.p90),
            figure_or_dash(flushes.map(|flushes| flushes.median)),
            figure_or_dash(million),
        ]);
        let what = || params([("children", CHILDREN.into())]);
        if let Some(ns) = ns {
            lab.report.add(trees.name(), what(), "mixed read", "ns", ns);
        }
        if let Some(flushes) = flushes {
            lab.report.add(trees.name(), what(), "flushes of cpu's tree a mixed read", "", flushes);
        }
    }
    table.note(format!(
        "{} statements; each is a scope, so cpu changes as often as memory and io do. Most reads find that nothing of theirs has changed, and are copies: \"flushes\" says how many do not, and with one tree every charge is a change. The seed, two kernel builds: {} s before, {} s after",
        count(slices.iter().flatten().map(|slice| slice.statements).sum()),
        figure_or_dash(seed::SEED.figures[2].before),
        figure_or_dash(seed::SEED.figures[2].after)
    ));
    let [one, separate] = ns.map(|ns| ns.map(|ns| ns.median));
    lab.report.checks.push(Check::at_least(
        "reading cpu beside SQLite statements: one tree over separate",
        ratio(one, separate),
        SEED_GAIN,
        "x",
    ));
    lab.print(&table)
}
