//! Work: the threads that run the tenants' statements, and their results.
//!
//! - I1. Each statement that begins is counted once: done, refused, killed or interrupted.
//! - I2. Only the latency of a statement that was done is recorded.
//! - I3. An idle tenant keeps its connections. Each of its threads has begun a statement, however
//!   late it started.
//! - E1. Worker → watcher: counts are approximate during the run. The watcher reads them again
//!   after it joined the worker.
//! - E2. Watcher → workers: only the flag `ending` is handed over. A worker that sees it late runs
//!   one more statement.
//! - E3. Worker of a tenant that became idle → workers of tenants after it: only the count `busy`
//!   is handed over.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use rusqlite::InterruptHandle;

use crate::run::backend::Backend;
use crate::run::backend::session::{Failure, Session};
use crate::run::base::error::{OrFail, RunError};
use crate::run::base::joined;
use crate::run::base::latencies::Latencies;
use crate::run::data::Job;
use crate::run::data::files::Database;
use crate::run::data::workload::{Work, Workload};
use crate::run::live::{Counts, Live};
use crate::run::report::{Held, Idle, RegimeReport, Tally};
use crate::run::spec::{Kind, TenantSpec};

/// Time between two polls of the watcher.
const WATCH_EVERY: Duration = Duration::from_millis(50);
/// Time between two interruptions at the end of a run. An interruption between two statements has
/// no effect.
const INTERRUPT_EVERY: Duration = Duration::from_millis(2);
/// Time between two checks whether an earlier tenant is idle.
const TURN_EVERY: Duration = Duration::from_millis(5);

/// Counts of one tenant's statements, shared by its threads and the watcher.
#[derive(Default)]
struct Counters {
    done: AtomicU64,
    refused: AtomicU64,
    killed: AtomicU64,
    retried: AtomicU64,
    interrupted: AtomicU64,
    /// Threads that have work left.
    busy: AtomicU32,
}

impl Counters {
    /// The counts so far.
    fn read(&self) -> Tally {
        // ORDERING: Relaxed; approximate during the run, exact after the join (E1).
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Tally {
            done: read(&self.done),
            refused: read(&self.refused),
            killed: read(&self.killed),
            retried: read(&self.retried),
            interrupted: read(&self.interrupted),
            ..Tally::default()
        }
    }

    fn is_idle(&self) -> bool {
        // ORDERING: Relaxed; only the count is handed over (E3), and the reader polls.
        self.busy.load(Ordering::Relaxed) == 0
    }
}

/// Results of a tenant's threads, besides the counts.
#[derive(Default)]
struct Results {
    /// Latencies of the statements done.
    latencies: Latencies,
    /// Text of the first refusal.
    first_refusal: Option<String>,
    /// Bytes of the page caches at the end.
    page_cache: u64,
    /// None while a thread works to the end.
    idle: Option<Idle>,
}

impl Results {
    fn add(&mut self, other: Results) {
        self.first_refusal = self.first_refusal.take().or(other.first_refusal);
        self.page_cache += other.page_cache;
        self.idle = self.idle.zip(other.idle).map(|(one, another)| one.and(another));
        self.latencies.add(&other.latencies);
    }
}

