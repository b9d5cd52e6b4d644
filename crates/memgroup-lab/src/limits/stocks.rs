//! Full limits above groups with prepaid bytes in their stocks, on many slots.
//!
//! ```text
//!   parent, max M ──┬── leaf 0: holds a page
//!                   ├── leaf 1: a stock on slots 0, 1, 2 ...     all filled before each timed call
//! ```
//!
//! A charge of M cannot fit, whatever the stocks hold: it is refused. A charge of M less a page fits, but only when all stocks have given
//! their bytes back.

use memgroup::Group;
use memgroup_percpu::pin_virtual;

use super::PAGE;
use super::ledger::{CasTree, Engine, Ledger, MutexTree, Shape};
use crate::harness::prelude::*;

/// Nanoseconds that a call may take for each stock that holds something.
const STOCK_NS_MOST: f64 = 20.0;
/// Below so many stocks the call itself takes a large part of the time.
const FEW: usize = 1_000;
/// Microseconds of a refusal above empty stocks.
const AGAIN_US_MOST: f64 = 0.4;
/// Above all that the stocks can prepay.
const MAX_BYTES: u64 = 1 << 42;
/// Refusals after the first, with empty stocks.
const LATER: usize = 5;

/// The median times of one row, in nanoseconds.
#[derive(Default)]
struct Times(Samples);

impl Times {
    const NAMES: [&'static str; 5] = ["fits", "refused", "refused again", "CAS tree", "mutex tree"];
}

/// The groups of one row, on so many virtual slots.
struct Stocks {
    engine: Engine,
    groups: usize,
    slots: usize,
    controls: (CasTree, MutexTree),
}

impl Stocks {
    fn build(groups: usize, slots: usize) -> Result<Stocks> {
        let budget = Some(MAX_BYTES);
        let shape = Shape { parent_max: MAX_BYTES, held: PAGE, budget, ..Shape::leaves(1 + groups) };
        let engine = Engine::build(shape, true, virtual_slots(slots)?)?;
        let controls = (CasTree::build(shape)?, MutexTree::build(shape)?);
        Ok(Stocks { engine, groups, slots, controls })
    }

    fn leaves(&self) -> &[Group] {
        &self.engine.fixture.leaves[1..]
    }

    /// Pairs on each slot in each group, so that every stock holds something; the prepaid bytes. A level that was drained for a charge has
    /// no stock opened for 16 charges a stock.
    fn fill(&self) -> Result<u64> {
        let least = (self.groups * self.slots) as u64 * PAGE;
        for _ in 0..100 {
            for slot in 0..self.slots {
                let _pin = pin_virtual(slot);
                for group in self.leaves() {
                    drop(group.try_charge(PAGE).or_wrong("a charge far below every limit")?);
                }
            }
            if self.prepaid() >= least {
                break;
            }
        }
        let prepaid = self.prepaid();
        ensure(prepaid >= least, || {
            format!("{} stocks were filled and hold {prepaid} bytes", self.groups * self.slots)
        })?;
        Ok(prepaid)
    }

    fn prepaid(&self) -> u64 {
        let parent = &self.engine.fixture.parent;
        parent.usage() - parent.usage_exact()
    }

    /// Times one call of each kind; the share of the prepaid bytes that was left after the first refusal.
    fn sample(&self, watch: Stopwatch, times: &mut Times) -> Result<f64> {
        let leaf = &self.engine.fixture.leaves[0];
        self.fill()?;
        let (ns, fits) = watch.time(|| leaf.try_charge(MAX_BYTES - PAGE));
        times.0.push("fits", ns);
        drop(fits.or_wrong("prepaid bytes were the reason of a refusal")?);
        let filled = self.fill()?;
        let refused = |ask| {
            let (ns, charge) = watch.time(|| leaf.try_charge(ask));
            ensure(charge.is_err(), || format!("a charge of {ask} bytes beside a page of {MAX_BYTES} fits"))?;
            Ok(ns)
        };
        times.0.push("refused", refused(MAX_BYTES)?);
        let left = self.prepaid() as f64 / filled as f64;
        for _ in 0..LATER {
            times.0.push("refused again", refused(MAX_BYTES)?);
        }
        times.0.push("CAS tree", watch.time(|| self.controls.0.charge(0, MAX_BYTES).is_none()).0);
        times.0.push("mutex tree", watch.time(|| self.controls.1.charge(0, MAX_BYTES).is_none()).0);
        Ok(left)
    }

    fn end(self) -> Result<()> {
        self.engine.end()?;
        self.controls.0.end()?;
        self.controls.1.end()
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let rows = match lab.args.tiny {
        true => vec![(3, 2), (3, 16)],
        false => {
            vec![(1, 2), (100, 2), (1_000, 2), (10_000, 2), (1, 128), (1_000, 16), (1_000, 64), (1_000, 128)]
        }
    };
    let built = rows.into_iter().map(|(groups, slots)| Stocks::build(groups, slots));
    let built = built.collect::<Result<Vec<_>>>()?;
    let mut found: Vec<(Times, Vec<f64>)> = built.iter().map(|_| Default::default()).collect();
    let rounds = lab.pick(1, 5, 25);
    let watch = lab.clock.stopwatch();
    lab.in_turns(rounds, built.len(), |lab, row| {
        let left = lab.workers.run_one(|| built[row].sample(watch, &mut found[row].0))?;
        found[row].1.push(left);
        Ok(())
    })?;
    let mut table = Table::new(
        "a full parent above groups with prepaid bytes on every slot: us for one charge",
        ["groups; slots", "stocks", "fits", "refused", "left", "again", "CAS tree, ns", "mutex, ns"],
    );
    for (stocks, (times, left)) in built.into_iter().zip(found) {
        let number = stocks.groups * stocks.slots;
        let name = format!("{}; {}", count(stocks.groups as u64), stocks.slots);
        let params = json!({"groups": stocks.groups, "slots": stocks.slots});
        for metric in Times::NAMES {
            lab.record("full parent", params.clone()).summary(metric, "ns", times.0.summary(metric));
        }
        let us = |metric| us_or_dash(times.0.median(metric));
        let ns = |metric| figure_or_dash(times.0.median(metric));
        let left = super::cases::percent(median_of(&left));
        let cells = [us("fits"), us("refused"), left, us("refused again"), ns("CAS tree"), ns("mutex tree")];
        table.row(name, [count(number as u64)].into_iter().chain(cells));
        for (metric, verb) in [("fits", "a charge that takes the bytes of"), ("refused", "a refusal above")] {
            if number >= FEW {
                let name = format!("{verb} {} stocks, for each", count(number as u64));
                lab.at_most(name, times.0.median(metric).map(|ns| ns / number as f64), STOCK_NS_MOST, "ns");
            }
        }
        if (stocks.groups, stocks.slots) == (1_000, 128) {
            let again = times.0.median("refused again").map(|ns| ns / 1e3);
            lab.at_most("a refusal by 1,000 groups with 128 empty stocks each", again, AGAIN_US_MOST, "us");
        }
        stocks.end()?;
    }
    table.note("fits: a charge that fits only when every stock has given its bytes back, and does. Refused: one that never fits, with all stocks filled; \"left\" is the share of prepaid bytes after it. Again: the next five, while the same slots have been in use. The controls have no stocks: they refuse the same charge");
    lab.print(&table)
}
