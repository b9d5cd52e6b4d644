//! Statistics with a tree for each subsystem (seed 002): who reads one pays for no other.

mod flushes;
mod footprint;
mod house;
mod mixed;
mod readers;
mod seed;
mod tenants;
mod updates;

use std::io::Write;

use memgroup_percpu::SlotSource;

use crate::harness::Lab;
use crate::harness::machine::virtual_slots;
use crate::{Args, Error};

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    if let Some(trees) = args.serve {
        return tenants::serve(trees, std::io::stdin().lock(), out);
    }
    let mut lab = Lab::open(args, seed::SEED, SlotSource::detect(), out)?;
    let slots = args.slots.unwrap_or(seed::CPUS);
    let source = virtual_slots(slots)?;
    readers::run(&mut lab, source, args.groups.unwrap_or(seed::CHILDREN))?;
    mixed::run(&mut lab)?;
    updates::run(&mut lab)?;
    footprint::run(&mut lab)?;
    flushes::run(&mut lab, args.slots, args.groups)?;
    lab.close()
}
