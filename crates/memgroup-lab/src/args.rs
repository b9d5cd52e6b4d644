//! The arguments of an experiment, and the checks that refuse some.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::error::{Error, Result};

/// The most threads of an experiment.
pub(crate) const THREADS_MAX: usize = 256;
/// The most slots of an experiment, and of the script of `percpu`, which has 2.7 kB of records for
/// each of 11,000 groups on each slot.
const SLOTS_MAX: usize = 4096;
const SCRIPT_SLOTS_MAX: usize = 64;

/// Measures a mechanism of memgroup and its control, beside the kernel's figures
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Args {
    /// Which mechanism to measure against its control
    #[arg(value_enum)]
    pub experiment: Experiment,
    /// charge, drain, shrink, limits, alloc: threads of the rows with several, each pinned to a CPU
    /// of its own while there are enough [default: 2]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Run on N virtual slots; drain: measure N only [default: as many as the machine has CPUs;
    /// percpu at most 16; rstat 52; drain 1, 2, 8, 128 and 512]
    #[arg(long, value_name = "N")]
    pub slots: Option<usize>,
    /// Fewer windows: under a minute an experiment
    #[arg(long)]
    pub quick: bool,
    /// figures: write to docs although the machine isn't quiet; the page says so
    #[arg(long)]
    pub accept_noise: bool,
    /// Write the rows and checks to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// rstat: be one of its processes of SQLite tenants
    #[arg(long, hide = true, value_enum, value_name = "TREES")]
    pub serve: Option<Trees>,
    /// limits: be the process that measures the memory of groups
    #[arg(long, hide = true)]
    pub memory_of_groups: bool,
    /// The program that takes these arguments. Some comparisons need processes of it, because a
    /// process has one SQLite, one allocator and one resident size; without it they are left
    /// out
    #[arg(skip)]
    pub program: Option<PathBuf>,
    /// The least work that runs every part: shows that an experiment works; its figures mean
    /// nothing
    #[arg(long, hide = true)]
    pub tiny: bool,
}

/// Whether each subsystem of `rstat` has a tree of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Trees {
    /// The control: the same code, one tree for all
    #[value(name = "one")]
    Unified,
    /// A tree for each
    #[value(name = "separate")]
    Separate,
}

impl Trees {
    /// The control first.
    pub const BOTH: [Trees; 2] = [Trees::Unified, Trees::Separate];

    /// The name in tables and in the JSON.
    pub fn name(self) -> &'static str {
        if self == Trees::Unified { "one tree (control)" } else { "separate trees" }
    }
}

