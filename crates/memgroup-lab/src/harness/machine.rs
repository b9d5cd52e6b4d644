//! The machine of a run, as far as its figures depend on it.

use std::fmt;
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
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    pub(crate) kernel: String,
    pub(crate) slot_source: String,
    pub(crate) slots: usize,
    /// Rate of the time-stamp counter; none where nanoseconds are all there is.
    pub(crate) tsc_ghz: Option<f64>,
    /// One way of a cache line from one CPU to another; none with one CPU.
    pub(crate) line_transfer_ns: Option<f64>,
    pub(crate) threads_pinned: bool,
    /// How sections of grace periods are entered: by a store, or by a swap, as where CPUs are
    /// isolated.
    pub(crate) sections: String,
}

impl Machine {
    pub(crate) fn look(workers: &Workers, clock: &Clock, slots: SlotSource) -> Machine {
        Machine {
            cpu: cpu_model(),
            cpus: workers.cpus,
            kernel: first_line("/proc/sys/kernel/osrelease")
                .unwrap_or_else(|| std::env::consts::OS.to_owned()),
            slot_source: slots.name().to_owned(),
            slots: slots.slots(),
            tsc_ghz: clock.ghz(),
            line_transfer_ns: line_transfer_ns(workers, clock),
            threads_pinned: workers.unpinned.is_none(),
            sections: if grace::report().enters_by_store() { "store" } else { "swap" }.to_owned(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} CPU{}", self.cpu, self.cpus, if self.cpus == 1 { "" } else { "s" })?;
        if let Some(ghz) = self.tsc_ghz {
            write!(f, ", TSC {ghz:.3} GHz")?;
        }
        if let Some(ns) = self.line_transfer_ns {
            write!(f, ", a cache line crosses in {ns:.0} ns")?;
        }
        write!(f, "\n         kernel {}; slots: {} ({}); ", self.kernel, self.slot_source, self.slots)?;
        write!(f, "sections entered by a {}", self.sections)
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
                    // ORDERING: Acquire and Release; each turn follows the other's. Only the time matters.
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
