//! Remote draining (seed 000): any thread empties every slot's stock itself, and no other thread is interrupted.

mod cycles;
mod soak;
mod spin;
mod victim;
mod waking;
mod whole;

use std::io::Write;

use crate::Args;
use crate::harness::prelude::*;

const SEED: Seed = Seed {
    name: "000",
    title: "memcg: drain the stocks of all CPUs from the current one, 2023",
    machine: "128 CPUs in 8 NUMA nodes",
    source: "its cover letter's",
    address: None,
    figures: &[
        SeedFigure::new("consume_stock", "cycles", 53.512_010_46, 63.759_834_75),
        SeedFigure::new("refill_stock", "cycles", 65.469_915_84, 67.457_083_22),
        SeedFigure::new("mod_objcg_state", "cycles", 84.953_650_55, 98.038_413_84),
        SeedFigure::new("consume_obj_stock", "cycles", 60.036_194_38, 63.254_345_6),
        SeedFigure::new("refill_obj_stock", "cycles", 73.237_578_12, 78.563_900_25),
        SeedFigure::new("drain_all_stock, 1 CPU", "cycles", 44_331.108_31, 38_978.035_81),
        SeedFigure::new("drain_all_stock, 8 CPUs", "cycles", 43_992.965_12, 39_026.766_54),
        SeedFigure::new("drain_all_stock, 128 CPUs", "cycles", 156_274.663_4, 58_053.874_21),
        SeedFigure::part("calls of the soak", "count", None, Some(SOAK_CALLS)),
        SeedFigure::part("contentions hit", "count", None, Some(0.0)),
    ],
};

/// Calls that the seed's soak made over more than eight hours.
const SOAK_CALLS: f64 =
    15_078_323_802.0 + 2_495_995_683.0 + 39_765_559_905.0 + 19_882_888_224.0 + 21_025_241_793.0 + 592.0;

/// The seed's cycles of a whole drain before and after, where it gives that number of CPUs.
fn seed_drain_cells(cpus: usize) -> [String; 2] {
    SEED.cells(&format!("drain_all_stock, {cpus} CPU{}", if cpus == 1 { "" } else { "s" }))
}

const PAGE_BYTES: u64 = 4096;
const REFUSED: &str = "a charge far below every limit was refused";
const SLOT_COUNTS: [usize; 5] = [1, 2, 8, 128, 512];

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let mut lab = Lab::open(args, Some(SEED), None, out)?;
    let slot_counts = args.slots.map_or_else(|| SLOT_COUNTS.to_vec(), |slots| vec![slots]);
    let drains = whole::run(&mut lab, &slot_counts)?;
    let wakes = waking::run(&mut lab, &slot_counts)?;
    let judged = if slot_counts.contains(&128) { 128 } else { slot_counts[slot_counts.len() - 1] };
    let drain = drains.get(&judged).copied().flatten();
    if judged == 128 {
        lab.at_most("drain of 128 remote-dirty slots", drain.map(|ns| ns / 1e3), 1.5, "us");
    }
    if let Some(&wake) = wakes.get(&judged) {
        let name = format!("waking the owners over draining, {judged} slots");
        lab.at_least(name, ratio(wake, drain), 10.0, "x");
    }
    victim::run(&mut lab)?;
    cycles::run(&mut lab)?;
    whole::trace(&mut lab, &slot_counts)?;
    lab.close()
}

/// Median nanoseconds for each number of slots; none where it was not measured.
type BySlots = std::collections::BTreeMap<usize, Option<f64>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_the_seeds_cycles_for_its_numbers_of_cpus() {
        for cpus in [1, 8, 128] {
            assert!(seed_drain_cells(cpus)[0].ends_with(|digit: char| digit.is_ascii_digit()));
        }
        assert_eq!(seed_drain_cells(2), ["-", "-"]);
    }
}
