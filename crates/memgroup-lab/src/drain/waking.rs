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
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::Duration;

use memgroup_percpu::PerCpu;

use super::{BySlots, SEED};
use crate::harness::prelude::*;

/// More owners than this are not started: a thread for each.
const OWNERS_MAX: usize = 128;
const STOCKED_BYTES: u64 = 8192;

/// Shared by owners and drainer: the words, the counters of each level, and the owners that are not done.
struct Shared {
    words: PerCpu<AtomicU64>,
    counters: Vec<AtomicU64>,
    outstanding: AtomicUsize,
}

/// Owners, which sleep until they are called.
struct Owners {
    shared: Arc<Shared>,
    threads: Vec<Sleeper>,
}

impl Owners {
    fn start(slots: usize, depth: usize, drainer: &Thread) -> Result<Owners> {
        let counters = (0..depth).map(|_| AtomicU64::new(0)).collect();
        let shared = Shared { words: PerCpu::new(slots), counters, outstanding: AtomicUsize::new(0) };
        let shared = Arc::new(shared);
        let start = |slot| {
            let (shared, drainer) = (Arc::clone(&shared), drainer.clone());
            Sleeper::start(&format!("owner-{slot}"), slot, move || shared.give_back(slot, &drainer))
        };
        let threads = (0..slots).map(start).collect::<Result<_>>()?;
        Ok(Owners { shared, threads })
    }

    /// Stocks every word, as charges of its owner would have.
    fn fill(&self) {
        for word in self.shared.words.iter() {
            // ORDERING: Relaxed, here and for the counters; the call publishes them to the owners.
            word.store(STOCKED_BYTES, Ordering::Relaxed);
            for counter in &self.shared.counters {
                counter.fetch_add(STOCKED_BYTES, Ordering::Relaxed);
            }
        }
    }

    /// Wakes every owner and waits for the last; ticks until all were called, and until all were done.
    fn drain(&self) -> (u64, u64) {
        // ORDERING: Relaxed; the call publishes it.
        self.shared.outstanding.store(self.threads.len(), Ordering::Relaxed);
        let begin = clock::now_ordered();
        self.threads.iter().for_each(Sleeper::call);
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

impl Shared {
    /// The work of one owner: it returns its word's bytes to the counters.
    fn give_back(&self, slot: usize, drainer: &Thread) {
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

/// Measures the control for every slot count that has a thread for each slot; returns the medians until all is done.
pub(super) fn run(lab: &mut Lab<'_>, slot_counts: &[usize]) -> Result<BySlots> {
    let depth = lab.args.depth();
    let mut table = Table::new(
        "control: every stock is returned by waking the thread that owns it",
        ["waking control", "slots", "called: ns", "done: ns (min..p90)", "a slot", "cycles", "drains"],
    );
    let (clock, rounds) = (lab.clock, lab.effort.calls.div_ceil(3));
    let mut medians = BySlots::new();
    for &slots in slot_counts.iter().filter(|&&slots| slots <= OWNERS_MAX) {
        let samples = lab.workers.run_one(|| measure(slots, depth, rounds))?;
        let summary = |part: fn(&(u64, u64)) -> u64| {
            Summary::of(samples.iter().map(|sample| clock.ns(part(sample) as f64)))
        };
        let (called, done) = (summary(|sample| sample.0), summary(|sample| sample.1));
        medians.insert(slots, median(done));
        let mut row = lab.record("waking control", json!({"slots": slots, "depth": depth}));
        row.time("owners called", called);
        let done_cell = row.time("whole drain", done);
        let a_slot = figure_or_dash(done.map(|ns| ns.median / slots as f64));
        let cycles = figure_or_dash(done.and_then(|ns| clock.cycles(ns.median)));
        let (called, drains) = (figure_or_dash(median(called)), samples.len().to_string());
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
