//! Reclaim from caches without a lock (seed 003): walks that find shrinkers, call them, and never wait for a thread that registers or removes one.

mod empty;
mod growth;
mod latency;
mod passed;
mod pressure;
mod start;
mod storm;
mod tenants;
mod walk;

use std::io::Write;

use memgroup::{Config, ShrinkerConfig};

use crate::Args;
use crate::harness::cache::{PAGE, Pages};
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
/// Groups of the cover letter's script.
const GROUPS: usize = 2_000;
/// Its writers, of a mebibyte each.
const WRITERS_FIRST: usize = 1_000;
/// Groups of the second script, in the thread.
const GROUPS_LATER: usize = 4_000;
/// Its writers, of a mebibyte each.
const WRITERS: usize = 3_000;
/// Bytes that each of them writes.
const FILE_BYTES: u64 = 1 << 20;
/// The limit above the groups of the first script; below the second's, 4 GiB, all that is written would fit.
const LIMIT_BYTES: u64 = 200 << 20;

/// Milliseconds that each unregistration took longer with SRCU, with the test robot's nine workers.
fn srcu_wait_ms() -> f64 {
    const WORKERS: f64 = 9.0;
    let [before, after] = MOUNTS.map(|a_second| WORKERS / a_second);
    (after - before) * 1e3
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let mut lab = Lab::open(args, Some(SEED), args.slots, out)?;
    lab.note_unmeasured("instructions a cycle and energy")?;
    walk::run(&mut lab)?;
    passed::run(&mut lab)?;
    storm::run(&mut lab)?;
    latency::run(&mut lab)?;
    start::run(&mut lab)?;
    empty::run(&mut lab)?;
    growth::run(&mut lab)?;
    pairs(&mut lab)?;
    pressure::run(&mut lab)?;
    lab.close()
}

/// The cost of shrinkers for a thread that charges where there is room: the charge pair with and without an idle one.
fn pairs(lab: &mut Lab<'_>) -> Result<()> {
    const DEPTH: usize = 3;
    const ROOM: &str = "a charge far below the limit";
    let config = Config::with_slots(lab.slots);
    let (without, with) = (Fixture::chain(config, DEPTH, 2)?, Fixture::chain(config, DEPTH, 2)?);
    let idle = with.leaves[1].add_shrinker(ShrinkerConfig::new("idle"), Pages::default());
    let idle = idle.set_up("a shrinker")?;
    // It was marked once, and found empty.
    idle.mark();
    with.parent.reclaim(PAGE, None);
    let threads = lab.args.threads();
    let mut table = Table::new(
        format!("a charge and its uncharge where there is room, depth {DEPTH}: ns, median (min..p90)"),
        ["in the hierarchy", "1 thread", &format!("{threads} threads, same group"), ""],
    );
    let rows: [(&str, &Work<'_>); 2] = [
        ("no shrinker (control)", &each(|| without.leaves[0].try_charge(PAGE).or_wrong(ROOM))),
        ("one idle shrinker in another group", &each(|| with.leaves[0].try_charge(PAGE).or_wrong(ROOM))),
    ];
    let measured = lab.compare(&mut table, "pair", json!({}), threads, lab.effort.windows, &rows)?;
    drop(idle);
    without.check_empty()?;
    with.check_empty()?;
    for (index, threads) in [1, threads].into_iter().enumerate() {
        let over = ratio(median(measured[1][index].ns), median(measured[0][index].ns));
        let name = format!("a pair, with an idle shrinker elsewhere over without, {threads} threads");
        lab.at_most(name, over, 1.05, "x");
    }
    lab.print(&table)
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
