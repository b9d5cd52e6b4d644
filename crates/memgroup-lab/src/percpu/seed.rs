//! The figures of seed 001: its author's machine, and the two on which a tester tried it.
//!
//! Each machine ran the script twice, without the patches and with them, and read the size of all per-CPU memory three
//! times: at the start, after 11,000 groups were created, and ten seconds after ten of eleven were removed.

use crate::harness::report::{Seed, SeedFigure};

pub(super) const SEED: Seed = Seed {
    name: "001",
    title: "percpu: partial chunk depopulation, 2021",
    machine: "Gushchin's x86 server; Sampat's guests of 4 CPUs, Intel and POWER9 with pages of 64 KiB",
    source: "its cover letter's and a tester's reply's",
    address: Some("first version: https://lwn.net/Articles/850508/"),
    figures: &[
        figure("x86: at the start", 7_488.0, 7_488.0),
        figure("x86: 11,000 groups", 481_152.0, 481_408.0),
        figure("x86: 10 of 11 removed", 481_152.0, 135_552.0),
        figure("Intel guest: at the start", 1_952.0, 2_080.0),
        figure("Intel guest: 11,000 groups", 219_648.0, 219_712.0),
        figure("Intel guest: 10 of 11 removed", 219_648.0, 72_672.0),
        figure("POWER9: at the start", 5_888.0, 6_144.0),
        figure("POWER9: 11,000 groups", 118_272.0, 119_040.0),
        figure("POWER9: 10 of 11 removed", 118_272.0, 119_040.0),
    ],
};

const fn figure(what: &'static str, before: f64, after: f64) -> SeedFigure {
    SeedFigure { what, unit: "kB", before: Some(before), after: Some(after) }
}

/// One run of the script in the cover letter or a reply to it, in kB.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Letter {
    pub(super) name: &'static str,
    pub(super) start: f64,
    pub(super) created: f64,
    /// Ten seconds after the removal, in which the kernel gave back what it would.
    pub(super) maintained: f64,
}

impl Letter {
    pub(super) fn kept_percent(&self) -> f64 {
        100.0 * self.maintained / self.created
    }

    /// Whether the patches were there.
    pub(super) fn is_patched(&self) -> bool {
        self.name.ends_with(", patched")
    }
}

/// The script of the letters: groups that stay, and groups beside each.
pub(super) const OUTER_INNER: (usize, usize) = (1_000, 10);

/// The six runs, each machine without the patches and with them.
pub(super) fn letters() -> Vec<Letter> {
    const NAMES: [[&str; 2]; 3] = [
        ["seed, x86, unpatched", "seed, x86, patched"],
        ["seed, Intel, unpatched", "seed, Intel, patched"],
        ["seed, POWER9, unpatched", "seed, POWER9, patched"],
    ];
    let sides: [fn(&SeedFigure) -> Option<f64>; 2] = [|figure| figure.before, |figure| figure.after];
    SEED.figures
        .chunks_exact(3)
        .zip(NAMES)
        .flat_map(|(machine, names)| {
            names.into_iter().zip(sides).filter_map(|(name, side)| {
                let [start, created, maintained] = [&machine[0], &machine[1], &machine[2]].map(side);
                Some(Letter { name, start: start?, created: created?, maintained: maintained? })
            })
        })
        .collect()
}

/// What the kernel kept of its peak with one group of `1 + inner` left, where the thread says so, by bytes of a page.
pub(super) fn kept_percent(inner: usize, page_bytes: u64) -> Option<f64> {
    const KIB: u64 = 1 << 10;
    match (inner, page_bytes / KIB) {
        (10, 4) => Some(100.0 * 135_552.0 / 481_408.0),
        (10, 64) => Some(100.0),
        // From the discussion of the fourth version: 532,736 kB, then 278,784.
        (50, 64) => Some(100.0 * 278_784.0 / 532_736.0),
        _ => None,
    }
}

/// Microseconds to make and to remove one memory cgroup, on the machine on which Linux 6.18 was measured for this
/// project: the figure to stand in where the running kernel is not asked.
pub(super) const KERNEL_PAIR_US: f64 = 150.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_letters_are_the_tables_of_the_thread() {
        let letters = letters();
        assert_eq!(letters.len(), 6);
        let patched = letters[1];
        assert_eq!(
            patched,
            Letter { name: "seed, x86, patched", start: 7_488.0, created: 481_408.0, maintained: 135_552.0 }
        );
        assert!(patched.is_patched() && !letters[0].is_patched());
        assert!((patched.kept_percent() - 28.2).abs() < 0.05);
        assert_eq!((letters[4].start, letters[5].maintained), (5_888.0, 119_040.0));
    }

    #[test]
    fn on_power9_nothing_came_back() {
        assert_eq!(kept_percent(10, 64 << 10), Some(100.0));
        assert!((kept_percent(10, 4 << 10).unwrap() - 28.2).abs() < 0.05);
        assert!((kept_percent(50, 64 << 10).unwrap() - 52.3).abs() < 0.05);
        assert_eq!(kept_percent(50, 4 << 10), None);
    }
}
