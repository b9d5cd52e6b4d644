//! Costs away from the best case: exact charges, full limits, refusals, many groups, groups that come and go.
//!
//! Each figure stands beside a control. Where it is "CAS tree", that is the least that a program could write by hand:
//! one compare-and-swap a level up under the limit and one subtraction a level to free, each level on its own line.

mod charges;
mod groups;
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

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    if args.memory_of_groups {
        return groups::memory_of(args.groups.unwrap_or(GROUPS), out);
    }
    let mut lab = Lab::open(args, None, args.slots, out)?;
    charges::run(&mut lab)?;
    stocks::run(&mut lab)?;
    groups::run(&mut lab)?;
    lab.close()
}

/// Groups of the removals, the reports and the memory.
fn many_groups(lab: &Lab<'_>) -> usize {
    lab.args.groups.unwrap_or(lab.pick(50, 20_000, GROUPS))
}
