//! Remote draining (seed 000): any thread empties every slot's stock itself, and nobody is interrupted.

mod cycles;
mod seed;
mod soak;
mod stocks;
mod syscalls;
mod victim;
mod waking;
mod whole;

use std::io::Write;

use memgroup_percpu::SlotSource;

use crate::harness::Lab;
use crate::harness::report::{Check, ratio};
use crate::{Args, Error};

const SLOT_COUNTS: [usize; 5] = [1, 2, 8, 128, 512];

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let mut lab = Lab::open(args, seed::SEED, SlotSource::detect(), out)?;
    let slot_counts = args.slots.map_or_else(|| SLOT_COUNTS.to_vec(), |slots| vec![slots]);
    let drains = whole::run(&mut lab, &slot_counts)?;
    let wakes = waking::run(&mut lab, &slot_counts)?;
    check_drains(&mut lab, &slot_counts, &drains, &wakes);
    victim::run(&mut lab)?;
    soak::run(&mut lab)?;
    cycles::run(&mut lab)?;
    syscalls::run(&mut lab, &slot_counts)?;
    lab.close()
}

/// Median nanoseconds for each number of slots; none where it was not measured.
type BySlots = std::collections::BTreeMap<usize, Option<f64>>;

fn check_drains(lab: &mut Lab<'_>, slot_counts: &[usize], drains: &BySlots, wakes: &BySlots) {
    let goal_at = if slot_counts.contains(&128) { 128 } else { slot_counts[slot_counts.len() - 1] };
    let drain = drains.get(&goal_at).copied().flatten();
    let checks = &mut lab.report.checks;
    if goal_at == 128 {
        checks.push(Check::at_most("drain of 128 remote-dirty slots", drain.map(|ns| ns / 1e3), 1.5, "us"));
    }
    if let Some(&wake) = wakes.get(&goal_at) {
        let gain = ratio(wake, drain);
        checks.push(Check::at_least(
            format!("waking the owners over draining, {goal_at} slots"),
            gain,
            10.0,
            "x",
        ));
    }
}
