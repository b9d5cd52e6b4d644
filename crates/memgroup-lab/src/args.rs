//! What may be asked of an experiment, and what is refused.

use std::path::PathBuf;

use crate::Error;

/// The most slots an experiment can be asked for; [`memgroup_percpu::SlotSource::virtual_slots`] has the same bound.
pub const SLOTS_MAX: usize = 4096;
/// The most threads an experiment can be asked for.
pub const THREADS_MAX: usize = 256;

/// The deepest group an experiment can be asked for, in counters from it to the root.
pub const DEPTH_MAX: usize = 64;

/// Arguments of `memgroup lab`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Which mechanism to measure against its control
    #[arg(value_enum)]
    pub experiment: Experiment,
    /// Threads of the many-threaded rows, each pinned to a CPU of its own while there are enough [default: 2]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// charge: run on N virtual slots; drain: measure N slots only [default: the machine's; 1, 2, 8, 128 and 512]
    #[arg(long, value_name = "N")]
    pub slots: Option<usize>,
    /// Counters from a group to the root, the root included [default: charge 1, 3 and 8; drain 3]
    #[arg(long, value_name = "N")]
    pub depth: Option<usize>,
    /// Fewer windows: under a minute an experiment
    #[arg(long)]
    pub quick: bool,
    /// Write the rows and checks to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// The least that runs every part: shows that an experiment works, its figures mean nothing
    #[arg(skip)]
    pub tiny: bool,
}

/// The experiments of the lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Experiment {
    /// Batched charge and uncharge: the stock
    Charge,
    /// Remote draining: any CPU empties every CPU's stock
    Drain,
}

impl Experiment {
    /// The name on the command line and in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Experiment::Charge => "charge",
            Experiment::Drain => "drain",
        }
    }
}

impl Args {
    /// An experiment with everything at its default, in full length.
    pub fn new(experiment: Experiment) -> Args {
        Args { experiment, threads: None, slots: None, depth: None, quick: false, json: None, tiny: false }
    }

    /// Refuses what makes no experiment, before anything runs.
    ///
    /// # Errors
    /// [`Error::Argument`], naming the argument, what was given and what is allowed.
    pub fn check(&self) -> Result<(), Error> {
        in_range("--threads", "threads", self.threads, 1, THREADS_MAX)?;
        in_range("--slots", "slots", self.slots, 1, SLOTS_MAX)?;
        in_range("--depth", "counters from a group to the root", self.depth, 1, DEPTH_MAX)
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads.unwrap_or(2)
    }
}

fn in_range(flag: &str, what: &str, given: Option<usize>, least: usize, most: usize) -> Result<(), Error> {
    match given {
        Some(value) if value < least || value > most => {
            Err(Error::Argument(format!("use {flag} {value}: {least} to {most} {what} can be measured")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl Fn(&mut Args)) -> String {
        let mut args = Args::new(Experiment::Charge);
        change(&mut args);
        let error = args.check().expect_err("must be refused");
        assert!(error.is_usage());
        error.to_string()
    }

    #[test]
    fn the_defaults_pass() {
        Args::new(Experiment::Drain).check().unwrap();
    }

    #[test]
    fn a_refusal_names_the_argument_the_value_and_the_range() {
        assert_eq!(refused(|a| a.threads = Some(0)), "use --threads 0: 1 to 256 threads can be measured");
        assert_eq!(refused(|a| a.slots = Some(4097)), "use --slots 4097: 1 to 4096 slots can be measured");
        assert_eq!(refused(|a| a.slots = Some(0)), "use --slots 0: 1 to 4096 slots can be measured");
        assert_eq!(
            refused(|a| a.depth = Some(0)),
            "use --depth 0: 1 to 64 counters from a group to the root can be measured"
        );
    }

    #[test]
    fn more_threads_than_cpus_is_allowed() {
        let mut args = Args::new(Experiment::Charge);
        args.threads = Some(64);
        args.check().unwrap();
    }
}
