//! The machine of a run, as far as its figures depend on it.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use memgroup_percpu::SlotSource;
use memgroup_sync::grace;
use serde::Serialize;

use super::prelude::*;

/// Virtual slots, as many as the experiment wants.
pub(crate) fn virtual_slots(slots: usize) -> Result<SlotSource> {
    SlotSource::virtual_slots(slots).set_up("the virtual slots")
}

/// The heading of every report.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpus: usize,
    pub(crate) slots: usize,
    /// All of it in words: the processor, its clock, one way of a cache line from one CPU to
    /// another, the kernel, the source of slots, and whether sections of grace periods are entered
    /// by a store or, as where CPUs are isolated, by a swap.
    pub(crate) text: String,
}

impl Machine {
    pub(crate) fn look(workers: &Workers, clock: &Clock, slots: SlotSource) -> Machine {
        let (cpus, kernel) = (workers.cpus, first_line("/proc/sys/kernel/osrelease"));
        let kernel = kernel.unwrap_or_else(|| std::env::consts::OS.to_owned());
        let mut text = format!("{}, {}", cpu_model(), counted(cpus as u64, "CPU"));
        text.extend(clock.ghz().map(|ghz| format!(", TSC {ghz:.3} GHz")));
        let crossing = line_transfer_ns(workers, clock);
        text.extend(crossing.map(|ns| format!(", a cache line crosses in {ns:.0} ns")));
        let sections = if grace::report().enters_by_store() { "store" } else { "swap" };
        let (source, slots) = (slots.name(), slots.slots());
        text += &format!(", kernel {kernel}, slots: {source} ({slots}), sections entered by a {sections}");
        Machine { cpus, slots, text }
    }
}

fn cpu_model() -> String {
    let named = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    named.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

fn first_line(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.lines().next()?.to_owned())
}

/// Two threads hand one line back and forth; half a round trip is one crossing.
fn line_transfer_ns(workers: &Workers, clock: &Clock) -> Option<f64> {
    const TRIPS: u64 = 2_000;
    if workers.cpus < 2 || workers.threads() < 2 {
        return None;
    }
    let ball = AtomicU64::new(0);
    let samples: Vec<f64> = (0..15)
        .map(|_| {
            // ORDERING: Relaxed; no thread runs now, and sending the job publishes it.
            ball.store(0, Ordering::Relaxed);
            let ticks = workers.run_together(2, 0, |thread, _| {
                let begin = clock::now();
                for trip in 0..TRIPS {
                    let mine = trip * 2 + thread as u64;
                    // ORDERING: Acquire and Release; each turn follows the other's. Only the time
                    // matters.
                    spin_until(|| (ball.load(Ordering::Acquire) == mine).then_some(()));
                    ball.store(mine + 1, Ordering::Release);
                }
                Ok(clock::now() - begin)
            });
            clock.ns(ticks.map_or(0, |ticks| ticks[0]) as f64) / (TRIPS * 2) as f64
        })
        .collect();
    median_of(&samples)
}
