//! One whole drain: of 1 to 512 slots whose words lie in the drainer's caches, in no cache, or in the other CPU's.
//!
//!   remote-dirty:   CPU 1  fill every slot ─▶ say so ─▶ spin ...........
//!                   CPU 0  spin ...................... ─▶ drain, timed ─▶ check
//!
//! - I1. The bytes a drain returns are those that were stocked, and no counter holds a byte afterwards; else the
//!   run ends with an error.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::BySlots;
use super::seed;
use super::stocks::Stocks;
use crate::Error;
use crate::harness::Lab;
use crate::harness::clock;
use crate::harness::crew::{Crew, spin_until};
use crate::harness::machine::largest_cache_bytes;
use crate::harness::os::{Mapping, ThreadUsage, page_bytes};
use crate::harness::report::{params, ratio};
use crate::harness::stats::Summary;
use crate::harness::table::{Table, figure, figure_or_dash};

/// Whole drains in nanoseconds, by state and slots.
type Results = BTreeMap<(State, usize), Option<Summary>>;

const JUDGED_SLOTS: usize = 128;
const JUDGED_DRAINS: usize = 10;
const COLD_OVER_HOT_LEAST: f64 = 2.0;
const LINE_BYTES: usize = 64;
/// Drains of one run of the crew; the first warms the code and does not count.
const DRAINS_A_RUN: usize = 4;

/// Where the words lie when the drain begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum State {
    Hot,
    Cold,
    RemoteDirty,
    Empty,
    /// No engine: one swap for each word that the other CPU has written. What the machine itself takes.
    BareSwap,
    /// The same, each line asked for some slots ahead.
    BareSwapAhead,
}

impl State {
    const ALL: [State; 6] =
        [State::Hot, State::Cold, State::RemoteDirty, State::Empty, State::BareSwap, State::BareSwapAhead];

    fn is_remote(self) -> bool {
        self == State::RemoteDirty || self.prefetch_ahead().is_some()
    }

    /// For bare swaps, how many slots ahead a line is asked for.
    fn prefetch_ahead(self) -> Option<usize> {
        match self {
            State::BareSwap => Some(0),
            State::BareSwapAhead => Some(16),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            State::Hot => "hot",
            State::Cold => "cold",
            State::RemoteDirty => "remote-dirty",
            State::Empty => "empty",
            State::BareSwap => "bare swaps",
            State::BareSwapAhead => "bare swaps, prefetched",
        }
    }
}

/// Measures all states and slot counts in turn; returns the remote-dirty medians.
pub(super) fn run(lab: &mut Lab<'_>, slot_counts: &[usize]) -> Result<BySlots, Error> {
    let depth = lab.args.depth.unwrap_or(3);
    let buffer = Arc::new(cold_buffer()?);
    let mut cells = Vec::new();
    for &slots in slot_counts {
        let stocks = Arc::new(Stocks::new(slots, depth)?);
        cells.extend(State::ALL.map(|state| (state, slots, Arc::clone(&stocks))));
    }
    let mut samples: BTreeMap<(State, usize), Vec<f64>> = BTreeMap::new();
    let runs = lab.effort.calls.div_ceil(DRAINS_A_RUN - 1);
    for run in 0..runs {
        lab.random.shuffle(&mut cells);
        for (state, slots, stocks) in &cells {
            // Emptying the caches takes milliseconds: a third of the runs is enough.
            if *state != State::Cold || run.is_multiple_of(3) {
                let ticks = drains(&lab.crew, *state, stocks, &buffer)?;
                let ns = ticks.into_iter().map(|ticks| lab.clock.ns(ticks as f64));
                samples.entry((*state, *slots)).or_default().extend(ns);
            }
        }
    }
    let results: Results = samples.into_iter().map(|(key, samples)| (key, Summary::of(&samples))).collect();
    show(lab, depth, slot_counts, &results)?;
    let medians = slot_counts.iter().map(|&slots| {
        (slots, results.get(&(State::RemoteDirty, slots)).copied().flatten().map(|ns| ns.median))
    });
    Ok(medians.collect())
}

/// Pages of twice the largest cache, all backed.
fn cold_buffer() -> Result<Mapping, Error> {
    let bytes = largest_cache_bytes() * 2;
    let buffer = Mapping::new(bytes)?;
    (0..bytes).step_by(page_bytes()).for_each(|offset| buffer.touch(offset));
    Ok(buffer)
}

