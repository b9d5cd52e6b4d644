//! Remote draining (seed 000): any thread empties every slot's stock itself, and no other thread is
//! interrupted.
//!
//! The letter (2023, 128 CPUs in 8 NUMA nodes), before and after its patches:
//!
//! ```text
//!   drain_all_stock, cycles:   1 CPU 44,331 -> 38,978   8 CPUs 43,993 -> 39,027   128 CPUs 156,275 -> 58,054
//!   consume_stock 53.5 -> 63.8   refill_stock 65.5 -> 67.5   mod_objcg_state 85.0 -> 98.0 cycles
//!   consume_obj_stock 60.0 -> 63.3   refill_obj_stock 73.2 -> 78.6 cycles
//!   8 hours: 98,248,009,999 calls beside 592 drains, a lock found taken 0 times
//!   a system call of mmap + munmap: 3,012 -> 2,991 cycles; with a write 5,750 -> 5,746
//! ```
//!
//! - I1. The bytes that a drain returns are those that were stocked; afterwards no counter holds a
//!   byte.

mod controls;

use std::io::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use memgroup::{Config, Freshness, Group, Maintenance, Reach, stats::memory};
use memgroup_percpu::{PerCpu, pin_virtual};

use self::controls::{Owners, SpinStocks};
use crate::Args;
use crate::harness::prelude::*;

const SEED: Seed = Seed {
    name: "000",
    title: "memcg: drain the stocks of all CPUs from the current one, 2023",
    machine: "128 CPUs in 8 NUMA nodes",
    source: "its cover letter's",
    address: None,
    figures: &[
        SeedFigure::new("consume_stock", "cycles", 53.512_010_46, 63.759_834_75),
        SeedFigure::new("refill_stock", "cycles", 65.469_915_84, 67.457_083_22),
        SeedFigure::new("mod_objcg_state", "cycles", 84.953_650_55, 98.038_413_84),
        SeedFigure::new("consume_obj_stock", "cycles", 60.036_194_38, 63.254_345_6),
        SeedFigure::new("refill_obj_stock", "cycles", 73.237_578_12, 78.563_900_25),
        SeedFigure::new("drain_all_stock, 1 CPU", "cycles", 44_331.108_31, 38_978.035_81),
        SeedFigure::new("drain_all_stock, 8 CPUs", "cycles", 43_992.965_12, 39_026.766_54),
        SeedFigure::new("drain_all_stock, 128 CPUs", "cycles", 156_274.663_4, 58_053.874_21),
        SeedFigure::part("calls beside 592 drains", "count", None, Some(98_248_009_999.0)),
        SeedFigure::part("of them that found a lock taken", "count", None, Some(0.0)),
        SeedFigure::new("mmap + munmap, no write", "cycles/call", 3012.22, 2991.195),
        SeedFigure::new("mmap + write + munmap", "cycles/call", 5749.605, 5746.495),
    ],
};

const PAGE: u64 = 4096;
const DEPTH: usize = 3;
const REFUSED: &str = "a charge far below every limit was refused";
const SLOT_COUNTS: [usize; 5] = [1, 2, 8, 128, 512];
/// Drains that are traced for each number of slots.
const TRACED: u64 = 20;
/// More owners than this are not started: a thread for each.
const OWNERS_MOST: usize = 128;

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let mut lab = Lab::open(args, Some(SEED), None, out)?;
    let slot_counts = args.slots.map_or_else(|| SLOT_COUNTS.to_vec(), |slots| vec![slots]);
    whole(&mut lab, &slot_counts)?;
    victims(&mut lab)?;
    soak(&mut lab)?;
    calls(&mut lab)?;
    mappings(&mut lab)?;
    interrupts(&mut lab)?;
    lab.close()
}

/// A group with stock in each of its virtual slots, and the same on both controls that another CPU
/// can fill.
struct Stocks {
    fixture: Fixture,
    slots: usize,
    spin: SpinStocks,
    bare: PerCpu<AtomicU64>,
}

/// What is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The other CPU has just charged and uncharged in every slot.
    Dirty,
    /// No slot holds anything.
    Empty,
    /// The seed's design, just used by the other CPU.
    Spin,
    /// One swap for each plain word that the other CPU has written: the machine's own cost.
    Bare,
}

