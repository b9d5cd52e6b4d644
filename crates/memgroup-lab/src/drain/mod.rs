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
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;

use memgroup::{Config, Freshness, Maintenance, Reach, stats::memory};
use memgroup_percpu::{WordCell, Words, pin_virtual};
use memgroup_sync::Erasable;

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
const OURS: &str = "memgroup";
const SPIN: &str = "a spin lock a slot (control)";
const OWNERS: &str = "waking each owner, done (control)";

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let mut lab = Lab::open(args, Some(SEED), None, out)?;
    let slot_counts = args.slots.map_or_else(|| SLOT_COUNTS.to_vec(), |slots| vec![slots]);
    whole(&mut lab, &slot_counts)?;
    victims(&mut lab)?;
    calls(&mut lab)?;
    traced(&mut lab)?;
    interrupts(&mut lab)?;
    lab.close()
}

/// Stocks in the slots of one group.
trait Stocks: Sync {
    /// Leaves stock in a slot, which is that of this thread.
    fn put(&self, slot: usize) -> Result<()>;

    /// Bytes in all slots.
    fn stocked(&self) -> u64;

    /// Empties all slots; the bytes that were in them.
    fn drain(&self) -> u64;

    /// Bytes that any level still has.
    fn left(&self) -> u64 {
        self.stocked()
    }
}

impl Stocks for Fixture {
    fn put(&self, _: usize) -> Result<()> {
        self.leaves[0].try_charge(PAGE).map(drop).or_wrong(REFUSED)
    }

    fn stocked(&self) -> u64 {
        self.leaves[0].stock().prepaid_bytes
    }

    fn drain(&self) -> u64 {
        self.leaves[0].drain()
    }

    fn left(&self) -> u64 {
        self.hierarchy.groups().iter().map(memgroup::Group::usage).sum()
    }
}

impl Stocks for SpinStocks {
    fn put(&self, _: usize) -> Result<()> {
        self.consume(PAGE);
        self.refill(PAGE);
        Ok(())
    }

    fn stocked(&self) -> u64 {
        self.usage()
    }

    fn drain(&self) -> u64 {
        self.drain()
    }
}

/// Plain words that lie as far apart as the engine's slots: the machine's own cost.
struct Bare(WordCell, usize);

impl Bare {
    fn new(slots: usize) -> Result<Bare> {
        let words: &'static Words = memgroup_sync::keep(Box::new(Words::new(slots)));
        words.reserve(0).or_wrong("a word for each slot was refused")?;
        let cell = WordCell::zero();
        cell.set(words, 0);
        Ok(Bare(cell, slots))
    }

    fn word(&self, slot: usize) -> &AtomicU64 {
        self.0.get(slot).expect("there is a word for each slot")
    }
}

// ORDERING: Relaxed, in all of it: bare words that publish nothing; the workers' orders publish
// them.
impl Stocks for Bare {
    fn put(&self, slot: usize) -> Result<()> {
        self.word(slot).store(PAGE, Ordering::Relaxed);
        Ok(())
    }

    fn stocked(&self) -> u64 {
        (0..self.1).map(|slot| self.word(slot).load(Ordering::Relaxed)).sum()
    }

    fn drain(&self) -> u64 {
        (0..self.1).map(|slot| self.word(slot).swap(0, Ordering::Relaxed)).sum()
    }
}

/// What is drained: stocks of a kind, in virtual slots that another CPU can fill.
struct Drained {
    name: &'static str,
    slots: usize,
    stocks: Box<dyn Stocks>,
    is_empty: bool,
}

impl Drained {
    fn kinds(slots: usize) -> Result<Vec<Drained>> {
        let source = virtual_slots(slots)?;
        let engine = || Ok::<_, Error>(Box::new(Fixture::chain(Config::with_slots(source), DEPTH, 1)?));
        let of = |name, stocks| Drained { name, slots, stocks, is_empty: false };
        let mut kinds = vec![
            of(OURS, engine()?),
            Drained { is_empty: true, ..of("memgroup, empty stocks", engine()?) },
            of(SPIN, Box::new(SpinStocks::new(source))),
            of("bare swaps", Box::new(Bare::new(slots)?)),
        ];
        if slots <= OWNERS_MOST {
            kinds.push(of(OWNERS, Box::new(Owners::start(slots)?)));
        }
        Ok(kinds)
    }

