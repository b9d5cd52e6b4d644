//! The cost of a drain for the threads that lose their stock: time, switches of their CPU, and slow pairs.
//!
//!   CPU 1  victim:   pair pair pair pair pair pair ...            (never asks for anything)
//!   CPU 0  drainer:      drain    drain    drain                  every 5, 20 or 100 us, or without rest
//!                     or wake a thread on CPU 1, which drains     the control
//!
//! Without drains the drainer spins all the same, so that both CPUs are busy in every row.
//!
//! The soak has a drainer that never rests. The seed counted how often a lock was found taken: 0 times in 98 billion calls, beside 592
//! drains. Here there is no lock on this path. A caller could notice only a call that took long, so every pair of the soak is timed and the
//! slow ones are counted, with the drainer and without it, in slices that take turns.
//!
//! - I1. Every drained byte was returned by a drain of the experiment, and every charge of the soak is in the statistics as a hit or a
//!   miss; else the run ends with an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use memgroup::{Config, Group, StockStats};

use super::{PAGE_BYTES, REFUSED, SOAK_CALLS};
use crate::harness::*;

const PAIRS_A_BATCH: u64 = 64;
const PERIODS_US: [u64; 3] = [5, 20, 100];
/// So many drains cannot all have come while the victim was off its CPU with nothing stocked.
const JUDGED_DRAINS: u64 = 1_000;
/// The period at which the loss is judged: often enough to show above the noise, and far above any real rate.
const JUDGED_PERIOD_US: u64 = 5;
/// Slices of the soak.
const SLICES: u32 = 10;
/// A pair is slow beyond this: some hundred times its usual length, more than a miss and a few line transfers.
const SLOW_US: u64 = 1;
/// And very slow beyond this: the CPU was taken away.
const VERY_SLOW_US: u64 = 10;

/// The disturbance beside the victim, and how often it comes; at 0 without rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    Drains(u64),
    Wakes(u64),
}

impl Beside {
    /// The name, and the period in microseconds.
    fn describe(self) -> (&'static str, Option<u64>) {
        match self {
            Beside::Nothing => ("no drains", None),
            Beside::Drains(us) => ("drains by the other CPU", Some(us)),
            Beside::Wakes(us) => ("wakes a thread on the victim's CPU", Some(us)),
        }
    }
}

/// One window as its chargers saw it, or several.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    ticks: u64,
    pairs: u64,
    slow: u64,
    very_slow: u64,
    drains: u64,
    drains_with_bytes: u64,
    /// The bytes that those drains returned.
    drained_bytes: u64,
    usage: ThreadUsage,
}

impl Seen {
    /// Adds counts of another thread or window; the usage stays that of the first.
    fn add(&mut self, other: Seen) {
        self.ticks += other.ticks;
        self.pairs += other.pairs;
        self.slow += other.slow;
        self.very_slow += other.very_slow;
        self.drains += other.drains;
        self.drains_with_bytes += other.drains_with_bytes;
        self.drained_bytes += other.drained_bytes;
    }

    fn ticks_a_pair(&self) -> f64 {
        self.ticks as f64 / self.pairs.max(1) as f64
    }

    /// Ticks the victim lost to one drain, when a pair takes `alone` ticks without them.
    fn ticks_lost_a_drain(&self, alone: f64) -> Option<f64> {
        (self.drains > 0).then(|| (self.ticks as f64 - self.pairs as f64 * alone) / self.drains as f64)
    }
}

/// A thread on the victim's CPU that drains when it is woken: the seed's worker. A call during a drain makes it drain again.
struct Worker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    calls: AtomicU64,
    /// The number of calls at the begin of the last drain that is done.
    answered: AtomicU64,
    closing: AtomicBool,
    drains: AtomicU64,
    drained_bytes: AtomicU64,
}

impl Shared {
    fn work(&self, group: &Group) {
        // ORDERING: Acquire; pairs with the Release in `Worker::drop`.
        while !self.closing.load(Ordering::Acquire) {
            // ORDERING: Acquire; pairs with the Release of a call. Relaxed: only this thread writes `answered`.
            let (calls, answered) =
                (self.calls.load(Ordering::Acquire), self.answered.load(Ordering::Relaxed));
            if calls == answered {
                std::thread::park();
                continue;
            }
            let bytes = group.drain();
            // ORDERING: Relaxed, both; counts, published by the store below.
            self.drained_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.drains.fetch_add(1, Ordering::Relaxed);
            // ORDERING: Release; pairs with the Acquire in `rest`.
            self.answered.store(calls, Ordering::Release);
        }
    }
}

