//! Servers: a global allocator that charges, tasks in groups, and charges that wait as futures.

mod programs;

use std::collections::VecDeque;
use std::hint::black_box;
use std::io::Write;
use std::pin::{Pin, pin};
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
    programs::run(&mut lab)?;
    lab.close()
}

/// The goals in nanoseconds, of the three settings that have one.
const NEITHER_MOST: f64 = 5.0;
const SAMPLED_MOST: f64 = 12.0;
const EXACT_MOST: f64 = 22.0;

/// One poll in so many begins a measured stretch of time.
const SAMPLED: u32 = 32;

/// A future that counts its polls and is never ready.
struct Counts<'c>(&'c mut u64);

impl Future for Counts<'_> {
    type Output = ();

    // As a poll of much code: the compiler drops no part of a scope around it, and moves none.
    #[inline(never)]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        *self.0 = black_box(*self.0 + 1);
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
    let off = Config::with_slots(lab.slots).scope_time(false).pressure(false);
    let settings = [
        ("neither time nor pressure", off, Some(NEITHER_MOST)),
        ("pressure", off.pressure(true), None),
        (
            "pressure and sampled time, 1 in 32",
            off.pressure(true).scope_time_sampled(SAMPLED),
            Some(SAMPLED_MOST),
        ),
        ("exact time", off.scope_time(true), Some(EXACT_MOST)),
        ("pressure and exact time, the default", Config::with_slots(lab.slots), None),
    ];
    let (rounds, polls) = (lab.pick(3, 60, 400), lab.pick(100, 20_000, 50_000));
    let mut table = Table::new(
        "a poll: ns, and ns that a group adds",
        ["setting", "bare (control)", "in_group", "ended_over_limit", "tracked"],
    );
    for (name, config, most) in settings {
        let hierarchy = hierarchy(config)?;
        let group = child(&hierarchy.root(), "tenant")?;
        let tasks = Tasks::of(&group).set_up("the tasks of a group")?;
        let mut counts = [0_u64; 4];
        let mut samples: [Vec<f64>; 4] = Default::default();
        {
            let [bare, inside, limited, tracked] = &mut counts;
            let (mut bare, mut inside) = (pin!(Counts(bare)), pin!(Counts(inside).in_group(&group)));
            let mut limited = pin!(Counts(limited).in_group(&group).ended_over_limit());
            let mut tracked = pin!(tasks.track(Counts(tracked)));
            for _ in 0..rounds {
                samples[0].push(time(&lab.clock, bare.as_mut(), polls));
                samples[1].push(time(&lab.clock, inside.as_mut(), polls));
                samples[2].push(time(&lab.clock, limited.as_mut(), polls));
                samples[3].push(time(&lab.clock, tracked.as_mut(), polls));
            }
        }
        for (variant, polled) in ["bare", "in_group", "limited", "tracked"].into_iter().zip(counts) {
            expect(format!("polls of the {variant} future"), polled, rounds as u64 * polls)?;
        }
        // Each round's difference: a slow stretch of the machine slows both of its parts.
        let bare = samples[0].clone();
        let added = |of: &Vec<f64>| Summary::of(of.iter().zip(&bare).map(|(with, bare)| with - bare));
        let inside = added(&samples[1]);
        let mut record = lab.record(name, json!({}));
        let cells = [
            record.summary("bare poll", "ns", Summary::of(&samples[0])),
            record.summary("in_group adds", "ns", inside),
            record.summary("ended_over_limit adds", "ns", added(&samples[2])),
            record.summary("tracked adds", "ns", added(&samples[3])),
        ];
        table.row(name, cells);
        if let Some(most) = most {
            lab.at_most(format!("a poll in a group, {name}"), median(inside), most, "ns");
        }
    }
    lab.print(&table)
}

const PAGE: u64 = 4096;
const WAITING: [usize; 3] = [1, 1_000, 100_000];
const BYTES_MOST: f64 = 200.0;
const OPERATION_MOST_US: f64 = 1.0;
/// Each has a deadline, in the order of which the reclaimer keeps them.
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

/// Nanoseconds of the calls of one kind, each timed by itself; the mean of a round is one sample.
#[derive(Default)]
struct Timed {
    ticks: u64,
    calls: u64,
    rounds: Vec<f64>,
}

