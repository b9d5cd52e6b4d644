//! The arguments of an experiment, and the checks that refuse some.

use std::path::PathBuf;

use clap::ValueEnum;
use memgroup::PageSize;

use crate::error::{Error, Result};

/// The most slots an experiment can be asked for; [`memgroup_percpu::SlotSource::virtual_slots`] has the same bound.
pub const SLOTS_MAX: usize = 4096;
/// The most threads an experiment can be asked for.
pub const THREADS_MAX: usize = 256;

/// The deepest group an experiment can be asked for, in counters from it to the root.
pub const DEPTH_MAX: usize = 64;
/// The most groups of `rstat`.
pub const CHILDREN_MAX: usize = 100_000;
/// The most groups that stay in the script of `percpu`.
pub const OUTER_MAX: usize = 100_000;
/// The most groups beside each of them.
pub const INNER_MAX: usize = 1_000;
/// The most groups of the script in all.
pub const GROUPS_MAX: usize = 1_000_000;

/// Measures a mechanism of memgroup and its control, beside the kernel's figures
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Args {
    /// Which mechanism to measure against its control
    #[arg(value_enum)]
    pub experiment: Experiment,
    /// charge, drain, shrink, control, limits, share, alloc: threads of the many-threaded rows, each pinned to a CPU of its own while there are enough [default: 2]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// charge, percpu, rstat, shrink, control, limits, share, alloc: run on N virtual slots; drain: measure N only [default: as many as the machine has CPUs;
    /// percpu at most 16; rstat 52, 2, 8 and 128; drain 1, 2, 8, 128 and 512]
    #[arg(long, value_name = "N")]
    pub slots: Option<usize>,
    /// Counters from a group to the root, the root included [default: charge 1, 3 and 8; drain 3]
    #[arg(long, value_name = "N")]
    pub depth: Option<usize>,
    /// percpu: page size of the groups' per-CPU memory [default: 4k in full, 16k, 64k and 2m in short]
    #[arg(long, value_enum, value_name = "SIZE")]
    pub page: Option<Page>,
    /// percpu: groups that stay, the script's cg_i [default: 1000]
    #[arg(long, value_name = "N")]
    pub outer: Option<usize>,
    /// percpu: groups beside each that are removed, the script's cg_i_j [default: 10]
    #[arg(long, value_name = "N")]
    pub inner: Option<usize>,
    /// rstat: children of the parent that is read, and groups that are flushed [default: 26; 10, 1000 and 10000]; shrink: groups of the
    /// storms [default: 2000 and 4000]; control: groups that are protected [default: 10000]; limits: groups of the
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
    /// limits: be the process that measures the memory of groups of this account
    #[arg(long, hide = true, value_enum, value_name = "ACCOUNT")]
    pub memory_of: Option<MemoryOf>,
    /// The program that takes these arguments. SQLite serves one hierarchy in a process, so a comparison of two hierarchies needs
    /// two processes of the program; without it, that comparison is left out
    #[arg(skip)]
    pub program: Option<PathBuf>,
    /// The least work that runs every part: shows that an experiment works; its figures mean nothing
    #[arg(skip)]
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

/// Accounts of `limits`; a process measures the memory of the groups of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MemoryOf {
    /// Groups of memgroup
    Engine,
    /// Names in a hash map, each with a line
    CasMap,
    /// Names and counters behind one mutex
    MutexMap,
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
    /// The whole controller: the cost of all limits, events and pressure, and how fast memory is freed
    Control,
    /// Costs away from the best case: little headroom, many groups, refusals, groups that come and go
    Limits,
    /// Fair shares: a runaway among small tenants, with them and without
    Share,
    /// Servers: a global allocator that charges, tasks in groups, and charges that wait as futures
    Alloc,
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

/// The experiments of an option that all of them have.
const ALL: &str = "charge, drain, percpu, rstat, shrink, control, limits, share and alloc";

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
        let of_another = |(.., owners): &(_, _, &str)| !owners.contains(&name);
        if let Some((flag, _, owners)) = self.given().into_iter().find(of_another) {
            return Err(Error::Argument(format!("use {flag} with {name}: it is an option of {owners}")));
        }
        for (flag, noun, value, most) in [
            ("--threads", "threads", self.threads, THREADS_MAX),
            ("--slots", "slots", self.slots, SLOTS_MAX),
            ("--depth", "counters from a group to the root", self.depth, DEPTH_MAX),
            ("--outer", "groups that stay", self.outer, OUTER_MAX),
            ("--inner", "groups beside each that stays", self.inner, INNER_MAX),
            ("--groups", "groups", self.groups, CHILDREN_MAX),
        ] {
            if let Some(value) = value.filter(|&value| value < 1 || value > most) {
                let why = format!("use {flag} {value}: 1 to {most} {noun} can be measured");
                return Err(Error::Argument(why));
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

    /// Each option that was given: its flag, its value, and the experiments that have it.
    fn given(&self) -> Vec<(&'static str, String, &'static str)> {
        let number = |value: Option<usize>| value.map(|value| value.to_string());
        let flag = |given: bool| given.then(String::new);
        let options = [
            ("--threads", number(self.threads), "charge, drain, shrink, control, limits, share and alloc"),
            ("--page", self.page.map(word), "percpu"),
            ("--outer", number(self.outer), "percpu"),
            ("--inner", number(self.inner), "percpu"),
            ("--groups", number(self.groups), "rstat, shrink, control and limits"),
            ("--slots", number(self.slots), ALL),
            ("--depth", number(self.depth), "charge and drain"),
            ("--kernel", flag(self.kernel), "percpu"),
            ("--quick", flag(self.quick), ALL),
            ("--serve", self.serve.map(word), "rstat"),
            ("--memory-of", self.memory_of.map(word), "limits"),
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

    pub(crate) fn depth(&self) -> usize {
        self.depth.unwrap_or(3)
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

    fn refused(change: impl Fn(&mut Args)) -> String {
        let mut args = Args::new(Experiment::Charge);
        change(&mut args);
        let error = args.check().expect_err("must be refused");
        assert!(error.is_usage());
        error.to_string()
    }

    #[test]
    fn accepts_the_defaults() {
        Args::new(Experiment::Drain).check().unwrap();
    }

    #[test]
    fn names_the_argument_the_value_and_the_range() {
        assert_eq!(refused(|a| a.threads = Some(0)), "use --threads 0: 1 to 256 threads can be measured");
        assert_eq!(refused(|a| a.slots = Some(4097)), "use --slots 4097: 1 to 4096 slots can be measured");
        assert_eq!(refused(|a| a.slots = Some(0)), "use --slots 0: 1 to 4096 slots can be measured");
        assert_eq!(
            refused(|a| a.depth = Some(0)),
            "use --depth 0: 1 to 64 counters from a group to the root can be measured"
        );
    }

    fn refused_of_percpu(change: impl Fn(&mut Args)) -> String {
        refused(|args| {
            args.experiment = Experiment::Percpu;
            change(args);
        })
    }

    #[test]
    fn refuses_a_script_of_no_groups_or_too_many() {
        assert_eq!(
            refused_of_percpu(|a| a.outer = Some(0)),
            "use --outer 0: 1 to 100000 groups that stay can be measured"
        );
        assert_eq!(
            refused_of_percpu(|a| a.outer = Some(1_000_000_000)),
            "use --outer 1000000000: 1 to 100000 groups that stay can be measured"
        );
        assert_eq!(
            refused_of_percpu(|a| a.inner = Some(0)),
            "use --inner 0: 1 to 1000 groups beside each that stays can be measured"
        );
        assert_eq!(
            refused_of_percpu(|a| (a.outer, a.inner) = (Some(100_000), Some(10))),
            "use --outer 100000 with --inner 10: that is 1100000 groups, at most 1000000 can be measured"
        );
    }

    #[test]
    fn refuses_an_option_of_another_experiment() {
        assert_eq!(
            refused_of_percpu(|a| a.depth = Some(3)),
            "use --depth with percpu: it is an option of charge and drain"
        );
        assert_eq!(
            refused(|a| a.page = Some(Page::K64)),
            "use --page with charge: it is an option of percpu"
        );
        assert_eq!(refused(|a| a.kernel = true), "use --kernel with charge: it is an option of percpu");
        assert_eq!(
            refused(|a| (a.experiment, a.depth) = (Experiment::Shrink, Some(3))),
            "use --depth with shrink: it is an option of charge and drain"
        );
        assert_eq!(
            refused(|a| (a.experiment, a.threads) = (Experiment::Rstat, Some(3))),
            "use --threads with rstat: it is an option of charge, drain, shrink, control, limits, share and alloc"
        );
    }

    #[test]
    fn reads_page_sizes_as_they_are_written() {
        for page in [Page::K4, Page::K16, Page::K64, Page::M2] {
            assert_eq!(Page::from_str(&page.name(), false), Ok(page));
        }
        assert!(Page::from_str("5k", false).is_err());
    }

    #[test]
    fn reads_kinds_of_trees_as_they_are_written() {
        for trees in Trees::BOTH {
            assert_eq!(Trees::from_str(&word(trees), false), Ok(trees));
        }
    }

    #[test]
    fn reads_options_back_as_the_same_arguments() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let mut args = Args::new(Experiment::Percpu);
        assert!(args.options().is_empty());
        (args.threads, args.slots, args.depth) = (Some(3), Some(4), Some(5));
        (args.page, args.outer, args.inner) = (Some(Page::K64), Some(6), Some(7));
        (args.groups, args.kernel, args.quick) = (Some(8), true, true);
        let options = args.options();
        let words = options.iter().flat_map(|option| option.split(' '));
        let line = ["memgroup-lab", "percpu"].into_iter().chain(words);
        let read = <Line as clap::Parser>::try_parse_from(line).unwrap().args;
        assert_eq!(format!("{read:?}"), format!("{args:?}"));
    }

    #[test]
    fn allows_more_threads_than_cpus() {
        let mut args = Args::new(Experiment::Charge);
        args.threads = Some(64);
        args.check().unwrap();
    }
}
