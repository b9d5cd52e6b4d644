//! The harness that all experiments share: pinned threads, short interleaved windows, summaries,
//! tables, goals, JSON.

pub(crate) mod case;
pub(crate) mod clock;
pub(crate) mod fixture;
pub(crate) mod ledger;
pub(crate) mod machine;
pub(crate) mod os;
pub(crate) mod report;
pub(crate) mod sqlite;
pub(crate) mod stats;
pub(crate) mod table;
pub(crate) mod window;
pub(crate) mod workers;

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use memgroup_percpu::{SlotReport, SlotSource};
use serde_json::Value;

use self::machine::Machine;
use self::prelude::*;
use self::report::{Check, Report};
use self::table::{WIDTH, wrapped};
use crate::args::{Args, word};

/// The names of the harness that experiments use.
pub(crate) mod prelude {
    pub(crate) use serde_json::json;

    pub(crate) use super::case::Case;
    pub(crate) use super::clock::{self, Clock, Stopwatch};
    pub(crate) use super::fixture::*;
    pub(crate) use super::machine::virtual_slots;
    pub(crate) use super::os::{self, *};
    pub(crate) use super::report::{Record, Seed, SeedFigure};
    pub(crate) use super::sqlite::*;
    pub(crate) use super::stats::*;
    pub(crate) use super::table::*;
    pub(crate) use super::window::{
        Beside, Measured, Plan, Random, Variant, Work, always, each, note_windows,
    };
    pub(crate) use super::workers::{Shift, Workers, lock, sleeper, spin_until};
    pub(crate) use super::{Lab, fixture};
    pub(crate) use crate::error::{Error, OrFail, Result, ensure, expect};
}

/// Two runs with the same arguments take their windows in the same order.
const ORDER_SEED: u64 = 0x6d65_6d67;

const NO_SEED: &str =
    "\nseed: none. No single patch series has such figures; the goals were set before anything was measured";

/// Amount of work that an experiment repeats.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// Counted windows of a variant, and their length.
    pub(crate) windows: Plan,
    /// Timed calls of a variant that is measured call by call.
    pub(crate) calls: usize,
}

/// One run of one experiment.
pub(crate) struct Lab<'a> {
    pub(crate) args: &'a Args,
    pub(crate) effort: Effort,
    pub(crate) workers: Workers,
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    /// The machine's source of slots, or the virtual one that was asked for.
    pub(crate) slots: SlotSource,
    report: Report,
    out: &'a mut dyn Write,
}

