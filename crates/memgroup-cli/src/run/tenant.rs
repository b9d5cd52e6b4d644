//! The threads that run the tenants' statements, and what they count.
//!
//! - I1. Every statement that was begun is counted once: done, refused, killed or interrupted.
//! - I2. A statement's latency is recorded only if it was done.
//! - I3. A tenant whose work is over keeps its connections, and each thread has begun a statement, however late it started.
//! - E1. Worker → watcher: counts are for the eye while the run lasts; the report is made of what `join` hands over.
//! - E2. `end` (watcher) → workers: the flag alone; a worker that is late does one more statement.
//! - E3. A worker whose work is over → workers of tenants that come after it: the count alone; who is late begins late.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use rusqlite::InterruptHandle;

use super::data::Database;
use super::error::RunError;
use super::house::House;
use super::latencies::Latencies;
use super::progress::{Progress, Running, Shown};
use super::session::{Failure, Session};
use super::spec::{Spec, TenantSpec};
use super::stop::Stop;
use super::workload::Workload;

/// How often the watcher looks.
const WATCH_EVERY: Duration = Duration::from_millis(50);
/// How often statements are interrupted again once the run is over: an interruption that finds no statement running
/// is lost.
const INTERRUPT_EVERY: Duration = Duration::from_millis(2);
/// How often a tenant that comes after another looks whether that one is idle.
const TURN_EVERY: Duration = Duration::from_millis(5);

/// What one tenant's threads did, together.
pub(crate) struct Tally {
    pub(crate) done: u64,
    pub(crate) refused: u64,
    /// Stopped, because others needed the memory.
    pub(crate) killed: u64,
    /// Times that a statement was tried again.
    pub(crate) retried: u64,
    pub(crate) interrupted: u64,
    /// Of the statements done.
    pub(crate) latencies: Latencies,
    /// What the first refusal said.
    pub(crate) first_refusal: Option<String>,
    /// Bytes of the page caches at the end.
    pub(crate) page_cache_bytes: u64,
    /// None while a thread was at work to the end.
    pub(crate) idle: Option<Idle>,
}

/// How a tenant was when its work was over before the run was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Idle {
    /// Since the run began.
    pub(crate) since: Duration,
    /// Bytes of the page caches.
    pub(crate) page_cache_bytes: u64,
    /// Bytes that were reclaimed from the tenant up to then; none where nobody reclaims.
    pub(crate) reclaimed_bytes: Option<u64>,
}

impl Idle {
    /// A tenant is idle when its last thread is.
    fn with(self, other: Idle) -> Idle {
        let last = if self.since < other.since { other } else { self };
        Idle { page_cache_bytes: self.page_cache_bytes + other.page_cache_bytes, ..last }
    }
}

impl Tally {
    fn new() -> Result<Tally, RunError> {
        Ok(Tally {
            done: 0,
            refused: 0,
            killed: 0,
            retried: 0,
            interrupted: 0,
            latencies: Latencies::new()?,
            first_refusal: None,
            page_cache_bytes: 0,
            idle: None,
        })
    }

    fn add(&mut self, other: Tally) -> Result<(), RunError> {
        self.done += other.done;
        self.refused += other.refused;
        self.killed += other.killed;
        self.retried += other.retried;
        self.interrupted += other.interrupted;
        self.first_refusal = self.first_refusal.take().or(other.first_refusal);
        self.page_cache_bytes += other.page_cache_bytes;
        self.idle = self.idle.zip(other.idle).map(|(one, another)| one.with(another));
        self.latencies.add(&other.latencies)
    }
}

/// What came of running the statements.
pub(crate) struct Ran {
    /// How long statements ran.
    pub(crate) elapsed: Duration,
    /// In the SPEC's order.
    pub(crate) tallies: Vec<Tally>,
    /// Still open, so that what the tenants hold can be read.
    pub(crate) sessions: Vec<Session>,
}

/// One thread of a tenant, ready to go.
struct Worker<'a> {
    index: usize,
    tenant: &'a TenantSpec,
    session: Session,
    workload: Workload,
}