impl Worker {
    fn start(group: Group) -> Result<Worker> {
        let cpus = os::allowed_cpus()?;
        let cpu = cpus[1 % cpus.len()];
        let shared = Arc::<Shared>::default();
        let own = Arc::clone(&shared);
        let thread = spawn("worker on the victim's CPU", move || {
            // A worker that cannot be pinned disturbs the victim less: in the control's favour.
            let _ = os::pin_to(cpu);
            own.work(&group);
        })?;
        Ok(Worker { shared, thread: Some(thread) })
    }

    fn call(&self) {
        // ORDERING: Release; pairs with the Acquire of the worker.
        self.shared.calls.fetch_add(1, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// Waits until every call is answered, so that none is left for the next window.
    fn rest(&self) {
        // ORDERING: Relaxed; the calls were made by this thread or before it joined those that made them.
        let calls = self.shared.calls.load(Ordering::Relaxed);
        // ORDERING: Acquire; pairs with the worker's Release.
        spin_until(|| (self.shared.answered.load(Ordering::Acquire) == calls).then_some(()));
    }

    /// Drains done, and the bytes they returned.
    fn drained(&self) -> (u64, u64) {
        // ORDERING: Relaxed; counts.
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        (count(&self.shared.drains), count(&self.shared.drained_bytes))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // ORDERING: Release; pairs with the worker's Acquire.
        self.shared.closing.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A worker that panicked drained nothing, which the counts show.
            let _ = thread.join();
        }
    }
}

/// The threads of a window, and its length.
struct Window<'w> {
    chargers: usize,
    ticks_per_us: u64,
    length_us: u64,
    group: &'w Group,
    worker: &'w Worker,
    /// Every pair is timed, for the soak; else a batch of them.
    timed: bool,
}

impl Window<'_> {
    /// The chargers' pairs on workers 1 and up, and the disturbance on worker 0.
    fn run(&self, workers: &Workers, beside: Beside) -> Result<Seen> {
        let charging = AtomicUsize::new(self.chargers);
        let period = beside.describe().1.unwrap_or(self.length_us) * self.ticks_per_us;
        let (drains_before, bytes_before) = self.worker.drained();
        let seen = workers.run_together(self.chargers + 1, 2 * self.ticks_per_us, |thread, begin| {
            if thread > 0 {
                let seen = self.pairs_until(begin + self.length_us * self.ticks_per_us);
                // ORDERING: Release; pairs with the drainer's Acquire, though only its end depends on it.
                charging.fetch_sub(1, Ordering::Release);
                return seen;
            }
            let (mut seen, mut next) = (Seen::default(), begin + period);
            // ORDERING: Acquire; pairs with the Release of each charger.
            while charging.load(Ordering::Acquire) > 0 {
                if clock::now() < next {
                    std::hint::spin_loop();
                    continue;
                }
                next += period;
                match beside {
                    Beside::Nothing => {}
                    Beside::Drains(_) => {
                        let bytes = self.group.drain();
                        seen.drained_bytes += bytes;
                        seen.drains += 1;
                        seen.drains_with_bytes += u64::from(bytes > 0);
                    }
                    Beside::Wakes(_) => self.worker.call(),
                }
            }
            Ok(seen)
        })?;
        self.worker.rest();
        let (drains, bytes) = self.worker.drained();
        let mut sum = seen[1];
        seen[2..].iter().chain(&seen[..1]).for_each(|&one| sum.add(one));
        sum.drains += drains - drains_before;
        sum.drained_bytes += bytes - bytes_before;
        Ok(sum)
    }

    fn pairs_until(&self, deadline: u64) -> Result<Seen> {
        let (slow, very_slow) = (SLOW_US * self.ticks_per_us, VERY_SLOW_US * self.ticks_per_us);
        let (before, begin, mut seen) = (ThreadUsage::now(), clock::now(), Seen::default());
        let (mut last, timed) = (begin, self.timed);
        while last < deadline {
            for _ in 0..PAIRS_A_BATCH {
                drop(self.group.try_charge(PAGE_BYTES).or_wrong(REFUSED)?);
                if timed {
                    let now = clock::now();
                    seen.slow += u64::from(now - last > slow);
                    seen.very_slow += u64::from(now - last > very_slow);
                    last = now;
                }
            }
            seen.pairs += PAIRS_A_BATCH;
            last = clock::now();
        }
        Ok(Seen { ticks: last - begin, usage: ThreadUsage::now().since(before), ..seen })
    }
}

