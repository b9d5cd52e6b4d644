//! A turn: the tenants' queries under one pool for some seconds, in a process of its own, so that
//! the most resident bytes are those of this pool.
//!
//! - I1. Each query that begins is counted once: done, refused, killed or interrupted.
//! - I2. The end of the turn interrupts queries. If an interrupted query has taken longer than all
//!   others of its connection, its time counts as a latency. So even a tenant that waits for ever
//!   has one.
//! - I3. A query that runs again must return the rows of its first run, except for the rounding of
//!   floats.

use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use datafusion::arrow::array::RecordBatch;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use crate::pools::{self, Database, Outcome, Pool, TENANTS, Tenant};

/// Figures of one turn, or of several under one pool.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Turn {
    pub(crate) seconds: f64,
    /// Most bytes of the process in memory.
    pub(crate) resident_peak: u64,
    /// Highest usage of the tenants' parent. None without groups.
    pub(crate) charged_peak: Option<u64>,
    /// In the order of [`TENANTS`].
    pub(crate) tenants: Vec<Figures>,
}

/// Figures of one tenant.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) name: String,
    pub(crate) done: u64,
    pub(crate) refused: u64,
    pub(crate) killed: u64,
    pub(crate) interrupted: u64,
    pub(crate) restarted: u64,
    pub(crate) spilled: u64,
    pub(crate) first_refusal: Option<String>,
    pub(crate) latencies_us: Vec<u64>,
}

impl Turn {
    /// Adds another turn under the same pool.
    pub(crate) fn add(&mut self, other: Turn) {
        self.seconds += other.seconds;
        self.resident_peak = self.resident_peak.max(other.resident_peak);
        self.charged_peak = self.charged_peak.max(other.charged_peak);
        if self.tenants.is_empty() {
            self.tenants = other.tenants;
            return;
        }
        for (sum, more) in self.tenants.iter_mut().zip(other.tenants) {
            sum.add(more);
        }
    }
}

impl Figures {
    fn add(&mut self, other: Figures) {
        self.done += other.done;
        self.refused += other.refused;
        self.killed += other.killed;
        self.interrupted += other.interrupted;
        self.restarted += other.restarted;
        self.spilled += other.spilled;
        self.first_refusal = self.first_refusal.take().or(other.first_refusal);
        self.latencies_us.extend(other.latencies_us);
    }

    pub(crate) fn failed(&self) -> u64 {
        self.refused + self.killed
    }

    /// The latency that `share` of the queries did not exceed. None without queries.
    pub(crate) fn quantile(&self, share: f64) -> Option<Duration> {
        let mut sorted = self.latencies_us.clone();
        sorted.sort_unstable();
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).map(|&us| Duration::from_micros(us))
    }
}

/// The rows that each query had first, as text.
type FirstRows = Arc<Mutex<HashMap<&'static str, String>>>;

/// Runs the queries of all tenants under `pool` for `length`.
pub(crate) fn run(pool: Pool, max: u64, length: Duration, tables: &Path) -> Result<Turn, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (groups, databases) = runtime.block_on(pools::open(pool, max, tables))?;
    let first_rows = FirstRows::default();
    let figures = |tenant: &Tenant| Figures { name: tenant.name.to_owned(), ..Figures::default() };
    let mut turn = Turn { tenants: TENANTS.iter().map(figures).collect(), ..Turn::default() };
    runtime.block_on(async {
        let began = Instant::now();
        let mut connections = JoinSet::new();
        for (index, tenant) in TENANTS.iter().enumerate() {
            let is_idle = pool == Pool::Alone && tenant.is_runaway();
            for number in 0..if is_idle { 0 } else { tenant.connections } {
                let connection = Connection {
                    index,
                    number,
                    database: Arc::clone(&databases[index]),
                    first_rows: Arc::clone(&first_rows),
                };
                connections.spawn(connection.run(began + length));
            }
        }
        while let Some(ended) = connections.join_next().await {
            let (index, figures) = ended?.map_err(|error| error.to_string())?;
            turn.tenants[index].add(figures);
        }
        turn.seconds = began.elapsed().as_secs_f64();
        Ok::<(), Box<dyn Error>>(())
    })?;
    // Cancelled queries end with the runtime, and so do their bytes.
    drop(runtime);
    for (figures, database) in turn.tenants.iter_mut().zip(&databases) {
        // ORDERING: Relaxed, both, because the threads that counted ended with the runtime.
        figures.restarted = database.restarted.load(Ordering::Relaxed);
        figures.spilled = database.spilled.load(Ordering::Relaxed);
    }
    turn.resident_peak = resident_peak()?;
    drop(databases);
    if let Some(groups) = groups {
        turn.charged_peak = Some(groups.parent.peak());
        groups.check_empty()?;
    }
    Ok(turn)
}