impl State {
    const ALL: [(State, &str); 4] = [
        (State::Dirty, "memgroup"),
        (State::Empty, "memgroup, empty stocks"),
        (State::Spin, "a spin lock a slot (control)"),
        (State::Bare, "bare swaps"),
    ];
}

impl Stocks {
    fn new(slots: usize) -> Result<Stocks> {
        let source = virtual_slots(slots)?;
        let fixture = Fixture::chain(Config::with_slots(source), DEPTH, 1)?;
        Ok(Stocks { fixture, slots, spin: SpinStocks::new(source), bare: PerCpu::new(slots) })
    }

    fn group(&self) -> &Group {
        &self.fixture.leaves[0]
    }

    /// Leaves stock in every slot; the bytes stocked.
    fn fill(&self, state: State) -> Result<u64> {
        if state == State::Empty {
            return Ok(0);
        }
        for slot in 0..self.slots {
            let _pin = pin_virtual(slot);
            match state {
                State::Spin => {
                    self.spin.consume(PAGE);
                    self.spin.refill(PAGE);
                }
                // ORDERING: Relaxed; the workers' orders publish it.
                State::Bare => self.bare.get(slot).store(PAGE, Ordering::Relaxed),
                _ => drop(self.group().try_charge(PAGE).or_wrong(REFUSED)?),
            }
        }
        let (slots, least) = (self.slots as u64, self.slots as u64 * PAGE);
        let stocked = match state {
            State::Spin => self.spin.usage(),
            State::Bare => slots * PAGE,
            _ => self.group().stock().prepaid_bytes,
        };
        ensure(stocked >= least, || {
            format!("{slots} slots hold {stocked} bytes, at least {least} were put there")
        })?;
        Ok(stocked)
    }

    fn drain(&self, state: State) -> u64 {
        match state {
            State::Spin => self.spin.drain(),
            // ORDERING: Relaxed; bare words that publish nothing.
            State::Bare => (0..self.slots).map(|slot| self.bare.get(slot).swap(0, Ordering::Relaxed)).sum(),
            _ => self.group().drain(),
        }
    }

    /// A drain took `taken` of `stocked` bytes; nothing is charged, so nothing is left at any level
    /// (I1).
    fn check(&self, stocked: u64, taken: u64) -> Result<()> {
        let path = self.group().path();
        ensure(taken == stocked, || format!("a drain of {path} took {taken} of {stocked} bytes"))?;
        let groups = self.fixture.hierarchy.groups();
        groups.iter().try_for_each(|group| expect_bytes(group, "usage after a drain", group.usage(), 0))
    }
}

