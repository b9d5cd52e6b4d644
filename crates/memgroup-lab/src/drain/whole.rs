//! One whole drain: of 1 to 512 slots with words in the drainer's caches, in no cache, or in the other CPU's.
//!
//!   remote-dirty:   CPU 1  fill every slot ─▶ say so ─▶ spin ...........
//!                   CPU 0  spin ...................... ─▶ drain, timed ─▶ check
//!
//! - I1. The bytes a drain returns are those that were stocked, and no counter holds a byte afterwards; else the
//!   run ends with an error.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use memgroup::{Config, Group};
use memgroup_percpu::{PerCpu, pin_virtual};

use super::spin::SpinStocks;
use super::{BySlots, PAGE_BYTES, REFUSED, seed_drain_cells};
use crate::harness::prelude::*;

/// Whole drains in nanoseconds, by state and slots.
type Results = BTreeMap<(State, usize), Option<Summary>>;

const JUDGED_SLOTS: usize = 128;
const JUDGED_DRAINS: usize = 10;
const COLD_OVER_HOT_LEAST: f64 = 2.0;
const LINE_BYTES: usize = 64;
/// Drains of one run of the workers; the first warms the code and does not count.
const DRAINS_A_RUN: usize = 4;
/// Drains traced of each number of slots.
const TRACED_DRAINS: usize = 20;

/// Where the words lie when the drain begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Hot,
    Cold,
    RemoteDirty,
    Empty,
    /// The seed's design: a stock for each slot behind a spin lock, just used by the other CPU.
    SpinLocks,
    /// One swap for each plain word that the other CPU has written, without the engine: the machine's own cost.
    BareSwap,
    /// The same, each line asked for some slots ahead.
    BareSwapAhead,
}

impl State {
    const ALL: [(State, &str); 7] = [
        (State::Hot, "hot"),
        (State::Cold, "cold"),
        (State::RemoteDirty, "remote-dirty"),
        (State::Empty, "empty"),
        (State::SpinLocks, "a spin lock a slot (control)"),
        (State::BareSwap, "bare swaps"),
        (State::BareSwapAhead, "bare swaps, prefetched"),
    ];

    /// For bare swaps, how many slots ahead a line is asked for.
    fn prefetch_ahead(self) -> Option<usize> {
        match self {
            State::BareSwap => Some(0),
            State::BareSwapAhead => Some(16),
            _ => None,
        }
    }

    /// Whether the other CPU fills the slots.
    fn is_remote(self) -> bool {
        !matches!(self, State::Hot | State::Cold | State::Empty)
    }
}

/// A group with stock in every one of its virtual slots, and as many plain words of no group.
struct Stocks {
    fixture: Fixture,
    slots: usize,
    bare: PerCpu<AtomicU64>,
    spin: SpinStocks,
}

impl Stocks {
    fn new(slots: usize, depth: usize) -> Result<Stocks> {
        let source = virtual_slots(slots)?;
        let config = Config::new().slots(source).depth_max(depth as u32);
        let (bare, spin) = (PerCpu::new(slots), SpinStocks::new(source));
        Ok(Stocks { fixture: Fixture::chain(config, depth, 1)?, slots, bare, spin })
    }

    fn group(&self) -> &Group {
        &self.fixture.leaves[0]
    }

    /// Leaves stock in every slot, by a charge and its uncharge there; returns the bytes stocked.
    fn fill(&self) -> Result<u64> {
        for slot in 0..self.slots {
            let _pinned = pin_virtual(slot);
            drop(self.group().try_charge(PAGE_BYTES).or_wrong(REFUSED)?);
        }
        let (stocked, least) = (self.group().stock().prepaid_bytes, self.slots as u64 * PAGE_BYTES);
        let few = || format!("{} slots hold {stocked} bytes, at least {least} were put there", self.slots);
        ensure(stocked >= least, few).map(|()| stocked)
    }

    /// Drains, and returns the ticks it took and the bytes that came back.
    fn timed_drain(&self) -> (u64, u64) {
        let begin = clock::now_ordered();
        let bytes = self.group().drain();
        (clock::now_ordered() - begin, bytes)
    }

