//! Statistics with a tree for each subsystem (seed 002): a reader of one subsystem pays for no other.

mod flushes;
mod footprint;
mod mixed;
mod readers;
mod tenants;
mod updates;

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Builder;

use memgroup::{Stat, Statistics, Subsystem};

use crate::Args;
use crate::harness::prelude::*;

const SEED: Seed = Seed {
    name: "002",
    title: "cgroup: separate rstat trees, 2025",
    machine: "Kobryn's server of 52 CPUs; one million reads of a parent's cpu.stat",
    source: "its cover letter's, and for the four files those of its third version",
    address: Some(
        "cover letter: https://lore.kernel.org/cgroups/20250218031448.46951-1-inwardvessel@gmail.com/",
    ),
    figures: &[
        SeedFigure::new("26 children read files: real", "s", 18.449, 6.080),
        SeedFigure::new("26 children read files: in the kernel", "s", 18.165, 5.890),
        SeedFigure::new("2 children build kernels: real", "s", 17.223, 6.498),
        SeedFigure::new("2 children build kernels: in the kernel", "s", 16.871, 6.220),
        SeedFigure::new("all four files in turn, 26 children", "s", 73.7, 42.5),
        SeedFigure::new("all four files in turn, 2 children", "s", 82.8, 42.5),
    ],
};

/// Children of the cover letter's first experiment.
const CHILDREN: usize = 26;
/// CPUs of its machine.
const CPUS: usize = 52;
/// Reads of one measurement.
const READS: u64 = 1_000_000;

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    if let Some(trees) = args.serve {
        return tenants::serve(trees, memgroup_sqlite::install, std::io::stdin().lock(), out);
    }
    let mut lab = Lab::open(args, Some(SEED), None, out)?;
    let slots = virtual_slots(args.slots.unwrap_or(CPUS))?;
    readers::run(&mut lab, slots, args.groups.unwrap_or(CHILDREN))?;
    mixed::run(&mut lab)?;
    updates::run(&mut lab)?;
    footprint::run(&mut lab)?;
    flushes::run(&mut lab, args.slots, args.groups)?;
    lab.close()
}

/// A subsystem of so many gauges.
fn gauges(stats: usize) -> Subsystem {
    let stat = |number| Stat::gauge(Box::leak(format!("stat{number}").into_boxed_str()));
    Subsystem { name: "measured", stats: (0..stats).map(stat).collect::<Vec<_>>().leak() }
}

/// The slices of a reader in one case, with one kind of trees.
#[derive(Debug, Default)]
struct Slices {
    /// Nanoseconds of the reader's CPU time for one read.
    ns: Vec<f64>,
    /// Flushes of cpu's tree for each read of cpu.
    flushes: Vec<f64>,
}

impl Slices {
    fn push(&mut self, [ns, flushes]: [f64; 2]) {
        self.ns.push(ns);
        self.flushes.push(flushes);
    }

    /// Records both; the cells of the nanoseconds and the flushes.
    fn record(&self, row: &mut Record<'_>, [read, flushes]: [&'static str; 2]) -> [String; 2] {
        let of = Summary::of(&self.flushes);
        let cell = row.summary(read, "ns", Summary::of(&self.ns));
        row.summary(flushes, "", of);
        [cell, figure_or_dash(median(of))]
    }
}

/// Reads so many times by `read`: nanoseconds of this thread's CPU time and flushes of cpu's tree, for each.
fn timed_reads(cpu: &Statistics, reads: u64, mut read: impl FnMut()) -> [f64; 2] {
    let (before, flushed) = (thread_cpu_ns(), cpu.flushes());
    (0..reads).for_each(|_| read());
    [thread_cpu_ns() - before, cpu.flushes() - flushed].map(|all| all as f64 / reads as f64)
}

/// The time in which children work and a reader reads.
#[derive(Default)]
struct Turn {
    ready: AtomicUsize,
    done: AtomicBool,
}

impl Turn {
    /// A child says that it works.
    fn begin(&self, children: usize) {
        // ORDERING: Release; pairs with the Acquire of the reader.
        self.ready.fetch_add(children, Ordering::Release);
    }

    fn lasts(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release of `end`.
        !self.done.load(Ordering::Acquire)
    }

    fn end(&self) {
        // ORDERING: Release; the flag alone is handed over.
        self.done.store(true, Ordering::Release);
    }
}

/// Runs `read` on the first worker while each child has a thread on the second worker's CPU that works until the turn ends.
///
/// A child calls [`Turn::begin`] once. Returns the reader's result and the children's.
fn read_beside<R: Send, W: Send>(
    workers: &Workers,
    children: usize,
    work: impl Fn(usize, &Turn) -> Result<W> + Sync,
    read: impl Fn() -> R + Sync,
) -> Result<(R, Vec<W>)> {
    let (turn, work) = (&Turn::default(), &work);
    let mut parts = workers.try_run(2, |thread| {
        if thread == 0 {
            // ORDERING: Acquire; pairs with the Release of each child.
            while turn.ready.load(Ordering::Acquire) < children {
                std::thread::yield_now();
            }
            let found = read();
            turn.end();
            return Ok((Some(found), Vec::new()));
        }
        let work = |index| {
            // A child that failed does not keep the reader waiting.
            work(index, turn).inspect_err(|_| turn.begin(1))
        };
        std::thread::scope(|threads| {
            let start = |index| Builder::new().spawn_scoped(threads, move || work(index));
            let started = (0..children).map(start).collect::<Result<Vec<_>, _>>().inspect_err(|_| {
                // Those that were started end, and the reader does not wait for the others.
                turn.end();
                turn.begin(children);
            });
            let started = started.map_err(Error::system("start the children's threads"))?.into_iter();
            let joined = started
                .map(|child| child.join().unwrap_or_else(|_| Err("panic").or_wrong("a child's thread")));
            Ok((None, joined.collect::<Result<Vec<W>>>()?))
        })
    })?;
    let (worked, found) = (parts.pop(), parts.pop().and_then(|part| part.0));
    found.zip(worked).map(|(found, (_, worked))| (found, worked)).ok_or("no reader").or_wrong("two workers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_the_cover_letters_factor_of_three() {
        let gain = |index: usize| {
            let figure = SEED.figures[index];
            figure.before.unwrap() / figure.after.unwrap()
        };
        assert!((gain(0) - 3.03).abs() < 0.01 && (gain(2) - 2.65).abs() < 0.01);
    }
}