/// A few drains in one state; ticks of those that count.
fn drains(crew: &Crew, state: State, stocks: &Arc<Stocks>, buffer: &Arc<Mapping>) -> Result<Vec<u64>, Error> {
    let (stocks, buffer, turn) = (Arc::clone(stocks), Arc::clone(buffer), Arc::new(Turn::new()));
    let active = if state.is_remote() { 2 } else { 1 };
    let mut results = crew.run(active, move |thread| match (thread, state.is_remote()) {
        (0, true) => drain_after_writer(state, &stocks, &turn),
        (0, false) => drain_own(state, &stocks, &buffer),
        _ => write_remote(state, &stocks, &turn).map(|()| Vec::new()),
    });
    if let Some(Err(error)) = results.drain(1..).next() {
        return Err(error);
    }
    results.remove(0)
}

/// Hands the stocks from the writer to the drainer and back, or tells the other that one of them gave up.
struct Turn {
    phase: AtomicUsize,
    stocked: AtomicU64,
}

const GIVEN_UP: usize = usize::MAX;

impl Turn {
    fn new() -> Turn {
        Turn { phase: AtomicUsize::new(0), stocked: AtomicU64::new(0) }
    }

    /// Waits for a phase; `false` when the other thread gave up.
    fn wait(&self, phase: usize) -> bool {
        spin_until(|| {
            // ORDERING: Acquire; pairs with the Release in `set`, so the filled words are seen filled.
            let now = self.phase.load(Ordering::Acquire);
            (now == phase || now == GIVEN_UP).then_some(now == phase)
        })
    }

    fn set(&self, phase: usize) {
        // ORDERING: Release; pairs with the Acquire in `wait`.
        self.phase.store(phase, Ordering::Release);
    }
}

fn write_remote(state: State, stocks: &Stocks, turn: &Turn) -> Result<(), Error> {
    for drain in 0..DRAINS_A_RUN {
        match if state.prefetch_ahead().is_some() { Ok(stocks.fill_bare()) } else { stocks.fill() } {
            // ORDERING: Relaxed; published by the phase.
            Ok(stocked) => turn.stocked.store(stocked, Ordering::Relaxed),
            Err(error) => {
                turn.set(GIVEN_UP);
                return Err(error);
            }
        }
        turn.set(2 * drain + 1);
        if !turn.wait(2 * drain + 2) {
            return Ok(());
        }
    }
    Ok(())
}

fn drain_after_writer(state: State, stocks: &Stocks, turn: &Turn) -> Result<Vec<u64>, Error> {
    let mut counted = Vec::new();
    for drain in 0..DRAINS_A_RUN {
        let before = ThreadUsage::now();
        if !turn.wait(2 * drain + 1) {
            return Ok(counted);
        }
        let (ticks, taken) = state
            .prefetch_ahead()
            .map_or_else(|| stocks.timed_drain(), |ahead| stocks.timed_bare_swaps(ahead));
        // ORDERING: Relaxed; published by the phase that was waited for.
        let checked = stocks.check_drained(turn.stocked.load(Ordering::Relaxed), taken);
        turn.set(if checked.is_ok() { 2 * drain + 2 } else { GIVEN_UP });
        checked?;
        keep(&mut counted, drain, before, ticks);
    }
    Ok(counted)
}

fn drain_own(state: State, stocks: &Stocks, buffer: &Mapping) -> Result<Vec<u64>, Error> {
    let mut counted = Vec::new();
    // A warm run of the code would defeat emptying the caches: then the first drain is the only one.
    let drains = if state == State::Cold { 1 } else { DRAINS_A_RUN };
    for drain in 0..drains {
        let stocked = if state == State::Empty { 0 } else { stocks.fill()? };
        if state == State::Cold {
            std::hint::black_box(buffer.sweep(LINE_BYTES));
        }
        let before = ThreadUsage::now();
        let (ticks, taken) = stocks.timed_drain();
        stocks.check_drained(stocked, taken)?;
        keep(&mut counted, if state == State::Cold { 1 } else { drain }, before, ticks);
    }
    Ok(counted)
}

fn keep(counted: &mut Vec<u64>, drain: usize, before: ThreadUsage, ticks: u64) {
    if drain > 0 && ThreadUsage::now().since(before).switches_involuntary == 0 {
        counted.push(ticks);
    }
}