    /// Leaves stock in every slot of the control; returns the bytes stocked.
    fn fill_spin(&self) -> Result<u64> {
        for slot in 0..self.slots {
            let _pinned = pin_virtual(slot);
            self.spin.consume(PAGE_BYTES);
            self.spin.refill(PAGE_BYTES);
        }
        let (stocked, least) = (self.spin.usage(), self.slots as u64 * PAGE_BYTES);
        let few = || format!("{} locked slots hold {stocked} bytes, not {least}", self.slots);
        ensure(stocked >= least, few).map(|()| stocked)
    }

    fn timed_spin_drain(&self) -> (u64, u64) {
        let begin = clock::now_ordered();
        let bytes = self.spin.drain();
        (clock::now_ordered() - begin, bytes)
    }

    /// Writes a plain word in every slot; returns their sum.
    fn fill_bare(&self) -> u64 {
        // ORDERING: Relaxed; the phase that hands the words over publishes them.
        self.bare.iter().for_each(|word| word.store(PAGE_BYTES, Ordering::Relaxed));
        self.slots as u64 * PAGE_BYTES
    }

    /// Swaps every plain word for zero, each line asked for `ahead` slots before its turn; 0 asks for none.
    fn timed_bare_swaps(&self, ahead: usize) -> (u64, u64) {
        let begin = clock::now_ordered();
        let mut bytes = 0;
        for slot in 0..self.slots {
            if ahead > 0 && slot + ahead < self.slots {
                prefetch_to_write(self.bare.get(slot + ahead));
            }
            // ORDERING: Relaxed; bare words that publish nothing.
            bytes += self.bare.get(slot).swap(0, Ordering::Relaxed);
        }
        (clock::now_ordered() - begin, bytes)
    }

    /// A drain took `taken` of `stocked` bytes; nothing is charged, so nothing may be left at any level.
    fn check_drained(&self, stocked: u64, taken: u64) -> Result<()> {
        let path = self.group().path();
        ensure(taken == stocked, || format!("a drain of {path} took {taken} of {stocked} bytes"))?;
        let groups = self.fixture.hierarchy.groups();
        groups.iter().try_for_each(|group| expect_bytes(group, "usage after a drain", group.usage(), 0))
    }
}

/// Measures all states and slot counts in turn; returns the remote-dirty medians.
pub(super) fn run(lab: &mut Lab<'_>, slot_counts: &[usize]) -> Result<BySlots> {
    let depth = lab.args.depth();
    let buffer = cold_buffer()?;
    let stocks = slot_counts.iter().map(|&slots| Stocks::new(slots, depth)).collect::<Result<Vec<_>>>()?;
    let of_all_states = |stocks| State::ALL.map(|(state, _)| (state, stocks));
    let mut cells: Vec<(State, &Stocks)> = stocks.iter().flat_map(of_all_states).collect();
    let mut samples: BTreeMap<(State, usize), Vec<f64>> = BTreeMap::new();
    for run in 0..lab.effort.calls.div_ceil(DRAINS_A_RUN - 1) {
        lab.random.shuffle(&mut cells);
        for &(state, stocks) in &cells {
            // Emptying the caches takes milliseconds: a third of the runs is enough.
            if state != State::Cold || run.is_multiple_of(3) {
                let ticks = drains(&lab.workers, state, stocks, &buffer)?;
                let ns = ticks.into_iter().map(|ticks| lab.clock.ns(ticks as f64));
                samples.entry((state, stocks.slots)).or_default().extend(ns);
            }
        }
    }
    let results: Results = samples.into_iter().map(|(key, samples)| (key, Summary::of(&samples))).collect();
    show(lab, depth, slot_counts, &results)?;
    let remote_dirty = |&slots| (slots, median_of(&results, State::RemoteDirty, slots));
    Ok(slot_counts.iter().map(remote_dirty).collect())
}

