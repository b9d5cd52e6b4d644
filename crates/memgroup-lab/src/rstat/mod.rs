//! Statistics with a tree for each subsystem (seed 002): a reader of one subsystem pays for no
//! other.
//!
//! The cover letter has three experiments: a reader beside 26 children, the same beside two builds
//! ([`readers`]), and what writers pay ([`costs`], with the memory that the letter reckons). The
//! letter's other half is separate locks, which it does not measure ([`costs::locks`]).

mod costs;
mod readers;

use std::io::Write;
use std::thread::Builder;

use memgroup::Statistics;

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
        SeedFigure::new(READER, "s", 18.165, 5.890),
        SeedFigure::new(BUILDS, "s", 17.223, 6.498),
        SeedFigure::new("2 children build kernels: in the kernel", "s", 16.871, 6.220),
        SeedFigure::new(ALL_FOUR, "s", 73.7, 42.5),
        SeedFigure::new("all four files in turn, 2 children", "s", 82.8, 42.5),
    ],
};
const READER: &str = "26 children read files: in the kernel";
const BUILDS: &str = "2 children build kernels: real";
const ALL_FOUR: &str = "all four files in turn, 26 children";

/// The part of the old kernel's cycles that perf saw in the flush of `memory`, which the reader had
/// not asked for, in percent.
const SEED_FLUSH_PERCENT: f64 = 42.0;
/// The children of the first experiment.
const CHILDREN: usize = 26;
/// The CPUs of its machine.
const CPUS: usize = 52;
/// The reads of one measurement.
const READS: u64 = 1_000_000;

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    if let Some(trees) = args.serve {
        return readers::serve(args, trees, out);
    }
    let mut lab = Lab::open(args, Some(SEED), None, out)?;
    let slots = virtual_slots(args.slots.unwrap_or(CPUS))?;
    readers::run(&mut lab, slots)?;
    readers::builds(&mut lab)?;
    costs::updates(&mut lab)?;
    costs::footprint(&mut lab)?;
    costs::locks(&mut lab)?;
    lab.close()
}

/// What the seed's patches gained, as one side over the other.
fn seed_gain(what: &str) -> f64 {
    let [before, after] = SEED.figure(what);
    ratio(before, after).map_or(1.0, |gain| (gain * 100.0).round() / 100.0)
}

/// Reads `reads` times; returns the nanoseconds of this thread's CPU time and the flushes of cpu's
/// tree, both for one read.
fn timed_reads(cpu: &Statistics, reads: u64, mut read: impl FnMut()) -> [f64; 2] {
    let (before, flushed) = (thread_cpu_ns(), cpu.flushes());
    (0..reads).for_each(|_| read());
    [thread_cpu_ns() - before, cpu.flushes() - flushed].map(|all| all as f64 / reads as f64)
}

/// Runs `read` on the first worker, while a thread for each child works on the second worker's CPU
/// until the shift ends.
///
/// A child calls [`Shift::begin`] once. Returns the reader's result and the children's.
fn read_beside<R: Send, W: Send>(
    workers: &Workers,
    children: usize,
    read: impl Fn() -> Result<R> + Sync,
    work: impl Fn(usize, &Shift) -> Result<W> + Sync,
) -> Result<(R, Vec<W>)> {
    workers.beside(children, read, |shift| {
        // What failed does not keep the reader waiting.
        let work = |index| work(index, shift).inspect_err(|_| shift.begin(children));
        let work = &work;
        std::thread::scope(|threads| {
            let start = |index| Builder::new().spawn_scoped(threads, move || work(index));
            let started = (0..children).map(start).collect::<Result<Vec<_>, _>>();
            let started = started.inspect_err(|_| shift.begin(children));
            let started = started.map_err(Error::system("start the children's threads"))?.into_iter();
            started.map(|child| child.join().map_err(|_| "panic").or_wrong("a child's thread")?).collect()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_the_cover_letters_gains() {
        assert_eq!([READER, BUILDS, ALL_FOUR].map(seed_gain), [3.08, 2.65, 1.73]);
    }
}