/// One drain of all slots: the second worker fills them while the first spins, then the first
/// drains them.
fn whole(lab: &mut Lab<'_>, slot_counts: &[usize]) -> Result<()> {
    let stocks = slot_counts.iter().map(|&slots| Stocks::new(slots)).collect::<Result<Vec<_>>>()?;
    let cases: Vec<_> =
        stocks.iter().flat_map(|stocks| State::ALL.map(|(state, _)| (state, stocks))).collect();
    let mut found: Vec<Vec<f64>> = vec![Vec::new(); cases.len()];
    let warm = Stocks::new(1)?;
    lab.in_turns(lab.effort.calls, cases.len(), |lab, at| {
        let (state, stocks) = cases[at];
        // The bytes that were stocked, and one: 0 until then. The drainer spins meanwhile, after drains
        // that warm the code.
        let ready = AtomicU64::new(0);
        let parts = lab.workers.try_run(2, |thread| {
            if thread == 1 {
                let filled = stocks.fill(state);
                // ORDERING: Release; pairs with the Acquire of the drainer, which sees the filled slots. Also
                // after an error.
                ready.store(*filled.as_ref().unwrap_or(&0) + 1, Ordering::Release);
                return filled.map(|_| (None, 0, 0));
            }
            (0..3).for_each(|_| _ = warm.drain(state));
            let before = ThreadUsage::now();
            // ORDERING: Acquire, as above.
            let filled = spin_until(|| ready.load(Ordering::Acquire).checked_sub(1));
            let begin = clock::now_ordered();
            let taken = stocks.drain(state);
            let ticks = clock::now_ordered() - begin;
            Ok((before.is_undisturbed().then_some(ticks), filled, taken))
        })?;
        let (ticks, filled, taken) = parts[0];
        found[at].extend(ticks.map(|ticks| lab.clock.ns(ticks as f64)));
        stocks.check(filled, taken)
    })?;
    let columns = ["", "slots", "ns: median (min..p90)", "cycles", "seed: before", "after"];
    let mut table = Table::new(format!("one drain of all slots of a group of depth {DEPTH}"), columns);
    let mut medians = [None; 2];
    for ((state, stocks), ns) in cases.iter().zip(&found) {
        let (slots, ns) = (stocks.slots, Summary::of(ns));
        let name = State::ALL.iter().find(|(of, _)| of == state).map_or("", |(_, name)| name);
        let seed = format!("drain_all_stock, {slots} CPU{}", if slots == 1 { "" } else { "s" });
        let [before, after] = if *state == State::Dirty { SEED.cells(&seed) } else { [dash(), dash()] };
        let time = lab.record(name, json!({"slots": slots})).time("whole drain", ns);
        let cycles = figure_or_dash(ns.and_then(|ns| lab.clock.cycles(ns.median)));
        table.row(name, [slots.to_string(), time, cycles, before, after]);
        if slots == 128 && matches!(state, State::Dirty | State::Spin) {
            medians[usize::from(*state == State::Spin)] = median(ns);
        }
    }
    let mut woken = None;
    for &slots in slot_counts.iter().filter(|&&slots| slots <= OWNERS_MOST) {
        let (clock, rounds) = (lab.clock, lab.effort.calls.div_ceil(3));
        let samples = lab.workers.run_one(|| {
            let owners = Owners::start(slots)?;
            let sample = |_| {
                // Lets the owners fall asleep: a call to a thread that has not parked yet wakes no thread.
                std::thread::sleep(std::time::Duration::from_micros(200));
                owners.drain(clock)
            };
            (0..rounds).map(sample).collect::<Result<Vec<_>>>()
        })?;
        for (part, name) in
            ["waking each owner, called", "waking each owner, done (control)"].iter().enumerate()
        {
            let ns = Summary::of(samples.iter().map(|sample| sample[part]));
            let time = lab.record(*name, json!({"slots": slots})).time("whole drain", ns);
            let cycles = figure_or_dash(ns.and_then(|ns| lab.clock.cycles(ns.median)));
            table.row(*name, [slots.to_string(), time, cycles, dash(), dash()]);
            woken = median(ns).filter(|_| slots == 128).or(woken);
        }
    }
    if slot_counts.contains(&128) {
        let [drain, spin] = medians;
        lab.at_most("a drain of 128 slots", drain.map(|ns| ns / 1e3), 1.5, "us");
        lab.at_least("waking the owners over draining, 128 slots", ratio(woken, drain), 10.0, "x");
        lab.at_most("a drain over one by spin locks, 128 slots", ratio(drain, spin), 1.0, "x");
    }
    table.note("the other CPU has just charged and uncharged in every slot. Slots are memory that one other CPU wrote, not so many CPUs: lines that come from other sockets cost several times more. Bare swaps: plain words that lie as far apart as the engine's slots, without engine and counters. The spin locks lie one after the other, so the processor fetches them ahead. Waking: the kernel's way before the seed, which called the owners and did not wait until they were done");
    lab.print(&table)
}

/// What the second CPU's charger has beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// Its own group is drained by the other CPU, every so many microseconds.
    Drains(u64),
    /// Another group is, whose words lie on the same cache line.
    Neighbour(u64),
    /// A thread on its own CPU is woken, and drains: the kernel's way before the seed.
    Wakes(u64),
}

impl Beside {
    fn name(self) -> (&'static str, u64) {
        match self {
            Beside::Nothing => ("no drains (control)", u64::MAX),
            Beside::Drains(us) => ("its group drained by the other CPU", us),
            Beside::Neighbour(us) => ("a group on its line drained", us),
            Beside::Wakes(us) => ("a thread on its CPU woken to drain (control)", us),
        }
    }
}

/// One window, as its charger saw it.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    ticks: u64,
    pairs: u64,
    drains: u64,
    /// Bytes that the window's own drains returned.
    bytes: u64,
    usage: ThreadUsage,
}

/// Two groups whose words lie on one line: they were made one after the other.
struct Victims {
    fixture: Fixture,
    worker: Sleeper,
}