    /// Leaves stock in every slot; the bytes stocked.
    fn fill(&self) -> Result<u64> {
        let least = if self.is_empty { 0 } else { self.slots as u64 * PAGE };
        for slot in (0..self.slots).filter(|_| !self.is_empty) {
            let _pin = pin_virtual(slot);
            self.stocks.put(slot)?;
        }
        let stocked = self.stocks.stocked();
        ensure(stocked >= least, || format!("{stocked} bytes are stocked, at least {least} were put there"))?;
        Ok(stocked)
    }

    /// A drain took `taken` of `stocked` bytes; nothing is charged, so nothing is left at any level
    /// (I1).
    fn check(&self, stocked: u64, taken: u64) -> Result<()> {
        let of = format!("of {} in {} slots", self.name, self.slots);
        ensure(taken == stocked, || format!("a drain {of} took {taken} of {stocked} bytes"))?;
        expect(format!("usage after a drain {of}"), self.stocks.left(), 0)
    }
}

/// One drain of all slots: the second worker fills them while the first spins, then the first
/// drains them.
fn whole(lab: &mut Lab<'_>, slot_counts: &[usize]) -> Result<()> {
    let kinds = slot_counts.iter().map(|&slots| Drained::kinds(slots)).collect::<Result<Vec<_>>>()?;
    let (cases, warm): (Vec<Drained>, _) = (kinds.into_iter().flatten().collect(), Drained::kinds(1)?);
    let mut order = Vec::new();
    lab.in_turns(lab.effort.calls, cases.len(), |_, at| {
        order.push(at);
        Ok(())
    })?;
    // Threads that are woken leave nothing in the caches for the next case.
    order.sort_by_key(|&at| cases[at].name == OWNERS);
    // Both threads live through all of it: a new thread would find nothing in the CPU's caches.
    let (ask, asked) = channel::<usize>();
    let (ask, asked) = (Mutex::new(Some(ask)), Mutex::new(asked));
    // The bytes that were stocked, and one: 0 until then.
    let ready = AtomicU64::new(0);
    let mut parts = lab.workers.try_run(2, |thread| {
        let mut found: Vec<Vec<f64>> = vec![Vec::new(); cases.len()];
        if thread == 1 {
            let mut right = Ok(0);
            for at in lock(&asked).iter() {
                let filled = cases[at].fill();
                // ORDERING: Release; pairs with the Acquire of the drainer, which sees the filled
                // slots. Also after an error.
                ready.store(*filled.as_ref().unwrap_or(&0) + 1, Ordering::Release);
                right = right.and(filled);
            }
            return right.map(|_| found);
        }
        let ask = lock(&ask).take().ok_or("no channel").or_wrong("the drainer")?;
        for &at in &order {
            let case = &cases[at];
            let warm = warm.iter().find(|warm| warm.name == case.name).unwrap_or(case);
            // ORDERING: Relaxed; the message publishes it.
            ready.store(0, Ordering::Relaxed);
            ask.send(at).or_wrong("the thread that fills slots")?;
            // The drainer spins meanwhile, after drains that warm the code.
            (0..3).for_each(|_| _ = warm.stocks.drain());
            let before = ThreadUsage::now();
            // ORDERING: Acquire, as above.
            let filled = spin_until(|| ready.load(Ordering::Acquire).checked_sub(1));
            let begin = clock::now_ordered();
            let taken = case.stocks.drain();
            let ticks = clock::now_ordered() - begin;
            case.check(filled, taken)?;
            // An owner that is woken on this CPU takes it: that is its cost.
            if before.is_undisturbed() || case.name == OWNERS {
                found[at].push(lab.clock.ns(ticks as f64));
            }
        }
        Ok(found)
    })?;
    let found = parts.swap_remove(0);
    let columns = ["", "slots", "ns: median (min..p90)", "cycles", "seed: before", "after"];
    let mut table = Table::new(format!("one drain of all slots of a group of depth {DEPTH}"), columns);
    for (Drained { name, slots, .. }, ns) in cases.iter().zip(&found) {
        let (ns, cpus) = (Summary::of(ns), if *slots == 1 { "CPU" } else { "CPUs" });
        let seed = if *name == OURS { format!("drain_all_stock, {slots} {cpus}") } else { String::new() };
        let [before, after] = SEED.cells(&seed);
        let time = lab.record(*name, json!({"slots": slots})).time("whole drain", ns);
        let cycles = figure_or_dash(median(ns).and_then(|ns| lab.clock.cycles(ns)));
        table.row(*name, [slots.to_string(), time, cycles, before, after]);
    }
    let of = |name| {
        let at = cases.iter().position(|case| case.slots == 128 && case.name == name)?;
        median_of(&found[at])
    };
    if slot_counts.contains(&128) {
        let drain = of(OURS);
        lab.at_most("a drain of 128 slots", drain.map(|ns| ns / 1e3), 1.5, "us");
        lab.at_least("waking the owners over draining, 128 slots", ratio(of(OWNERS), drain), 10.0, "x");
        lab.at_most("a drain over one by spin locks, 128 slots", ratio(drain, of(SPIN)), 1.0, "x");
    }
    table.note("the other CPU has just charged and uncharged in every slot. Slots are memory that one other CPU wrote, not so many CPUs: lines that come from other sockets cost several times more. Bare swaps: plain words that lie as far apart as the engine's slots, without engine and counters. The spin locks lie one after the other, so the processor fetches them ahead. Waking: the kernel's way before the seed, which called the owners and did not wait until they were done");
    lab.print(&table)
}

