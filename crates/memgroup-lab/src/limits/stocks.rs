//! A full parent above prepaid bytes, and an innocent's pairs beside an attacker or a waiter at the
//! same parent.
//!
//! - I1. A charge that fits only when every stock gives its bytes back is made; one that never fits
//!   is refused.

use std::time::{Duration, Instant};

use memgroup::{Charge, Config};
use memgroup_percpu::pin_virtual;

use super::{MIB, PAGE};
use crate::harness::ledger::{CasTree, Ledger, Shape};
use crate::harness::prelude::*;

/// Above all that the stocks can prepay.
const MAX: u64 = 1 << 42;
const HELD: u64 = 64 * MIB;
/// A waiter gives up after this, which would be a wrong result.
const PATIENCE: Duration = Duration::from_secs(600);
const FITS: &str = "a charge far below every limit";
const CAS: &str = "a CAS tree's pair (control)";

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    above_stocks(lab)?;
    beside(lab)
}

/// A parent of which leaf 0 holds a page; the other leaves have stocks on many slots.
struct Stocks {
    fixture: Fixture,
    slots: usize,
    _held: Charge,
}

impl Stocks {
    fn build(groups: usize, slots: usize) -> Result<Stocks> {
        let config = Config::with_slots(virtual_slots(slots)?).stock_budget_bytes(MAX);
        let fixture = Fixture::chain(config.groups_max(groups as u32 + 8), 4, 1 + groups)?;
        limit(&fixture.parent, MAX)?;
        let held = fixture.leaves[0].try_charge(PAGE).or_wrong(FITS)?;
        Ok(Stocks { fixture, slots, _held: held })
    }

    fn number(&self) -> usize {
        (self.fixture.leaves.len() - 1) * self.slots
    }

    /// Has every stock hold something. A level that was drained for a charge opens no stock for the
    /// next charges.
    fn fill(&self) -> Result<()> {
        let (parent, least) = (&self.fixture.parent, self.number() as u64 * PAGE);
        for _ in 0..100 {
            for slot in 0..self.slots {
                let _pin = pin_virtual(slot);
                for group in &self.fixture.leaves[1..] {
                    drop(group.try_charge(PAGE).or_wrong(FITS)?);
                }
            }
            if parent.usage() - parent.usage_exact() >= least {
                return Ok(());
            }
        }
        Err(Error::Wrong(format!("{} stocks were filled and hold less than {least} bytes", self.number())))
    }

    /// Times a charge that fits when all stocks are drained, a refusal above full stocks, and one
    /// above empty ones.
    fn sample(&self, watch: Stopwatch, times: &mut Samples) -> Result<()> {
        let leaf = &self.fixture.leaves[0];
        self.fill()?;
        let (ns, fits) = watch.time(|| leaf.try_charge(MAX - PAGE));
        times.push("fits", ns / 1e3);
        drop(fits.or_wrong("prepaid bytes were the reason of a refusal")?);
        self.fill()?;
        for metric in ["refused", "refused again", "refused again"] {
            let (ns, charge) = watch.time(|| leaf.try_charge(MAX));
            ensure(charge.is_err(), || format!("{MAX} bytes fit beside a page of {MAX}"))?;
            times.push(metric, ns / 1e3);
        }
        Ok(())
    }
}

fn above_stocks(lab: &mut Lab<'_>) -> Result<()> {
    let shapes = lab.pick(
        &[(3, 2)][..],
        &[(1, 2), (1_000, 2), (1_000, 128)],
        &[(1, 2), (1_000, 2), (10_000, 2), (1_000, 16), (1_000, 128)],
    );
    let built = shapes.iter().map(|&(groups, slots)| Stocks::build(groups, slots));
    let built = built.collect::<Result<Vec<_>>>()?;
    let watch = lab.clock.stopwatch();
    let found = lab.sample(lab.pick(1, 5, 25), built.len(), |lab, row, found| {
        lab.workers.run_one(|| built[row].sample(watch, found))
    })?;
    let names =
        shapes.iter().map(|&(groups, slots)| format!("{}, {slots} slots", counted(groups as u64, "group")));
    let names: Vec<String> = names.collect();
    let rows = names.iter().zip(shapes).zip(&found);
    let rows = rows.map(|((name, (groups, slots)), found)| {
        (name, "full parent", json!({"groups": groups, "slots": slots}), found)
    });
    let columns = ["fits", "refused", "refused again"].map(|metric| (metric, "us"));
    lab.show("a full parent above groups with prepaid bytes on every slot: one charge", &columns, rows, "fits: it fits only when every stock has given its bytes back. Refused: it never fits, and all stocks are full. Again: the next two")?;
    for ((name, stocks), found) in names.iter().zip(&built).zip(&found) {
        let number = stocks.number() as f64;
        let each = |metric| found.median(metric).map(|us| us * 1e3 / number);
        if number >= 1e3 {
            lab.at_most(format!("a charge that drains {name}, for each stock"), each("fits"), 20.0, "ns");
            lab.at_most(format!("a refusal above {name}, for each stock"), each("refused"), 20.0, "ns");
        }
        if stocks.slots == 128 {
            let name = format!("a refusal above {name} with empty stocks");
            lab.at_most(name, found.median("refused again"), 0.4, "us");
        }
    }
    Ok(())
}

