//! Load: the connections of all tenants, a thread each, and the results of their requests.
//!
//! - I1. Each request that begins is counted once: done, refused, killed, lost or interrupted.
//! - I2. The latency of each request that was done is recorded. So is the time that an interrupted
//!   one has waited, if no answer took its connection so long: it would have taken at least that.
//!   So a tenant that waits for ever has a latency.
//! - E1. Connection → watcher: the counts are approximate during the run, and exact after the join.
//!   Watcher → connections: only the flag is handed over.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::client::Client;
use crate::run::base::error::{OrFail, RunError};
use crate::run::base::joined;
use crate::run::base::latencies::Latencies;
use crate::run::base::stop::Stop;
use crate::run::report::Tally;
use crate::run::spec::{Spec, TenantSpec};

/// Time between two looks of a waiting connection at the end of the run.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Pause after a lost connection.
const LOST_PAUSE: Duration = Duration::from_millis(100);
/// Time between two looks at the run.
const WATCH_EVERY: Duration = Duration::from_millis(20);

/// Results of the requests of one connection, or of a tenant.
pub(super) type Results = (Tally, Latencies);

/// Answer to a request.
pub(super) enum Answer {
    Done,
    /// There was no memory, as the text says.
    Refused(String),
    /// Stopped to free memory.
    Killed,
    Lost,
}

/// Runs all connections of the tenants of `spec` until the run ends, and calls `look` now and then.
/// Returns the time of the run, and the results in the order of the tenants.
pub(super) fn run(
    spec: &Spec,
    stop: &Stop,
    address: SocketAddr,
    mut look: impl FnMut(),
) -> Result<(Duration, Vec<Results>), RunError> {
    let busy = spec.tenants.iter().map(|tenant| tenant.threads.into()).collect();
    let run = Run { spec, ending: AtomicBool::new(false), busy };
    let (started, whole) = (Instant::now(), Duration::from_secs_f64(spec.seconds));
    thread::scope(|threads| {
        let run = &run;
        let all = spec.tenants.iter().enumerate();
        let all = all.flat_map(|(index, tenant)| (0..tenant.threads).map(move |number| (index, number)));
        let threads: Vec<_> = all
            .map(|(index, number)| {
                (
                    index,
                    threads.spawn(move || run.drive(index, &mut Client::new(spec, index, number, address))),
                )
            })
            .collect();
        while started.elapsed() < whole
            && !stop.requested()
            && !threads.iter().all(|(_, thread)| thread.is_finished())
        {
            look();
            thread::sleep(WATCH_EVERY.min(whole.saturating_sub(started.elapsed())));
        }
        let elapsed = started.elapsed();
        // ORDERING: Relaxed; only the flag is handed over (E1).
        run.ending.store(true, Ordering::Relaxed);
        let mut sums: Vec<Results> = spec.tenants.iter().map(|_| Results::default()).collect();
        let results: Vec<_> = threads.into_iter().map(|(index, thread)| (index, joined(thread))).collect();
        for (index, result) in results {
            let (tally, latencies) = result?;
            sums[index].0.add(tally);
            sums[index].1.add(&latencies);
        }
        Ok((elapsed, sums))
    })
}

/// A run, as its connections see it.
struct Run<'a> {
    spec: &'a Spec,
    ending: AtomicBool,
    /// For each tenant, its connections that have work left.
    busy: Vec<AtomicU32>,
}

impl Run<'_> {
    fn is_ending(&self) -> bool {
        // ORDERING: Relaxed; only the flag is handed over (E1).
        self.ending.load(Ordering::Relaxed)
    }

    /// Pauses, until the run ends at most.
    async fn pause(&self, pause: Duration) {
        let until = Instant::now() + pause;
        while let Some(left) = until.checked_duration_since(Instant::now())
            && !self.is_ending()
        {
            tokio::time::sleep(left.min(LOOK_EVERY)).await;
        }
    }

    /// Makes the requests of a connection until the run ends.
    fn drive(&self, index: usize, connection: &mut Client<'_>) -> Result<Results, RunError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.or_fail("start a connection")?;
        let tenant = &self.spec.tenants[index];
        let results = runtime.block_on(self.requests(tenant, connection));
        // ORDERING: Relaxed; only the count is handed over.
        self.busy[index].fetch_sub(1, Ordering::Relaxed);
        results.or_fail(format_args!("do the work of tenant `{}`", tenant.name))
    }

    async fn requests(&self, tenant: &TenantSpec, connection: &mut Client<'_>) -> Result<Results, String> {
        let (mut tally, mut latencies) = Results::default();
        while let Some(earlier) = tenant.after
            // ORDERING: Relaxed; only the count is handed over.
            && self.busy[earlier].load(Ordering::Relaxed) > 0
            && !self.is_ending()
        {
            self.pause(LOOK_EVERY).await;
        }
        let mut longest = Duration::ZERO;
        let ends = tenant.work.map(|work| Instant::now() + work);
        while !self.is_ending() && ends.is_none_or(|ends| Instant::now() < ends) {
            let started = Instant::now();
            let answer = self.answer(connection).await?;
            let waited = started.elapsed();
            if matches!(answer, Some(Answer::Done)) || answer.is_none() && waited > longest {
                latencies.record(waited.as_nanos() as u64);
            }
            longest = longest.max(waited);
            match answer {
                Some(Answer::Done) => tally.done += 1,
                Some(Answer::Refused(text)) => {
                    tally.refused += 1;
                    tally.first_refusal.get_or_insert(text);
                }
                Some(Answer::Killed) => tally.killed += 1,
                Some(Answer::Lost) => {
                    tally.lost += 1;
                    self.pause(LOST_PAUSE).await;
                }
                None => tally.interrupted += 1,
            }
            self.pause(tenant.pause).await;
        }
        Ok((tally, latencies))
    }

    /// The answer to the next request; none if the run ended first.
    async fn answer(&self, connection: &mut Client<'_>) -> Result<Option<Answer>, String> {
        let mut asked = std::pin::pin!(connection.ask());
        loop {
            match tokio::time::timeout(LOOK_EVERY, &mut asked).await {
                Ok(answer) => return answer.map(Some),
                Err(_) if self.is_ending() => return Ok(None),
                Err(_) => {}
            }
        }
    }
}