/// Runs the statements of `job` until its seconds are over or a stop is requested, shows their
/// progress, and reports. The memory is that of the end, before the connections are closed.
pub(crate) fn run_all(
    backend: &Backend,
    job: &Job<'_>,
    databases: &[Database],
) -> Result<RegimeReport, RunError> {
    let spec = job.spec;
    let mut workers = Vec::new();
    for (index, (tenant, database)) in spec.tenants.iter().zip(databases).enumerate() {
        for number in 0..tenant.threads {
            let session = backend.open(index, tenant, &database.path)?;
            let workload = Workload::new(tenant.workload, tenant.scale, spec.seed, &tenant.name, number);
            workers.push(Worker { index, tenant, session, workload });
        }
    }
    let interrupters: Vec<_> = workers.iter().map(|worker| worker.session.interrupter()).collect();
    let busy = |tenant: &TenantSpec| Counters { busy: tenant.threads.into(), ..Counters::default() };
    let counters: Vec<Counters> = spec.tenants.iter().map(busy).collect();
    let ending = AtomicBool::new(false);
    let run = Run { backend, job, counters: &counters, ending: &ending, started: Instant::now() };
    let (elapsed, results) = thread::scope(|threads| {
        let handles: Vec<_> =
            workers.into_iter().map(|worker| threads.spawn(move || worker.run(run))).collect();
        run.watch(&handles, Live::start(job));
        let elapsed = run.started.elapsed();
        run.end(&handles, &interrupters);
        (elapsed, handles.into_iter().map(joined).collect::<Result<Vec<_>, _>>())
    });
    let (mut results, mut sessions) = (results?.into_iter(), Vec::new());
    let mut report = RegimeReport::of_groups(backend.groups(), spec, elapsed.as_secs_f64());
    if let Some([usage, peak, max]) = backend.heap() {
        report.all = Held { usage, peak, max };
    }
    report.interrupted = job.stop.requested();
    for ((tenant, counters), database) in report.tenants.iter_mut().zip(&counters).zip(databases) {
        let mut sum: Option<Results> = None;
        for (own, session) in results.by_ref().take(tenant.threads as usize) {
            sessions.push(session);
            match &mut sum {
                Some(sum) => sum.add(own),
                None => sum = Some(own),
            }
        }
        // Each tenant has at least one thread.
        let Results { latencies, first_refusal, page_cache, idle } = sum.unwrap_or_default();
        tenant.set(Tally { first_refusal, ..counters.read() }, &latencies);
        (tenant.page_cache, tenant.idle, tenant.database) = (page_cache, idle, database.bytes);
    }
    drop(sessions);
    Ok(report)
}

/// State shared by all threads of a run.
#[derive(Clone, Copy)]
struct Run<'a> {
    backend: &'a Backend,
    job: &'a Job<'a>,
    /// In the order of the SPEC.
    counters: &'a [Counters],
    /// The run is to end.
    ending: &'a AtomicBool,
    started: Instant,
}

type Handle<'scope> = ScopedJoinHandle<'scope, Result<(Results, Session), RunError>>;

