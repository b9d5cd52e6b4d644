//! The whole controller: its cost where nothing happens, and its time where it has to act.

mod kills;
mod pair;
mod protection;
mod relief;
mod waits;

use std::io::Write;

use crate::Args;
use crate::harness::prelude::*;

/// A pair with all of the controller set, over one with only `max`.
const PAIR_MOST: f64 = 1.03;
/// Milliseconds of one pass over the protection of 10,000 groups.
const PASS_MS_MOST: f64 = 5.0;
/// Milliseconds from a charge that does not fit to its return, p99, where an idle SQLite cache can give.
const RELIEF_MS_MOST: f64 = 10.0;
/// Milliseconds from the choice of a victim until nothing of it is charged any more, p99.
const KILL_MS_MOST: f64 = 100.0;

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let mut lab = Lab::open(args, None, args.slots, out)?;
    let mut goals = Table::new("goals of the controller", ["figure", "at most", "unit"]);
    for (what, most, unit) in [
        ("a charge and its uncharge by the stock, everything set over max alone", PAIR_MOST, "x"),
        ("protection of 10,000 groups, a pass", PASS_MS_MOST, "ms"),
        ("from pressure to bytes that an idle SQLite cache freed, p99", RELIEF_MS_MOST, "ms"),
        ("from the choice of a victim until all its memory is free, p99", KILL_MS_MOST, "ms"),
    ] {
        goals.row(what, [figure(most), unit.to_owned()]);
    }
    lab.print(&goals)?;
    pair::run(&mut lab)?;
    protection::run(&mut lab)?;
    relief::run(&mut lab)?;
    kills::run(&mut lab)?;
    waits::run(&mut lab)?;
    lab.close()
}
