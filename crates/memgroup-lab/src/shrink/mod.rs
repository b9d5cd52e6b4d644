//! Reclaim from caches without a lock (seed 003): walks that find shrinkers, call them, and never wait for who registers or removes one.

mod cache;
mod control;
mod empty;
mod growth;
mod house;
mod latency;
mod pair;
mod passed;
mod pressure;
mod registries;
mod seed;
mod start;
mod storm;
mod walk;

use std::io::Write;

use crate::harness::Lab;
use crate::{Args, Error};

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let mut lab = Lab::open(args, seed::SEED, args.slot_source()?, out)?;
    lab.paragraph(NOT_HERE)?;
    walk::run(&mut lab)?;
    passed::run(&mut lab)?;
    storm::run(&mut lab)?;
    latency::run(&mut lab)?;
    start::run(&mut lab)?;
    empty::run(&mut lab)?;
    growth::run(&mut lab)?;
    pair::run(&mut lab)?;
    pressure::run(&mut lab)?;
    lab.close()
}

const NOT_HERE: &str = "\nnote: instructions a cycle and energy need counters of the processor that a guest of a hypervisor seldom has; neither is measured";