/// Measures the loss a drain and the switches of the victim, each beside the control.
pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let depth = lab.args.depth.unwrap_or(3);
    let fixture = Fixture::chain(Config::new().slots(lab.slots).depth_max(depth as u32), depth, 1)?;
    let group = &fixture.leaves[0];
    let worker = Worker::start(group.clone())?;
    let mut kinds = vec![Beside::Nothing];
    kinds.extend(PERIODS_US.map(Beside::Drains));
    kinds.extend(PERIODS_US.map(Beside::Wakes));
    let (windows, us) = (lab.effort.windows.rounds, lab.effort.windows.window_us);
    let seen = measure(lab, group, &worker, &kinds, windows, us * 2)?;
    show_loss(lab, depth, &kinds, &seen)?;
    let kinds = [Beside::Nothing, Beside::Drains(20), Beside::Wakes(20)];
    let seen = measure(lab, group, &worker, &kinds, windows.div_ceil(8), us * 100)?;
    show_switches(lab, &kinds, &seen)?;
    soak(lab, depth, group, &worker)?;
    drop(worker);
    fixture.check_empty()
}

/// Windows of every kind, in random order, by kind.
fn measure(
    lab: &mut Lab<'_>,
    group: &Group,
    worker: &Worker,
    kinds: &[Beside],
    rounds: usize,
    length_us: u64,
) -> Result<Vec<Vec<Seen>>> {
    let mut seen = vec![Vec::new(); kinds.len()];
    let before = group.stock();
    lab.in_turns(rounds, kinds.len(), |lab, kind| {
        let ticks_per_us = lab.clock.ticks_per_us();
        let window = Window { chargers: 1, ticks_per_us, length_us, group, worker, timed: false };
        seen[kind].push(window.run(&lab.workers, kinds[kind])?);
        Ok(())
    })?;
    check_drained(group, before, kinds, &seen)?;
    Ok(seen)
}

/// Both ways of draining took bytes where they drained, and the returned bytes are those of the group's statistics.
fn check_drained(group: &Group, before: StockStats, kinds: &[Beside], seen: &[Vec<Seen>]) -> Result<()> {
    let (mut returned, path) = (0, group.path());
    for wakes in [false, true] {
        let of_way = kinds.iter().zip(seen).filter(|(kind, _)| matches!(kind, Beside::Wakes(_)) == wakes);
        let (drains, bytes) = of_way
            .flat_map(|(_, seen)| seen)
            .fold((0, 0), |(drains, bytes), seen| (drains + seen.drains, bytes + seen.drained_bytes));
        ensure(drains < JUDGED_DRAINS || bytes > 0, || {
            format!("{drains} drains of {path} beside its charger took no byte")
        })?;
        returned += bytes;
    }
    let after = group.stock();
    let (drains, counted) = (after.drains - before.drains, after.drained_bytes - before.drained_bytes);
    ensure(counted == returned && (returned == 0 || drains > 0), || {
        format!("drains of {path} returned {returned} bytes, its statistics say {counted} in {drains} drains")
    })
}

/// Windows in which the kernel took the victim off its CPU count only where that is the cost to measure.
fn counting(kind: Beside, seen: &[Seen]) -> Vec<Seen> {
    let wakes = matches!(kind, Beside::Wakes(_));
    seen.iter().copied().filter(|seen| wakes || seen.usage.switches_involuntary == 0).collect()
}

fn period_cell(us: Option<u64>) -> String {
    us.map_or_else(|| "-".to_owned(), |us| us.to_string())
}

fn show_loss(lab: &mut Lab<'_>, depth: usize, kinds: &[Beside], seen: &[Vec<Seen>]) -> Result<()> {
    let mut table = Table::new(
        format!("what a drain costs its victim, depth {depth}"),
        ["beside the victim", "every us", "ns a pair", "ns lost a drain (min..p90)", "drains", "windows"],
    );
    let (clock, cpus) = (lab.clock, lab.workers.cpus);
    let summary = |ticks: Vec<f64>| Summary::of(&ticks).map(|ticks| ticks.scaled(clock.ns(1.0)));
    let pairs = |counting: &[Seen]| counting.iter().map(Seen::ticks_a_pair).collect::<Vec<f64>>();
    let alone = Summary::of(&pairs(&counting(Beside::Nothing, &seen[0])));
    for (&kind, seen) in kinds.iter().zip(seen) {
        let counting = counting(kind, seen);
        let lost =
            |alone: Summary| counting.iter().filter_map(move |one| one.ticks_lost_a_drain(alone.median));
        let pair = summary(pairs(&counting));
        let lost = summary(alone.map_or_else(Vec::new, |alone| lost(alone).collect()));
        let (name, period_us) = kind.describe();
        let mut row = lab.record(name, json!({"period_us": period_us, "depth": depth}));
        row.time("victim's pair", pair);
        row.time("victim's loss a drain", lost);
        let drains = counting.iter().map(|one| one.drains).sum::<u64>();
        let windows = format!("{} of {}", counting.len(), seen.len());
        let pair = figure_or_dash(median(pair));
        table.row(name, [period_cell(period_us), pair, spread(lost), count(drains), windows]);
        if kind == Beside::Drains(JUDGED_PERIOD_US) {
            // On one CPU drainer and victim take turns, and nothing is drained while the victim runs.
            let us = lost.filter(|_| cpus > 1).map(|ns| ns.median / 1e3);
            lab.at_most(format!("victim's loss a drain, one every {JUDGED_PERIOD_US} us"), us, 0.5, "us");
        }
    }
    table.note("loss: the victim's time beyond its pairs at the pace without drains, over the drains done. At 100 us between drains the noise of a window is larger than the loss. Where a worker is woken, switches are part of the cost and windows with them count.");
    lab.print(&table)
}

