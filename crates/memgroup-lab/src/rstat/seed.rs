//! The figures of seed 002, and those of the thread that followed it.

use crate::harness::report::{Seed, SeedFigure};

pub(super) const SEED: Seed = Seed {
    name: "002",
    title: "cgroup: separate rstat trees, 2025",
    machine: "Kobryn's server of 52 CPUs; one million reads of a parent's cpu.stat",
    source: "its cover letter's, and for the four files those of its third version",
    address: Some(
        "cover letter: https://lore.kernel.org/cgroups/20250218031448.46951-1-inwardvessel@gmail.com/",
    ),
    figures: &[
        figure("26 children read files: real", 18.449, 6.080),
        figure("26 children read files: in the kernel", 18.165, 5.890),
        figure("2 children build kernels: real", 17.223, 6.498),
        figure("2 children build kernels: in the kernel", 16.871, 6.220),
        figure("all four files in turn, 26 children", 73.7, 42.5),
        figure("all four files in turn, 2 children", 82.8, 42.5),
    ],
};

const fn figure(what: &'static str, before: f64, after: f64) -> SeedFigure {
    SeedFigure { what, unit: "s", before: Some(before), after: Some(after) }
}

/// Children of the letter's first experiment.
pub(super) const CHILDREN: usize = 26;
/// CPUs of its machine.
pub(super) const CPUS: usize = 52;
/// Reads of one measurement.
pub(super) const READS: u64 = 1_000_000;

/// Bytes that Linux takes for each group and CPU to keep its trees, by the letter's formula with the sizes that were merged: the
/// links and the base statistics of one, and the links of each controller. The statistics themselves come on top.
pub(super) fn linux_link_bytes(controllers: u64) -> u64 {
    const BASE: u64 = 128 + 16;
    const LINKS: u64 = 16;
    BASE + LINKS * controllers
}

/// The same by the letter's own formula in words, for the report.
pub(super) const FORMULA: &str = "groups x (sizeof(rstat_base_cpu) + sizeof(rstat_cpu) x controllers), that is 144 + 16 x controllers bytes for each CPU";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_io_add_two_pairs_of_links() {
        assert_eq!(linux_link_bytes(0), 144);
        assert_eq!(linux_link_bytes(2) - linux_link_bytes(0), 32);
    }

    #[test]
    fn the_letter_gained_a_factor_of_three() {
        let gain = |index: usize| {
            let figure = SEED.figures[index];
            figure.before.unwrap() / figure.after.unwrap()
        };
        assert!((gain(0) - 3.03).abs() < 0.01 && (gain(2) - 2.65).abs() < 0.01);
    }
}