fn median_of(results: &Results, state: State, slots: usize) -> Option<f64> {
    median(results.get(&(state, slots)).copied().flatten())
}

/// Pages of twice the largest cache, all backed.
fn cold_buffer() -> Result<Mapping> {
    let bytes = largest_cache_bytes() * 2;
    let buffer = Mapping::new(bytes)?;
    (0..bytes).step_by(page_bytes()).for_each(|offset| buffer.touch(offset));
    Ok(buffer)
}

/// A few drains in one state; ticks of those that count.
fn drains(workers: &Workers, state: State, stocks: &Stocks, buffer: &Mapping) -> Result<Vec<u64>> {
    if !state.is_remote() {
        return workers.run_one(|| drain_own(state, stocks, buffer));
    }
    let turn = Turn::default();
    let mut results = workers.try_run(2, |thread| match thread {
        0 => drain_after_writer(state, stocks, &turn),
        _ => write_remote(state, stocks, &turn).map(|()| Vec::new()),
    })?;
    Ok(results.swap_remove(0))
}

/// Hands the stocks from the writer to the drainer and back.
#[derive(Default)]
struct Turn {
    phase: AtomicUsize,
    stocked: AtomicU64,
}

impl Turn {
    fn wait(&self, phase: usize) {
        // ORDERING: Acquire; pairs with the Release in `set`, so the filled words are seen filled.
        spin_until(|| (self.phase.load(Ordering::Acquire) == phase).then_some(()));
    }

    fn set(&self, phase: usize) {
        // ORDERING: Release; pairs with the Acquire in `wait`.
        self.phase.store(phase, Ordering::Release);
    }
}

/// Fills the stocks before each drain. After an error it goes on, so that the drainer is not left waiting.
fn write_remote(state: State, stocks: &Stocks, turn: &Turn) -> Result<()> {
    let mut first_error = Ok(());
    for drain in 0..DRAINS_A_RUN {
        let filled = match state {
            State::SpinLocks => stocks.fill_spin(),
            state if state.prefetch_ahead().is_some() => Ok(stocks.fill_bare()),
            _ => stocks.fill(),
        };
        // ORDERING: Relaxed; published by the phase.
        turn.stocked.store(*filled.as_ref().unwrap_or(&0), Ordering::Relaxed);
        first_error = first_error.and(filled.map(drop));
        turn.set(2 * drain + 1);
        turn.wait(2 * drain + 2);
    }
    first_error
}

/// Drains after each fill. After an error it goes on, so that the writer is not left waiting.
fn drain_after_writer(state: State, stocks: &Stocks, turn: &Turn) -> Result<Vec<u64>> {
    let (mut counted, mut first_error) = (Vec::new(), Ok(()));
    for drain in 0..DRAINS_A_RUN {
        let before = ThreadUsage::now();
        turn.wait(2 * drain + 1);
        let (ticks, taken) = match state.prefetch_ahead() {
            None if state == State::SpinLocks => stocks.timed_spin_drain(),
            None => stocks.timed_drain(),
            Some(ahead) => stocks.timed_bare_swaps(ahead),
        };
        // ORDERING: Relaxed; published by the phase that was waited for.
        first_error = first_error.and(stocks.check_drained(turn.stocked.load(Ordering::Relaxed), taken));
        turn.set(2 * drain + 2);
        keep(&mut counted, drain, before, ticks);
    }
    first_error.map(|()| counted)
}

fn drain_own(state: State, stocks: &Stocks, buffer: &Mapping) -> Result<Vec<u64>> {
    let mut counted = Vec::new();
    // A warm run of the code would defeat emptying the caches: then the first drain is the only one.
    let drains = if state == State::Cold { 1..2 } else { 0..DRAINS_A_RUN };
    for drain in drains {
        let stocked = if state == State::Empty { 0 } else { stocks.fill()? };
        if state == State::Cold {
            std::hint::black_box(buffer.sweep(LINE_BYTES));
        }
        let before = ThreadUsage::now();
        let (ticks, taken) = stocks.timed_drain();
        stocks.check_drained(stocked, taken)?;
        keep(&mut counted, drain, before, ticks);
    }
    Ok(counted)
}

