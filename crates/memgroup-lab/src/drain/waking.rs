//! The control of the drain: each stock is returned by waking the thread that owns it.
//!
//!   drainer ── unpark ──▶ owner 0: word 0 ─▶ counters ─┐
//!           ── unpark ──▶ owner 1: word 1 ─▶ counters ─┼─ last one ── unpark ──▶ drainer
//!           ── unpark ──▶ ...                          ┘
//!
//! This is the seed's scheduled work with threads for kernel workers: the owner runs on its own CPU (slot modulo
//! CPUs), empties its own word and uncharges each level. The kernel does not wait for the work; a drain that is
//! complete when it returns must. Both times are shown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use memgroup_percpu::PerCpu;

use super::{BySlots, SEED};
use crate::harness::*;

/// More owners than this are not started: a thread for each.
const OWNERS_MAX: usize = 128;
const STOCKED_BYTES: u64 = 8192;

/// Shared by owners and drainer: the words, the counters of each level, and the calls.
struct Shared {
    words: PerCpu<AtomicU64>,
    counters: Vec<AtomicU64>,
    called: Vec<AtomicBool>,
    outstanding: AtomicUsize,
    closing: AtomicBool,
}

/// Owners, parked until called.
struct Owners {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Owners {
    fn start(slots: usize, depth: usize, drainer: &Thread) -> Result<Owners> {
        let cpus = os::allowed_cpus()?;
        let shared = Arc::new(Shared {
            words: PerCpu::new(slots),
            counters: (0..depth).map(|_| AtomicU64::new(0)).collect(),
            called: (0..slots).map(|_| AtomicBool::new(false)).collect(),
            outstanding: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
        });
        let mut owners = Owners { shared, threads: Vec::new() };
        for slot in 0..slots {
            let (shared, drainer, cpu) = (owners.shared.clone(), drainer.clone(), cpus[slot % cpus.len()]);
            owners.threads.push(spawn(&format!("owner-{slot}"), move || {
                // An owner that cannot be pinned wakes no slower.
                let _ = os::pin_to(cpu);
                shared.own(slot, &drainer);
            })?);
        }
        Ok(owners)
    }

    /// Stocks every word, as charges of its owner would have.
    fn fill(&self) {
        for word in self.shared.words.iter() {
            // ORDERING: Relaxed, here and for the counters; `called` publishes them to the owners.
            word.store(STOCKED_BYTES, Ordering::Relaxed);
            for counter in &self.shared.counters {
                counter.fetch_add(STOCKED_BYTES, Ordering::Relaxed);
            }
        }
    }

    /// Wakes every owner and waits for the last; ticks until all were called, and until all were done.
    fn drain(&self) -> (u64, u64) {
        // ORDERING: Relaxed; `called` publishes it.
        self.shared.outstanding.store(self.threads.len(), Ordering::Relaxed);
        let begin = clock::now_ordered();
        for (called, owner) in self.shared.called.iter().zip(&self.threads) {
            // ORDERING: Release; pairs with the Acquire in `own`.
            called.store(true, Ordering::Release);
            owner.thread().unpark();
        }
        let called = clock::now_ordered();
        // ORDERING: Acquire; pairs with the AcqRel of each owner: their uncharges are seen.
        while self.shared.outstanding.load(Ordering::Acquire) > 0 {
            std::thread::park();
        }
        (called - begin, clock::now_ordered() - begin)
    }

