//! A full parent above prepaid bytes, and an innocent's pairs beside an attacker or a waiter at the
//! same parent.
//!
//! - I1. A charge that fits only when every stock gives its bytes back is made; one that never fits
//!   is refused.

use std::time::{Duration, Instant};

use memgroup::{Charge, Config, Group};
use memgroup_percpu::pin_virtual;

use super::{MIB, PAGE};
use crate::harness::prelude::*;

/// Above all that the stocks can prepay.
const MAX: u64 = 1 << 42;
const HELD: u64 = 64 * MIB;
/// A waiter gives up after this, which would be a wrong result.
const PATIENCE: Duration = Duration::from_secs(600);
const FITS: &str = "a charge far below every limit";

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
        times.push("fits", ns);
        drop(fits.or_wrong("prepaid bytes were the reason of a refusal")?);
        self.fill()?;
        for metric in ["refused", "refused again", "refused again"] {
            let (ns, charge) = watch.time(|| leaf.try_charge(MAX));
            ensure(charge.is_err(), || format!("{MAX} bytes fit beside a page of {MAX}"))?;
            times.push(metric, ns);
        }
        Ok(())
    }
}

fn above_stocks(lab: &mut Lab<'_>) -> Result<()> {
    let rows = lab.pick(
        &[(3, 2)][..],
        &[(1, 2), (1_000, 2), (1_000, 128)],
        &[(1, 2), (1_000, 2), (10_000, 2), (1_000, 16), (1_000, 128)],
    );
    let built =
        rows.iter().map(|&(groups, slots)| Stocks::build(groups, slots)).collect::<Result<Vec<_>>>()?;
    let mut found: Vec<Samples> = built.iter().map(|_| Samples::default()).collect();
    let watch = lab.clock.stopwatch();
    lab.in_turns(lab.pick(1, 5, 25), built.len(), |lab, row| {
        lab.workers.run_one(|| built[row].sample(watch, &mut found[row]))
    })?;
    let mut table = Table::new(
        "a full parent above groups with prepaid bytes on every slot: us for one charge",
        ["", "stocks", "fits", "refused", "refused again"],
    );
    for ((groups, slots), (stocks, times)) in rows.iter().zip(built.into_iter().zip(found)) {
        let name = format!("{}, {slots} slots", counted(*groups as u64, "group"));
        let cells = ["fits", "refused", "refused again"].map(|metric| {
            let params = json!({"groups": groups, "slots": slots});
            lab.record("full parent", params).summary(metric, "ns", times.summary(metric));
            us_or_dash(times.median(metric))
        });
        table.row(&name, [count(stocks.number() as u64)].into_iter().chain(cells));
        if stocks.number() >= 1_000 {
            let each = |metric| times.median(metric).map(|ns| ns / stocks.number() as f64);
            lab.at_most(format!("a charge that drains {name}, for each stock"), each("fits"), 20.0, "ns");
            lab.at_most(format!("a refusal above {name}, for each stock"), each("refused"), 20.0, "ns");
        }
        if (*groups, *slots) == (1_000, 128) {
            let us = times.median("refused again").map(|ns| ns / 1e3);
            lab.at_most(format!("a refusal above {name} with empty stocks"), us, 0.4, "us");
        }
    }
    table.note("fits: it fits only when every stock has given its bytes back. Refused: it never fits, and all stocks are full. Again: the next two");
    lab.print(&table)
}

/// Pairs of an innocent on the first thread, beside what the second does in each case.
fn beside_thread(
    lab: &mut Lab<'_>,
    innocent: &Group,
    others: &[&(dyn Fn() -> Result<()> + Sync)],
) -> Result<Vec<Option<Summary>>> {
    let work = each(|| innocent.try_charge(PAGE).map(drop).or_wrong(FITS));
    let besides = others.iter().map(|act| Some(Beside::every(0, act)));
    let variants: Vec<_> = besides.map(|beside| Variant { beside, ..Variant::of(&work, 1) }).collect();
    Ok(lab.interleave(&variants)?.iter().map(|one| one.ns).collect())
}

fn spin() -> Result<()> {
    (0..64).for_each(|_| std::hint::spin_loop());
    Ok(())
}

fn beside(lab: &mut Lab<'_>) -> Result<()> {
    let fixture = Fixture::chain(Config::with_slots(lab.slots), 3, 2)?;
    limit(&fixture.parent, 2 * HELD)?;
    let (attacker, innocent) = (&fixture.leaves[0], &fixture.leaves[1]);
    let held = attacker.try_charge(HELD).or_wrong(FITS)?;
    let attack = || ensure(attacker.try_charge(HELD + 1).is_err(), || "a byte too many fits".to_owned());
    let alone = beside_thread(lab, innocent, &[&spin, &attack])?;
    let waited = std::thread::scope(|threads| {
        let waiter = threads.spawn(|| attacker.charge_until(HELD + 1, Instant::now() + PATIENCE).is_err());
        spin_until(|| (attacker.waiters().now == 1 || waiter.is_finished()).then_some(()));
        let waited = beside_thread(lab, innocent, &[&spin]);
        let left = attacker.waiters().now;
        attacker.wake_waiters();
        let refused = waiter.join().unwrap_or(false);
        ensure(left == 1 && refused, || format!("{left} threads waited throughout, of 1"))?;
        waited
    })?;
    let mut table = Table::new(
        "an innocent's pairs of 4 KiB below a parent with 64 MiB of headroom: ns, median (min..p90)",
        ["beside", "a pair", "over", "goal"],
    );
    for (name, ns, most) in [
        ("a spinning thread (control)", alone[0], None),
        ("an attacker that asks for a byte more than is free", alone[1], Some(3.0)),
        ("a thread that waits for a byte more than is free", waited[0], Some(1.2)),
    ] {
        let cell = lab.record(name, json!({})).time("pair of an innocent", ns);
        let over = ratio(median(ns), median(alone[0]));
        table.row(name, [cell, times(over), most.map_or_else(dash, |most| format!("x{most}"))]);
        if let Some(most) = most {
            lab.at_most(format!("an innocent's pair beside {name}"), over, most, "x");
        }
    }
    lab.print(&table)?;
    drop(held);
    fixture.check_empty()
}
