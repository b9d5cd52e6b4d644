//! Every order of starts: which tenant comes first rotates, with so many seeds. Counted are the cases in which a small one was refused.
//!
//! - I1. A tenant starts when the one before it has ended its first statement; the runaway's has then been refused, stopped, or cut short.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use memgroup::Hierarchy;

use super::players::{Runaway, Small};
use super::{Scene, Setting, Tally, joined};
use crate::harness::prelude::*;

/// One case, of so many statements for each small tenant: tenant `first` of them starts first. The runaway is the last in the list.
fn one(
    lab: &Lab<'_>,
    scene: &Scene,
    waits: bool,
    statements: usize,
    first: usize,
    seed: u64,
) -> Result<Tally> {
    let (players, mut runaway) = (Small::all(scene, waits, seed)?, Runaway::new(scene, true, seed)?);
    let (clock, tenants) = (lab.clock, players.len() + 1);
    let (turn, left, over) = (AtomicUsize::new(0), AtomicUsize::new(players.len()), AtomicBool::new(false));
    let place = |number: usize| (number + tenants - first) % tenants;
    let tallies: Result<Vec<Tally>> = std::thread::scope(|threads| {
        let (turn, left, over) = (&turn, &left, &over);
        // ORDERING: Relaxed, here and below; numbers and a flag by themselves.
        let wait = move |place| spin_until(|| (turn.load(Ordering::Relaxed) >= place).then_some(()));
        let work = |(number, mut player): (usize, Small)| {
            let place = place(number);
            threads.spawn(move || {
                wait(place);
                for _ in 0..statements {
                    player.statement(clock);
                    // ORDERING: Relaxed; as above.
                    turn.fetch_max(place + 1, Ordering::Relaxed);
                }
                // ORDERING: Relaxed; as above.
                if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                    over.store(true, Ordering::Relaxed);
                }
                Ok(player.end())
            })
        };
        let started: Vec<_> = players.into_iter().enumerate().map(work).collect();
        let last = place(tenants - 1);
        wait(last);
        // ORDERING: Relaxed; as above.
        while !over.load(Ordering::Relaxed) {
            runaway.statement(over, || _ = turn.fetch_max(last + 1, Ordering::Relaxed));
        }
        runaway.end();
        started.into_iter().map(joined).collect()
    });
    Ok(Tally::join(tallies?))
}

pub(super) fn run(lab: &mut Lab<'_>, hierarchy: &Hierarchy) -> Result<()> {
    let (seeds, statements) = lab.pick((1, 3), (4, 20), (20, 20));
    let mut table = Table::new(
        format!(
            "cases with a refused or stopped small statement, of all start orders and {}",
            counted(seeds, "seed")
        ),
        ["setting", "1 small, at once", "waits", "8 small, at once", "waits"],
    );
    for setting in Setting::ALL {
        let mut cells = Vec::new();
        for (small, waits) in [(1, false), (1, true), (8, false), (8, true)] {
            let (mut bad, mut cases) = (0, 0);
            for (seed, first) in (0..seeds).flat_map(|seed| (0..=small).map(move |first| (seed, first))) {
                let scene = Scene::set(hierarchy, setting, small)?;
                let tally = one(lab, &scene, waits, statements, first, seed << 8)?;
                expect(
                    "small statements",
                    tally.done + tally.refused + tally.stopped,
                    (small * statements) as u64,
                )?;
                bad += u64::from(tally.refused + tally.stopped > 0);
                cases += 1;
                scene.end()?;
            }
            let mode = if waits { "waits" } else { "at once" };
            let name = format!("{}, {mode}", setting.name());
            lab.record(&name, json!({"small": small, "cases": cases})).count("cases refused", "", bad);
            cells.push(format!("{bad} of {cases}"));
            if setting == Setting::Share {
                let name =
                    format!("start orders with a refusal, {}, {name}", counted(small as u64, "small tenant"));
                lab.at_most(name, Some(bad as f64), 0.0, "");
            }
        }
        table.row(setting.name(), cells);
    }
    table.note(format!("{statements} statements of each small tenant a case"));
    lab.print(&table)
}
