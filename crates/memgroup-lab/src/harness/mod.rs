//! What every experiment needs: pinned threads, short interleaved windows, summaries, tables, JSON.

pub(crate) mod clock;
pub(crate) mod crew;
pub(crate) mod interrupt;
pub(crate) mod machine;
pub(crate) mod os;
pub(crate) mod quantiles;
pub(crate) mod random;
pub(crate) mod report;
pub(crate) mod sqlite;
pub(crate) mod stats;
pub(crate) mod table;
pub(crate) mod trace;
pub(crate) mod tree;
pub(crate) mod window;

use std::io::Write;
use std::time::Duration;

use memgroup_percpu::{SlotReport, SlotSource};

use self::clock::Clock;
use self::crew::Crew;
use self::machine::Machine;
use self::random::Random;
use self::report::{Report, Seed};
use self::table::{Table, WIDTH, wrapped};
use self::window::{Measured, Plan, Variant};
use crate::{Args, Error};

/// Two runs with the same arguments take their windows in the same order.
const ORDER_SEED: u64 = 0x6d65_6d67;

/// What stands in place of a seed's figures.
const NO_SEED: &str = "\nseed: none; no one patch series has such figures, so there are goals, set before anything was measured";

/// How much is measured: everything an experiment repeats, in one place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// Counted windows of a variant.
    pub(crate) rounds: usize,
    pub(crate) window_us: u64,
    /// Timed calls of a variant that is measured call by call.
    pub(crate) calls: usize,
    pub(crate) soak: Duration,
}

impl Effort {
    fn of(args: &Args) -> Effort {
        match (args.tiny, args.quick) {
            (true, _) => Effort { rounds: 1, window_us: 100, calls: 3, soak: Duration::from_millis(20) },
            (_, true) => Effort { rounds: 25, window_us: 1000, calls: 120, soak: Duration::from_secs(3) },
            (_, false) => Effort { rounds: 150, window_us: 1000, calls: 600, soak: Duration::from_secs(20) },
        }
    }
}

/// One run of one experiment.
pub(crate) struct Lab<'a> {
    pub(crate) args: &'a Args,
    pub(crate) effort: Effort,
    pub(crate) crew: Crew,
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    /// The machine's source of slots, or the virtual one that was asked for.
    pub(crate) slots: SlotSource,
    pub(crate) report: Report,
    out: &'a mut dyn Write,
}

impl<'a> Lab<'a> {
    /// Starts the crew, looks at the machine and prints the heading of the report.
    pub(crate) fn open(
        args: &'a Args,
        seed: impl Into<Option<Seed>>,
        slots: SlotSource,
        out: &'a mut dyn Write,
    ) -> Result<Lab<'a>, Error> {
        let crew = Crew::start(args.threads().max(2))?;
        let clock = Clock::calibrate(Duration::from_millis(if args.tiny { 2 } else { 50 }));
        let machine = Machine::look(&crew, &clock, slots);
        let report = Report {
            experiment: args.experiment.name(),
            options: args.options(),
            seed: seed.into(),
            machine,
            rows: Vec::new(),
            checks: Vec::new(),
        };
        let (effort, random) = (Effort::of(args), Random::new(ORDER_SEED));
        let mut lab = Lab { args, effort, crew, clock, random, slots, report, out };
        lab.heading()?;
        Ok(lab)
    }

    fn heading(&mut self) -> Result<(), Error> {
        let command = ["memgroup lab", self.report.experiment].into_iter();
        let command: Vec<&str> = command.chain(self.report.options.iter().map(String::as_str)).collect();
        self.say(&command.join(" "))?;
        self.say(&format!("machine: {}", self.report.machine))?;
        if let Some(why) = slots_note(self.slots, SlotSource::report(), self.args.slots) {
            self.paragraph(&why)?;
        }
        if self.args.tiny {
            self.say("note: the least that runs every part; the figures mean nothing")?;
        }
        if let Some(why) = self.crew.unpinned().map(str::to_owned) {
            self.say(&format!("note: {why}; threads may move, and figures with them"))?;
        }
        if self.args.threads() > self.crew.cpus() {
            self.say(&format!(
                "note: {} threads on {} CPUs share them, so windows of all threads are cut short and seldom count",
                self.args.threads(),
                self.crew.cpus()
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
    pub(crate) fn paragraph(&mut self, text: &str) -> Result<(), Error> {
        self.say(&wrapped(text, WIDTH).join("\n"))
    }

    /// Prints a line.
    pub(crate) fn say(&mut self, line: &str) -> Result<(), Error> {
        writeln!(self.out, "{line}").and_then(|()| self.out.flush()).map_err(Error::Output)
    }

    /// Prints a table, with an empty line before it.
    pub(crate) fn print(&mut self, table: &Table) -> Result<(), Error> {
        write!(self.out, "\n{}", table.render()).and_then(|()| self.out.flush()).map_err(Error::Output)
    }

    /// Measures variants, interleaved, at this run's effort.
    pub(crate) fn interleave(&mut self, variants: &[Variant]) -> Result<Vec<Measured>, Error> {
        let plan = Plan { rounds: self.effort.rounds, window_us: self.effort.window_us };
        self.interleave_by(plan, variants)
    }

    /// The same, with windows of another number or length.
    pub(crate) fn interleave_by(&mut self, plan: Plan, variants: &[Variant]) -> Result<Vec<Measured>, Error> {
        window::interleave(&self.crew, &self.clock, plan, variants, &mut self.random)
    }

    /// Prints the checks and writes the JSON that was asked for.
    pub(crate) fn close(mut self) -> Result<(), Error> {
        let checks = self.report.checks_table();
        self.print(&checks)?;
        let verdict = self.report.verdict();
        self.paragraph(&format!("\n{verdict}"))?;
        match &self.args.json {
            Some(path) => self.report.write_json(path),
            None => Ok(()),
        }
    }
}

/// Why the slots are not the kernel's ids of running threads, of which there are the fewest; none where they are.
fn slots_note(slots: SlotSource, chosen: &SlotReport, asked: Option<usize>) -> Option<String> {
    const BEST: &str = "mm_cid";
    match asked {
        _ if slots.name() == BEST => None,
        Some(asked) if slots != chosen.chosen() => {
            Some(format!("slots: {}, not {BEST}: --slots {asked} asks for them", slots.name()))
        }
        _ => Some(format!("slots: not {BEST}: {chosen}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_that_are_not_the_best_say_why() {
        let (chosen, three) = (SlotSource::report(), SlotSource::virtual_slots(3).unwrap());
        let asked = slots_note(three, chosen, Some(3)).unwrap();
        assert_eq!(asked, "slots: virtual, not mm_cid: --slots 3 asks for them");
        match slots_note(chosen.chosen(), chosen, None) {
            None => assert_eq!(chosen.chosen().name(), "mm_cid"),
            Some(why) => assert!(why.ends_with(&chosen.to_string()), "{why}"),
        }
        // Whatever was detected here, a source that is not the best is explained by the report of its choice.
        assert_eq!(slots_note(three, chosen, None).unwrap(), format!("slots: not mm_cid: {chosen}"));
    }
}
