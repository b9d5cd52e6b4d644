//! Hand-over: from an uncharge on one thread to the return of the charge that waited for it on another.
//!
//! There is room for one charge, which the threads hand round. The holder waits until all others wait, notes the time, and gives it back; the
//! next holder notes the time too. The control is the least that is written by hand: a flag behind a mutex, and a condition variable, on which
//! one waiter is woken.
//!
//! - I1. All but one wait when the charge is given back, so each return is a hand-over and none finds room by itself.
//! - I2. Each charge that is asked for is made; at the end nothing is charged and no thread waits.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use crate::harness::prelude::*;
use memgroup::Config;

const PAGE: u64 = 4096;
const WAITERS: [usize; 3] = [1, 8, 64];
/// The holder keeps the charge for so long when all others are in line: the last of them falls asleep meanwhile.
const SETTLE_US: u64 = 20;
/// A waiter gives up after this, which would be a wrong result.
const PATIENCE: Duration = Duration::from_secs(60);

/// A resource that one thread at a time can hold: how to wait for it, count the waiting threads, and give it back.
struct Resource<'r, H> {
    take: &'r (dyn Fn() -> Result<H> + Sync),
    waiting: &'r (dyn Fn() -> usize + Sync),
    give: &'r (dyn Fn(H) + Sync),
}

/// State that the threads of one round share.
struct Round {
    waiters: usize,
    settle_ticks: u64,
    /// When the resource was given back last, in ticks; 0 before that.
    given: AtomicU64,
    left: AtomicUsize,
    is_over: AtomicBool,
}

impl Round {
    /// One thread's part: ticks of the hand-overs to it.
    fn part<H>(&self, resource: &Resource<'_, H>) -> Result<Vec<u64>> {
        let mut ticks = Vec::new();
        loop {
            let held = (resource.take)();
            let now = clock::now_ordered();
            let held = held.inspect_err(|_| {
                // ORDERING: Relaxed; it only ends the others.
                self.is_over.store(true, Ordering::Relaxed);
            })?;
            // ORDERING: Relaxed, here and below: only the holder uses these, and giving the resource back publishes them.
            let (given, left) = (self.given.load(Ordering::Relaxed), self.left.load(Ordering::Relaxed));
            if left == 0 {
                // ORDERING: Relaxed, here and below; flags and numbers by themselves. The resource's own lock orders the timed part.
                self.is_over.store(true, Ordering::Relaxed);
            }
            // ORDERING: Relaxed, as above.
            if self.is_over.load(Ordering::Relaxed) {
                (resource.give)(held);
                return Ok(ticks);
            }
            if given > 0 {
                ticks.push(now.saturating_sub(given));
                // ORDERING: Relaxed, as above.
                self.left.store(left - 1, Ordering::Relaxed);
            }
            // ORDERING: Relaxed, as above.
            while (resource.waiting)() < self.waiters && !self.is_over.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            let in_line = clock::now();
            while clock::now() - in_line < self.settle_ticks {
                std::hint::spin_loop();
            }
            // ORDERING: Relaxed; the next holder sees it, by the resource's lock.
            self.given.store(clock::now_ordered(), Ordering::Relaxed);
            (resource.give)(held);
        }
    }
}

/// Quantiles of so many hand-overs, each to the first of so many waiters, in nanoseconds.
fn hand_overs<H>(
    lab: &Lab<'_>,
    resource: &Resource<'_, H>,
    waiters: usize,
    calls: usize,
) -> Result<Option<Quantiles>> {
    let (given, left, is_over) = (AtomicU64::new(0), AtomicUsize::new(calls), AtomicBool::new(false));
    let settle_ticks = lab.clock.ticks_per_us() * SETTLE_US;
    let round = Round { waiters, settle_ticks, given, left, is_over };
    let parts: Vec<Vec<u64>> = std::thread::scope(|threads| {
        let started: Vec<_> = (0..=waiters).map(|_| threads.spawn(|| round.part(resource))).collect();
        let join =
            |one: ScopedJoinHandle<'_, _>| one.join().unwrap_or_else(|_| Err("panic").or_wrong("a waiter"));
        started.into_iter().map(join).collect::<Result<_>>()
    })?;
    let ns: Vec<f64> = parts.into_iter().flatten().map(|ticks| lab.clock.ns(ticks as f64)).collect();
    expect("timed hand-overs", ns.len(), calls)?;
    Ok(Quantiles::of(ns))
}

/// Hand-overs of a charge, in a group with room for one.
fn of_charges(lab: &Lab<'_>, waiters: usize, calls: usize) -> Result<Option<Quantiles>> {
    let (hierarchy, parent) = limited_parent(Config::with_slots(lab.slots), PAGE)?;
    let tenant = child(&parent, "tenant")?;
    let charge = || tenant.charge_until(PAGE, Instant::now() + PATIENCE);
    let take = || charge().or_wrong("the charge is handed round, and yet");
    let resource = Resource { take: &take, waiting: &|| tenant.waiters().now, give: &drop };
    let ns = hand_overs(lab, &resource, waiters, calls)?;
    check_empty(&hierarchy)?;
    let waits = hierarchy.waits();
    ensure(waits.is_empty(), || format!("all is over, and {}", waits[0]))?;
    Ok(ns)
}

/// The control: hand-overs of a flag, by a condition variable.
fn of_flag(lab: &Lab<'_>, waiters: usize, calls: usize) -> Result<Option<Quantiles>> {
    // Whether the flag is taken, and how many threads wait.
    let (state, freed) = (Mutex::new((false, 0_usize)), Condvar::new());
    let take = || {
        let mut state = lock(&state);
        state.1 += 1;
        let mut state = freed.wait_while(state, |state| state.0).unwrap_or_else(PoisonError::into_inner);
        *state = (true, state.1 - 1);
        Ok(())
    };
    let give = |()| {
        lock(&state).0 = false;
        freed.notify_one();
    };
    let ns =
        hand_overs(lab, &Resource { take: &take, waiting: &|| lock(&state).1, give: &give }, waiters, calls)?;
    expect("the control's flag and waiters at the end", *lock(&state), (false, 0))?;
    Ok(ns)
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let title = "hand-over: from an uncharge to the return of a charge that waited for it: us";
    let columns = ["waiters", "hand-overs", "p50", "p99", "max", "condition variable (control), p50", "p99"];
    let mut table = Table::new(title, columns);
    for waiters in WAITERS {
        // Between two hand-overs all other waiters have to be back in line.
        let calls = (lab.pick(lab.effort.calls, 4_000, 40_000) / waiters.isqrt()).max(3);
        let (ours, control) = (of_charges(lab, waiters, calls)?, of_flag(lab, waiters, calls)?);
        let mut record = |variant, ns| lab.record(variant, json!({"waiters": waiters})).quantiles(ns, 1e3);
        let (ours, control) = (record("hand-over", ours), record("condition variable (control)", control));
        let cells = [count(calls as u64)].into_iter().chain(ours).chain(control.into_iter().take(2));
        table.row(waiters.to_string(), cells);
    }
    table.note(
        "both include the system's time to wake a thread. The uncharging thread completes the waiting charge itself, so no other thread can take the room; no goal",
    );
    lab.print(&table)
}
