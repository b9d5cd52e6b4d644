//! Costs away from the best case: little headroom, many groups, large charges, full limits, refusals, groups that come and go.

mod beside;
mod bursts;
mod cases;
mod full;
mod ledger;
mod lifecycle;
mod maps;
mod memory;
mod pairs;
mod refusals;
mod reports;
mod scattered;
mod stocks;

use std::io::Write;

use crate::Args;
use crate::harness::prelude::*;

/// Counters of a charge: the leaf's, its parent's, one more, and the root's.
const LEVELS: usize = 4;
const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Groups of the removals, the reports and the memory.
const GROUPS: usize = 100_000;

/// The goals, as the report lists them first.
const GOALS: [(&str, &str); 17] = [
    ("a refusal by a parent, 1 / 1,000 / 10,000 groups that hold nothing", "0.25 / 0.4 / 0.4 us"),
    ("the same, for each stock that holds something", "20 ns more"),
    ("an innocent's pair beside an attacker that asks for headroom + 1", "3 times"),
    ("an innocent's pair beside one waiter at the parent; beside 100,000", "1.2 times"),
    ("an innocent's refusal, creation or look-up beside a refusal storm, speed", "at least 0.5"),
    ("a pair in 4,096 / 65,536 groups at random, over the CAS tree", "1.2 / 1.5 times"),
    ("the same, over stock off", "no more (5 % are noise)"),
    ("hit rate at random where the budget holds the groups", "at least 95 %"),
    ("a burst of 256 pages above high, over below high", "1.3 times"),
    ("the exact path over the CAS tree, 1 / 2 threads", "1.4 / 1.1 times"),
    ("a pair of 1 MiB over one of 4 KiB", "as 4 KiB (1.1 times)"),
    ("an insert that evicts when refused, over the CAS tree", "5 times"),
    ("bytes a group", "600"),
    ("left after removal / maintenance / the hierarchy", "30 / 10 / 0 %"),
    ("remove(), p99.99 of 100,000", "100 us"),
    ("create, charge and remove on 1 thread", "0.4 us"),
    ("the same on 2 threads over 1, groups a second", "at least 1.5 times"),
];

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    if let Some(of) = args.memory_of {
        return memory::serve(of, args.groups.unwrap_or(GROUPS), out);
    }
    let mut lab = Lab::open(args, None, args.slots, out)?;
    let mut goals = Table::new("goals away from the best case", ["figure", "at most"]);
    for (what, goal) in GOALS {
        goals.row(what, [goal.to_owned()]);
    }
    lab.print(&goals)?;
    lab.paragraph("\nnote: \"memgroup\" is the engine with its defaults, \"stock off\" the same without prepaid bytes. The controls: \"CAS tree\" makes one compare-and-swap a level up under the limit and one subtraction a level to free, each level on a line of its own; \"mutex\" keeps the same levels behind one mutex. All have four levels unless a row says otherwise")?;
    pairs::run(&mut lab)?;
    full::run(&mut lab)?;
    bursts::run(&mut lab)?;
    scattered::run(&mut lab)?;
    refusals::run(&mut lab)?;
    stocks::run(&mut lab)?;
    beside::run(&mut lab)?;
    lifecycle::run(&mut lab)?;
    memory::run(&mut lab)?;
    reports::run(&mut lab)?;
    lab.close()
}

/// Groups of the removals, the reports and the memory.
fn many_groups(lab: &Lab<'_>) -> usize {
    lab.args.groups.unwrap_or(lab.pick(50, GROUPS, GROUPS))
}

/// Longer windows, and fewer.
fn longer(plan: Plan, by: u64) -> Plan {
    Plan { rounds: plan.rounds.div_ceil(by as usize).max(3.min(plan.rounds)), window_us: plan.window_us * by }
}