impl Victims {
    fn new(lab: &Lab<'_>) -> Result<Victims> {
        let fixture = Fixture::chain(Config::with_slots(lab.slots), DEPTH, 2)?;
        let group = fixture.leaves[0].clone();
        let worker = Sleeper::start("worker on the victim's CPU", 1, move || _ = group.drain())?;
        Ok(Victims { fixture, worker })
    }

    /// Pairs of the first group on the second worker, and the disturbance by the first.
    fn window(&self, lab: &Lab<'_>, us: u64, beside: Beside) -> Result<Seen> {
        let (victim, neighbour) = (&self.fixture.leaves[0], &self.fixture.leaves[1]);
        let (charging, per_us) = (AtomicUsize::new(1), lab.clock.ticks_per_us());
        let seen = lab.workers.run_together(2, 2 * per_us, |thread, begin| {
            if thread == 1 {
                let mut seen = Seen::default();
                let (usage, end) = (ThreadUsage::now(), begin + us * per_us);
                let begin = clock::now();
                let mut charge = || {
                    while clock::now() < end {
                        for _ in 0..64 {
                            drop(victim.try_charge(PAGE).or_wrong(REFUSED)?);
                        }
                        seen.pairs += 64;
                    }
                    Ok(())
                };
                let charged = charge();
                // ORDERING: Release; pairs with the drainer's Acquire, though only its end depends on it.
                // Also after an error.
                charging.store(0, Ordering::Release);
                (seen.ticks, seen.usage) = (clock::now() - begin, ThreadUsage::now().since(usage));
                return charged.map(|()| seen);
            }
            let (mut seen, period) = (Seen::default(), beside.name().1.saturating_mul(per_us));
            let mut next = begin.saturating_add(period);
            // ORDERING: Acquire; pairs with the Release of the charger. The drainer spins in every row.
            while charging.load(Ordering::Acquire) > 0 {
                if clock::now() < next {
                    std::hint::spin_loop();
                    continue;
                }
                next += period;
                seen.drains += 1;
                match beside {
                    Beside::Nothing => {}
                    Beside::Drains(_) => seen.bytes += victim.drain(),
                    Beside::Neighbour(_) => {
                        drop(neighbour.try_charge(PAGE).or_wrong(REFUSED)?);
                        seen.bytes += neighbour.drain();
                    }
                    Beside::Wakes(_) => self.worker.call(),
                }
            }
            Ok(seen)
        })?;
        // No call is left for the next window.
        self.worker.rest();
        Ok(Seen { drains: seen[0].drains, bytes: seen[0].bytes, ..seen[1] })
    }
}

/// What drains cost a thread that charges meanwhile: its time, and switches of its CPU.
fn victims(lab: &mut Lab<'_>) -> Result<()> {
    let victims = Victims::new(lab)?;
    let kinds = [Beside::Nothing, Beside::Drains(5), Beside::Neighbour(5), Beside::Wakes(20)];
    let counted = victims.fixture.leaves[1].stock().drained_bytes;
    let mut seen = vec![Vec::new(); kinds.len()];
    let (rounds, us) = lab.pick((2, 200), (25, 5_000), (150, 5_000));
    lab.in_turns(rounds, kinds.len(), |lab, at| {
        seen[at].push(victims.window(lab, us, kinds[at])?);
        Ok(())
    })?;
    let drained = |at: usize| seen[at].iter().map(|one| one.bytes).sum::<u64>();
    let after = victims.fixture.leaves[1].stock().drained_bytes - counted;
    expect("drained bytes of the neighbour", after, drained(2))?;
    ensure(rounds < 10 || drained(1) > 0, || "drains beside a charger took no byte".to_owned())?;
    let mut table = Table::new(
        format!("pairs beside drains, depth {DEPTH}"),
        [
            "beside the charger",
            "every us",
            "ns a pair",
            "ns lost a drain (min..p90)",
            "drains",
            "its switches/s",
        ],
    );
    let mut alone = None;
    for (kind, seen) in kinds.iter().zip(&seen) {
        let (name, period) = kind.name();
        let wakes = matches!(kind, Beside::Wakes(_));
        // Where a thread is woken, switches are the cost; elsewhere other work on the machine makes them.
        let counting = || seen.iter().filter(|seen| wakes || seen.usage.switches_involuntary == 0);
        let ns = |ticks: f64| lab.clock.ns(ticks);
        let pair = Summary::of(counting().map(|one| ns(one.ticks as f64) / one.pairs.max(1) as f64));
        let alone = *alone.get_or_insert(median(pair));
        let lost =
            Summary::of(counting().filter(|one| one.drains > 0).filter_map(|one| {
                Some((ns(one.ticks as f64) - one.pairs as f64 * alone?) / one.drains as f64)
            }));
        let seconds = ns(seen.iter().map(|one| one.ticks as f64).sum()) / 1e9;
        let switches = seen.iter().map(|one| one.usage.switches_involuntary + one.usage.switches_voluntary);
        let switches = switches.sum::<u64>() as f64 / seconds;
        let mut row = lab.record(name, json!({"period": if period == u64::MAX { 0 } else { period }}));
        let cells = [
            if period == u64::MAX { dash() } else { period.to_string() },
            row.time("pair beside drains", pair),
            if *kind == Beside::Nothing { dash() } else { row.time("loss a drain", lost) },
            count(counting().map(|one| one.drains).sum()),
            row.value("switches", "1/s", Some(switches)),
        ];
        table.row(name, cells);
        if *kind == Beside::Drains(5) {
            // On one CPU drainer and charger take turns, and nothing is drained while the charger runs.
            let us = lost.filter(|_| lab.workers.cpus > 1).map(|ns| ns.median / 1e3);
            lab.at_most("a charger's loss by a drain of its group, one every 5 us", us, 0.5, "us");
        }
    }
    table.note("loss: the charger's time beyond its pairs at the pace without drains, over the drains. The groups of the neighbour's rows have their words on one line of each slot. A row without a window that the kernel left alone has a dash");
    lab.print(&table)?;
    victims.fixture.check_empty()
}