    fn check_drained(&self) -> Result<()> {
        // ORDERING: Relaxed; `drain` has waited for every owner.
        let words: u64 = self.shared.words.iter().map(|word| word.load(Ordering::Relaxed)).sum();
        let counters: u64 = self.shared.counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum();
        let left = || format!("the waking control left {words} bytes in words and {counters} in counters");
        ensure(words + counters == 0, left)
    }
}

impl Drop for Owners {
    fn drop(&mut self) {
        // ORDERING: Release; pairs with the Acquire in `own`.
        self.shared.closing.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // An owner that panicked would have left `drain` waiting for ever; there is none.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// The life of one owner: it sleeps until it is called, and returns its word's bytes to the counters.
    fn own(&self, slot: usize, drainer: &Thread) {
        // ORDERING: Acquire; pairs with the Release in `Owners::drop`.
        while !self.closing.load(Ordering::Acquire) {
            // ORDERING: AcqRel; Acquire pairs with the Release of the call.
            if !self.called[slot].swap(false, Ordering::AcqRel) {
                std::thread::park();
                continue;
            }
            // ORDERING: Relaxed; `outstanding` publishes the changes here.
            let bytes = self.words.get(slot).swap(0, Ordering::Relaxed);
            for counter in &self.counters {
                counter.fetch_sub(bytes, Ordering::Relaxed);
            }
            // ORDERING: AcqRel; Release pairs with the drainer's Acquire, and the chain of RMWs carries all owners.
            if self.outstanding.fetch_sub(1, Ordering::AcqRel) == 1 {
                drainer.unpark();
            }
        }
    }
}

/// Measures the control for every slot count that has a thread for each slot; returns the medians until all is done.
pub(super) fn run(lab: &mut Lab<'_>, slot_counts: &[usize]) -> Result<BySlots> {
    let depth = lab.args.depth.unwrap_or(3);
    let mut table = Table::new(
        "control: every stock is returned by waking the thread that owns it",
        ["waking control", "slots", "called: ns", "done: ns (min..p90)", "a slot", "cycles", "drains"],
    );
    let (clock, rounds) = (lab.clock, lab.effort.calls.div_ceil(3));
    let mut medians = BySlots::new();
    for &slots in slot_counts.iter().filter(|&&slots| slots <= OWNERS_MAX) {
        let samples = lab.workers.run_one(|| measure(slots, depth, rounds))?;
        let summary = |part: fn(&(u64, u64)) -> u64| {
            Summary::of(&samples.iter().map(|sample| clock.ns(part(sample) as f64)).collect::<Vec<_>>())
        };
        let (called, done) = (summary(|sample| sample.0), summary(|sample| sample.1));
        medians.insert(slots, median(done));
        let mut row = lab.record("waking control", json!({"slots": slots, "depth": depth}));
        row.time("owners called", called);
        let done_cell = row.time("whole drain", done);
        let a_slot = figure_or_dash(done.map(|ns| ns.median / slots as f64));
        let cycles = figure_or_dash(done.and_then(|ns| clock.cycles(ns.median)));
        let called = figure_or_dash(median(called));
        let drains = samples.len().to_string();
        table.row("unpark each owner", [slots.to_string(), called, done_cell, a_slot, cycles, drains]);
    }
    let [upstream, patched] = SEED.cells("drain_all_stock, 128 CPUs");
    table.note(format!(
        "owners share {} CPUs, one thread for each slot up to {OWNERS_MAX}. The seed's upstream form called and did not wait: {upstream} cycles for 128 CPUs, {patched} when the drainer did it itself",
        lab.workers.cpus
    ));
    lab.print(&table)?;
    Ok(medians)
}

fn measure(slots: usize, depth: usize, rounds: usize) -> Result<Vec<(u64, u64)>> {
    let owners = Owners::start(slots, depth, &std::thread::current())?;
    let mut samples = Vec::new();
    for round in 0..=rounds {
        owners.fill();
        // Lets the owners fall asleep again: a call to a thread that has not parked yet wakes no thread.
        std::thread::sleep(Duration::from_micros(200));
        let sample = owners.drain();
        owners.check_drained()?;
        if round > 0 {
            samples.push(sample);
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_every_owners_stock() {
        let samples = measure(5, 3, 4).unwrap();
        assert_eq!(samples.len(), 4);
        assert!(samples.iter().all(|(called, done)| called <= done));
    }

    #[test]
    fn fails_when_stock_stays() {
        let owners = Owners::start(2, 3, &std::thread::current()).unwrap();
        owners.fill();
        let error = owners.check_drained().unwrap_err();
        assert!(error.to_string().contains("16384 bytes in words and 49152 in counters"), "{error}");
        owners.drain();
        owners.check_drained().unwrap();
    }
}
