//! Costs away from the best case: exact charges, full limits, refusals, many groups, groups that
//! come and go.
//!
//! Each figure stands beside a control. Where it is "CAS tree", that is the least that a program
//! could write by hand: one compare-and-swap a level up under the limit and one subtraction a level
//! to free, each level on its own line.

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
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    if args.memory_of_groups {
        return groups::memory_of(many_groups(args), out);
    }
    let mut lab = Lab::open(args, None, args.slots, out)?;
    charges::run(&mut lab)?;
    stocks::run(&mut lab)?;
    groups::run(&mut lab)?;
    lab.close()
}

/// Groups of the removals and of the memory.
fn many_groups(args: &Args) -> usize {
    args.pick(500, 20_000, 100_000)
}
