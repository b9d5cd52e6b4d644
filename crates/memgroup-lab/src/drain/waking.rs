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

use super::BySlots;
use crate::Error;
use crate::harness::Lab;
use crate::harness::clock;
use crate::harness::os;
use crate::harness::report::params;
use crate::harness::stats::Summary;
use crate::harness::table::{Table, figure, figure_or_dash};

/// More owners than this are not started: a thread for each.
const OWNERS_MAX: usize = 128;
const STOCKED_BYTES: u64 = 8192;

/// What owners and drainer share: words, counters of each level, and who has been called.
struct Office {
    words: PerCpu<AtomicU64>,
    counters: Vec<AtomicU64>,
    called: Vec<AtomicBool>,
    outstanding: AtomicUsize,
    closing: AtomicBool,
}

/// Owners, parked until called.
struct Owners {
    office: Arc<Office>,
    threads: Vec<JoinHandle<()>>,
}

impl Owners {
    fn start(slots: usize, depth: usize, drainer: &Thread) -> Result<Owners, Error> {
        let cpus = os::allowed_cpus()?;
        let office = Arc::new(Office {
            words: PerCpu::new(slots),
            counters: (0..depth).map(|_| AtomicU64::new(0)).collect(),
            called: (0..slots).map(|_| AtomicBool::new(false)).collect(),
            outstanding: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
        });
        let mut owners = Owners { office, threads: Vec::new() };
        for slot in 0..slots {
            let (office, drainer, cpu) =
                (Arc::clone(&owners.office), drainer.clone(), cpus[slot % cpus.len()]);
            let thread = std::thread::Builder::new()
                .name(format!("owner-{slot}"))
                .spawn(move || {
                    // An owner that cannot be pinned wakes no slower.
                    let _ = os::pin_to(cpu);
                    own(&office, slot, &drainer);
                })
                .map_err(|source| Error::System {
                    what: format!("start the owner of slot {slot}"),
                    source,
                })?;
            owners.threads.push(thread);
        }
        Ok(owners)
    }

    /// Stocks every word, as charges of its owner would have.
    fn fill(&self) {
        for word in self.office.words.iter() {
            // ORDERING: Relaxed, here and for the counters; `called` publishes them to the owners.
            word.store(STOCKED_BYTES, Ordering::Relaxed);
            for counter in &self.office.counters {
                counter.fetch_add(STOCKED_BYTES, Ordering::Relaxed);
            }
        }
    }

    /// Wakes every owner and waits for the last; ticks until all were called, and until all were done.
    fn drain(&self) -> (u64, u64) {
        // ORDERING: Relaxed; `called` publishes it.
        self.office.outstanding.store(self.threads.len(), Ordering::Relaxed);
        let begin = clock::now_ordered();
        for (called, owner) in self.office.called.iter().zip(&self.threads) {
            // ORDERING: Release; pairs with the Acquire in `own`.
            called.store(true, Ordering::Release);
            owner.thread().unpark();
        }
        let called = clock::now_ordered();
        // ORDERING: Acquire; pairs with the AcqRel of each owner: their uncharges are seen.
        while self.office.outstanding.load(Ordering::Acquire) > 0 {
            std::thread::park();
        }
        (called - begin, clock::now_ordered() - begin)
    }

    fn check_drained(&self) -> Result<(), Error> {
        // ORDERING: Relaxed; `drain` has waited for every owner.
        let words: u64 = self.office.words.iter().map(|word| word.load(Ordering::Relaxed)).sum();
        let counters: u64 = self.office.counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum();
        if words + counters == 0 {
            return Ok(());
        }
        Err(Error::Wrong(format!(
            "the waking control left {words} bytes in words and {counters} in counters"
        )))
    }
}

impl Drop for Owners {
    fn drop(&mut self) {
        // ORDERING: Release; pairs with the Acquire in `own`.
        self.office.closing.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // An owner that panicked would have left `drain` waiting for ever; there is none.
            let _ = thread.join();
        }
    }
}