/// Drains of lines that lie in no cache take far longer than of lines that do; else the caches were not emptied. Judged
/// where there are lines enough to show it, and drains. A matter of time, so it is said and fails nothing.
fn doubt_of_cold(results: &Results) -> Option<String> {
    for (&(_, slots), cold) in results.iter().filter(|((state, _), _)| *state == State::Cold) {
        let hot = results.get(&(State::Hot, slots)).copied().flatten();
        let (Some(cold), Some(hot)) = (*cold, hot) else { continue };
        let judged = slots >= JUDGED_SLOTS && cold.count.min(hot.count) >= JUDGED_DRAINS;
        if judged && cold.median < COLD_OVER_HOT_LEAST * hot.median {
            return Some(format!(
                "cold drains of {slots} slots take {:.0} ns, hot ones {:.0}: the caches were not emptied, do not use these rows",
                cold.median, hot.median
            ));
        }
    }
    None
}

fn show(lab: &mut Lab<'_>, depth: usize, slot_counts: &[usize], results: &Results) -> Result<(), Error> {
    let columns = [
        "ns a whole drain",
        "slots",
        "median",
        "min",
        "p90",
        "ns a slot",
        "cycles",
        "before",
        "after",
        "drains",
    ];
    let mut table = Table::new(format!("one drain of all slots of a group of depth {depth}"), columns);
    let clock = lab.clock;
    for state in State::ALL {
        for &slots in slot_counts {
            let ns = results.get(&(state, slots)).copied().flatten();
            let seed = (state == State::RemoteDirty).then(|| seed::drain_cycles(slots)).flatten();
            let of = |part: fn(Summary) -> f64| figure_or_dash(ns.map(part));
            table.row(vec![
                state.name().to_owned(),
                slots.to_string(),
                of(|ns| ns.median),
                of(|ns| ns.min),
                of(|ns| ns.p90),
                figure_or_dash(ns.map(|ns| ns.median / slots as f64)),
                figure_or_dash(ns.and_then(|ns| clock.cycles(ns.median))),
                figure_or_dash(seed.map(|seed| seed.0)),
                figure_or_dash(seed.map(|seed| seed.1)),
                ns.map_or(0, |ns| ns.count).to_string(),
            ]);
            let params =
                params([("slots", slots.into()), ("state", state.name().into()), ("depth", depth.into())]);
            lab.report.add_time(&clock, "drain", params, "whole drain", ns);
        }
    }
    table.note(format!(
        "two clock readings of together {:.0} ns are part of every figure",
        clock.ns(clock::reading_ticks() as f64)
    ));
    let median = |state, slots| Some(results.get(&(state, slots)).copied().flatten()?.median);
    let over_bare = slot_counts.iter().filter_map(|&slots| {
        let times = ratio(median(State::RemoteDirty, slots), median(State::BareSwap, slots))?;
        Some(format!("x{} ({slots})", figure(times)))
    });
    table.note(format!("remote-dirty over bare swaps (slots): {}", over_bare.collect::<Vec<_>>().join(", ")));
    table.note("before and after: the seed's cycles for as many CPUs, upstream and patched");
    table.note("bare swaps: one for each of as many plain words that the other CPU has just written, without engine and counters: what this machine takes for the lines themselves; prefetched: each line is asked for, to be written, 16 slots ahead");
    if let Some(doubt) = doubt_of_cold(results) {
        table.note(doubt);
    }
    table.note("remote-dirty: the other CPU has just charged and uncharged in every slot; cold: twice the largest cache was read in between, so the code is cold too; empty: nothing to drain. Slots are memory that one other CPU wrote, not so many CPUs: lines that come from other sockets cost several times more.");
    lab.print(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cold_drains_as_fast_as_hot_ones_are_doubted() {
        let check = |slots, cold, count| {
            let ns = |median| Some(Summary { median, min: median, p90: median, count });
            doubt_of_cold(&[((State::Hot, slots), ns(100.0)), ((State::Cold, slots), ns(cold))].into())
        };
        assert_eq!(check(128, 900.0, 10), None);
        assert!(check(128, 110.0, 10).unwrap().contains("were not emptied"));
        assert_eq!(check(2, 110.0, 10), None);
        assert_eq!(check(128, 110.0, 9), None);
    }
}