/// A connection of a tenant.
struct Connection {
    /// Index of its tenant.
    index: usize,
    /// Its number among those of the tenant.
    number: usize,
    database: Arc<Database>,
    first_rows: FirstRows,
}

impl Connection {
    /// Runs its queries one after the other until `end`. Returns the tenant's index and the
    /// figures.
    async fn run(self, end: Instant) -> Result<(usize, Figures), String> {
        let (tenant, mut figures) = (&TENANTS[self.index], Figures::default());
        let mut longest = Duration::ZERO;
        for (count, sql) in tenant.queries(self.number).enumerate() {
            let began = Instant::now();
            if began >= end {
                break;
            }
            let name = format!("query-{}-{count}", self.number);
            let ended = timeout_at(end, self.database.run(&name, sql)).await;
            let took = began.elapsed();
            let is_counted = match ended {
                Ok(Ok(Outcome::Done(rows))) => {
                    self.check(sql, &rows)?;
                    figures.done += 1;
                    true
                }
                Ok(Ok(Outcome::Refused(error))) => {
                    figures.refused += 1;
                    figures.first_refusal.get_or_insert(error);
                    false
                }
                Ok(Ok(Outcome::Killed)) => {
                    figures.killed += 1;
                    false
                }
                Ok(Err(error)) => return Err(format!("a query failed: {error}. It was {sql}")),
                Err(_) => {
                    figures.interrupted += 1;
                    took > longest
                }
            };
            if is_counted {
                figures.latencies_us.push(took.as_micros() as u64);
            }
            longest = longest.max(took);
            sleep(tenant.pause.min(end.saturating_duration_since(Instant::now()))).await;
        }
        Ok((self.index, figures))
    }

    /// Compares the rows with those that the query had first in this process (I3).
    fn check(&self, sql: &'static str, rows: &[RecordBatch]) -> Result<(), String> {
        let text = memgroup_tpch::text(rows).map_err(|error| error.to_string())?;
        let mut all = self.first_rows.lock().unwrap_or_else(PoisonError::into_inner);
        let first = all.entry(sql).or_insert_with(|| text.clone());
        if memgroup_tpch::are_same(first, &text) {
            return Ok(());
        }
        Err(format!("a query returned\n{text}\nand before\n{first}\nIt was {sql}"))
    }
}

/// Returns the highest resident memory of this process, in bytes.
fn resident_peak() -> Result<u64, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(kib.ok_or("/proc/self/status has no VmHWM")? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_the_quantiles_of_all_turns_together() {
        let mut sum = Turn::default();
        for latencies_us in [vec![5, 1, 3], vec![4, 2]] {
            sum.add(Turn {
                tenants: vec![Figures { latencies_us, done: 1, ..Figures::default() }],
                ..Turn::default()
            });
        }
        let quantile = |share| sum.tenants[0].quantile(share).map(|took| took.as_micros());
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(quantile), [Some(1), Some(3), Some(5), Some(5)]);
        assert_eq!((sum.tenants[0].done, Figures::default().quantile(0.5)), (2, None));
    }
}