fn show_switches(lab: &mut Lab<'_>, kinds: &[Beside], seen: &[Vec<Seen>]) -> Result<()> {
    let columns =
        ["beside the victim", "every us", "seconds", "drains", "voluntary", "involuntary", "inv./s"];
    let mut table = Table::new("context switches of the pinned victim, drains off and on", columns);
    for (&kind, seen) in kinds.iter().zip(seen) {
        let seconds = lab.clock.ns(seen.iter().map(|seen| seen.ticks as f64).sum()) / 1e9;
        let sum = |part: fn(&Seen) -> u64| seen.iter().map(part).sum::<u64>();
        let involuntary = sum(|seen| seen.usage.switches_involuntary);
        let (name, period_us) = kind.describe();
        let mut row = lab.record(name, json!({"period_us": period_us, "seconds": seconds}));
        table.row(
            name,
            [
                period_cell(period_us),
                format!("{seconds:.2}"),
                count(sum(|seen| seen.drains)),
                row.count("voluntary switches", "count", sum(|seen| seen.usage.switches_voluntary)),
                row.count("involuntary switches", "count", involuntary),
                figure(involuntary as f64 / seconds),
            ],
        );
    }
    table.note("other work on the machine switches the victim too: that is the first row");
    lab.print(&table)
}

/// Runs the soak, half of it with the drainer at rest, and prints both halves beside each other.
fn soak(lab: &mut Lab<'_>, depth: usize, group: &Group, worker: &Worker) -> Result<()> {
    let chargers = lab.workers.threads() - 1;
    let (ticks_per_us, length_us) = (lab.clock.ticks_per_us(), (lab.effort.soak / SLICES).as_micros() as u64);
    let window = Window { chargers, ticks_per_us, length_us, group, worker, timed: true };
    let (mut halves, mut misses) = ([Seen::default(); 2], [0, 0]);
    let (before, kinds) = (group.stock(), [Beside::Nothing, Beside::Drains(0)]);
    for turn in 0..SLICES as usize {
        let (half, at_start) = (turn % 2, group.stock().misses);
        halves[half].add(window.run(&lab.workers, kinds[half])?);
        misses[half] += group.stock().misses - at_start;
    }
    check_counts(group, before, halves)?;
    check_drained(group, before, &kinds, &halves.map(|half| vec![half]))?;
    show_soak(lab, depth, halves, misses)
}

/// Every charge is a hit or a miss.
fn check_counts(group: &Group, before: StockStats, halves: [Seen; 2]) -> Result<()> {
    let (after, pairs) = (group.stock(), halves[0].pairs + halves[1].pairs);
    let charges = after.hits + after.misses - before.hits - before.misses;
    expect(format_args!("hits and misses of {}", group.path()), charges, pairs)
}

