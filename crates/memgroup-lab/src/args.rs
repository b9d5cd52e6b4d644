//! The arguments of an experiment, and the checks that refuse some.

use std::path::PathBuf;

use clap::ValueEnum;
use memgroup::PageSize;

use crate::error::{Error, Result};

/// The most threads of an experiment.
pub(crate) const THREADS_MAX: usize = 256;
/// The options that count something: each one's name, what it counts, and the most.
const RANGES: [(&str, &str, usize); 5] = [
    ("--threads", "threads", THREADS_MAX),
    ("--slots", "slots", 4096),
    ("--outer", "groups that stay", 100_000),
    ("--inner", "groups beside each that stays", 1_000),
    ("--groups", "groups", 100_000),
];
/// The most groups of the script of `percpu` in all.
const GROUPS_MAX: usize = 1_000_000;

/// Measures a mechanism of memgroup and its control, beside the kernel's figures
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Args {
    /// Which mechanism to measure against its control
    #[arg(value_enum)]
    pub experiment: Experiment,
    /// charge, drain, shrink, limits, alloc: threads of the rows with several, each pinned to a CPU of its own while there are enough [default: 2]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Run on N virtual slots; drain: measure N only [default: as many as the machine has CPUs; percpu at most 16; rstat 52; drain 1, 2, 8, 128
    /// and 512]
    #[arg(long, value_name = "N")]
    pub slots: Option<usize>,
    /// percpu: page size of the groups' per-CPU memory [default: 4k, 16k, 64k and 2m]
    #[arg(long, value_enum, value_name = "SIZE")]
    pub page: Option<Page>,
    /// percpu: groups that stay, the script's cg_i [default: 1000]
    #[arg(long, value_name = "N")]
    pub outer: Option<usize>,
    /// percpu: groups beside each that are removed, the script's cg_i_j [default: 10]
    #[arg(long, value_name = "N")]
    pub inner: Option<usize>,
    /// rstat: children of the parent that is read [default: 26]; shrink: groups of the script [default: 2000]; limits: groups of the
    /// removals, the reports and the memory [default: 100000]
    #[arg(long, value_name = "N")]
    pub groups: Option<usize>,
    /// percpu: run the script against the running kernel too, in a memory cgroup of its own (needs root)
    #[arg(long)]
    pub kernel: bool,
    /// Fewer windows: under a minute an experiment
    #[arg(long)]
    pub quick: bool,
    /// Write the rows and checks to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// rstat: be one of its two processes of SQLite tenants, and take orders from the standard input
    #[arg(long, hide = true, value_enum, value_name = "TREES")]
    pub serve: Option<Trees>,
    /// limits: be the process that measures the memory of groups
    #[arg(long, hide = true)]
    pub memory_of_groups: bool,
    /// The program that takes these arguments. Some comparisons need processes of it, because a process has one SQLite, one allocator and one
    /// resident size; without it they are left out
    #[arg(skip)]
    pub program: Option<PathBuf>,
    /// The least work that runs every part: shows that an experiment works; its figures mean nothing
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
    /// Per-CPU memory that goes back to the system after groups are removed: depopulation and relocation
    Percpu,
    /// Statistics with a tree for each subsystem: a reader of one subsystem pays for no other
    Rstat,
    /// Reclaim from caches without a lock: shrinkers
    Shrink,
    /// Costs away from the best case: exact charges, refusals, many groups, groups that come and go
    Limits,
    /// Servers: a global allocator that charges, tasks in groups, and charges that wait as futures
    Alloc,
    /// All of the others, on a quiet machine: writes docs/figures.json, docs/figures.md and their charts
    Figures,
}

/// The page sizes that per-CPU memory can be kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Page {
    /// 4 KiB, as x86-64 has them
    #[value(name = "4k")]
    K4,
    /// 16 KiB, as some arm64 machines have them
    #[value(name = "16k")]
    K16,
    /// 64 KiB, as POWER9 and some arm64 machines have them
    #[value(name = "64k")]
    K64,
    /// 2 MiB, a huge page of x86-64
    #[value(name = "2m")]
    M2,
}

impl Page {
    /// The engine's page of this size.
    pub(crate) fn size(self) -> PageSize {
        PageSize::ALL[self as usize]
    }

    /// Bytes of one page.
    pub fn bytes(self) -> u64 {
        self.size().bytes() as u64
    }