/// What drains cost a thread that charges meanwhile: its time, and switches of its CPU. In the last
/// rows the drainer never rests, as in the seed's soak.
fn victims(lab: &mut Lab<'_>) -> Result<()> {
    const PAIR: &str = "pair";
    const ALONE: &str = "no drains (control)";
    const DRAINS: &str = "drained every 5 us";
    // The words of two groups that were made one after the other lie on one line of each slot.
    let fixture = Fixture::chain(Config::with_slots(lab.slots), DEPTH, 2)?;
    let [victim, neighbour] = &fixture.leaves[..] else { unreachable!("two leaves") };
    let (spin, ours, theirs) = (SpinStocks::new(lab.slots), AtomicU64::new(0), AtomicU64::new(0));
    let own = victim.clone();
    let woken = sleeper(0, move || _ = own.drain())?;
    // ORDERING: Relaxed; a sum that is read after the threads are done.
    let add = |sum: &AtomicU64, bytes| _ = sum.fetch_add(bytes, Ordering::Relaxed);
    let rests = always(std::hint::spin_loop);
    let drains = always(|| add(&ours, victim.drain()));
    let drains_neighbour = || {
        drop(neighbour.try_charge(PAGE).or_wrong(REFUSED)?);
        add(&theirs, neighbour.drain());
        Ok(())
    };
    // One call waits at most.
    let wakes = always(|| _ = woken.try_send(()));
    let drains_spin = always(|| _ = spin.drain());
    let pair = each(|| victim.try_charge(PAGE).map(drop).or_wrong(REFUSED));
    let pair_by_lock = each(|| spin.put(0));
    let (pair, pair_by_lock): (&Work<'_>, &Work<'_>) = (&pair, &pair_by_lock);
    let wakes = Beside { switches: true, ..Beside::every(20, &wakes) };
    let cases = [
        (ALONE, OURS, pair, Beside::every(0, &rests)),
        (DRAINS, OURS, pair, Beside::every(5, &drains)),
        ("neighbour drained every 5 us", OURS, pair, Beside::every(5, &drains_neighbour)),
        ("woken to drain every 20 us (control)", OURS, pair, wakes),
        ("drained without a rest", OURS, pair, Beside::every(0, &drains)),
        (ALONE, SPIN, pair_by_lock, Beside::every(0, &rests)),
        ("drained without a rest", SPIN, pair_by_lock, Beside::every(0, &drains_spin)),
    ]
    .map(|(by, of, work, beside)| Case {
        params: json!({"stocks": of}),
        beside: Some(beside),
        ..Case::new(PAIR, by, of, work)
    });
    let plan = lab.effort.windows;
    let loss = |one: &Measured, alone: Option<f64>| {
        let lost = median(one.ns)? - alone?;
        (one.acts > 0).then(|| lost * one.ops as f64 / one.acts as f64)
    };
    let title = format!("pairs beside drains, depth {DEPTH}");
    let note = "the drainer is the other CPU; a neighbour's words lie on the same lines; a thread that is woken has the charger's CPU. Lost: nanoseconds of the charger beyond its pairs at the pace without drains, over the drains. memgroup has no lock there. The seed's soak found a lock taken 0 times in 98,248,009,999 calls beside 592 drains";
    let columns = ["lost a drain", "drains", "lock found taken", "switches/s"];
    let found = lab.measure([&title, note], plan, cases.into(), columns, |case, one, alone| {
        let [lost, drains] = match case.by {
            ALONE => [dash(), dash()],
            _ => [figure_or_dash(loss(one, alone)), count(one.acts)],
        };
        let locks = if case.what == SPIN { count(spin.contended()) } else { dash() };
        let seconds = one.tried as f64 * plan.window_us as f64 / 1e6;
        [lost, drains, locks, figure(one.switches as f64 / seconds)]
    })?;
    // On one CPU drainer and charger take turns, and nothing is drained while the charger runs.
    let (drained, alone) = (found.of(PAIR, DRAINS, OURS), found.ns(PAIR, ALONE, OURS));
    let us = drained.filter(|_| lab.workers.cpus > 1).and_then(|one| loss(&one, alone)).map(|ns| ns / 1e3);
    lab.at_most("a charger's loss by a drain of its group, one every 5 us", us, 0.5, "us");
    let pairs: u64 = found.iter().filter(|(cells, _)| cells[2] == OURS).map(|(_, one)| one.ops).sum();
    let stock = victim.stock();
    expect("hits and misses of the pairs", stock.hits + stock.misses, pairs)?;
    // ORDERING: Relaxed; the windows are over.
    let [ours, theirs] = [&ours, &theirs].map(|sum| sum.load(Ordering::Relaxed));
    ensure(ours > 0 || lab.args.tiny, || "drains beside a charger took no byte".to_owned())?;
    expect("drained bytes of the neighbour", neighbour.stock().drained_bytes, theirs)?;
    expect("bytes left by the spin locks", spin.usage() - spin.drain(), 0)?;
    fixture.check_empty()
}

