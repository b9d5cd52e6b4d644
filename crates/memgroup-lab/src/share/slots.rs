//! Prepaid bytes: idle small tenants hold nothing but stocks, on many slots. A runaway takes all that it can get, then each small one asks.
//!
//! - I1. One thread works on each virtual slot in turn, so the figures are the same in every run.
//! - I2. The small ones ask for less than a ninth of the limit together. Prepaid bytes decide nothing, so the runaway gets 8/9, and no small one is
//!   refused.

use memgroup::{Charge, Config, Group};
use memgroup_percpu::pin_virtual;

use super::{CAPS, FACTOR, MIB, Scene, Setting, held_most};
use crate::harness::prelude::*;

const PAGE: u64 = 4096;
const ASKED: u64 = 256 << 10;
const ROUNDS: usize = 2;
/// The refusal of a runaway that holds less than so much of the limit, in percent, is printed.
const HELD_LITTLE: f64 = 60.0;

/// How a small tenant works before: how many pages it charges, before it frees them all.
const WORK: [(&str, usize); 2] = [("pairs", 1), ("bursts of 32", 32)];

struct Seen {
    prepaid: u64,
    held: f64,
    refused: usize,
    /// The refusal of the runaway, and the first of a small one.
    why: [Option<String>; 2],
}

/// Pages up to the first refusal, or so many.
fn fill(group: &Group, pages: usize, why: &mut Option<String>) -> Vec<Charge> {
    let charge = |_| group.try_charge(PAGE).inspect_err(|error| *why = Some(error.to_string())).ok();
    (0..pages).map_while(charge).collect()
}

fn one(slots: usize, small: usize, pages: usize) -> Result<Seen> {
    let hierarchy = hierarchy(Config::with_slots(virtual_slots(slots)?))?;
    let scene = Scene::set(&hierarchy, Setting::Share, small)?;
    for (group, slot) in scene.small.iter().flat_map(|group| (0..slots).map(move |slot| (group, slot))) {
        let _pin = pin_virtual(slot);
        for _ in 0..ROUNDS * 32 / pages {
            expect("pages that fit", fill(group, pages, &mut None).len(), pages)?;
        }
    }
    let prepaid = scene.parent.usage() - scene.parent.usage_exact();
    let _pin = pin_virtual(0);
    let mut why = [None, None];
    let hoard = fill(&scene.large, (scene.max() / PAGE) as usize, &mut why[0]);
    let asked: Vec<_> = scene.small.iter().map(|group| group.try_charge(ASKED)).collect();
    let refused = asked.iter().filter(|asked| asked.is_err()).count();
    why[1] = asked.iter().find_map(|asked| asked.as_ref().err().map(ToString::to_string));
    let held = hoard.len() as f64 * PAGE as f64 / scene.max() as f64 * 100.0;
    drop((hoard, asked));
    scene.end()?;
    Ok(Seen { prepaid, held, refused, why })
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let mut table = Table::new(
        "a runaway beside idle small tenants with prepaid bytes on each slot, under share",
        [
            "slots, small tenants, their work before",
            "prepaid MiB",
            "the runaway held %",
            "small refused 256 KiB",
        ],
    );
    let counts = lab.pick(&[1, 2][..], &[1, 8, 24], &[1, 8, 24]);
    for slots in lab.pick(&[2][..], &[2, 8, 32], &[2, 8, 32, 128]) {
        let mut all = Vec::new();
        for (&small, (work, pages)) in counts.iter().flat_map(|small| WORK.map(|work| (small, work))) {
            let seen = one(*slots, small, pages)?;
            let name = format!("{slots}, {small}, {work}");
            let mut record =
                lab.record("idle tenants", json!({"slots": slots, "small": small, "work": work}));
            record.count("prepaid", "bytes", seen.prepaid);
            let held = record.value("held", "%", Some(seen.held));
            let refused = record.count("refused", "", seen.refused as u64);
            let cells = [figure(seen.prepaid as f64 / MIB as f64), held, format!("{refused} of {small}")];
            if let Some(why) = &seen.why[1] {
                table.note(format!("{name}, a small one: {why}"));
            } else if let Some(why) = seen.why[0].as_ref().filter(|_| seen.held < HELD_LITTLE) {
                table.note(format!("{name}, the runaway: {why}"));
            }
            table.row(name, cells);
            all.push(seen);
        }
        let [most, least] = [f64::max, f64::min].map(|of| all.iter().map(|seen| seen.held).reduce(of));
        let refused = all.iter().map(|seen| seen.refused).sum::<usize>() as f64;
        let fair = f64::from(FACTOR) / f64::from(FACTOR + 1) * 100.0;
        let name = |what: &str| format!("beside idle tenants on {slots} slots: {what}");
        lab.at_most(name("the runaway held, most"), most, held_most(), "%");
        lab.at_least(
            name("the runaway held, least"),
            least,
            ((fair - CAPS * 100.0) * 100.0).round() / 100.0,
            "%",
        );
        lab.at_most(name("small refused"), Some(refused), 0.0, "");
    }
    lab.print(&table)
}