/// The name of a choice on the command line and in the JSON.
pub(crate) fn word(choice: impl ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The experiments of the lab.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Experiment {
    /// Batched charge and uncharge: the stock
    #[default]
    Charge,
    /// Remote draining: any CPU empties every CPU's stock
    Drain,
    /// Per-CPU memory that goes back to the system after groups are removed: depopulation and
    /// relocation
    Percpu,
    /// Statistics with a tree for each subsystem: a reader of one subsystem pays for no other
    Rstat,
    /// Reclaim from caches without a lock: shrinkers
    Shrink,
    /// Costs away from the best case: exact charges, refusals, many groups, groups that come and go
    Limits,
    /// Servers: a global allocator that charges, tasks in groups, and charges that wait as futures
    Alloc,
    /// All of the others, on a quiet machine: writes docs/figures.json, docs/figures.md and their
    /// charts
    Figures,
}

impl Args {
    /// An experiment with everything at its default, in full length.
    pub fn new(experiment: Experiment) -> Args {
        Args { experiment, ..Args::default() }
    }

    /// Refuses arguments that make no experiment, before anything runs.
    ///
    /// # Errors
    /// [`Error::Argument`], with the argument, its value and the allowed values.
    pub fn check(&self) -> Result<()> {
        let slots_max = if self.experiment == Experiment::Percpu { SCRIPT_SLOTS_MAX } else { SLOTS_MAX };
        let has_threads = !matches!(self.experiment, Experiment::Percpu | Experiment::Rstat);
        let name = word(self.experiment);
        for (flag, value, most, is_used) in
            [("--threads", self.threads, THREADS_MAX, has_threads), ("--slots", self.slots, slots_max, true)]
        {
            let Some(value) = value else { continue };
            // An option of another experiment would be ignored.
            if !is_used || self.experiment == Experiment::Figures {
                return Err(Error::Argument(format!("use {flag} with {name}: it has no such option")));
            }
            if !(1..=most).contains(&value) {
                return Err(Error::Argument(format!(
                    "use {flag} {value} with {name}: 1 to {most} can be measured"
                )));
            }
        }
        let is_figures = self.experiment == Experiment::Figures;
        let others =
            [("--json", is_figures && self.json.is_some()), ("--serve", is_figures && self.serve.is_some())];
        if let Some((flag, _)) = others.iter().find(|(_, is_given)| *is_given) {
            return Err(Error::Argument(format!("use {flag} with {name}: it has no such option")));
        }
        if self.accept_noise && !is_figures {
            return Err(Error::Argument(format!("use --accept-noise with {name}: it has no such option")));
        }
        Ok(())
    }

    /// The options that were given, as they are written on the command line; without `--json`,
    /// which changes no figure.
    pub(crate) fn options(&self) -> Vec<String> {
        let number = |flag: &str, value: Option<usize>| value.map(|value| format!("{flag} {value}"));
        let quick = self.quick.then(|| "--quick".to_owned());
        [number("--threads", self.threads), number("--slots", self.slots), quick]
            .into_iter()
            .flatten()
            .collect()
    }

    /// The options by which a process of an experiment does as much work.
    pub(crate) fn length(&self) -> Option<&'static str> {
        self.pick(Some("--tiny"), Some("--quick"), None)
    }

    /// The amount of work for the tests, for `--quick` and for a full run.
    pub(crate) fn pick<T>(&self, tiny: T, quick: T, full: T) -> T {
        match (self.tiny, self.quick) {
            (true, _) => tiny,
            (_, true) => quick,
            _ => full,
        }
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads.unwrap_or(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(experiment: Experiment, change: impl Fn(&mut Args)) -> String {
        let mut args = Args::new(experiment);
        change(&mut args);
        let error = args.check().expect_err("must be refused");
        assert!(error.is_usage());
        error.to_string()
    }

    #[test]
    fn names_the_argument_the_value_and_the_range() {
        let refused_threads = refused(Experiment::Charge, |a| a.threads = Some(0));
        assert_eq!(refused_threads, "use --threads 0 with charge: 1 to 256 can be measured");
        let refused_slots = refused(Experiment::Charge, |a| a.slots = Some(4097));
        assert_eq!(refused_slots, "use --slots 4097 with charge: 1 to 4096 can be measured");
        let refused_slots = refused(Experiment::Percpu, |a| a.slots = Some(65));
        assert_eq!(refused_slots, "use --slots 65 with percpu: 1 to 64 can be measured");
        Args::new(Experiment::Charge).check().unwrap();
    }

    #[test]
    fn refuses_an_option_that_the_experiment_does_not_have() {
        let refused_threads = refused(Experiment::Rstat, |args| args.threads = Some(2));
        assert_eq!(refused_threads, "use --threads with rstat: it has no such option");
        let refused_slots = refused(Experiment::Figures, |args| args.slots = Some(2));
        assert_eq!(refused_slots, "use --slots with figures: it has no such option");
        let refused_json = refused(Experiment::Figures, |args| args.json = Some("a.json".into()));
        assert_eq!(refused_json, "use --json with figures: it has no such option");
        let refused_noise = refused(Experiment::Charge, |args| args.accept_noise = true);
        assert_eq!(refused_noise, "use --accept-noise with charge: it has no such option");
    }

    #[test]
    fn repeats_the_options_as_they_were_given() {
        let args = Args { slots: Some(3), quick: true, ..Args::new(Experiment::Percpu) };
        assert_eq!(args.options(), ["--slots 3", "--quick"]);
    }
}
