//! The figures of seed 000, as its author gave them.

use crate::harness::report::{Seed, SeedFigure};

/// Calls the seed's soak made over more than eight hours, and the contentions it hit.
pub(super) const SOAK_CALLS: f64 =
    15_078_323_802.0 + 2_495_995_683.0 + 39_765_559_905.0 + 19_882_888_224.0 + 21_025_241_793.0 + 592.0;

pub(super) const SEED: Seed = Seed {
    name: "000",
    title: "memcg: drain the stocks of all CPUs from the current one, 2023",
    machine: "128 CPUs in 8 NUMA nodes",
    source: "its cover letter's",
    address: None,
    figures: &[
        figure("consume_stock", 53.512_010_46, 63.759_834_75),
        figure("refill_stock", 65.469_915_84, 67.457_083_22),
        figure("mod_objcg_state", 84.953_650_55, 98.038_413_84),
        figure("consume_obj_stock", 60.036_194_38, 63.254_345_6),
        figure("refill_obj_stock", 73.237_578_12, 78.563_900_25),
        figure("drain_all_stock, 1 CPU", 44_331.108_31, 38_978.035_81),
        figure("drain_all_stock, 8 CPUs", 43_992.965_12, 39_026.766_54),
        figure("drain_all_stock, 128 CPUs", 156_274.663_4, 58_053.874_21),
        SeedFigure { what: "calls of the soak", unit: "count", before: None, after: Some(SOAK_CALLS) },
        SeedFigure { what: "contentions hit", unit: "count", before: None, after: Some(0.0) },
    ],
};

const fn figure(what: &'static str, before: f64, after: f64) -> SeedFigure {
    SeedFigure { what, unit: "cycles", before: Some(before), after: Some(after) }
}

/// Cycles of the seed's whole drain, upstream and patched, where it gives that number of CPUs.
pub(super) fn drain_cycles(cpus: usize) -> Option<(f64, f64)> {
    let name = match cpus {
        1 => "drain_all_stock, 1 CPU",
        8 => "drain_all_stock, 8 CPUs",
        128 => "drain_all_stock, 128 CPUs",
        _ => return None,
    };
    of(name)
}

/// Upstream and patched figures of the seed, by name.
pub(super) fn of(name: &str) -> Option<(f64, f64)> {
    let figure = SEED.figures.iter().find(|figure| figure.what == name)?;
    Some((figure.before?, figure.after?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_that_is_looked_up_is_there() {
        for cpus in [1, 8, 128] {
            assert!(drain_cycles(cpus).is_some());
        }
        assert_eq!(drain_cycles(2), None);
        assert_eq!(of("consume_stock").unwrap().1, 63.759_834_75);
    }
}