/// The seed's soak, for seconds instead of hours but with a drainer that never rests.
fn soak(lab: &mut Lab<'_>) -> Result<()> {
    let fixture = Fixture::chain(Config::with_slots(lab.slots), DEPTH, 1)?;
    let (group, spin) = (&fixture.leaves[0], SpinStocks::new(lab.slots));
    let mut table = Table::new(
        "a drainer that never rests beside a charger",
        ["", "calls", "drains", "found a lock taken", "pairs over 10 us, per million"],
    );
    let (ticks, clock, us) = (lab.clock.ticks_per_us(), lab.clock, lab.effort.soak.as_micros() as u64 / 4);
    let cases = [
        ("memgroup, drainer at rest", false, false),
        ("memgroup", false, true),
        ("a spin lock a slot, drainer at rest", true, false),
        ("a spin lock a slot (control)", true, true),
    ];
    for (name, locks, drains) in cases {
        let (charging, before, stock) = (AtomicUsize::new(1), spin.contended(), group.stock());
        let parts = lab.workers.run_together(2, 2 * ticks, |thread, begin| {
            let (mut done, mut slow) = (0_u64, 0_u64);
            if thread == 0 {
                // ORDERING: Acquire; pairs with the Release of the charger.
                while charging.load(Ordering::Acquire) > 0 {
                    if drains {
                        _ = if locks { spin.drain() } else { group.drain() };
                        done += 1;
                    }
                }
                return Ok([done, slow]);
            }
            let mut last = clock::now();
            let mut charge = || {
                while last < begin + us * ticks {
                    if locks {
                        spin.consume(PAGE);
                        spin.refill(PAGE);
                    } else {
                        drop(group.try_charge(PAGE).or_wrong(REFUSED)?);
                    }
                    let now = clock::now();
                    slow += u64::from(now - last > 10 * ticks);
                    (done, last) = (done + 1, now);
                }
                Ok(())
            };
            let charged = charge();
            // ORDERING: Release; pairs with the Acquire above. Also after an error.
            charging.store(0, Ordering::Release);
            charged.map(|()| [done, slow])
        })?;
        let ([drained, _], [pairs, slow]) = (parts[0], parts[1]);
        if !locks {
            let after = group.stock();
            let charges = after.hits + after.misses - stock.hits - stock.misses;
            expect("hits and misses of the pairs", charges, pairs)?;
        }
        let contended = spin.contended() - before;
        let mut row = lab.record(name, json!({}));
        let cells = [
            row.count("calls", "count", 2 * pairs),
            row.count("drains", "count", drained),
            if locks {
                row.count("found a lock taken", "count", contended)
            } else {
                "there is none".to_owned()
            },
            row.value("slow pairs", "per million", Some(slow as f64 * 1e6 / pairs.max(1) as f64)),
        ];
        table.row(name, cells);
    }
    expect("bytes left by the spin locks", spin.usage() - spin.drain(), 0)?;
    table.note(format!("the seed: 0 in 98,248,009,999 calls beside 592 drains in over 8 hours. Here each row is {:.1} s, with drains without a rest. A call is a charge or an uncharge, each pair is timed. A pair over 10 us lost its CPU", clock.ns((us * ticks) as f64) / 1e9));
    lab.print(&table)?;
    fixture.check_empty()
}