fn show_soak(lab: &mut Lab<'_>, depth: usize, halves: [Seen; 2], misses: [u64; 2]) -> Result<()> {
    let chargers = lab.workers.threads() - 1;
    let mut table = Table::new(
        format!("a drainer that never rests, {}, depth {depth}", counted(chargers as u64, "charger")),
        ["soak", "calls", "drains", "with bytes", "misses", "> 1 us", "> 10 us", "> 1 us per million"],
    );
    for (half, name) in ["drainer at rest", "drainer never rests"].into_iter().enumerate() {
        let tally = halves[half];
        let mut row = lab.record(name, json!({"chargers": chargers, "depth": depth}));
        let counts = [
            ("calls", 2 * tally.pairs),
            ("drains", tally.drains),
            ("drains with bytes", tally.drains_with_bytes),
            ("misses", misses[half]),
            ("pairs over 1 us", tally.slow),
            ("pairs over 10 us", tally.very_slow),
        ];
        let cells = counts.map(|(metric, value)| row.count(metric, "count", value));
        let per_million = figure(tally.slow as f64 * 1e6 / tally.pairs.max(1) as f64);
        table.row(name, cells.into_iter().chain([per_million]));
    }
    table.note(format!(
        "the seed: 0 contentions in {} calls beside 592 drains, in over 8 hours. It counted a lock found taken. Here is no lock on this path, and a hit is one addition that cannot fail, so slow pairs are counted, beside those of a drainer at rest. A call is a charge or an uncharge; > 1 us and > 10 us count pairs.",
        figure(SOAK_CALLS)
    ));
    lab.print(&table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn takes_the_time_beyond_the_undisturbed_pace_as_loss() {
        let seen = Seen { ticks: 1200, pairs: 100, drains: 4, ..Seen::default() };
        assert_eq!(seen.ticks_lost_a_drain(10.0), Some(50.0));
        assert_eq!(Seen { drains: 0, ..seen }.ticks_lost_a_drain(10.0), None);
    }

    #[test]
    fn fails_when_drains_take_nothing_or_do_not_add_up() {
        let fixture = Fixture::chain(Config::new(), 3, 1).unwrap();
        let (group, kinds) = (&fixture.leaves[0], [Beside::Drains(5)]);
        let before = group.stock();
        let seen = |drained_bytes| [vec![Seen { drains: JUDGED_DRAINS, drained_bytes, ..Seen::default() }]];
        let nothing = check_drained(group, before, &kinds, &seen(0)).unwrap_err();
        assert!(nothing.to_string().contains("took no byte"), "{nothing}");
        drop(group.try_charge(PAGE_BYTES).unwrap());
        let bytes = group.drain();
        check_drained(group, before, &kinds, &seen(bytes)).unwrap();
        let wrong = check_drained(group, before, &kinds, &seen(bytes + 1)).unwrap_err();
        assert!(wrong.to_string().contains("its statistics say"), "{wrong}");
    }

    fn window<'w>(group: &'w Group, worker: &'w Worker, length_us: u64, timed: bool) -> Window<'w> {
        Window { chargers: 1, ticks_per_us: 2000, length_us, group, worker, timed }
    }

    #[test]
    fn counts_the_drains_of_a_window_and_leaves_nothing() {
        let workers = Workers::start(2).unwrap();
        let fixture = Fixture::chain(Config::new(), 3, 1).unwrap();
        let worker = Worker::start(fixture.leaves[0].clone()).unwrap();
        for beside in [Beside::Nothing, Beside::Drains(1), Beside::Wakes(1)] {
            let seen = window(&fixture.leaves[0], &worker, 20_000, false).run(&workers, beside).unwrap();
            assert!(seen.pairs > 0);
            assert_eq!(seen.drains > 0, beside != Beside::Nothing, "{beside:?}: {} drains", seen.drains);
        }
        for beside in [Beside::Drains(5), Beside::Wakes(5)] {
            let window = window(&fixture.leaves[0], &worker, 2_000, false);
            let takes = |_| window.run(&workers, beside).unwrap().drained_bytes > 0;
            assert!((0..100).any(takes), "{beside:?}: a hundred windows and no byte");
        }
        drop(worker);
        fixture.check_empty().unwrap();
    }

    #[test]
    fn counts_every_pair_and_every_drained_byte_of_the_soak() {
        let workers = Workers::start(2).unwrap();
        let fixture = Fixture::chain(Config::new(), 3, 1).unwrap();
        let leaf = &fixture.leaves[0];
        let (worker, before) = (Worker::start(leaf.clone()).unwrap(), leaf.stock());
        let kinds = [Beside::Nothing, Beside::Drains(0)];
        let halves = kinds.map(|beside| window(leaf, &worker, 5_000, true).run(&workers, beside).unwrap());
        let check = |halves: [Seen; 2]| {
            check_counts(leaf, before, halves)?;
            check_drained(leaf, before, &kinds, &halves.map(|half| vec![half]))
        };
        check(halves).unwrap();
        assert_eq!((halves[0].drains, halves[0].drained_bytes), (0, 0));
        fixture.check_empty().unwrap();

        let mut one_too_many = halves;
        one_too_many[0].pairs += 1;
        assert!(matches!(check(one_too_many), Err(Error::Wrong(_))));
        let mut a_byte_lost = halves;
        a_byte_lost[1].drained_bytes += 1;
        assert!(matches!(check(a_byte_lost), Err(Error::Wrong(_))));
    }
}