/// The calls of the seed's tables: a stock hit and its return, an addition to a statistic, and
/// system calls with a charge for the page while it is mapped, beside drains by the other CPU.
fn calls(lab: &mut Lab<'_>) -> Result<()> {
    const STATISTIC: &str = "an addition to a statistic";
    let fixture = Fixture::chain(Config::with_slots(lab.slots), DEPTH, 1)?;
    let (leaf, spin, slots) = (&fixture.leaves[0], SpinStocks::new(lab.slots), lab.slots);
    let (statistics, counts) = (fixture.hierarchy.memory(), Bare::new(slots.slots())?);
    let rests = always(std::hint::spin_loop);
    let drains = always(|| _ = leaf.drain());
    let charge = |bytes| leaf.try_charge(bytes).or_wrong(REFUSED);
    let mut cases = Vec::new();
    for (bytes, name) in [(PAGE, "consume and refill a page"), (64, "consume and refill 64 bytes")] {
        cases.push(Case::new(name, OURS, "", each(move || charge(bytes).map(drop))));
        let spin = &spin;
        let pair = each(always(move || {
            spin.consume(bytes);
            spin.refill(bytes);
        }));
        cases.push(Case::new(name, SPIN, "", pair));
    }
    let add = |_: usize, _: &mut usize, count| {
        // Both addresses stay in registers: a load in the loop would wait for the addition before
        // it.
        let (statistics, leaf) = (&statistics, leaf);
        (0..count).for_each(|_| statistics.add(leaf, memory::FILE, 1));
        Ok(count)
    };
    let right = |one: &Measured| {
        let sum = statistics.get(leaf, memory::FILE, Reach::Local, Freshness::Fresh);
        expect("the statistic after the additions", sum, one.ops as i64)
    };
    cases.push(Case { end: Box::new(right), ..Case::new(STATISTIC, OURS, "", add) });
    // ORDERING: Relaxed; a statistic orders nothing.
    let bare = each(always(|| counts.word(slots.current()).fetch_add(1, Ordering::Relaxed)));
    cases.push(Case::new(STATISTIC, "a slot's word (control)", "", bare));
    for (name, write) in [("mmap + munmap, no write", false), ("mmap + write + munmap", true)] {
        for (by, charged, beside) in [
            ("no charges, no drains (control)", false, Beside::every(0, &rests)),
            ("no drains (control)", true, Beside::every(0, &rests)),
            ("a drain every 20 us", true, Beside::every(20, &drains)),
        ] {
            let turn = move || {
                let charge = charged.then(|| charge(PAGE)).transpose()?;
                let page = Mapping::new(page_bytes())?;
                if write {
                    page.touch(0);
                }
                drop((page, charge));
                Ok(())
            };
            // Two calls a turn, as the seed divides.
            let work =
                move |_: usize, _: &mut usize, count| (0..count).try_for_each(|_| turn()).map(|()| 2 * count);
            let drained = move |one: &Measured| {
                ensure(one.acts > 0, || "no drain was made beside the system calls".to_owned())
            };
            cases.push(Case {
                beside: Some(beside),
                end: Box::new(drained),
                ..Case::new(name, by, "", work)
            });
        }
    }
    let Plan { rounds, window_us } = lab.effort.windows;
    let note = "the seed's figures of consume and refill are summed, and include ordered readings of the counter (tens of cycles each). Two calls are an mmap and its munmap. The second CPU spins in those rows. The seed compared its two locks: work that is scheduled on this CPU would show there";
    let title = "the calls of the seed's tables, and system calls while the other CPU drains the group";
    let plan = Plan { rounds, window_us: window_us * 3 };
    lab.measure([title, note], plan, cases, ["seed: before", "after"], |case, _, _| {
        let calls: &[&str] = match (&*case.name, case.by) {
            ("consume and refill a page", OURS) => &["consume_stock", "refill_stock"],
            ("consume and refill 64 bytes", OURS) => &["consume_obj_stock", "refill_obj_stock"],
            (STATISTIC, OURS) => &["mod_objcg_state"],
            (name, "a drain every 20 us") => &[name],
            _ => &[],
        };
        let sum =
            |at: usize| calls.iter().filter_map(|call| SEED.figure(call)[at]).reduce(|sum, one| sum + one);
        [0, 1].map(|at| figure_or_dash(sum(at)))
    })?;
    expect("bytes left by the spin locks", spin.usage() - spin.drain(), 0)?;
    fixture.check_stock(true, OURS)?;
    fixture.check_empty()
}