impl<'a> Lab<'a> {
    /// Starts the workers, looks at the machine and prints the heading of the report. The slots are
    /// the machine's, or so many virtual ones.
    pub(crate) fn open(
        args: &'a Args,
        seed: Option<Seed>,
        slots: Option<usize>,
        out: &'a mut dyn Write,
    ) -> Result<Lab<'a>> {
        let slots = slots.map_or_else(|| Ok(SlotSource::detect()), virtual_slots)?;
        let workers = Workers::start(args.threads().max(2))?;
        let clock = Clock::calibrate(Duration::from_millis(if args.tiny { 2 } else { 50 }));
        let machine = Machine::look(&workers, &clock, slots);
        let (experiment, options) = (word(args.experiment), args.options());
        let report = Report {
            experiment,
            options,
            seed,
            machine,
            rows: Vec::new(),
            checks: Vec::new(),
            tables: Vec::new(),
        };
        let (rounds, window_us, calls) = args.pick((1, 100, 3), (25, 1000, 120), (150, 1000, 600));
        let effort = Effort { windows: Plan { rounds, window_us }, calls };
        let mut lab =
            Lab { args, effort, workers, clock, random: Random::new(ORDER_SEED), slots, report, out };
        lab.heading()?;
        Ok(lab)
    }

    fn heading(&mut self) -> Result<()> {
        let mut command = format!("memgroup-lab {}", self.report.experiment);
        self.report.options.iter().for_each(|option| command.extend([" ", option]));
        self.say(&command)?;
        self.paragraph(&format!("machine: {}", self.report.machine.text))?;
        if let Some(why) = slots_note(self.slots, SlotSource::report(), self.args.slots) {
            self.paragraph(&why)?;
        }
        if self.args.tiny {
            self.say("note: the least that runs every part; the figures mean nothing")?;
        }
        if let Some(why) = self.workers.unpinned.clone() {
            self.say(&format!("note: {why}; threads may move, and figures with them"))?;
        }
        let (threads, cpus) = (self.args.threads(), self.workers.cpus);
        if threads > cpus {
            self.say(&format!(
                "note: {threads} threads on {cpus} CPUs share them, so windows of all threads are cut short and seldom count"
            ))?;
        }
        match self.report.seed {
            Some(seed) => {
                self.print(&seed.table())?;
                self.paragraph(&seed.explanation())
            }
            None => self.paragraph(NO_SEED),
        }
    }

    /// Prints a text as lines that fit a terminal.
    pub(crate) fn paragraph(&mut self, text: &str) -> Result<()> {
        self.say(&wrapped(text, WIDTH).join("\n"))
    }

    /// Says that two figures are missing, and why.
    pub(crate) fn note_unmeasured(&mut self, figures: &str) -> Result<()> {
        self.paragraph(&format!(
            "\nnote: {figures} need counters of the processor that a guest of a hypervisor seldom has; neither is measured"
        ))
    }

    /// Prints a line.
    pub(crate) fn say(&mut self, line: &str) -> Result<()> {
        writeln!(self.out, "{line}").and_then(|()| self.out.flush()).map_err(Error::Output)
    }

    /// Prints a table, with an empty line before it.
    pub(crate) fn print(&mut self, table: &Table) -> Result<()> {
        self.report.tables.push(table.clone());
        write!(self.out, "\n{}", table.render()).and_then(|()| self.out.flush()).map_err(Error::Output)
    }

    /// The amount of work for the tests, for `--quick` and for a full run.
    pub(crate) fn pick<T>(&self, tiny: T, quick: T, full: T) -> T {
        self.args.pick(tiny, quick, full)
    }

    /// Numbers of threads: one, and all where there are more.
    pub(crate) fn one_and_all(&self) -> Vec<usize> {
        let threads = self.args.threads();
        if threads > 1 { vec![1, threads] } else { vec![1] }
    }

    /// Measures variants, interleaved, at this run's effort.
    pub(crate) fn interleave(&mut self, variants: &[Variant<'_>]) -> Result<Vec<Measured>> {
        self.interleave_by(self.effort.windows, variants)
    }

    /// Measures variants, interleaved, with windows of another number or length.
    pub(crate) fn interleave_by(&mut self, plan: Plan, variants: &[Variant<'_>]) -> Result<Vec<Measured>> {
        window::interleave(&self.workers, &self.clock, plan, variants, &mut self.random)
    }

    /// Runs each of so many cases once a round, in a new random order every round.
    pub(crate) fn in_turns(
        &mut self,
        rounds: usize,
        cases: usize,
        mut run: impl FnMut(&mut Lab<'a>, usize) -> Result<()>,
    ) -> Result<()> {
        let mut order: Vec<usize> = (0..cases).collect();
        for _ in 0..rounds {
            self.random.shuffle(&mut order);
            order.iter().try_for_each(|&case| run(self, case))?;
        }
        Ok(())
    }

    /// Runs each of so many cases once a round, in a new random order every round; the samples of
    /// each.
    pub(crate) fn sample(
        &mut self,
        rounds: usize,
        cases: usize,
        mut run: impl FnMut(&mut Lab<'a>, usize, &mut Samples) -> Result<()>,
    ) -> Result<Vec<Samples>> {
        let mut found: Vec<Samples> = (0..cases).map(|_| Samples::default()).collect();
        self.in_turns(rounds, cases, |lab, case| run(lab, case, &mut found[case]))?;
        Ok(found)
    }

    /// Prints a table of samples, and records its figures.
    ///
    /// A column is a metric and its unit; it shows medians, with the spread if there are at most
    /// three columns. A row is its name, the variant and the settings that it is recorded with, and
    /// its samples.
    pub(crate) fn show<'s>(
        &mut self,
        title: impl Into<String>,
        columns: &[(&str, &'static str)],
        rows: impl IntoIterator<Item = (impl Into<String>, impl Into<String>, Value, &'s Samples)>,
        note: impl Into<String>,
    ) -> Result<()> {
        let heading = |&(metric, unit): &(&str, &str)| format!("{metric}, {unit}");
        let headings = columns.iter().map(|column| heading(column).trim_end_matches(", ").to_owned());
        let headings = std::iter::once(String::new()).chain(headings).collect();
        let mut table = Table { title: title.into(), rows: vec![headings], notes: vec![note.into()] };
        for (name, variant, params, samples) in rows {
            let mut row = self.record(variant, params);
            let cells = columns.iter().map(|&(metric, unit)| {
                let of = samples.summary(metric);
                let text = row.summary(metric, unit, of);
                if columns.len() <= 3 { text } else { figure_or_dash(median(of)) }
            });
            table.row(name, cells);
        }
        self.print(&table)
    }

    /// Begins rows of the JSON: a variant, and its settings as an object.
    pub(crate) fn record(&mut self, variant: impl Into<String>, params: Value) -> Record<'_> {
        let cycles_per_ns = self.clock.cycles(1.0);
        Record { rows: &mut self.report.rows, cycles_per_ns, variant: variant.into(), params }
    }

    /// Adds a goal: the value must not exceed `most`.
    pub(crate) fn at_most(&mut self, name: impl Into<String>, value: Option<f64>, most: f64, unit: &str) {
        self.report.checks.push(Check::new(name.into(), value, "<=", most, unit));
    }

    /// Adds a goal: the value must reach `least`.
    pub(crate) fn at_least(&mut self, name: impl Into<String>, value: Option<f64>, least: f64, unit: &str) {
        self.report.checks.push(Check::new(name.into(), value, ">=", least, unit));
    }

    /// Whether the program is known, of which these figures need processes; otherwise a note says
    /// that they are missing.
    pub(crate) fn has_program(&mut self, figures: &str) -> Result<bool> {
        let is_known = self.args.program.is_some();
        if !is_known {
            self.paragraph(&format!("\nnote: no {figures}: they need processes of the program"))?;
        }
        Ok(is_known)
    }

    /// Runs this program with other arguments, and returns the numbers that it prints.
    pub(crate) fn process<const N: usize>(&self, arguments: &[&str]) -> Result<[f64; N]> {
        let program = self.args.program.as_ref().ok_or("unknown").set_up("the program")?;
        let started = Command::new(program).args(arguments).args(self.args.length()).output();
        let output = started.map_err(Error::system(format!("start {}", program.display())))?;
        let [answer, said] =
            [output.stdout, output.stderr].map(|of| String::from_utf8_lossy(&of).into_owned());
        let numbers = answer.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>();
        let numbers = numbers.and_then(|numbers| numbers.try_into().ok());
        let numbers = numbers.filter(|_| output.status.success());
        let wrong = || format!("{answer:?} instead of {N} numbers, and ended with {}: {said}", output.status);
        numbers.ok_or_else(wrong).or_wrong(format_args!("`{}` answered", arguments.join(" ")))
    }

    /// Prints the goals and writes the JSON that was asked for.
    pub(crate) fn close(mut self) -> Result<()> {
        let checks = self.report.checks_table();
        self.print(&checks)?;
        let verdict = self.report.verdict();
        self.paragraph(&format!("\n{verdict}"))?;
        self.args.json.as_ref().map_or(Ok(()), |path| self.report.write_json(path))
    }
}

/// Why the slots are not the kernel's ids of running threads, which are the fewest; none where they
/// are.
fn slots_note(slots: SlotSource, chosen: &SlotReport, asked: Option<usize>) -> Option<String> {
    const BEST: &str = "mm_cid";
    match asked {
        _ if slots.name() == BEST => None,
        Some(asked) if slots != chosen.chosen => {
            Some(format!("slots: {}, not {BEST}: --slots {asked} asks for them", slots.name()))
        }
        _ => Some(format!("slots: not {BEST}: {chosen}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_why_slots_are_not_the_best() {
        let (chosen, three) = (SlotSource::report(), SlotSource::virtual_slots(3).unwrap());
        let asked = slots_note(three, chosen, Some(3)).unwrap();
        assert_eq!(asked, "slots: virtual, not mm_cid: --slots 3 asks for them");
        match slots_note(chosen.chosen, chosen, None) {
            None => assert_eq!(chosen.chosen.name(), "mm_cid"),
            Some(why) => assert!(why.ends_with(&chosen.to_string()), "{why}"),
        }
        // The report of the choice explains any other source.
        assert_eq!(slots_note(three, chosen, None).unwrap(), format!("slots: not mm_cid: {chosen}"));
    }
}