    /// The name on the command line and in the JSON.
    pub fn name(self) -> String {
        word(self)
    }
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
        // An option of another experiment would be ignored.
        let name = word(self.experiment);
        let given = self.given();
        for (flag, value, owners) in &given {
            if !owners.is_empty() && !owners.contains(&name) {
                return Err(Error::Argument(format!("use {flag} with {name}: it is an option of {owners}")));
            }
            let range = RANGES.into_iter().find(|(of, ..)| of == flag).zip(value.parse::<usize>().ok());
            if let Some(((_, noun, most), value)) = range
                && !(1..=most).contains(&value)
            {
                return Err(Error::Argument(format!(
                    "use {flag} {value}: 1 to {most} {noun} can be measured"
                )));
            }
        }
        let (outer, inner) = (self.outer(), self.inner());
        let groups = outer * (1 + inner);
        if groups <= GROUPS_MAX {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "use --outer {outer} with --inner {inner}: that is {groups} groups, at most {GROUPS_MAX} can be measured"
        )))
    }

    /// Each option that was given: its flag, its value, and the experiments that have it if not all do.
    fn given(&self) -> Vec<(&'static str, String, &'static str)> {
        let number = |value: Option<usize>| value.map(|value| value.to_string());
        let flag = |given: bool| given.then(String::new);
        let options = [
            ("--threads", number(self.threads), "charge, drain, shrink, limits and alloc"),
            ("--page", self.page.map(word), "percpu"),
            ("--outer", number(self.outer), "percpu"),
            ("--inner", number(self.inner), "percpu"),
            ("--groups", number(self.groups), "rstat, shrink and limits"),
            ("--slots", number(self.slots), "charge, drain, percpu, rstat, shrink, limits and alloc"),
            ("--kernel", flag(self.kernel), "percpu"),
            ("--quick", flag(self.quick), ""),
            ("--serve", self.serve.map(word), "rstat"),
            ("--memory-of-groups", flag(self.memory_of_groups), "limits"),
        ];
        options.into_iter().filter_map(|(flag, value, owners)| Some((flag, value?, owners))).collect()
    }

    /// The options that were given, as they are written on the command line; without `--json`, which changes no figure.
    pub(crate) fn options(&self) -> Vec<String> {
        let text = |(flag, value, _)| format!("{flag} {value}").trim_end().to_owned();
        self.given().into_iter().map(text).collect()
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

    /// Groups that stay in the script of `percpu`.
    pub(crate) fn outer(&self) -> usize {
        self.outer.unwrap_or(if self.tiny { 60 } else { 1000 })
    }

    /// Groups beside each of them.
    pub(crate) fn inner(&self) -> usize {
        self.inner.unwrap_or(10)
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
        let charge = Experiment::Charge;
        assert_eq!(
            refused(charge, |a| a.threads = Some(0)),
            "use --threads 0: 1 to 256 threads can be measured"
        );
        assert_eq!(
            refused(charge, |a| a.slots = Some(4097)),
            "use --slots 4097: 1 to 4096 slots can be measured"
        );
        assert_eq!(
            refused(Experiment::Percpu, |a| a.outer = Some(1_000_000_000)),
            "use --outer 1000000000: 1 to 100000 groups that stay can be measured"
        );
        Args::new(charge).check().unwrap();
    }

    #[test]
    fn refuses_a_script_of_too_many_groups() {
        let text = refused(Experiment::Percpu, |args| {
            args.outer = Some(100_000);
            args.inner = Some(10);
        });
        assert_eq!(
            text,
            "use --outer 100000 with --inner 10: that is 1100000 groups, at most 1000000 can be measured"
        );
    }

    #[test]
    fn refuses_an_option_of_another_experiment() {
        assert_eq!(
            refused(Experiment::Charge, |args| args.kernel = true),
            "use --kernel with charge: it is an option of percpu"
        );
        assert_eq!(
            refused(Experiment::Rstat, |args| args.threads = Some(2)),
            "use --threads with rstat: it is an option of charge, drain, shrink, limits and alloc"
        );
    }

    #[test]
    fn repeats_the_options_as_they_were_given() {
        let args =
            Args { page: Some(Page::K64), slots: Some(3), quick: true, ..Args::new(Experiment::Percpu) };
        assert_eq!(args.options(), ["--page 64k", "--slots 3", "--quick"]);
        assert_eq!((Page::K64.bytes(), Page::M2.name()), (64 << 10, "2m".to_owned()));
    }
}
