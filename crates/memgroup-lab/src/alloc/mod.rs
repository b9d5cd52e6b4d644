//! Servers: a global allocator that charges, tasks in groups, and charges that wait as futures.

mod programs;

use std::collections::VecDeque;
use std::hint::black_box;
use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use memgroup::{Charge, Charging, Config, Group};
use memgroup_tokio::{InGroupExt, ReclaimerThread, Tasks};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

use crate::Args;
use crate::harness::prelude::*;

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let mut lab = Lab::open(args, None, args.slots, out)?;
    polls(&mut lab)?;
    waits(&mut lab)?;
    wakes(&mut lab)?;
    programs::measure(&mut lab)?;
    lab.close()
}

/// The goals in nanoseconds, of the three settings that have one.
const NEITHER_MOST: f64 = 5.0;
const SAMPLED_MOST: f64 = 12.0;
const EXACT_MOST: f64 = 22.0;

/// A measured interval starts at one poll in this many.
const SAMPLED: u32 = 32;

/// A future that counts its polls and is never ready.
struct Counts<'c>(&'c AtomicU64);

impl Future for Counts<'_> {
    type Output = ();

    // Not inlined, like the poll of a large future, so that the compiler can neither remove nor
    // reorder parts of the scope around it.
    #[inline(never)]
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        // ORDERING: Relaxed; only this thread writes it.
        self.0.store(black_box(self.0.load(Ordering::Relaxed) + 1), Ordering::Relaxed);
        Poll::Pending
    }
}

/// Nanoseconds of each of so many polls.
fn time<T>(clock: &Clock, mut future: Pin<&mut impl Future<Output = T>>, polls: u64) -> f64 {
    let mut context = Context::from_waker(Waker::noop());
    let began = clock::now_ordered();
    for _ in 0..polls {
        let _ = black_box(future.as_mut().poll(&mut context));
    }
    clock.ns((clock::now_ordered() - began) as f64) / polls as f64
}

/// Nanoseconds that a group adds to the poll of a future; the control is the bare future. Each poll
/// must reach the future within.
fn polls(lab: &mut Lab<'_>) -> Result<()> {
    const NAMES: [&str; 4] = ["bare poll", "in_group adds", "ended_over_limit adds", "tracked adds"];
    let off = Config::with_slots(lab.slots).scope_time(false).pressure(false);
    let sampled = off.pressure(true).scope_time_sampled(SAMPLED);
    let settings = [
        ("neither time nor pressure", off, Some(NEITHER_MOST)),
        ("pressure", off.pressure(true), None),
        ("pressure and sampled time, 1 in 32", sampled, Some(SAMPLED_MOST)),
        ("exact time", off.scope_time(true), Some(EXACT_MOST)),
        ("pressure and exact time, the default", Config::with_slots(lab.slots), None),
    ];
    let (rounds, polls) = (lab.pick(3, 60, 400), lab.pick(100, 20_000, 50_000));
    let counts = settings.map(|_| [const { AtomicU64::new(0) }; 4]);
    let mut futures = Vec::new();
    for ((_, config, _), [bare, inside, limited, tracked]) in settings.iter().zip(&counts) {
        let hierarchy = hierarchy(*config)?;
        let group = child(&hierarchy.root(), "tenant")?;
        let tasks = Tasks::of(&group).set_up("the tasks of a group")?;
        let inside = Box::pin(Counts(inside).in_group(&group));
        let limited = Box::pin(Counts(limited).in_group(&group).ended_over_limit());
        let tracked = Box::pin(tasks.track(Counts(tracked)));
        futures.push((Box::pin(Counts(bare)), inside, limited, tracked, (hierarchy, tasks)));
    }
    let found = lab.sample(rounds, settings.len(), |lab, case, samples| {
        let (bare, inside, limited, tracked, _) = &mut futures[case];
        let bare = time(&lab.clock, bare.as_mut(), polls);
        samples.push(NAMES[0], bare);
        // Each round's difference: a slow stretch of the machine slows both of its parts.
        samples.push(NAMES[1], time(&lab.clock, inside.as_mut(), polls) - bare);
        samples.push(NAMES[2], time(&lab.clock, limited.as_mut(), polls) - bare);
        samples.push(NAMES[3], time(&lab.clock, tracked.as_mut(), polls) - bare);
        Ok(())
    })?;
    for (name, count) in counts.iter().flat_map(|of| NAMES.iter().zip(of)) {
        // ORDERING: Relaxed; this thread made the polls.
        expect(format!("polls of {name}"), count.load(Ordering::Relaxed), rounds as u64 * polls)?;
    }
    let rows = settings.iter().zip(&found).map(|((name, ..), found)| (*name, *name, json!({}), found));
    lab.show(
        "a poll, and what a group adds to it",
        &NAMES.map(|name| (name, "ns")),
        rows,
        "bare is the control",
    )?;
    for ((name, _, most), found) in settings.iter().zip(&found) {
        let name = format!("a poll in a group, {name}");
        most.iter().for_each(|&most| lab.at_most(&*name, found.median(NAMES[1]), most, "ns"));
    }
    Ok(())
}

