//! What a drain costs the thread whose stock is taken: time, and switches of its CPU.
//!
//!   CPU 1  victim:   pair pair pair pair pair pair ...            (never asks for anything)
//!   CPU 0  drainer:      drain    drain    drain                  every 5, 20 or 100 us
//!                     or wake a thread on CPU 1, which drains     the control
//!
//! Without drains the drainer spins all the same, so that both CPUs are busy in every row.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread::JoinHandle;

use memgroup::{Config, Group, StockStats};

use crate::Error;
use crate::harness::Lab;
use crate::harness::clock;
use crate::harness::crew::{Crew, Start, spin_until};
use crate::harness::os::{self, ThreadUsage};
use crate::harness::report::{Check, params};
use crate::harness::stats::Summary;
use crate::harness::table::{Table, figure, figure_or_dash};
use crate::harness::tree::Tree;

const PAGE_BYTES: u64 = 4096;
const PAIRS_A_BATCH: u64 = 64;
const PERIODS_US: [u64; 3] = [5, 20, 100];
/// So many drains cannot all have come while the victim was off its CPU with nothing stocked.
const JUDGED_DRAINS: u64 = 1_000;
/// The period at which the loss is judged: often enough to show above the noise, and far above any real rate.
const JUDGED_PERIOD_US: u64 = 5;

/// What goes on beside the victim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    Drains { period_us: u64 },
    Wakes { period_us: u64 },
}

impl Beside {
    fn name(self) -> &'static str {
        match self {
            Beside::Nothing => "no drains",
            Beside::Drains { .. } => "drains by the other CPU",
            Beside::Wakes { .. } => "wakes a thread on the victim's CPU",
        }
    }

    fn period_us(self) -> Option<u64> {
        match self {
            Beside::Nothing => None,
            Beside::Drains { period_us } | Beside::Wakes { period_us } => Some(period_us),
        }
    }
}

/// One window as the victim saw it.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    ticks: u64,
    pairs: u64,
    drains: u64,
    /// What those drains returned.
    drained_bytes: u64,
    usage: ThreadUsage,
}

impl Seen {
    fn ns_a_pair(&self, lab: &Lab<'_>) -> f64 {
        lab.clock.ns(self.ticks as f64) / self.pairs.max(1) as f64
    }

    /// Ticks the victim lost to one drain, when a pair takes `alone` ticks without them.
    fn ticks_lost_a_drain(&self, alone: f64) -> Option<f64> {
        (self.drains > 0).then(|| (self.ticks as f64 - self.pairs as f64 * alone) / self.drains as f64)
    }
}

/// A thread on the victim's CPU that drains when it is woken: the seed's worker.
struct Worker {
    shared: Arc<WorkerShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct WorkerShared {
    /// IDLE, CALLED or WORKING; a call during work makes it CALLED again.
    state: AtomicU8,
    closing: AtomicBool,
    drains: AtomicU64,
    drained_bytes: AtomicU64,
}

const IDLE: u8 = 0;
const CALLED: u8 = 1;
const WORKING: u8 = 2;

impl WorkerShared {
    fn work(&self, group: &Group) {
        // ORDERING: Acquire; pairs with the Release in `Worker::drop`.
        while !self.closing.load(Ordering::Acquire) {
            if !self.step(CALLED, WORKING) {
                std::thread::park();
                continue;
            }
            let bytes = group.drain();
            // ORDERING: Relaxed, both; counts, published by the step.
            self.drained_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.drains.fetch_add(1, Ordering::Relaxed);
            // Fails when there was another call meanwhile, which the next round answers.
            self.step(WORKING, IDLE);
        }
    }

