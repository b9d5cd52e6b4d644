//! Reclaim from caches without a lock (seed 003): walks find shrinkers, call them, and never wait
//! for a thread that registers or removes one.
//!
//! | question | of whom | file |
//! |---|---|---|
//! | what does the lock cost a walk? | the cover letter: 44 to 65 % of the cycles | [`walk`] |
//! | what does it cost a thousand writers? | its script | [`storm`] |
//! | how long does a registration or a removal wait? | Hocko, Tkhai; the robot that had the series reverted | [`latency`] |
//! | does the start of an overcommitted node get faster? | Tkhai | [`storm`] |
//! | isn't the real cost the long list of caches that free almost nothing? | Gushchin | [`unwilling`] |
//! | what does a real workload gain? | Morton, Rapoport | [`pressure`] |

mod groups;
mod latency;
mod pressure;
mod storm;
mod unwilling;
mod walk;

use std::io::Write;

use crate::Args;
use crate::harness::prelude::*;

const SEED: Seed = Seed {
    name: "003",
    title: "make slab shrink lockless, 2023",
    machine: "Zheng's Xeon of 96 CPUs; shares of the cycles that perf saw in the kernel",
    source: "its cover letter's, its author's in the thread, and those of the reports that had it reverted",
    address: Some(
        "cover letter: https://lore.kernel.org/lkml/20230226144655.79778-1-zhengqi.arch@bytedance.com/",
    ),
    figures: &[
        SeedFigure::new("2,000 groups, 200 MiB: trying the lock", "%", 46.60, 0.0),
        SeedFigure::new("2,000 groups, 200 MiB: giving it back", "%", 18.70, 0.0),
        SeedFigure::new("2,000 groups, 200 MiB: the walk itself", "%", 15.44, 14.58),
        SeedFigure::part("2,000 groups, 200 MiB: entering SRCU", "%", None, Some(1.38)),
        SeedFigure::new("4,000 groups, 3,000 writers: trying the lock", "%", 32.31, 0.0),
        SeedFigure::new("4,000 groups, 3,000 writers: giving it back", "%", 16.24, 0.0),
        SeedFigure::new("4,000 groups, 3,000 writers: the walk itself", "%", 15.70, 16.97),
        SeedFigure::new("instructions a cycle, the same", "", 0.17, 0.63),
        SeedFigure::part("hosts in production: trying the lock", "%", Some(52.22), None),
        SeedFigure::new("mounts and unmounts a second (test robot)", "1/s", MOUNTS[0], MOUNTS[1]),
    ],
};
const MOUNTS: [f64; 2] = [23_479.0, 2_619.0];
/// The groups of the cover letter's script.
const GROUPS: usize = 2_000;

/// Names of variants in the tables and in the JSON.
const OURS: &str = "shrinkers";
const LOCK: &str = "read-write lock (control)";
const SRCU: &str = "SRCU-like (control)";

/// Milliseconds that each unregistration took longer with SRCU, with the test robot's nine workers:
/// computed from its figures.
fn srcu_wait_ms() -> f64 {
    const WORKERS: f64 = 9.0;
    let [before, after] = MOUNTS.map(|a_second| WORKERS / a_second);
    (after - before) * 1e3
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let mut lab = Lab::open(args, Some(SEED), args.slots, out)?;
    lab.note_unmeasured("instructions a cycle and energy")?;
    walk::run(&mut lab)?;
    storm::letter(&mut lab)?;
    latency::run(&mut lab)?;
    storm::start(&mut lab)?;
    unwilling::run(&mut lab)?;
    pressure::run(&mut lab)?;
    lab.close()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_the_seeds_two_thirds_in_the_lock_and_three_milliseconds() {
        let lock: f64 = SEED.figures[..2].iter().filter_map(|figure| figure.before).sum();
        assert!((lock - 65.3).abs() < 0.01, "{lock}");
        assert!((srcu_wait_ms() - 3.05).abs() < 0.01, "{}", srcu_wait_ms());
    }
}
