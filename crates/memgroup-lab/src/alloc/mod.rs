//! Servers: a global allocator that charges, tasks in groups, and charges that wait as futures.

mod polls;
mod programs;
mod waits;
mod wakes;

use std::io::Write;

use crate::Args;
use crate::harness::prelude::*;

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let mut lab = Lab::open(args, None, args.slots, out)?;
    polls::run(&mut lab)?;
    waits::run(&mut lab)?;
    wakes::run(&mut lab)?;
    programs::run(&mut lab)?;
    lab.close()
}
