//! A drain makes no system call: traced, for every number of slots.

use std::sync::Arc;

use super::stocks::Stocks;
use crate::Error;
use crate::harness::Lab;
use crate::harness::report::{Check, params};
use crate::harness::table::Table;
use crate::harness::trace::{Traced, first_call};

/// Drains traced of each number of slots.
const DRAINS: usize = 20;

/// Fills and drains under the tracer; how many drains made a call, and which. None where nothing can be traced.
fn traced_drains(stocks: &Stocks) -> Result<Option<(usize, Option<i64>)>, Error> {
    let (mut calling, mut first) = (0, None);
    for _ in 0..DRAINS {
        let stocked = stocks.fill()?;
        let mut taken = 0;
        match first_call(|| taken = stocks.drain())? {
            Traced::None => {}
            Traced::First(number) => {
                calling += 1;
                first.get_or_insert(number);
            }
            Traced::NotHere => return Ok(None),
        }
        stocks.check_drained(stocked, taken)?;
    }
    Ok(Some((calling, first)))
}

/// Traces drains of every number of slots and prints what was seen.
pub(super) fn run(lab: &mut Lab<'_>, slot_counts: &[usize]) -> Result<(), Error> {
    let depth = lab.args.depth.unwrap_or(3);
    let mut table = Table::new(
        "system calls of a drain, traced",
        ["slots", "drains", "with a system call", "first call"],
    );
    let mut calling_in_all = Some(0);
    for &slots in slot_counts {
        let stocks = Arc::new(Stocks::new(slots, depth)?);
        let seen = lab.crew.run(1, move |_| traced_drains(&stocks)).remove(0)?;
        calling_in_all = calling_in_all.zip(seen).map(|(sum, (calling, _))| sum + calling);
        let text =
            |part: fn((usize, Option<i64>)) -> String| seen.map_or_else(|| "not traced".to_owned(), part);
        let first = text(|seen| seen.1.map_or_else(|| "-".to_owned(), |number| number.to_string()));
        table.row(vec![slots.to_string(), DRAINS.to_string(), text(|seen| seen.0.to_string()), first]);
        if let Some((calling, _)) = seen {
            let params = params([("slots", slots.into()), ("drains", DRAINS.into())]);
            lab.report.add_count("drain", params, "drains with a system call", "count", calling as f64);
        }
    }
    let calling = calling_in_all.map(|calling| calling as f64);
    lab.report.checks.push(Check::at_most("drains that make a system call", calling, 0.0, ""));
    lab.print(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_makes_no_system_call() {
        for slots in [1, 2, 128] {
            let seen = traced_drains(&Stocks::new(slots, 3).unwrap()).unwrap();
            // The tracer's own tests show that it sees a call; where it cannot trace there is nothing to claim.
            assert!(matches!(seen, None | Some((0, None))), "{slots} slots: {seen:?}");
        }
    }
}