const PAGE: u64 = 4096;
const WAITING: [usize; 3] = [1, 1_000, 100_000];
const BYTES_MOST: f64 = 200.0;
const OPERATION_MOST_US: f64 = 1.0;
/// Every wait has a deadline, because the reclaimer keeps waits in the order of their deadlines.
const DEADLINE: Duration = Duration::from_secs(3600);
/// Operations of each kind in one round.
const TURNS: usize = 1_000;

fn poll(charging: &mut Charging) -> Result<Poll<Charge>> {
    match Pin::new(charging).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(charge) => charge.map(Poll::Ready).or_wrong("a wait that nothing ends"),
        Poll::Pending => Ok(Poll::Pending),
    }
}

/// A future that waits, with a deadline behind all others.
fn join(group: &Group) -> Result<Charging> {
    let mut charging = group.charge(PAGE).until(DEADLINE);
    let polled = poll(&mut charging)?;
    ensure(polled.is_pending(), || "a charge without room was made".to_owned())?;
    Ok(charging)
}

const OPERATIONS: [&str; 4] = ["join", "cancel", "serve", "take"];

/// The figures beside so many that wait: bytes of the heap for each, and the future; and the
/// operations, of which the mean of a round is one sample.
fn beside(lab: &mut Lab<'_>, count: usize, rounds: usize) -> Result<Samples> {
    let (hierarchy, parent) = limited_parent(Config::with_slots(lab.slots), PAGE)?;
    let reclaimer = ReclaimerThread::spawn(&hierarchy).map_err(Error::system("start a reclaimer"))?;
    let group = child(&parent, "group")?;
    let mut held = group.try_charge(PAGE).or_wrong("a charge with room")?;
    let mut waiting = VecDeque::with_capacity(count + TURNS);
    // The first wait marks the group and creates its queue, so it is not measured.
    let first = join(&group)?;
    let (mut found, watch, before) = (Samples::default(), lab.clock.stopwatch(), heap_bytes());
    for _ in 0..count {
        waiting.push_back(Some(join(&group)?));
    }
    if let Some((before, after)) = before.zip(heap_bytes()) {
        let heap = after.saturating_sub(before) as f64;
        found.push("memory", heap / count as f64 + size_of::<Charging>() as f64);
    }
    drop(first);
    for _ in 0..rounds {
        let mut calls: [Vec<f64>; 4] = Default::default();
        for _ in 0..TURNS {
            let (ns, joined) = watch.time(|| join(&group));
            waiting.push_back(Some(joined?));
            calls[0].push(ns);
            let at = lab.random.next() as usize % waiting.len();
            // If that wait was cancelled already, the next one that was not.
            let cancelled = (at..waiting.len()).find_map(|at| waiting[at].take());
            calls[1].push(watch.time(|| drop(cancelled)).0);
        }
        for _ in 0..TURNS {
            // The uncharge serves the future that has waited longest. Its poll takes the charge.
            calls[2].push(watch.time(|| held.shrink(PAGE)).0);
            held = loop {
                let front =
                    waiting.pop_front().ok_or("none").or_wrong("futures that wait at the end of a round")?;
                let Some(mut front) = front else { continue };
                let (ns, polled) = watch.time(|| poll(&mut front));
                calls[3].push(ns);
                if let Poll::Ready(charge) = polled? {
                    break charge;
                }
                // While a reclaimer looks after the first, the second is served.
                waiting.push_back(Some(front));
            };
            waiting.push_back(Some(join(&group)?));
        }
        for (name, ns) in OPERATIONS.iter().zip(calls) {
            found.push(name, ns.iter().sum::<f64>() / ns.len() as f64 / 1e3);
        }
    }
    drop((waiting, held, reclaimer));
    check_empty(&hierarchy)?;
    Ok(found)
}

/// Charges that wait as futures: their memory, and their operations beside many that wait. At the
/// end nothing is charged.
fn waits(lab: &mut Lab<'_>) -> Result<()> {
    let (rounds, counts) = (lab.pick(1, 7, 21), lab.pick([1, 10, 1_000], WAITING, WAITING));
    let found = counts.map(|count| beside(lab, count, rounds)).into_iter().collect::<Result<Vec<_>>>()?;
    let rows = counts.iter().zip(&found).map(|(count, found)| {
        (counted(*count as u64, "waiting charge"), "waiting charge", json!({"waiting": count}), found)
    });
    let columns = [("memory", "bytes"), ("join", "us"), ("cancel", "us"), ("serve", "us"), ("take", "us")];
    let note = "bytes: of the heap with its own overhead, and the future; not of the task. Each has a deadline, behind all others";
    lab.show("charges that wait as futures: bytes each, and us of one operation", &columns, rows, note)?;
    for (count, found) in counts.iter().zip(&found) {
        let charges = counted(*count as u64, "charge");
        if *count >= 1_000 {
            lab.at_most(
                format!("a waiting charge, of {charges}"),
                found.median("memory"),
                BYTES_MOST,
                "bytes",
            );
        }
        for name in &OPERATIONS[..3] {
            lab.at_most(format!("{name} beside {charges}"), found.median(name), OPERATION_MOST_US, "us");
        }
    }
    Ok(())
}