/// System calls of a drain by its own thread, which waits for nobody.
fn traced(lab: &mut Lab<'_>) -> Result<()> {
    let Drained { stocks, .. } = &Drained::kinds(128)?[0];
    let mut calling = Some(0_u32);
    for _ in 0..TRACED {
        (0..128).try_for_each(|slot| {
            let _pin = pin_virtual(slot);
            stocks.put(slot)
        })?;
        let stocked = stocks.stocked();
        let made = makes_system_call(|| stocks.drain() == stocked)?;
        calling = calling.zip(made).map(|(calling, made)| calling + u32::from(made));
    }
    let name = format!("of {TRACED} drains by a thread that waits for nobody, those with a system call");
    lab.at_most(name, calling.map(f64::from), 0.0, "");
    Ok(())
}

/// Interrupts of other CPUs by what the engine does.
fn interrupts(lab: &mut Lab<'_>) -> Result<()> {
    let hierarchy = hierarchy(Config::with_slots(lab.slots))?;
    let parent = child(&hierarchy.root(), "parent")?;
    let charged = child(&parent, "charged")?;
    let rests = always(std::hint::spin_loop);
    let calls: [(&str, &(dyn Fn() -> Result<()> + Sync)); 4] = [
        ("nothing (control)", &rests),
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
    let title = "interrupts of all CPUs while one thread makes calls, the others spin (/proc/interrupts)";
    let mut table = Table::new(title, ["", "calls", "function calls and TLB shootdowns", "for a call"]);
    for (name, call) in calls {
        let (work, before) = (each(call), interrupts_of_functions());
        // The other CPU must be busy, or it could not be interrupted.
        let beside = Some(Beside::every(0, &rests));
        let calls = lab.interleave(&[Variant { beside, ..Variant::of(&work, 1) }])?[0].ops;
        let seen = before.zip(interrupts_of_functions()).map(|(before, after)| after - before);
        let each = seen.map(|seen| seen as f64 / calls as f64);
        let each = lab.record(name, json!({})).value("interrupts", "each", each);
        table.row(name, [count(calls), seen.map_or_else(dash, count), each]);
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
    fn drains_the_stock_of_every_slot_of_every_kind() {
        for kind in Drained::kinds(8).unwrap() {
            let stocked = kind.fill().unwrap();
            assert_eq!(stocked == 0, kind.is_empty);
            kind.check(stocked, kind.stocks.drain()).unwrap();
            assert_eq!(kind.stocks.drain(), 0, "{}", kind.name);
        }
    }

    #[test]
    fn fails_when_bytes_are_left_in_a_slot() {
        let stocks = &Drained::kinds(2).unwrap()[0];
        let stocked = stocks.fill().unwrap();
        let error = stocks.check(stocked, stocked).unwrap_err();
        assert!(error.to_string().contains("usage after a drain of memgroup in 2 slots"), "{error}");
        let error = stocks.check(stocked, 0).unwrap_err();
        assert!(error.to_string().contains("took 0 of"), "{error}");
    }
}
