//! The cost of a drain for the threads that lose their stock: time, and switches of their CPU.
//!
//!   CPU 1  victim:   pair pair pair pair pair pair ...            (never asks for anything)
//!   CPU 0  drainer:      drain    drain    drain                  every 5, 20 or 100 us, or without rest
//!                     or wake a thread on CPU 1, which drains     the control
//!
//! Without drains the drainer spins all the same, so that both CPUs are busy in every row.
//!
//! - I1. Every drained byte was returned by a drain of the experiment; else the run ends with an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use memgroup::{Config, Group, StockStats};

use super::{PAGE_BYTES, REFUSED, soak};
use crate::harness::prelude::*;

const PAIRS_A_BATCH: u64 = 64;
const PERIODS_US: [u64; 3] = [5, 20, 100];
/// So many drains cannot all have come while the victim was off its CPU with nothing stocked.
const JUDGED_DRAINS: u64 = 1_000;
/// The period at which the loss is judged: often enough to show above the noise, and far above any real rate.
const JUDGED_PERIOD_US: u64 = 5;
/// A pair is slow beyond this: some hundred times its usual length, more than a miss and a few line transfers.
const SLOW_US: u64 = 1;
/// And very slow beyond this: the CPU was taken away.
const VERY_SLOW_US: u64 = 10;

/// The disturbance beside the victim, and how often it comes; at 0 without rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beside {
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
pub(super) struct Seen {
    ticks: u64,
    pub(super) pairs: u64,
    pub(super) slow: u64,
    pub(super) very_slow: u64,
    pub(super) drains: u64,
    pub(super) drains_with_bytes: u64,
    /// The bytes that those drains returned.
    pub(super) drained_bytes: u64,
    usage: ThreadUsage,
}

impl Seen {
    /// Adds counts of another thread or window; the usage stays that of the first.
    pub(super) fn add(&mut self, other: Seen) {
        self.ticks += other.ticks;
        self.pairs += other.pairs;
        self.slow += other.slow;
        self.very_slow += other.very_slow;
        self.drains += other.drains;
        self.drains_with_bytes += other.drains_with_bytes;
        self.drained_bytes += other.drained_bytes;
    }

    /// Ticks the victim lost to one drain, when a pair takes `alone` ticks without them.
    fn ticks_lost_a_drain(&self, alone: f64) -> Option<f64> {
        (self.drains > 0).then(|| (self.ticks as f64 - self.pairs as f64 * alone) / self.drains as f64)
    }
}

/// A thread on the victim's CPU that drains when it is woken: the seed's worker. A call during a drain makes it drain again.
pub(super) struct Worker {
    thread: Sleeper,
    /// Drains done, and the bytes they returned.
    drained: Arc<[AtomicU64; 2]>,
}

impl Worker {
    /// Where the thread cannot be pinned it disturbs the victim less: in the control's favour.
    pub(super) fn start(group: Group) -> Result<Worker> {
        let drained = Arc::<[AtomicU64; 2]>::default();
        let own = Arc::clone(&drained);
        let drain = move || {
            for (sum, more) in own.iter().zip([1, group.drain()]) {
                // ORDERING: Relaxed; counts, published by the answer to the call.
                sum.fetch_add(more, Ordering::Relaxed);
            }
        };
        Ok(Worker { thread: Sleeper::start("worker on the victim's CPU", 1, drain)?, drained })
    }

    fn drained(&self) -> [u64; 2] {
        // ORDERING: Relaxed; counts.
        self.drained.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}

/// The threads of a window, and its length.
pub(super) struct Window<'w> {
    pub(super) chargers: usize,
    pub(super) ticks_per_us: u64,
    pub(super) length_us: u64,
    pub(super) group: &'w Group,
    pub(super) worker: &'w Worker,
    /// Every pair is timed, for the soak; else a batch of them.
    pub(super) timed: bool,
}

impl Window<'_> {
    /// The chargers' pairs on workers 1 and up, and the disturbance on worker 0.
    pub(super) fn run(&self, workers: &Workers, beside: Beside) -> Result<Seen> {
        let charging = AtomicUsize::new(self.chargers);
        let period = beside.describe().1.unwrap_or(self.length_us) * self.ticks_per_us;
        let before = self.worker.drained();
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
                    Beside::Wakes(_) => self.worker.thread.call(),
                }
            }
            Ok(seen)
        })?;
        // No call is left for the next window.
        self.worker.thread.rest();
        let ([drains, bytes], mut sum) = (self.worker.drained(), seen[1]);
        seen[2..].iter().chain(&seen[..1]).for_each(|&one| sum.add(one));
        sum.drains += drains - before[0];
        sum.drained_bytes += bytes - before[1];
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