const P50_MOST: f64 = 1.3;
const P99_MOST: f64 = 1.5;
const WORKERS: usize = 2;
/// How long the task has waited before it is woken: its worker sleeps by then.
const SETTLE: Duration = Duration::from_micros(200);

struct Scene {
    group: Group,
    notify: Notify,
    /// The task waits, or is about to.
    is_ready: AtomicBool,
    /// When the task went on, in ticks.
    woken: AtomicU64,
}

impl Scene {
    /// The task's part: waits for a charge, or for the control.
    async fn wait(self: Arc<Self>, charges: bool) -> Result<()> {
        // ORDERING: Release; pairs with the Acquire in `once`. It only makes the freeing thread
        // begin to wait.
        self.is_ready.store(true, Ordering::Release);
        if charges {
            drop(self.group.charge(PAGE).await.or_wrong("a charge that room was made for")?);
        } else {
            self.notify.notified().await;
        }
        // ORDERING: Relaxed; the end of the task orders it.
        self.woken.store(clock::now_ordered(), Ordering::Relaxed);
        Ok(())
    }

    /// The freeing thread's part: notes the time, and wakes the task.
    fn wake(&self, held: Option<Charge>) -> u64 {
        let began = clock::now_ordered();
        match held {
            Some(held) => drop(held),
            None => self.notify.notify_one(),
        }
        began
    }
}

/// The ticks from one wake to the task, where a thread of the program's own frees the memory or
/// another task does, on a worker of the runtime.
fn once(runtime: &Runtime, scene: &Arc<Scene>, charges: bool, by_task: bool) -> Result<u64> {
    let charge = || scene.group.try_charge(PAGE).or_wrong("room at the start");
    let held = charges.then(charge).transpose()?;
    // ORDERING: Relaxed; the task begins later.
    scene.is_ready.store(false, Ordering::Relaxed);
    let task = runtime.spawn(Arc::clone(scene).wait(charges));
    // ORDERING: Acquire; see `wait`.
    while !scene.is_ready.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    std::thread::sleep(SETTLE);
    let began = if by_task {
        let scene = Arc::clone(scene);
        runtime.block_on(runtime.spawn(async move { scene.wake(held) })).or_wrong("the freeing task")?
    } else {
        scene.wake(held)
    };
    runtime.block_on(task).or_wrong("the task that waits")??;
    // ORDERING: Relaxed; the end of the task orders it.
    let woken = scene.woken.load(Ordering::Relaxed);
    ensure(woken > began, || "a task went on before it was woken".to_owned())?;
    Ok(woken - began)
}

/// From an uncharge to the task with the charge that waited for it, over tokio's `Notify`. The task
/// has begun to wait before the time is noted, and goes on after it.
fn wakes(lab: &mut Lab<'_>) -> Result<()> {
    let (hierarchy, parent) = limited_parent(Config::with_slots(lab.slots), PAGE)?;
    let reclaimer = ReclaimerThread::spawn(&hierarchy).map_err(Error::system("start a reclaimer"))?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_time()
        .build()
        .map_err(Error::system("start a runtime"))?;
    let scene = Arc::new(Scene {
        group: child(&parent, "tenant")?,
        notify: Notify::new(),
        is_ready: AtomicBool::new(false),
        woken: AtomicU64::new(0),
    });
    const CASES: [(&str, &str, bool, bool); 4] = [
        ("a thread frees", "charge().await", true, false),
        ("a thread frees", "Notify (control)", false, false),
        ("a task frees", "charge().await", true, true),
        ("a task frees", "Notify (control)", false, true),
    ];
    let (rounds, calls) = (lab.pick(1, 7, 21), lab.pick(3, 150, 300));
    let found = lab.sample(rounds, CASES.len(), |lab, case, samples| {
        let (_, _, charges, by_task) = CASES[case];
        let call = |_| once(&runtime, &scene, charges, by_task).map(|ticks| lab.clock.ns(ticks as f64));
        samples.block("wake", (0..calls).map(call).collect::<Result<_>>()?, 1e3);
        Ok(())
    })?;
    let rows = CASES
        .iter()
        .zip(&found)
        .map(|((name, by, ..), found)| (format!("{name}: {by}"), *by, json!({"from": name}), found));
    let note = format!(
        "a runtime of {WORKERS} workers. The task has waited for {} us at least; most of the time is the system's, to wake a worker",
        SETTLE.as_micros()
    );
    let columns = [("wake p50", "us"), ("wake p99", "us"), ("wake max", "us")];
    lab.show("woken after room appears", &columns, rows, note)?;
    for ((name, ..), both) in CASES.iter().step_by(2).zip(found.chunks_exact(2)) {
        for (part, most) in [("p50", P50_MOST), ("p99", P99_MOST)] {
            let over = both[0].over(&both[1], &format!("wake {part}"));
            lab.at_most(format!("woken where {name}, {part} over Notify"), over, most, "x");
        }
    }
    drop(reclaimer);
    check_empty(&hierarchy)
}
