//! The figures of seed 004, and of seed 000's table 2.4, as their authors gave them.

use crate::harness::report::{Seed, SeedFigure};

pub(super) const SEED: Seed = Seed {
    name: "004",
    title: "memcg: batched charge and uncharge, 2009",
    machine: "8 CPUs, 60 s of mapping 1 MiB, touching every page, unmapping",
    source: "its cover letter's, and where it says so those of seed 000, the series that drains all CPUs' stocks from the current one, 2023",
    address: None,
    figures: &[
        figure("page faults", "count", 18_425_800.0, 33_177_858.0),
        figure("cache misses", "count", 1_272_947_699.0, 1_182_572_827.0),
        figure("instructions per cycle", "1", 0.256, 0.276),
        figure("table 2.4 of seed 000: mmap + munmap, no write", "cycles/call", 3012.22, 2991.195),
        figure("table 2.4 of seed 000: mmap + write + munmap", "cycles/call", 5749.605, 5746.495),
    ],
};

const fn figure(what: &'static str, unit: &'static str, before: f64, after: f64) -> SeedFigure {
    SeedFigure { what, unit, before: Some(before), after: Some(after) }
}