impl Timed {
    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let begin = clock::now_ordered();
        let made = call();
        self.ticks += clock::now_ordered() - begin;
        self.calls += 1;
        made
    }

    fn end_round(&mut self, clock: &Clock) {
        self.rounds.push(clock.ns(self.ticks as f64) / self.calls.max(1) as f64);
        (self.ticks, self.calls) = (0, 0);
    }
}

/// The figures beside so many that wait.
struct Beside {
    /// Bytes of the heap for each, and the future.
    bytes: Option<f64>,
    /// Join, cancel, serve, take.
    operations: [Timed; 4],
}

fn beside(lab: &mut Lab<'_>, count: usize, rounds: usize) -> Result<Beside> {
    let (hierarchy, parent) = limited_parent(Config::with_slots(lab.slots), PAGE)?;
    let reclaimer = hierarchy.reclaimer();
    let stop = reclaimer.stop_handle();
    let thread = std::thread::spawn(|| reclaimer.run());
    let group = child(&parent, "group")?;
    let mut held = group.try_charge(PAGE).or_wrong("a charge with room")?;
    let mut waiting = VecDeque::with_capacity(count + TURNS);
    // The first wait has the group marked, and its queue made.
    let first = join(&group)?;
    let before = heap_bytes();
    for _ in 0..count {
        waiting.push_back(Some(join(&group)?));
    }
    let heap = before.zip(heap_bytes()).map(|(before, after)| after.saturating_sub(before) as f64);
    let bytes = heap.map(|heap| heap / count as f64 + size_of::<Charging>() as f64);
    drop(first);
    let mut operations: [Timed; 4] = Default::default();
    for _ in 0..rounds {
        let [joins, cancels, serves, takes] = &mut operations;
        for _ in 0..TURNS {
            let joined = joins.time(|| join(&group))?;
            waiting.push_back(Some(joined));
            let at = lab.random.next() as usize % waiting.len();
            // A place that is empty already is as good as another that is not far.
            let cancelled = (at..waiting.len()).find_map(|at| waiting[at].take());
            cancels.time(|| drop(cancelled));
        }
        for _ in 0..TURNS {
            // The uncharge serves the future that has waited longest. Its poll takes the charge.
            serves.time(|| held.shrink(PAGE));
            held = loop {
                let front = waiting.pop_front();
                let mut front = match front {
                    Some(Some(front)) => front,
                    Some(None) => continue,
                    None => return Err("none").or_wrong("futures that wait at the end of a round"),
                };
                if let Poll::Ready(charge) = takes.time(|| poll(&mut front))? {
                    break charge;
                }
                // While a reclaimer looks after the first, the second is served.
                waiting.push_back(Some(front));
            };
            waiting.push_back(Some(join(&group)?));
        }
        operations.iter_mut().for_each(|timed| timed.end_round(&lab.clock));
    }
    drop((waiting, held));
    stop.stop();
    thread.join().unwrap_or_else(|_| panic!("the reclaimer panicked"));
    check_empty(&hierarchy)?;
    Ok(Beside { bytes, operations })
}

/// Charges that wait as futures: their memory, and their operations beside many that wait. At the
/// end nothing is charged.
fn waits(lab: &mut Lab<'_>) -> Result<()> {
    let mut table = Table::new(
        "charges that wait as futures: bytes each, and us of one operation",
        ["", "bytes", "join", "cancel", "serve", "take"],
    );
    let rounds = lab.pick(1, 7, 21);
    for count in WAITING {
        let count = lab.pick((count / 100).max(1), count, count);
        let figures = beside(lab, count, rounds)?;
        let mut record = lab.record("waiting charge", json!({"waiting": count}));
        let bytes = record.value("memory", "bytes", figures.bytes);
        let names = ["join", "cancel", "serve", "take"];
        let us = figures.operations.map(|timed| median_of(timed.rounds));
        let cells: Vec<String> = names.into_iter().zip(us).map(|(name, ns)| record.us(name, ns)).collect();
        table.row(counted(count as u64, "waiting charge"), [bytes].into_iter().chain(cells));
        let charges = counted(count as u64, "charge");
        if count >= 1_000 {
            lab.at_most(format!("a waiting charge, of {charges}"), figures.bytes, BYTES_MOST, "bytes");
        }
        for (name, ns) in names.into_iter().zip(us).take(3) {
            let us = ns.map(|ns| ns / 1e3);
            lab.at_most(format!("{name} beside {charges}"), us, OPERATION_MOST_US, "us");
        }
    }
    table.note("bytes: of the heap with its own overhead, and the future; not of the task. Each has a deadline, behind all others. Some 25 ns of each operation are the clock's");
    lab.print(&table)
}

