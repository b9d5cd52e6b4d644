//! The cover letter's second experiment, with SQLite statements in place of kernel builds: two children work, one reader reads their parent's
//! cpu statistics. Each kind of trees has a process of its own (`tenants`); they take turns.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::tenants::{CHILDREN, Slice};
use super::{READS, SEED, Slices};
use crate::args::{Trees, word};
use crate::harness::prelude::*;

/// The cover letter's gain for its reader beside two kernel builds.
const SEED_GAIN: f64 = 2.65;

/// A process of SQLite tenants; it ends when its input does.
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
        // Where the process has ended already, its answer is empty, and its end says more than a broken pipe.
        let _ = writeln!(orders, "{reads}").and_then(|()| orders.flush());
        self.answers.read_line(&mut answer).map_err(Error::system("read the tenants' answer"))?;
        let trees = self.trees.name();
        Slice::parse(&answer)
            .ok_or_else(|| format!("{answer:?} instead of three numbers"))
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
        // Ends the process after an error; one that has ended is not found.
        self.orders = None;
        let _ = self.child.wait();
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let Some(program) = lab.args.program.clone() else {
        return lab
            .paragraph("\nnote: no SQLite statements: they need processes of the program memgroup-lab");
    };
    let (rounds, reads) = lab.pick((1, 500), (5, READS / 5), (20, READS));
    let processes = Trees::BOTH.into_iter().map(|trees| Process::start(&program, trees));
    let mut processes = processes.collect::<Result<Vec<_>>>()?;
    let (mut found, mut statements) = (<[Slices; 2]>::default(), 0);
    lab.in_turns(rounds, 2, |_, index| {
        let slice = processes[index].slice(reads)?;
        found[index].push(slice.read);
        statements += slice.statements;
        Ok(())
    })?;
    processes.into_iter().try_for_each(Process::end)?;
    show(lab, &found, statements)
}

fn show(lab: &mut Lab<'_>, found: &[Slices; 2], statements: u64) -> Result<()> {
    let mut table = Table::new(
        "one reader of a parent's cpu statistics, two children run SQLite statements: the reader's own CPU time",
        ["", "ns a read: median (min..p90)", "flushes", "s for 1 M reads"],
    );
    let mut medians = Vec::new();
    for (trees, slices) in Trees::BOTH.into_iter().zip(found) {
        let ns = median_of(&slices.ns);
        let mut row = lab.record(trees.name(), json!({"children": CHILDREN}));
        let cells = slices.record(&mut row, ["mixed read", "flushes of cpu's tree a mixed read"]);
        let million = ns.map(|ns| ns * READS as f64 / 1e9);
        table.row(trees.name(), cells.into_iter().chain([figure_or_dash(million)]));
        medians.push(ns);
    }
    let [before, after] = SEED.cells("2 children build kernels: real");
    table.note(format!(
        "{} statements; each is a scope, so cpu changes as often as memory and io do. Most reads find no change and are copies: \"flushes\" is the share of the others, and with one tree every charge is a change. The seed, two kernel builds: {before} s before, {after} s after",
        count(statements)
    ));
    let name = "reading cpu beside SQLite statements: one tree over separate";
    lab.at_least(name, ratio(medians[0], medians[1]), SEED_GAIN, "x");
    lab.print(&table)
}