/// Measures the loss a drain and the switches of the victim, each beside the control; then the soak.
pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let depth = lab.args.depth();
    let fixture = Fixture::chain(Config::new().slots(lab.slots).depth_max(depth as u32), depth, 1)?;
    let group = &fixture.leaves[0];
    let worker = Worker::start(group.clone())?;
    let mut kinds = vec![Beside::Nothing];
    kinds.extend(PERIODS_US.map(Beside::Drains));
    kinds.extend(PERIODS_US.map(Beside::Wakes));
    let (windows, us) = (lab.effort.windows.rounds, lab.effort.windows.window_us);
    let ticks_per_us = lab.clock.ticks_per_us();
    let window =
        Window { chargers: 1, ticks_per_us, length_us: us * 2, group, worker: &worker, timed: false };
    let seen = measure(lab, &window, &kinds, windows)?;
    show_loss(lab, depth, &kinds, &seen)?;
    let kinds = [Beside::Nothing, Beside::Drains(20), Beside::Wakes(20)];
    let seen = measure(lab, &Window { length_us: us * 100, ..window }, &kinds, windows.div_ceil(8))?;
    show_switches(lab, &kinds, &seen)?;
    soak::run(lab, depth, group, &worker)?;
    drop(worker);
    fixture.check_empty()
}

/// Windows of every kind, in random order, by kind.
fn measure(
    lab: &mut Lab<'_>,
    window: &Window<'_>,
    kinds: &[Beside],
    rounds: usize,
) -> Result<Vec<Vec<Seen>>> {
    let (mut seen, before) = (vec![Vec::new(); kinds.len()], window.group.stock());
    lab.in_turns(rounds, kinds.len(), |lab, kind| {
        seen[kind].push(window.run(&lab.workers, kinds[kind])?);
        Ok(())
    })?;
    check_drained(window.group, before, kinds, &seen)?;
    Ok(seen)
}

/// Both ways of draining took bytes where they drained, and the returned bytes are those of the group's statistics.
pub(super) fn check_drained(
    group: &Group,
    before: StockStats,
    kinds: &[Beside],
    seen: &[Vec<Seen>],
) -> Result<()> {
    let (mut returned, path) = (0, group.path());
    for wakes in [false, true] {
        let mut sum = Seen::default();
        let of_way = kinds.iter().zip(seen).filter(|(kind, _)| matches!(kind, Beside::Wakes(_)) == wakes);
        of_way.flat_map(|(_, seen)| seen).for_each(|&seen| sum.add(seen));
        let Seen { drains, drained_bytes: bytes, .. } = sum;
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

fn period_cell(us: Option<u64>) -> String {
    us.map_or_else(dash, |us| us.to_string())
}

fn show_loss(lab: &mut Lab<'_>, depth: usize, kinds: &[Beside], seen: &[Vec<Seen>]) -> Result<()> {
    let mut table = Table::new(
        format!("what a drain costs its victim, depth {depth}"),
        ["beside the victim", "every us", "ns a pair", "ns lost a drain (min..p90)", "drains", "windows"],
    );
    let ns_a_tick = lab.clock.ns(1.0);
    let mut alone = None;
    for (&kind, seen) in kinds.iter().zip(seen) {
        // Windows in which the kernel took the victim off its CPU count only where that is the cost to measure.
        let wakes = matches!(kind, Beside::Wakes(_));
        let counting = || seen.iter().filter(|seen| wakes || seen.usage.switches_involuntary == 0);
        let pair = Summary::of(counting().map(|one| one.ticks as f64 / one.pairs.max(1) as f64));
        let alone = *alone.get_or_insert(median(pair));
        let lost = Summary::of(counting().filter_map(|one| one.ticks_lost_a_drain(alone?)));
        let [pair, lost] = [pair, lost].map(|ticks| ticks.map(|ticks| ticks.scaled(ns_a_tick)));
        let (name, period_us) = kind.describe();
        let mut row = lab.record(name, json!({"period_us": period_us, "depth": depth}));
        row.time("victim's pair", pair);
        let lost_cell = row.time("victim's loss a drain", lost);
        let drains = count(counting().map(|one| one.drains).sum());
        let windows = format!("{} of {}", counting().count(), seen.len());
        table.row(name, [period_cell(period_us), figure_or_dash(median(pair)), lost_cell, drains, windows]);
        if kind == Beside::Drains(JUDGED_PERIOD_US) {
            // On one CPU drainer and victim take turns, and nothing is drained while the victim runs.
            let us = lost.filter(|_| lab.workers.cpus > 1).map(|ns| ns.median / 1e3);
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
        let sum = |part: fn(&Seen) -> u64| seen.iter().map(part).sum::<u64>();
        let seconds = lab.clock.ns(sum(|seen| seen.ticks) as f64) / 1e9;
        let involuntary = sum(|seen| seen.usage.switches_involuntary);
        let (name, period_us) = kind.describe();
        let mut row = lab.record(name, json!({"period_us": period_us, "seconds": seconds}));
        let voluntary = row.count("voluntary switches", "count", sum(|seen| seen.usage.switches_voluntary));
        let each_second = figure(involuntary as f64 / seconds);
        let involuntary = row.count("involuntary switches", "count", involuntary);
        let (seconds, drains) = (format!("{seconds:.2}"), count(sum(|seen| seen.drains)));
        table.row(name, [period_cell(period_us), seconds, drains, voluntary, involuntary, each_second]);
    }
    table.note("other work on the machine switches the victim too: that is the first row");
    lab.print(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