/// Charges of one half: together they fit the stock of one group and slot.
const HALVES: [(u64, usize, &str, [&str; 2]); 2] = [
    (PAGE, 32, "a page", ["consume_stock", "refill_stock"]),
    (64, 1024, "an object of 64 bytes", ["consume_obj_stock", "refill_obj_stock"]),
];

/// Consume and refill by themselves, in cycles, beside the seed's table; and one addition to a
/// statistic.
fn calls(lab: &mut Lab<'_>) -> Result<()> {
    let fixture = Fixture::chain(Config::with_slots(lab.slots), DEPTH, 1)?;
    let (leaf, spin) = (&fixture.leaves[0], SpinStocks::new(lab.slots));
    let (watch, rounds, slots) = (lab.clock.stopwatch(), lab.effort.calls, lab.slots);
    let mut rows: Vec<(String, &'static str, &str, Vec<f64>)> = Vec::new();
    for (bytes, number, what, seed) in HALVES {
        let charge = || leaf.try_charge(bytes).or_wrong(REFUSED);
        let ours =
            lab.workers.run_one(|| halves(charge, drop, || leaf.stock().misses, watch, number, rounds))?;
        let consume = || {
            spin.consume(bytes);
            Ok(bytes)
        };
        let free = |bytes| spin.refill(bytes);
        let control =
            lab.workers.run_one(|| halves(consume, free, || spin.misses(), watch, number, rounds))?;
        for (half, ours, control) in [(0, ours.0, control.0), (1, ours.1, control.1)] {
            let name = format!("{} {what}", ["consume", "refill"][half]);
            rows.push((name.clone(), "memgroup", seed[half], ours));
            rows.push((name, "a spin lock a slot (control)", "", control));
        }
    }
    expect("bytes left by the spin locks", spin.usage() - spin.drain(), 0)?;
    let (statistics, counts) = (fixture.hierarchy.memory(), PerCpu::<AtomicU64>::new(slots.slots()));
    const UPDATES: u64 = 1024;
    let timed = |update: &(dyn Fn(u64) + Sync)| {
        let round = |_| watch.time(|| (0..UPDATES).for_each(update)).0 / UPDATES as f64;
        lab.workers.run_one(|| (0..rounds).map(round).collect::<Vec<f64>>())
    };
    let added = timed(&|bytes| statistics.add(leaf, memory::FILE, bytes as i64));
    // ORDERING: Relaxed; a statistic orders nothing.
    let bare = timed(&|bytes| _ = counts.get(slots.current()).fetch_add(bytes, Ordering::Relaxed));
    rows.push(("an addition to a statistic".to_owned(), "memgroup", "mod_objcg_state", added));
    rows.push(("an addition to a statistic".to_owned(), "a slot's word (control)", "", bare));
    let sum = statistics.get(leaf, memory::FILE, Reach::Local, Freshness::Fresh);
    expect("the statistic after the updates", sum, rounds as i64 * (0..UPDATES as i64).sum::<i64>())?;
    let columns = ["", "by", "cycles: median (min..p90)", "ns", "seed: before", "after"];
    let mut table = Table::new("a stock hit and its return, each by itself, and a statistic", columns);
    for (name, by, seed, ns) in rows {
        let ns = Summary::of(&ns);
        lab.record(by, json!({})).time(&name, ns);
        let cycles = ns.and_then(|ns| Some(ns.scaled(lab.clock.cycles(1.0)?)));
        let [before, after] = SEED.cells(seed);
        table.row(name, [by.to_owned(), spread(cycles), figure_or_dash(median(ns)), before, after]);
    }
    table.note("the seed's figures include two ordered readings of the counter (tens of cycles), ours leave them out; ours include storing a Charge of 16 bytes and reading it back");
    lab.print(&table)?;
    fixture.check_empty()
}

/// Nanoseconds of a charge and of its end, in rounds in which the stock served every charge.
#[inline(always)]
fn halves<H>(
    charge: impl Fn() -> Result<H>,
    free: impl Fn(H),
    misses: impl Fn() -> u64,
    watch: Stopwatch,
    number: usize,
    rounds: usize,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let mut kept: Vec<H> = Vec::with_capacity(number);
    let (mut consumes, mut refills) = (Vec::new(), Vec::new());
    // The first rounds let the stock grow to its cap.
    for round in 0..32 + rounds {
        let (before, missed) = (ThreadUsage::now(), misses());
        let (consume, charged) = watch.time(|| {
            for _ in 0..number {
                kept.push(charge()?);
            }
            Ok::<(), Error>(())
        });
        charged?;
        let (refill, ()) = watch.time(|| kept.drain(..).for_each(&free));
        if round >= 32 && before.is_undisturbed() && misses() == missed {
            consumes.push(consume / number as f64);
            refills.push(refill / number as f64);
        }
    }
    Ok((consumes, refills))
}

/// The seed's loop of system calls on one CPU, with a charge for the page while it is mapped,
/// beside drains by the other CPU.
fn mappings(lab: &mut Lab<'_>) -> Result<()> {
    let fixture = Fixture::chain(Config::with_slots(lab.slots), DEPTH, 1)?;
    let group = &fixture.leaves[0];
    let drains = AtomicU64::new(0);
    let mut table = Table::new(
        "a system call of mmap and munmap on one CPU, while the other drains the group",
        ["", "beside", "ns a call: median (min..p90)", "cycles", "seed: before", "after"],
    );
    let kinds = [
        ("no charges, no drains (control)", false, 0),
        ("no drains (control)", true, 0),
        ("a drain every 20 us", true, 20_u64),
    ];
    for (name, write) in [("mmap + munmap, no write", false), ("mmap + write + munmap", true)] {
        let period = |us| us * lab.clock.ticks_per_us();
        let works: Vec<_> = kinds
            .iter()
            .map(|&(_, charged, us)| {
                let (period, drains) = (period(us), &drains);
                move |thread: usize, cursor: &mut usize, count: u64| {
                    if thread == 1 {
                        let now = clock::now();
                        if us > 0 && now >= *cursor as u64 {
                            *cursor = (now + period) as usize;
                            group.drain();
                            // ORDERING: Relaxed; a count.
                            drains.fetch_add(1, Ordering::Relaxed);
                        }
                        return Ok(1);
                    }
                    for _ in 0..count {
                        let charge = charged.then(|| group.try_charge(PAGE)).transpose().or_wrong(REFUSED)?;
                        let page = Mapping::new(page_bytes())?;
                        if write {
                            page.touch(0);
                        }
                        drop((page, charge));
                    }
                    Ok(count)
                }
            })
            .collect();
        let variants: Vec<_> = works.iter().map(|work| Variant { work, threads: 2, counted: 1 }).collect();
        let Plan { rounds, window_us } = lab.effort.windows;
        let measured = lab.interleave_by(Plan { rounds, window_us: window_us * 3 }, &variants)?;
        for ((beside, ..), measured) in kinds.iter().zip(&measured) {
            // Two calls a turn, as the seed divides.
            let ns = measured.ns.map(|ns| ns.scaled(0.5));
            let cycles = figure_or_dash(ns.and_then(|ns| lab.clock.cycles(ns.median)));
            let [before, after] = SEED.cells(name);
            let time = lab.record(*beside, json!({})).time(name, ns);
            table.row(name, [(*beside).to_owned(), time, cycles, before, after]);
        }
    }
    // ORDERING: Relaxed; the windows are over.
    let drains = drains.load(Ordering::Relaxed);
    ensure(drains > 0, || "no drain was made beside the system calls".to_owned())?;
    table.note("the second CPU spins in every row. The seed compared its two locks: work that is scheduled on this CPU would show here");
    lab.print(&table)?;
    fixture.check_empty()
}

/// System calls of a drain by its own thread, and interrupts of other CPUs by what the engine does.
fn interrupts(lab: &mut Lab<'_>) -> Result<()> {
    let stocks = Stocks::new(128)?;
    let calling = lab.workers.run_one(|| {
        let mut calling = Some(0);
        for _ in 0..TRACED {
            let (stocked, mut taken) = (stocks.fill(State::Dirty)?, 0);
            calling = match first_call(|| taken = stocks.group().drain())? {
                Traced::NotHere => None,
                Traced::None => calling,
                Traced::First(_) => calling.map(|calling| calling + 1),
            };
            stocks.check(stocked, taken)?;
        }
        Ok::<_, Error>(calling)
    })?;
    let name = format!("of {TRACED} drains by a thread that waits for nobody, those with a system call");
    lab.at_most(name, calling.map(f64::from), 0.0, "");
    let hierarchy = hierarchy(Config::with_slots(lab.slots))?;
    let parent = child(&hierarchy.root(), "parent")?;
    let (charged, number) = (child(&parent, "charged")?, lab.pick(5, 200, 1_000));
    let calls: [(&str, &(dyn Fn() -> Result<()> + Sync)); 4] = [
        ("nothing (control)", &|| Ok(())),
        ("a drain", &|| {
            drop(charged.try_charge(PAGE).or_wrong(REFUSED)?);
            charged.drain();
            Ok(())
        }),
        ("a group made, charged, removed", &|| {
            let group = child(&parent, "passing")?;
            drop(group.try_charge(PAGE).or_wrong(REFUSED)?);
            group.remove().or_wrong("failed to remove an empty group")
        }),
        ("a call of maintain", &|| {
            hierarchy.maintain(Maintenance::new().all());
            Ok(())
        }),
    ];
    let mut table = Table::new(
        "interrupts of all CPUs while one thread makes calls, the others spin (/proc/interrupts)",
        ["", "calls", "function calls and TLB shootdowns", "for a call"],
    );
    for (name, call) in calls {
        let over = AtomicUsize::new(1);
        let parts = lab.workers.try_run(2, |thread| {
            if thread > 0 {
                // ORDERING: Relaxed; a flag by itself. The other CPU must be busy, or it could not be
                // interrupted.
                while over.load(Ordering::Relaxed) > 0 {
                    std::hint::spin_loop();
                }
                return Ok(None);
            }
            let before = interrupts_of_functions();
            let called = (0..number).try_for_each(|_| call());
            // ORDERING: Relaxed, as above.
            over.store(0, Ordering::Relaxed);
            called.map(|()| before.zip(interrupts_of_functions()).map(|(before, after)| after - before))
        })?;
        let each = parts[0].map(|seen| seen as f64 / f64::from(number));
        let mut row = lab.record(name, json!({}));
        let cells =
            [number.to_string(), parts[0].map_or_else(dash, count), row.value("interrupts", "each", each)];
        table.row(name, cells);
    }
    table.note(
        "other work on the machine interrupts too: that is the first row. A dash: the system does not tell",
    );
    lab.print(&table)?;
    check_empty(&hierarchy)
}

/// Function-call interrupts and TLB shootdowns of all CPUs so far, where the system tells.
fn interrupts_of_functions() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/interrupts").ok()?;
    let lines =
        text.lines().filter(|line| ["CAL:", "TLB:"].iter().any(|name| line.trim_start().starts_with(name)));
    let numbers = lines.flat_map(|line| line.split_whitespace().filter_map(|word| word.parse::<u64>().ok()));
    Some(numbers.collect::<Vec<_>>()).filter(|all| !all.is_empty()).map(|all| all.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drains_the_stock_of_every_slot_in_every_state() {
        let stocks = Stocks::new(8).unwrap();
        for (state, name) in State::ALL {
            let stocked = stocks.fill(state).unwrap();
            stocks.check(stocked, stocks.drain(state)).unwrap();
            assert_eq!(stocks.drain(state), 0, "{name}");
        }
    }

    #[test]
    fn fails_when_bytes_are_left_in_a_slot() {
        let stocks = Stocks::new(2).unwrap();
        let stocked = stocks.fill(State::Dirty).unwrap();
        let error = stocks.check(stocked, stocked).unwrap_err();
        assert!(error.to_string().contains("usage after a drain of /"), "{error}");
        let error = stocks.check(stocked, 0).unwrap_err();
        assert!(error.to_string().contains("took 0 of"), "{error}");
    }
}