    fn step(&self, from: u8, to: u8) -> bool {
        // ORDERING: AcqRel; Acquire pairs with the Release of a call, Release with the Acquire in `rest`.
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl Worker {
    fn start(group: Group) -> Result<Worker, Error> {
        let cpus = os::allowed_cpus()?;
        let cpu = cpus[1 % cpus.len()];
        let shared = Arc::new(WorkerShared::default());
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("worker".to_owned())
            .spawn(move || {
                // A worker that cannot be pinned disturbs the victim less: in the control's favour.
                let _ = os::pin_to(cpu);
                own.work(&group);
            })
            .map_err(|source| Error::System {
                what: "start the worker on the victim's CPU".to_owned(),
                source,
            })?;
        Ok(Worker { shared, thread: Some(thread) })
    }

    fn caller(&self) -> impl Fn() + Send + Sync + 'static {
        let (shared, thread) =
            (Arc::clone(&self.shared), self.thread.as_ref().map(|thread| thread.thread().clone()));
        move || {
            // ORDERING: Release; pairs with the Acquire of the worker's step.
            shared.state.store(CALLED, Ordering::Release);
            if let Some(thread) = &thread {
                thread.unpark();
            }
        }
    }

    /// Waits until every call is answered, so that none is left for the next window.
    fn rest(&self) {
        spin_until(|| {
            // ORDERING: Acquire; pairs with the worker's step to IDLE.
            let idle = self.shared.state.load(Ordering::Acquire) == IDLE;
            idle.then_some(())
        });
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

/// One window: the victim's pairs on thread 1, and what goes on beside it on thread 0.
fn window(
    crew: &Crew,
    ticks_per_us: u64,
    length_us: u64,
    group: &Group,
    worker: &Worker,
    beside: Beside,
) -> Result<Seen, Error> {
    let (start, over, group) = (Start::new(2), AtomicBool::new(false), group.clone());
    let (call, period) = (worker.caller(), beside.period_us().unwrap_or(length_us) * ticks_per_us);
    let worked_before = worker.drained();
    let mut seen = crew.run(2, move |thread| {
        let begin = start.wait(2 * ticks_per_us);
        if thread == 1 {
            let seen = pairs_until(&group, begin + length_us * ticks_per_us);
            // ORDERING: Relaxed; the drainer stops soon enough.
            over.store(true, Ordering::Relaxed);
            return seen;
        }
        let (mut drains, mut drained_bytes) = (0, 0);
        let mut next = begin + period;
        // ORDERING: Relaxed, as the store.
        while !over.load(Ordering::Relaxed) {
            if clock::now() < next {
                std::hint::spin_loop();
                continue;
            }
            next += period;
            match beside {
                Beside::Nothing => {}
                Beside::Drains { .. } => {
                    drained_bytes += group.drain();
                    drains += 1;
                }
                Beside::Wakes { .. } => call(),
            }
        }
        Ok(Seen { drains, drained_bytes, ..Seen::default() })
    });
    let victim = seen.pop().expect("two threads ran")?;
    let by_drainer = seen.pop().expect("two threads ran")?;
    worker.rest();
    let by_worker = worker.drained();
    Ok(Seen {
        drains: by_drainer.drains + by_worker.0 - worked_before.0,
        drained_bytes: by_drainer.drained_bytes + by_worker.1 - worked_before.1,
        ..victim
    })
}

fn pairs_until(group: &Group, deadline: u64) -> Result<Seen, Error> {
    let (before, begin, mut pairs) = (ThreadUsage::now(), clock::now(), 0);
    loop {
        for _ in 0..PAIRS_A_BATCH {
            drop(group.try_charge(PAGE_BYTES).map_err(|error| Error::Wrong(error.to_string()))?);
        }
        pairs += PAIRS_A_BATCH;
        let now = clock::now();
        if now >= deadline {
            return Ok(Seen {
                ticks: now - begin,
                pairs,
                drains: 0,
                drained_bytes: 0,
                usage: ThreadUsage::now().since(before),
            });
        }
    }
}

/// Measures the loss a drain and the switches of the victim, each beside the control.
pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let depth = lab.args.depth.unwrap_or(3);
    let tree = Tree::grow(Config::new().slots(lab.slots).depth_max(depth as u32), depth, 1)?;
    let worker = Worker::start(tree.leaves[0].clone())?;
    let mut kinds = vec![Beside::Nothing];
    kinds.extend(PERIODS_US.map(|period_us| Beside::Drains { period_us }));
    kinds.extend(PERIODS_US.map(|period_us| Beside::Wakes { period_us }));
    let seen = rounds(lab, &tree.leaves[0], &worker, &kinds, lab.effort.rounds, lab.effort.window_us * 2)?;
    show_loss(lab, depth, &kinds, &seen)?;

    let kinds = [Beside::Nothing, Beside::Drains { period_us: 20 }, Beside::Wakes { period_us: 20 }];
    let seen = rounds(
        lab,
        &tree.leaves[0],
        &worker,
        &kinds,
        lab.effort.rounds.div_ceil(8),
        lab.effort.window_us * 100,
    )?;
    show_switches(lab, &kinds, &seen)?;
    drop(worker);
    tree.check_empty()
}

/// Windows of every kind, in random order, by kind.
fn rounds(
    lab: &mut Lab<'_>,
    group: &Group,
    worker: &Worker,
    kinds: &[Beside],
    rounds: usize,
    length_us: u64,
) -> Result<Vec<Vec<Seen>>, Error> {
    let ticks_per_us = lab.clock.ticks_per_us();
    let mut seen = vec![Vec::new(); kinds.len()];
    let before = group.stock();
    let mut order: Vec<usize> = (0..kinds.len()).collect();
    for _ in 0..rounds {
        lab.random.shuffle(&mut order);
        for &kind in &order {
            seen[kind].push(window(&lab.crew, ticks_per_us, length_us, group, worker, kinds[kind])?);
        }
    }
    check_drained(group, before, kinds, &seen)?;
    Ok(seen)
}

/// Both ways of draining took bytes where they drained, and what they returned is what the group's statistics say.
fn check_drained(
    group: &Group,
    before: StockStats,
    kinds: &[Beside],
    seen: &[Vec<Seen>],
) -> Result<(), Error> {
    let (mut returned, path) = (0, group.path());
    for wakes in [false, true] {
        let of_way = kinds.iter().zip(seen).filter(|(kind, _)| matches!(kind, Beside::Wakes { .. }) == wakes);
        let (drains, bytes) = of_way
            .flat_map(|(_, seen)| seen)
            .fold((0, 0), |(drains, bytes), seen| (drains + seen.drains, bytes + seen.drained_bytes));
        if drains >= JUDGED_DRAINS && bytes == 0 {
            return Err(Error::Wrong(format!("{drains} drains of {path} beside its charger took no byte")));
        }
        returned += bytes;
    }
    let after = group.stock();
    let (drains, counted) = (after.drains - before.drains, after.drained_bytes - before.drained_bytes);
    if counted != returned || (returned > 0 && drains == 0) {
        return Err(Error::Wrong(format!(
            "drains of {path} returned {returned} bytes, its statistics say {counted} in {drains} drains"
        )));
    }
    Ok(())
}

/// Windows in which the kernel took the victim off its CPU count only where that is what is measured.
fn counted(kind: Beside, seen: &[Seen]) -> Vec<Seen> {
    let wakes = matches!(kind, Beside::Wakes { .. });
    seen.iter().copied().filter(|seen| wakes || seen.usage.switches_involuntary == 0).collect()
}

fn show_loss(lab: &mut Lab<'_>, depth: usize, kinds: &[Beside], seen: &[Vec<Seen>]) -> Result<(), Error> {
    let columns = ["beside the victim", "every us", "ns a pair", "ns lost a drain", "min", "p90", "drains"];
    let mut windows = Vec::new();
    let mut table = Table::new(format!("what a drain costs its victim, depth {depth}"), columns);
    let clean = counted(Beside::Nothing, &seen[0]);
    let alone =
        Summary::of(&clean.iter().map(|seen| seen.ticks as f64 / seen.pairs as f64).collect::<Vec<_>>());
    let clock = lab.clock;
    for (&kind, seen) in kinds.iter().zip(seen) {
        let counting = counted(kind, seen);
        let pair = Summary::of(&counting.iter().map(|seen| seen.ns_a_pair(lab)).collect::<Vec<_>>());
        let lost = alone.and_then(|alone| {
            let ticks = counting.iter().filter_map(|seen| seen.ticks_lost_a_drain(alone.median));
            Summary::of(&ticks.map(|ticks| clock.ns(ticks)).collect::<Vec<_>>())
        });
        let of = |part: fn(Summary) -> f64| figure_or_dash(lost.map(part));
        table.row(vec![
            kind.name().to_owned(),
            kind.period_us().map_or_else(|| "-".to_owned(), |us| us.to_string()),
            figure_or_dash(pair.map(|ns| ns.median)),
            of(|ns| ns.median),
            of(|ns| ns.min),
            of(|ns| ns.p90),
            counting.iter().map(|seen| seen.drains).sum::<u64>().to_string(),
        ]);
        windows.push(format!("{}/{}", counting.len(), seen.len()));
        let params = params([("period_us", kind.period_us().into()), ("depth", depth.into())]);
        lab.report.add_time(&clock, kind.name(), params.clone(), "victim's pair", pair);
        lab.report.add_time(&clock, kind.name(), params, "victim's loss a drain", lost);
        if kind == (Beside::Drains { period_us: JUDGED_PERIOD_US }) {
            // On one CPU drainer and victim take turns, and nothing is drained while the victim runs.
            let us = lost.filter(|_| lab.crew.cpus() > 1).map(|ns| ns.median / 1e3);
            let name = format!("victim's loss a drain, one every {JUDGED_PERIOD_US} us");
            lab.report.checks.push(Check::at_most(name, us, 0.5, "us"));
        }
    }
    table.note(format!("windows counted of tried, row by row: {}", windows.join(" ")));
    table.note("loss: the victim's time beyond its pairs at the pace without drains, over the drains done. At 100 us between drains the noise of a window is larger than the loss. Where a worker is woken, switches are part of the cost and windows with them count.");
    lab.print(&table)
}

fn show_switches(lab: &mut Lab<'_>, kinds: &[Beside], seen: &[Vec<Seen>]) -> Result<(), Error> {
    let columns =
        ["beside the victim", "every us", "seconds", "drains", "voluntary", "involuntary", "inv./s"];
    let mut table = Table::new("context switches of the pinned victim, drains off and on", columns);
    for (&kind, seen) in kinds.iter().zip(seen) {
        let seconds = lab.clock.ns(seen.iter().map(|seen| seen.ticks as f64).sum()) / 1e9;
        let sum = |part: fn(&Seen) -> u64| seen.iter().map(part).sum::<u64>();
        let (voluntary, involuntary) =
            (sum(|seen| seen.usage.switches_voluntary), sum(|seen| seen.usage.switches_involuntary));
        table.row(vec![
            kind.name().to_owned(),
            kind.period_us().map_or_else(|| "-".to_owned(), |us| us.to_string()),
            format!("{seconds:.2}"),
            sum(|seen| seen.drains).to_string(),
            voluntary.to_string(),
            involuntary.to_string(),
            figure(involuntary as f64 / seconds),
        ]);
        let params = params([("period_us", kind.period_us().into()), ("seconds", seconds.into())]);
        lab.report.add_count(kind.name(), params.clone(), "voluntary switches", "count", voluntary as f64);
        lab.report.add_count(kind.name(), params, "involuntary switches", "count", involuntary as f64);
    }
    table.note("other work on the machine switches the victim too: that is the first row");
    lab.print(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loss_is_the_time_beyond_the_undisturbed_pace_over_the_drains() {
        let seen =
            Seen { ticks: 1200, pairs: 100, drains: 4, drained_bytes: 0, usage: ThreadUsage::default() };
        assert_eq!(seen.ticks_lost_a_drain(10.0), Some(50.0));
        assert_eq!(Seen { drains: 0, ..seen }.ticks_lost_a_drain(10.0), None);
    }

    #[test]
    fn drains_that_take_nothing_or_do_not_add_up_are_wrong_results() {
        let tree = Tree::grow(Config::new(), 3, 1).unwrap();
        let (group, kinds) = (&tree.leaves[0], [Beside::Drains { period_us: 5 }]);
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

    #[test]
    fn a_window_with_drains_counts_them_and_leaves_nothing() {
        let crew = Crew::start(2).unwrap();
        let tree = Tree::grow(Config::new(), 3, 1).unwrap();
        let worker = Worker::start(tree.leaves[0].clone()).unwrap();
        for beside in [Beside::Nothing, Beside::Drains { period_us: 1 }, Beside::Wakes { period_us: 1 }] {
            let seen = window(&crew, 2000, 20_000, &tree.leaves[0], &worker, beside).unwrap();
            assert!(seen.pairs > 0);
            assert_eq!(seen.drains > 0, beside != Beside::Nothing, "{beside:?}: {} drains", seen.drains);
        }
        for beside in [Beside::Drains { period_us: 5 }, Beside::Wakes { period_us: 5 }] {
            let takes = |_| {
                let seen = window(&crew, 2000, 2_000, &tree.leaves[0], &worker, beside).unwrap();
                seen.drained_bytes > 0
            };
            assert!((0..100).any(takes), "{beside:?}: a hundred windows and no byte");
        }
        drop(worker);
        tree.check_empty().unwrap();
    }
}