/// Keeps the ticks of a drain, unless it is the first or the kernel took the thread off its CPU.
fn keep(counted: &mut Vec<u64>, drain: usize, before: ThreadUsage, ticks: u64) {
    if drain > 0 && before.is_undisturbed() {
        counted.push(ticks);
    }
}

/// Drains of lines that lie in no cache take far longer than of lines that do; else the caches were not emptied. Judged
/// where there are enough lines and drains to show it. It depends on time, so it is a note and no error.
fn doubt_of_cold(results: &Results) -> Option<String> {
    results.iter().filter(|((state, _), _)| *state == State::Cold).find_map(|(&(_, slots), cold)| {
        let (cold, hot) = ((*cold)?, (*results.get(&(State::Hot, slots))?)?);
        let judged = slots >= JUDGED_SLOTS && cold.count.min(hot.count) >= JUDGED_DRAINS;
        let (cold, hot) = (cold.median, hot.median);
        (judged && cold < COLD_OVER_HOT_LEAST * hot).then(|| {
            format!("cold drains of {slots} slots take {cold:.0} ns, hot ones {hot:.0}: the caches were not emptied, do not use these rows")
        })
    })
}

fn show(lab: &mut Lab<'_>, depth: usize, slot_counts: &[usize], results: &Results) -> Result<()> {
    let columns = ["whole drain", "slots", "ns (min..p90)", "a slot", "cycles", "before", "after", "drains"];
    let mut table = Table::new(format!("one drain of all slots of a group of depth {depth}"), columns);
    for (state, name) in State::ALL {
        for &slots in slot_counts {
            let ns = results.get(&(state, slots)).copied().flatten();
            let [before, after] =
                if state == State::RemoteDirty { seed_drain_cells(slots) } else { [dash(), dash()] };
            let params = json!({"slots": slots, "state": name, "depth": depth});
            let time = lab.record("drain", params).time("whole drain", ns);
            let a_slot = figure_or_dash(ns.map(|ns| ns.median / slots as f64));
            let cycles = figure_or_dash(ns.and_then(|ns| lab.clock.cycles(ns.median)));
            let drains = ns.map_or(0, |ns| ns.count).to_string();
            table.row(name, [slots.to_string(), time, a_slot, cycles, before, after, drains]);
        }
    }
    let reading_ns = lab.clock.ns(clock::reading_ticks() as f64);
    table.note(format!("two clock readings of together {reading_ns:.0} ns are part of every figure"));
    let over_bare = slot_counts.iter().filter_map(|&slots| {
        let of = |state| median_of(results, state, slots);
        Some(format!("x{} ({slots})", figure(ratio(of(State::RemoteDirty), of(State::BareSwap))?)))
    });
    table.note(format!("remote-dirty over bare swaps (slots): {}", over_bare.collect::<Vec<_>>().join(", ")));
    table.note("a spin lock a slot: the seed's design without its list of groups, a lock for each slot that the other CPU has just used for a consume and a refill");
    table.note("before and after: the seed's cycles for as many CPUs, upstream and patched");
    table.note("bare swaps: one for each of as many plain words that the other CPU has just written, without engine and counters: the machine's own cost of the lines. Prefetched: each line is asked for, to be written, 16 slots ahead");
    if let Some(doubt) = doubt_of_cold(results) {
        table.note(doubt);
    }
    table.note("remote-dirty: the other CPU has just charged and uncharged in every slot. Cold: twice the largest cache was read in between, so the code is cold too. Empty: nothing to drain. Slots are memory that one other CPU wrote, not so many CPUs: lines that come from other sockets cost several times more.");
    lab.print(&table)
}