/// What others see of a tenant while the run lasts.
struct Live {
    done: AtomicU64,
    refused: AtomicU64,
    stopped: AtomicU64,
    /// Threads that are at work, or will be.
    busy: AtomicU32,
}

/// Runs the tenants' statements until the SPEC's seconds are over or a stop is asked for.
pub(crate) fn run_all(
    house: &House,
    spec: &Spec,
    databases: &[Database],
    progress: &Progress,
    stop: &Stop,
) -> Result<Ran, RunError> {
    let mut workers = Vec::new();
    let mut interrupters = Vec::new();
    for (index, (tenant, database)) in spec.tenants.iter().zip(databases).enumerate() {
        for number in 0..tenant.threads {
            let session = house.open(index, tenant, &database.path)?;
            interrupters.push(session.interrupter());
            let workload = Workload::new(tenant.workload, tenant.scale, spec.seed, &tenant.name, number);
            workers.push(Worker { index, tenant, session, workload });
        }
    }
    let live: Vec<Live> = spec.tenants.iter().map(Live::of).collect();
    let ending = AtomicBool::new(false);
    let scene = Scene { house, spec, live: &live, ending: &ending, started: Instant::now() };
    thread::scope(|threads| {
        let handles: Vec<_> = workers
            .into_iter()
            .map(|worker| (worker.index, threads.spawn(move || worker.run(scene))))
            .collect();
        let running = progress.running(spec.seconds, house, stop);
        watch(scene, &handles, running, stop);
        let elapsed = scene.started.elapsed();
        end(scene, &handles, &interrupters);
        gather(spec, handles, elapsed)
    })
}

/// What all threads of a run see.
#[derive(Clone, Copy)]
struct Scene<'a> {
    house: &'a House,
    spec: &'a Spec,
    /// In the SPEC's order.
    live: &'a [Live],
    /// The run is to end.
    ending: &'a AtomicBool,
    started: Instant,
}

type Handle<'scope> = ScopedJoinHandle<'scope, Result<(Tally, Session), RunError>>;

/// Shows progress until the run is to end: its time is over, a stop is asked for, or a worker gave up.
fn watch(scene: Scene<'_>, handles: &[(usize, Handle<'_>)], mut running: Running<'_>, stop: &Stop) {
    let Scene { house, spec, live, ending, started } = scene;
    let whole = Duration::from_secs_f64(spec.seconds);
    loop {
        let elapsed = started.elapsed();
        // ORDERING: Relaxed; the flag alone matters here (E2).
        if elapsed >= whole || stop.requested() || ending.load(Ordering::Relaxed) {
            return;
        }
        let counts: Vec<_> = spec.tenants.iter().zip(live).map(|(tenant, live)| live.shown(tenant)).collect();
        running.update(elapsed, &counts);
        house.look_for_kills();
        thread::sleep(WATCH_EVERY.min(whole - elapsed));
        if handles.iter().all(|(_, handle)| handle.is_finished()) {
            return;
        }
    }
}

/// Ends what runs, however long it would take.
fn end(scene: Scene<'_>, handles: &[(usize, Handle<'_>)], interrupters: &[InterruptHandle]) {
    // ORDERING: Relaxed; the flag alone is handed over (E2).
    scene.ending.store(true, Ordering::Relaxed);
    loop {
        let mut running = false;
        for ((_, handle), interrupter) in handles.iter().zip(interrupters) {
            if !handle.is_finished() {
                running = true;
                interrupter.interrupt();
                // It may be resting.
                handle.thread().unpark();
            }
        }
        if !running {
            return;
        }
        scene.house.wake_waiters();
        thread::sleep(INTERRUPT_EVERY);
    }
}

