//! Batched charge and uncharge (seed 004): the cost that the stock saves.

mod accounts;
mod faults;
mod pairs;
mod storm;
mod syscalls;

use std::io::Write;

use memgroup::{Config, Group};
use memgroup_percpu::SlotSource;

use crate::Args;
use crate::harness::prelude::*;

const SEED: Seed = Seed {
    name: "004",
    title: "memcg: batched charge and uncharge, 2009",
    machine: "8 CPUs, 60 s of mapping 1 MiB, touching every page, unmapping",
    source: "its cover letter's, and where it says so those of seed 000, the series that drains all CPUs' stocks from the current one, 2023",
    address: None,
    figures: &[
        SeedFigure::new("page faults", "count", 18_425_800.0, 33_177_858.0),
        SeedFigure::new("cache misses", "count", 1_272_947_699.0, 1_182_572_827.0),
        SeedFigure::new("instructions per cycle", "1", 0.256, 0.276),
        SeedFigure::new("table 2.4 of seed 000: mmap + munmap, no write", "cycles/call", 3012.22, 2991.195),
        SeedFigure::new("table 2.4 of seed 000: mmap + write + munmap", "cycles/call", 5749.605, 5746.495),
    ],
};

const PAGE_BYTES: u64 = 4096;
const REFUSED: &str = "a charge far below every limit was refused";

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let mut lab = Lab::open(args, Some(SEED), args.slots, out)?;
    lab.note_unmeasured("the seed's cache misses and instructions a cycle")?;
    pairs::run(&mut lab)?;
    faults::run(&mut lab)?;
    syscalls::run(&mut lab)?;
    storm::run(&mut lab)?;
    lab.close()
}

/// A loop's groups: none, or one without the stock, or with it.
struct Accounting {
    name: &'static str,
    fixture: Option<Fixture>,
}

impl Accounting {
    /// All three, the first by the name of a loop without groups.
    fn all(lab: &Lab<'_>, without: &'static str) -> Result<[Accounting; 3]> {
        let depth = lab.args.depth();
        let of = |name, stock| {
            Ok(Accounting { name, fixture: Some(Fixture::chain(config(stock, depth, lab.slots), depth, 1)?) })
        };
        Ok([Accounting { name: without, fixture: None }, of("no stock", false)?, of("stock", true)?])
    }

    fn group(&self) -> Option<Group> {
        self.fixture.as_ref().map(|fixture| fixture.leaves[0].clone())
    }

    /// The stock was in use if there is one, and nothing is charged any more.
    fn check(&self) -> Result<()> {
        let Some(fixture) = &self.fixture else { return Ok(()) };
        fixture.check_stock(self.name == "stock", self.name)?;
        fixture.check_empty()
    }
}

/// The engine with or without the stock, for groups of `depth` counters; everything else at its defaults.
fn config(stock: bool, depth: usize, slots: SlotSource) -> Config {
    let config = Config::new().slots(slots).depth_max(depth as u32);
    if stock { config } else { config.stock_cap_bytes(0) }
}