fn spin() -> Result<()> {
    (0..64).for_each(|_| std::hint::spin_loop());
    Ok(())
}

/// A parent with 64 MiB of headroom; leaf 0 is the attacker and holds the rest.
fn headroom(config: Config) -> Result<(Fixture, Charge)> {
    let fixture = Fixture::chain(config, 3, 2)?;
    limit(&fixture.parent, 2 * HELD)?;
    let held = fixture.leaves[0].try_charge(HELD).or_wrong(FITS)?;
    Ok((fixture, held))
}

fn beside(lab: &mut Lab<'_>) -> Result<()> {
    let cases = [
        ("a spinning thread (control)", None),
        ("an attacker that asks for a byte more than is free", Some(3.0)),
        ("a thread that waits for a byte more than is free", Some(1.2)),
    ];
    let config = Config::with_slots(lab.slots);
    let built = cases.iter().map(|_| headroom(config)).collect::<Result<Vec<_>>>()?;
    let (attacker, waiting) = (&built[1].0.leaves[0], &built[2].0.leaves[0]);
    let attack = || ensure(attacker.try_charge(HELD + 1).is_err(), || "a byte too many fits".to_owned());
    let acts: [&(dyn Fn() -> Result<()> + Sync); 3] = [&spin, &attack, &spin];
    let case = |((by, _), ((fixture, _), act)): (&(&'static str, _), (&(Fixture, Charge), _))| {
        let innocent = fixture.leaves[1].clone();
        let work = each(move || innocent.try_charge(PAGE).map(drop).or_wrong(FITS));
        Case { beside: Some(Beside::every(0, act)), ..Case::new("pair of an innocent", by, "", work) }
    };
    let mut measured: Vec<_> = cases.iter().zip(built.iter().zip(acts)).map(case).collect();
    // Beside a charge that waits, each pair goes to the counters.
    let tree = CasTree::build(Shape { levels: 3, ..Shape::leaves(1) })?;
    let work = each(move || tree.charge(0, PAGE).map(|held| tree.free(held)).ok_or("refused").or_wrong(FITS));
    let beside = Some(Beside::every(0, &spin));
    measured.push(Case { beside, ..Case::new("pair of an innocent", CAS, "", work) });
    let title = "an innocent's pairs of 4 KiB below a parent with 64 MiB of headroom, beside others";
    let found = std::thread::scope(|threads| {
        let waiter = threads.spawn(|| waiting.charge_until(HELD + 1, Instant::now() + PATIENCE).is_err());
        spin_until(|| (waiting.waiters().now == 1 || waiter.is_finished()).then_some(()));
        let found =
            lab.measure([title, "the first is the control"], lab.effort.windows, measured, [], |_, _, _| []);
        let left = waiting.waiters().now;
        waiting.wake_waiters();
        let refused = waiter.join().unwrap_or(false);
        ensure(left == 1 && refused, || format!("{left} threads waited throughout, of 1"))?;
        found
    })?;
    let ns = |by: &str| found.ns("pair of an innocent", by, "");
    for (by, most) in cases.into_iter().filter_map(|(by, most)| Some((by, most?))) {
        lab.at_most(format!("an innocent's pair beside {by}"), ratio(ns(by), ns(cases[0].0)), most, "x");
    }
    let name = format!("an innocent's pair beside {}, over a CAS tree's", cases[2].0);
    lab.at_most(name, ratio(ns(cases[2].0), ns(CAS)), 1.5, "x");
    built.into_iter().try_for_each(|(fixture, held)| {
        drop(held);
        fixture.check_empty()
    })
}