fn gather(spec: &Spec, handles: Vec<(usize, Handle<'_>)>, elapsed: Duration) -> Result<Ran, RunError> {
    let mut tallies: Vec<Option<Tally>> = spec.tenants.iter().map(|_| None).collect();
    let mut sessions = Vec::new();
    let mut first_error = None;
    for (index, handle) in handles {
        match handle.join() {
            Ok(Ok((tally, session))) => {
                match &mut tallies[index] {
                    Some(sum) => sum.add(tally)?,
                    none => *none = Some(tally),
                }
                sessions.push(session);
            }
            Ok(Err(error)) => drop(first_error.get_or_insert(error)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    match first_error {
        Some(error) => Err(error),
        // A tenant has at least one thread.
        None => Ok(Ran { elapsed, tallies: tallies.into_iter().flatten().collect(), sessions }),
    }
}

impl Live {
    fn of(tenant: &TenantSpec) -> Live {
        let [done, refused, stopped] = std::array::from_fn(|_| AtomicU64::new(0));
        Live { done, refused, stopped, busy: AtomicU32::new(tenant.threads) }
    }

    fn shown<'a>(&self, tenant: &'a TenantSpec) -> Shown<'a> {
        Shown {
            name: &tenant.name,
            // ORDERING: Relaxed; for the eye only (E1).
            done: self.done.load(Ordering::Relaxed),
            // ORDERING: Relaxed; for the eye only (E1).
            refused: self.refused.load(Ordering::Relaxed),
            // ORDERING: Relaxed; for the eye only (E1).
            stopped: self.stopped.load(Ordering::Relaxed),
            is_idle: self.is_idle(),
        }
    }

    fn is_idle(&self) -> bool {
        // ORDERING: Relaxed; the count alone matters (E3).
        self.busy.load(Ordering::Relaxed) == 0
    }
}

impl Worker<'_> {
    /// Runs statements until the tenant's work is over or the run is to end, and then waits for that. An error that is
    /// not want of memory ends the whole run.
    fn run(mut self, scene: Scene<'_>) -> Result<(Tally, Session), RunError> {
        let Scene { house, live, ending, started, .. } = scene;
        let mut tally = Tally::new()?;
        let has_begun = |tally: &Tally| tally.done + tally.refused + tally.killed + tally.interrupted > 0;
        self.wait_for_turn(live, ending);
        let began = Instant::now();
        let is_over = |work: Duration| began.elapsed() >= work;
        // ORDERING: Relaxed; the flag alone matters (E2).
        while !ending.load(Ordering::Relaxed) {
            if has_begun(&tally) && self.tenant.work.is_some_and(is_over) {
                tally.idle = Some(self.idle(house, started));
                // ORDERING: Relaxed; the count alone is handed over (E3).
                live[self.index].busy.fetch_sub(1, Ordering::Relaxed);
                rest(Duration::MAX, ending);
                break;
            }
            if let Err(error) = self.statement(&mut tally, &live[self.index], ending) {
                // ORDERING: Relaxed; the flag alone is handed over (E2), the error goes through `join`.
                ending.store(true, Ordering::Relaxed);
                return Err(error);
            }
            rest(self.tenant.pause, ending);
        }
        tally.page_cache_bytes = self.session.page_cache_bytes();
        Ok((tally, self.session))
    }

    /// Waits until the tenant after which this one comes is idle, or the run is to end.
    fn wait_for_turn(&self, live: &[Live], ending: &AtomicBool) {
        let Some(earlier) = self.tenant.after else { return };
        // ORDERING: Relaxed; the flag alone matters (E2).
        while !ending.load(Ordering::Relaxed) && !live[earlier].is_idle() {
            rest(TURN_EVERY, ending);
        }
    }

    /// Whether a statement of it may have been waiting when the run ended.
    fn is_patient(&self) -> bool {
        !self.tenant.patience.is_zero()
    }

    fn idle(&self, house: &House, started: Instant) -> Idle {
        Idle {
            page_cache_bytes: self.session.page_cache_bytes(),
            reclaimed_bytes: house.statistics(self.index).map(|statistics| statistics.memory.reclaimed),
            since: started.elapsed(),
        }
    }

    fn statement(&mut self, tally: &mut Tally, live: &Live, ending: &AtomicBool) -> Result<(), RunError> {
        let work = self.workload.next();
        let started = Instant::now();
        let mut tries = 0_u64;
        let came = self.session.run_until(started + self.tenant.patience, ending, |connection| {
            tries += 1;
            work.run(connection)
        });
        tally.retried += tries.saturating_sub(1);
        match came {
            Ok(rows) if work.accepts(rows) => {
                let latency_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
                tally.latencies.record(latency_ns);
                tally.done += 1;
                // ORDERING: Relaxed; for the eye only (E1).
                live.done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(_) => return Err(RunError::WrongAnswer { tenant: self.tenant.name.clone(), sql: work.sql() }),
            // ORDERING: Relaxed; the flag alone matters (E2).
            Err(Failure::Refused(_)) if self.is_patient() && ending.load(Ordering::Relaxed) => {
                tally.interrupted += 1
            }
            Err(Failure::Refused(error)) => {
                tally.first_refusal.get_or_insert_with(|| error.to_string());
                tally.refused += 1;
                // ORDERING: Relaxed; for the eye only (E1).
                live.refused.fetch_add(1, Ordering::Relaxed);
            }
            Err(Failure::Killed) => {
                tally.killed += 1;
                // ORDERING: Relaxed; for the eye only (E1).
                live.stopped.fetch_add(1, Ordering::Relaxed);
            }
            Err(Failure::Interrupted) => tally.interrupted += 1,
            Err(Failure::Other(error)) => {
                return Err(RunError::Statement { tenant: self.tenant.name.clone(), sql: work.sql(), error });
            }
        }
        Ok(())
    }
}

/// Sleeps for `pause`, less if the run ends meanwhile.
fn rest(pause: Duration, ending: &AtomicBool) {
    let started = Instant::now();
    // ORDERING: Relaxed; the flag alone matters (E2); `unpark` comes after it was set.
    while let Some(left) = pause.checked_sub(started.elapsed()).filter(|left| !left.is_zero())
        && !ending.load(Ordering::Relaxed)
    {
        thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Idle, Tally};

    #[test]
    fn tallies_add_up_and_keep_the_first_refusal() {
        let tally = |latency_ns: u64, refused, text: Option<&str>| {
            let mut tally = Tally::new().expect("a histogram");
            tally.latencies.record(latency_ns);
            tally.done = 1;
            tally.refused = refused;
            tally.first_refusal = text.map(str::to_owned);
            tally
        };
        let mut sum = tally(1_000, 0, None);
        sum.add(tally(3_000_000, 2, Some("first"))).expect("same digits");
        sum.add(tally(2_000, 1, Some("second"))).expect("same digits");
        assert_eq!((sum.done, sum.refused, sum.first_refusal.as_deref()), (3, 3, Some("first")));
        let (half, most) =
            (sum.latencies.quantile_us(0.5).expect("some"), sum.latencies.quantile_us(0.99).expect("some"));
        assert!((1.9..2.1).contains(&half), "{half}");
        assert!((2_990.0..3_010.0).contains(&most), "{most}");
    }

    #[test]
    fn a_tenant_is_idle_once_its_last_thread_is() {
        let tally = |idle: Option<(u64, u64, u64)>| Tally {
            idle: idle.map(|(seconds, page_cache_bytes, reclaimed)| Idle {
                since: Duration::from_secs(seconds),
                page_cache_bytes,
                reclaimed_bytes: Some(reclaimed),
            }),
            ..Tally::new().expect("a histogram")
        };
        for (one, another) in [((3, 10, 1), (5, 20, 2)), ((5, 20, 2), (3, 10, 1))] {
            let mut sum = tally(Some(one));
            sum.add(tally(Some(another))).expect("same digits");
            let expected =
                Idle { since: Duration::from_secs(5), page_cache_bytes: 30, reclaimed_bytes: Some(2) };
            assert_eq!(sum.idle, Some(expected));
            sum.add(tally(None)).expect("same digits");
            assert_eq!(sum.idle, None, "a thread was at work to the end");
        }
    }
}