const P50_MOST: f64 = 1.3;
const P99_MOST: f64 = 1.5;
const WORKERS: usize = 2;
/// How long the task has waited before it is woken: its worker sleeps by then.
const SETTLE: Duration = Duration::from_micros(200);

/// The thing that the task waits for.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Charge,
    Notify,
}

/// The thread that frees the memory.
#[derive(Clone, Copy, PartialEq)]
enum From {
    /// A thread of the program's own.
    Thread,
    /// Another task, on a worker of the runtime.
    Task,
}

struct Scene {
    group: Group,
    notify: Notify,
    /// The task waits, or is about to.
    is_ready: AtomicBool,
    /// When the task went on, in ticks.
    woken: AtomicU64,
}

impl Scene {
    /// The task's part.
    async fn wait(self: Arc<Self>, by: By) -> Result<()> {
        // ORDERING: Release; pairs with the Acquire in `once`. It only makes the freeing thread begin to
        // wait.
        self.is_ready.store(true, Ordering::Release);
        match by {
            By::Charge => drop(self.group.charge(PAGE).await.or_wrong("a charge that room was made for")?),
            By::Notify => self.notify.notified().await,
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

/// The ticks from one wake to the task.
fn once(runtime: &Runtime, scene: &Arc<Scene>, by: By, from: From) -> Result<u64> {
    let charge = || scene.group.try_charge(PAGE).or_wrong("room at the start");
    let held = (by == By::Charge).then(charge).transpose()?;
    // ORDERING: Relaxed; the task begins later.
    scene.is_ready.store(false, Ordering::Relaxed);
    let task = runtime.spawn(Arc::clone(scene).wait(by));
    // ORDERING: Acquire; see `wait`.
    while !scene.is_ready.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    std::thread::sleep(SETTLE);
    let began = match from {
        From::Thread => scene.wake(held),
        From::Task => {
            let scene = Arc::clone(scene);
            runtime.block_on(runtime.spawn(async move { scene.wake(held) })).or_wrong("the freeing task")?
        }
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
    let mut table = Table::new(
        "woken after room appears: us",
        ["", "p50", "p99", "Notify (control), p50", "p99", "p50 over", "p99 over"],
    );
    let (rounds, calls) = (lab.pick(1, 7, 21), lab.pick(3, 150, 300));
    for (name, from) in [("a thread frees", From::Thread), ("a task frees", From::Task)] {
        let mut blocks: [Blocks; 2] = Default::default();
        for _ in 0..rounds {
            let mut ns: [Vec<f64>; 2] = Default::default();
            lab.in_turns(calls, 2, |lab, case| {
                let ticks = once(&runtime, &scene, [By::Charge, By::Notify][case], from)?;
                ns[case].push(lab.clock.ns(ticks as f64));
                Ok(())
            })?;
            blocks.iter_mut().zip(ns).for_each(|(blocks, ns)| blocks.push(ns));
        }
        let [ours, control] = blocks;
        let over = |of: fn(&Blocks) -> Option<Summary>| ratio(median(of(&ours)), median(of(&control)));
        let (p50, p99) = (over(Blocks::p50), over(Blocks::p99));
        let params = json!({"from": name});
        let [first, second, _] = lab.record("charge().await", params.clone()).blocks(&ours);
        let [third, fourth, _] = lab.record("Notify (control)", params).blocks(&control);
        table.row(name, [first, second, third, fourth, times(p50), times(p99)]);
        lab.at_most(format!("woken where {name}, p50 over Notify"), p50, P50_MOST, "x");
        lab.at_most(format!("woken where {name}, p99 over Notify"), p99, P99_MOST, "x");
    }
    table.note(format!("a runtime of {WORKERS} workers. The task has waited for {} us at least; most of the time is the system's, to wake a worker", SETTLE.as_micros()));
    lab.print(&table)?;
    drop(reclaimer);
    check_empty(&hierarchy)
}