fn own(office: &Office, slot: usize, drainer: &Thread) {
    // ORDERING: Acquire; pairs with the Release in `Owners::drop`.
    while !office.closing.load(Ordering::Acquire) {
        // ORDERING: AcqRel; Acquire pairs with the Release of the call.
        if !office.called[slot].swap(false, Ordering::AcqRel) {
            std::thread::park();
            continue;
        }
        // ORDERING: Relaxed; `outstanding` publishes what is done here.
        let bytes = office.words.get(slot).swap(0, Ordering::Relaxed);
        for counter in &office.counters {
            counter.fetch_sub(bytes, Ordering::Relaxed);
        }
        // ORDERING: AcqRel; Release pairs with the drainer's Acquire, and the chain of RMWs carries all owners.
        if office.outstanding.fetch_sub(1, Ordering::AcqRel) == 1 {
            drainer.unpark();
        }
    }
}

/// Measures the control for every slot count that has a thread for each slot; returns the medians until all is done.
pub(super) fn run(lab: &mut Lab<'_>, slot_counts: &[usize]) -> Result<BySlots, Error> {
    let depth = lab.args.depth.unwrap_or(3);
    let columns = [
        "waking control",
        "slots",
        "called: ns",
        "done: median",
        "min",
        "p90",
        "ns a slot",
        "cycles",
        "drains",
    ];
    let mut table = Table::new("control: every stock is returned by waking the thread that owns it", columns);
    let (clock, rounds) = (lab.clock, lab.effort.calls.div_ceil(3));
    let mut medians = BySlots::new();
    for &slots in slot_counts.iter().filter(|&&slots| slots <= OWNERS_MAX) {
        let samples = lab.crew.run(1, move |_| measure(slots, depth, rounds)).remove(0)?;
        let summary = |part: fn(&(u64, u64)) -> u64| {
            Summary::of(&samples.iter().map(|sample| clock.ns(part(sample) as f64)).collect::<Vec<_>>())
        };
        let (called, done) = (summary(|sample| sample.0), summary(|sample| sample.1));
        medians.insert(slots, done.map(|ns| ns.median));
        let of = |part: fn(Summary) -> f64| figure_or_dash(done.map(part));
        table.row(vec![
            "unpark each owner".to_owned(),
            slots.to_string(),
            figure_or_dash(called.map(|ns| ns.median)),
            of(|ns| ns.median),
            of(|ns| ns.min),
            of(|ns| ns.p90),
            figure_or_dash(done.map(|ns| ns.median / slots as f64)),
            figure_or_dash(done.and_then(|ns| clock.cycles(ns.median))),
            samples.len().to_string(),
        ]);
        let params = params([("slots", slots.into()), ("depth", depth.into())]);
        lab.report.add_time(&clock, "waking control", params.clone(), "owners called", called);
        lab.report.add_time(&clock, "waking control", params, "whole drain", done);
    }
    let (upstream, patched) = super::seed::drain_cycles(128).unwrap_or_default();
    table.note(format!(
        "owners share {} CPUs, one thread for each slot up to {OWNERS_MAX}; the seed's upstream form called and did not wait: {} cycles for 128 CPUs, {} when the drainer did it itself",
        lab.crew.cpus(),
        figure(upstream),
        figure(patched)
    ));
    lab.print(&table)?;
    Ok(medians)
}

fn measure(slots: usize, depth: usize, rounds: usize) -> Result<Vec<(u64, u64)>, Error> {
    let owners = Owners::start(slots, depth, &std::thread::current())?;
    let mut samples = Vec::new();
    for round in 0..=rounds {
        owners.fill();
        // Lets the owners fall asleep again: a call to a thread that has not parked yet wakes nobody.
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
    fn every_owner_returns_its_own_stock() {
        let samples = measure(5, 3, 4).unwrap();
        assert_eq!(samples.len(), 4);
        assert!(samples.iter().all(|(called, done)| called <= done));
    }

    #[test]
    fn stock_that_stays_is_a_wrong_result() {
        let owners = Owners::start(2, 3, &std::thread::current()).unwrap();
        owners.fill();
        let error = owners.check_drained().unwrap_err();
        assert!(error.to_string().contains("16384 bytes in words and 49152 in counters"), "{error}");
        owners.drain();
        owners.check_drained().unwrap();
    }
}
