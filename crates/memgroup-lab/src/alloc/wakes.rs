//! Wakes: from an uncharge to the task with the charge that waited for it, over tokio's `Notify`.
//!
//! ```text
//!   freeing thread:   note the time ─▶ uncharge (or notify_one) ─▶ wait for the answer
//!   task:             charge().await (or notified().await) ─▶ note the time
//! ```
//!
//! - I1. The task has begun to wait before the time is noted, and goes on after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use memgroup::{Charge, Config, Group};
use memgroup_tokio::ReclaimerThread;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

use crate::harness::prelude::*;

const PAGE: u64 = 4096;
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
        // ORDERING: Release; pairs with the Acquire in `once`. It only makes the freeing thread begin to wait.
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

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
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