impl Run<'_> {
    fn is_ending(&self) -> bool {
        // ORDERING: Relaxed; only the flag is handed over (E2), and the reader polls.
        self.ending.load(Ordering::Relaxed)
    }

    /// Lets all workers end after their current statements.
    fn set_ending(&self) {
        // ORDERING: Relaxed; only the flag is handed over (E2).
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Updates the live view until the time is over, a stop is requested, or a worker failed.
    fn watch(&self, handles: &[Handle<'_>], mut live: Live<'_>) {
        let whole = Duration::from_secs_f64(self.job.spec.seconds);
        loop {
            let elapsed = self.started.elapsed();
            if elapsed >= whole || self.job.stop.requested() || self.is_ending() {
                return;
            }
            let counts = self.job.spec.tenants.iter().zip(self.counters).map(|(tenant, counters)| {
                let Tally { done, refused, killed: stopped, .. } = counters.read();
                Counts { name: &tenant.name, done, refused, stopped, is_idle: counters.is_idle() }
            });
            live.update(elapsed, &counts.collect::<Vec<_>>());
            thread::sleep(WATCH_EVERY.min(whole - elapsed));
            if handles.iter().all(Handle::is_finished) {
                return;
            }
        }
    }

    /// Interrupts all statements and pauses until every worker has ended.
    fn end(&self, handles: &[Handle<'_>], interrupters: &[InterruptHandle]) {
        self.set_ending();
        while !handles.iter().all(Handle::is_finished) {
            for (handle, interrupter) in handles.iter().zip(interrupters) {
                if !handle.is_finished() {
                    interrupter.interrupt();
                    handle.thread().unpark();
                }
            }
            if let Some(groups) = self.backend.groups() {
                groups.parent.wake_waiters();
            }
            thread::sleep(INTERRUPT_EVERY);
        }
    }

    /// Sleeps for `pause`, or until the run ends.
    fn pause(&self, pause: Duration) {
        let started = Instant::now();
        // `end` unparks this thread after it sets the flag.
        while let Some(left) = pause.checked_sub(started.elapsed()).filter(|left| !left.is_zero())
            && !self.is_ending()
        {
            thread::park_timeout(left);
        }
    }
}

/// One thread of a tenant before it starts.
struct Worker<'a> {
    index: usize,
    tenant: &'a TenantSpec,
    session: Session,
    workload: Workload,
}

impl Worker<'_> {
    /// Runs statements until the tenant's work is over, then waits for the end of the run. Any
    /// failure besides lack of memory ends the run.
    fn run(mut self, run: Run<'_>) -> Result<(Results, Session), RunError> {
        let mut results = Results::default();
        while let Some(earlier) = self.tenant.after
            && !run.is_ending()
            && !run.counters[earlier].is_idle()
        {
            run.pause(TURN_EVERY);
        }
        let began = Instant::now();
        let ends = self.tenant.work.map(|work| began + work);
        let mut has_begun = false;
        while !run.is_ending() {
            if has_begun && ends.is_some_and(|ends| Instant::now() >= ends) {
                results.idle = Some(self.idle(run));
                // ORDERING: Relaxed; only the count is handed over (E3).
                run.counters[self.index].busy.fetch_sub(1, Ordering::Relaxed);
                run.pause(Duration::MAX);
                break;
            }
            has_begun = true;
            let work = self.workload.next();
            if let Err(error) = self.statement(&work, ends, &mut results, run) {
                run.set_ending();
                return Err(error).or_fail(format_args!("run a statement of tenant `{}`", self.tenant.name));
            }
            run.pause(self.tenant.pause);
        }
        results.page_cache = self.session.page_cache_bytes();
        Ok((results, self.session))
    }

    fn idle(&self, run: Run<'_>) -> Idle {
        Idle {
            page_cache: self.session.page_cache_bytes(),
            since_seconds: run.started.elapsed().as_secs_f64(),
        }
    }

    /// Runs one statement and counts it. One that holds memory lets go of it when the tenant's work
    /// `ends`. The error is any failure besides lack of memory.
    fn statement(
        &self,
        work: &Work,
        ends: Option<Instant>,
        results: &mut Results,
        run: Run<'_>,
    ) -> Result<(), String> {
        let started = Instant::now();
        let mut tries = 0;
        let result = self.session.run_until(started + self.tenant.patience, run.ending, |connection| {
            tries += 1;
            work.run(connection, || !run.is_ending() && ends.is_none_or(|ends| Instant::now() < ends))
        });
        let counters = &run.counters[self.index];
        let sql = || work.sql.split_whitespace().collect::<Vec<_>>().join(" ");
        let counter = match result {
            Ok(0) => return Err(format!("a row that exists was not found: {}", sql())),
            Ok(_) => {
                // A hoard takes as long as its tenant works.
                if self.tenant.workload != Kind::Hoarder {
                    results.latencies.record(started.elapsed().as_nanos() as u64);
                }
                &counters.done
            }
            // The end of the run ended the wait for memory.
            Err(Failure::Refused(_)) if !self.tenant.patience.is_zero() && run.is_ending() => {
                &counters.interrupted
            }
            Err(Failure::Refused(error)) => {
                results.first_refusal.get_or_insert(error);
                &counters.refused
            }
            Err(Failure::Killed) => &counters.killed,
            Err(Failure::Interrupted) => &counters.interrupted,
            Err(Failure::Other(error)) => return Err(format!("{error}: {}", sql())),
        };
        // ORDERING: Relaxed; approximate during the run, exact after the join (E1).
        counter.fetch_add(1, Ordering::Relaxed);
        // ORDERING: Relaxed, as above.
        counters.retried.fetch_add(tries.max(1) - 1, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Idle, Results};

    #[test]
    fn adds_results_and_keeps_the_first_refusal() {
        let results = |latency_ns: u64, text: Option<&str>| {
            let mut results = Results::default();
            results.latencies.record(latency_ns);
            results.first_refusal = text.map(str::to_owned);
            results
        };
        let mut sum = results(1_000, None);
        sum.add(results(3_000_000, Some("first")));
        sum.add(results(2_000, Some("second")));
        assert_eq!(sum.first_refusal.as_deref(), Some("first"));
        let (half, most) =
            (sum.latencies.quantile_us(0.5).expect("some"), sum.latencies.quantile_us(0.99).expect("some"));
        assert!((1.9..2.1).contains(&half), "{half}");
        assert!((2_990.0..3_010.0).contains(&most), "{most}");
    }

    #[test]
    fn becomes_idle_with_the_last_thread() {
        let results = |idle: Option<f64>| Results {
            idle: idle.map(|since_seconds| Idle { since_seconds, page_cache: 10 }),
            ..Results::default()
        };
        let mut sum = results(Some(3.0));
        sum.add(results(Some(5.0)));

        let idle = sum.idle.expect("both threads are idle");
        assert_eq!((idle.since_seconds, idle.page_cache), (5.0, 20));
        sum.add(results(None));
        assert!(sum.idle.is_none(), "a thread worked to the end");
    }
}