/// Traces drains of every number of slots and prints the system calls that were seen.
pub(super) fn trace(lab: &mut Lab<'_>, slot_counts: &[usize]) -> Result<()> {
    let depth = lab.args.depth();
    let columns = ["slots", "drains", "with a system call", "first call"];
    let mut table = Table::new("system calls of a drain, traced", columns);
    let mut calling_in_all = Some(0);
    for &slots in slot_counts {
        let stocks = Stocks::new(slots, depth)?;
        let seen = lab.workers.run_one(|| traced_drains(&stocks))?;
        calling_in_all = calling_in_all.zip(seen).map(|(sum, (calling, _))| sum + calling);
        let mut row = lab.record("drain", json!({"slots": slots, "drains": TRACED_DRAINS}));
        let cells = seen.map(|(calling, first)| {
            let first = first.map_or_else(dash, |number| number.to_string());
            [row.count("drains with a system call", "count", calling), first]
        });
        let [calling, first] = cells.unwrap_or_else(|| ["not traced"; 2].map(str::to_owned));
        table.row(slots.to_string(), [TRACED_DRAINS.to_string(), calling, first]);
    }
    let calling = calling_in_all.map(|calling| calling as f64);
    lab.at_most("drains that make a system call", calling, 0.0, "");
    lab.print(&table)
}

/// Fills and drains under the tracer; the number of drains that made a call, and the first call. None where nothing can be traced.
fn traced_drains(stocks: &Stocks) -> Result<Option<(u64, Option<i64>)>> {
    let (mut calling, mut first) = (0, None);
    for _ in 0..TRACED_DRAINS {
        let (stocked, mut taken) = (stocks.fill()?, 0);
        match first_call(|| taken = stocks.group().drain())? {
            Traced::None => {}
            Traced::First(number) => {
                calling += 1;
                first.get_or_insert(number);
            }
            Traced::NotHere => return Ok(None),
        }
        stocks.check_drained(stocked, taken)?;
    }
    Ok(Some((calling, first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubts_cold_drains_that_are_as_fast_as_hot_ones() {
        let check = |slots, cold, count| {
            let ns = |median| Some(Summary { median, min: median, p90: median, count });
            doubt_of_cold(&[((State::Hot, slots), ns(100.0)), ((State::Cold, slots), ns(cold))].into())
        };
        assert_eq!(check(128, 900.0, 10), None);
        assert!(check(128, 110.0, 10).unwrap().contains("were not emptied"));
        assert_eq!(check(2, 110.0, 10), None);
        assert_eq!(check(128, 110.0, 9), None);
    }

    #[test]
    fn drains_the_stock_of_every_slot() {
        let stocks = Stocks::new(8, 3).unwrap();
        let stocked = stocks.fill().unwrap();
        let (_, taken) = stocks.timed_drain();
        stocks.check_drained(stocked, taken).unwrap();
        assert_eq!(stocks.group().drain(), 0);
    }

    #[test]
    fn swaps_every_bare_word() {
        let stocks = Stocks::new(8, 3).unwrap();
        for ahead in [0, 1, 3, 8, 9] {
            assert_eq!(stocks.fill_bare(), 8 * PAGE_BYTES);
            assert_eq!(stocks.timed_bare_swaps(ahead).1, 8 * PAGE_BYTES);
            assert_eq!(stocks.timed_bare_swaps(ahead).1, 0);
        }
    }

    #[test]
    fn fails_when_bytes_are_left_in_a_slot() {
        let stocks = Stocks::new(2, 3).unwrap();
        let stocked = stocks.fill().unwrap();
        let error = stocks.check_drained(stocked, stocked).unwrap_err();
        assert!(error.to_string().contains("usage after a drain of /"), "{error}");
        let error = stocks.check_drained(stocked, 0).unwrap_err();
        assert!(error.to_string().contains("took 0 of"), "{error}");
    }

    #[test]
    fn makes_no_system_call_in_a_drain() {
        for slots in [1, 2, 128] {
            let seen = traced_drains(&Stocks::new(slots, 3).unwrap()).unwrap();
            // The tracer's own tests show that it sees a call; where it cannot trace there is nothing to claim.
            assert!(matches!(seen, None | Some((0, None))), "{slots} slots: {seen:?}");
        }
    }
}
