//! The figures of seed 003, and those of the thread that followed it.

use crate::harness::report::{Seed, SeedFigure};

pub(super) const SEED: Seed = Seed {
    name: "003",
    title: "make slab shrink lockless, 2023",
    machine: "Zheng's Xeon of 96 CPUs; shares of the cycles that perf saw in the kernel",
    source: "its cover letter's, its author's in the thread, and those of the reports that had it reverted",
    address: Some(
        "cover letter: https://lore.kernel.org/lkml/20230226144655.79778-1-zhengqi.arch@bytedance.com/",
    ),
    figures: &[
        figure("2,000 groups, 200 MiB: trying the lock", "%", Some(46.60), Some(0.0)),
        figure("2,000 groups, 200 MiB: giving it back", "%", Some(18.70), Some(0.0)),
        figure("2,000 groups, 200 MiB: the walk itself", "%", Some(15.44), Some(14.58)),
        figure("2,000 groups, 200 MiB: entering SRCU", "%", None, Some(1.38)),
        figure("4,000 groups, 3,000 writers: trying the lock", "%", Some(32.31), Some(0.0)),
        figure("4,000 groups, 3,000 writers: giving it back", "%", Some(16.24), Some(0.0)),
        figure("4,000 groups, 3,000 writers: the walk itself", "%", Some(15.70), Some(16.97)),
        figure("instructions a cycle, the same", "", Some(0.17), Some(0.63)),
        figure("hosts in production: trying the lock", "%", Some(52.22), None),
        figure("mounts and unmounts a second (test robot)", "1/s", Some(23_479.0), Some(2_619.0)),
    ],
};

const fn figure(
    what: &'static str,
    unit: &'static str,
    before: Option<f64>,
    after: Option<f64>,
) -> SeedFigure {
    SeedFigure { what, unit, before, after }
}

/// Groups of the letter's script.
pub(super) const GROUPS: usize = 2_000;
/// Groups of the second script, in the thread.
pub(super) const GROUPS_LATER: usize = 4_000;
/// Its writers, of a mebibyte each.
pub(super) const WRITERS: usize = 3_000;
/// Bytes that each of them writes.
pub(super) const FILE_BYTES: u64 = 1 << 20;
/// The limit above the groups of the first script; below the second's, 4 GiB, what the writers write would fit.
pub(super) const LIMIT_BYTES: u64 = 200 << 20;

/// Milliseconds that each unregistration took longer by with SRCU, as the robot's nine workers had it.
pub(super) fn srcu_wait_ms() -> f64 {
    const WORKERS: f64 = 9.0;
    let [before, after] = [23_479.0, 2_619.0].map(|a_second| WORKERS / a_second);
    (after - before) * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_was_two_thirds_and_the_wait_three_milliseconds() {
        let lock: f64 = SEED.figures[..2].iter().filter_map(|figure| figure.before).sum();
        assert!((lock - 65.3).abs() < 0.01, "{lock}");
        assert!((srcu_wait_ms() - 3.05).abs() < 0.01, "{}", srcu_wait_ms());
    }
}
