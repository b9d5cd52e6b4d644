//! Batched charge and uncharge (seed 004): what the stock is worth.

mod control;
mod faults;
mod pair;
mod pairs;
mod seed;
mod storm;
mod syscalls;

use std::io::Write;

use crate::harness::Lab;
use crate::{Args, Error};

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let mut lab = Lab::open(args, seed::SEED, args.slot_source()?, out)?;
    pairs::run(&mut lab)?;
    faults::run(&mut lab)?;
    syscalls::run(&mut lab)?;
    storm::run(&mut lab)?;
    lab.close()
}
