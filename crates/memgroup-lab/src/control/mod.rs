//! The whole controller: what it costs where nothing happens, and how long it takes where something does.

mod kills;
mod pair;
mod protection;
mod relief;
mod waits;

use std::io::Write;

use crate::harness::Lab;
use crate::harness::quantiles::Quantiles;
use crate::harness::report::Params;
use crate::harness::table::{Table, figure, figure_or_dash};
use crate::{Args, Error};

/// A pair with all of the controller set, over one with only `max`.
const PAIR_MOST: f64 = 1.03;
/// Milliseconds of one pass over the protection of 10,000 groups.
const PASS_MS_MOST: f64 = 5.0;
/// Milliseconds from a charge that does not fit to its return, p99, where an idle cache of SQLite's can give.
const RELIEF_MS_MOST: f64 = 10.0;
/// Milliseconds from the choice of a victim until nothing of it is charged any more, p99.
const KILL_MS_MOST: f64 = 100.0;

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let mut lab = Lab::open(args, None, args.slot_source()?, out)?;
    lab.print(&goals())?;
    pair::run(&mut lab)?;
    protection::run(&mut lab)?;
    relief::run(&mut lab)?;
    kills::run(&mut lab)?;
    waits::run(&mut lab)?;
    lab.close()
}

fn goals() -> Table {
    let mut table = Table::new("goals of the controller", ["figure", "at most", "unit"]);
    for (what, most, unit) in [
        ("a charge and its uncharge by the stock, everything set over max alone", PAIR_MOST, "x"),
        ("protection of 10,000 groups, a pass", PASS_MS_MOST, "ms"),
        ("from pressure to bytes that an idle SQLite cache freed, p99", RELIEF_MS_MOST, "ms"),
        ("from the choice of a victim until all it had is free, p99", KILL_MS_MOST, "ms"),
    ] {
        table.row(vec![what.to_owned(), figure(most), unit.to_owned()]);
    }
    table
}

/// p50, p99 and the largest of calls in nanoseconds, as cells in a larger unit, and as rows of the report.
fn add_quantiles(
    lab: &mut Lab<'_>,
    variant: &str,
    params: &Params,
    ns: Option<Quantiles>,
    ns_per_unit: f64,
) -> [String; 3] {
    let of = |part: fn(&Quantiles) -> f64| ns.as_ref().map(part);
    [("p50", of(|ns| ns.p50)), ("p99", of(|ns| ns.p99)), ("max", of(|ns| ns.max))].map(|(metric, value)| {
        if let Some(value) = value {
            lab.report.add_count(variant, params.clone(), metric, "ns", value);
        }
        figure_or_dash(value.map(|ns| ns / ns_per_unit))
    })
}

/// How many calls are timed: of the quick run, of the full one.
fn calls(lab: &Lab<'_>, quick: usize, full: usize) -> usize {
    match (lab.args.tiny, lab.args.quick) {
        (true, _) => lab.effort.calls,
        (_, true) => quick,
        (_, false) => full,
    }
}
