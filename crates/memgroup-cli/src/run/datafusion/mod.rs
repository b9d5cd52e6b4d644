//! Engine `datafusion`: the tenants' queries in one process, under memgroup's pools or one of DataFusion's.
//!
//! ```text
//!   SPEC ─▶ files (Parquet) ─▶ turns (a child process for each pool: databases, connections) ─▶ report
//! ```
//!
//! - I1. A turn is a process of its own, so the most bytes in memory are those of one pool.

mod files;
mod pools;
mod queries;

use std::collections::HashMap;
use std::env;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use datafusion::arrow::array::RecordBatch;
use datafusion::execution::disk_manager::DiskManagerBuilder;
use memgroup_tokio::ReclaimerThread;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::run::base::child;
use crate::run::base::error::{OrFail, RunError};
use crate::run::compare;
use crate::run::data::Job;
use crate::run::load::{self, Answer, Connection};
use crate::run::report::{RegimeReport, Report, Turn};
use crate::run::spec::{Scale, Spec};
use crate::run::turns::{self, Entry};
use pools::{Database, Databases, Pool};
use queries::Queries;

/// Turns of each regime with `--baseline`.
const ROUNDS: usize = 2;

/// Runs the tenants with memgroup; with `compares` also under DataFusion's pools, and without the runaways if there are any. Returns the report, if memgroup's own
/// turn had a result, and whether a turn failed.
pub(crate) fn run(job: &Job<'_>, compares: bool) -> Result<(Option<Report>, bool), RunError> {
    let spec = job.spec;
    if compares {
        compare::check_max(spec)?;
    }
    check_spill()?;
    if !files::prepare(job)? {
        return Ok((None, false));
    }
    let entry = |regime: Pool| Entry { regime, spec: spec.clone(), title: regime.title().to_owned() };
    let own = entry(Pool::Memgroup);
    if !compares {
        let turns = turns::run(job, &[own], 1);
        return Ok((turns.reports.into_iter().flatten().next().map(Report::of), turns.has_failed));
    }
    let title = format!("{}, without the runaways", own.title);
    let mut entries = vec![own];
    entries.extend([Pool::Greedy, Pool::FairSpill, Pool::TrackConsumers].map(entry));
    if spec.tenants.iter().any(|tenant| tenant.workload.is_greedy()) {
        entries.push(Entry { regime: Pool::Memgroup, spec: without_greedy(spec), title });
    }
    let turns = turns::run(job, &entries, ROUNDS);
    let mut reports = turns.reports.into_iter();
    let mut next = || reports.next().flatten();
    let report = next().map(|memgroup| Report {
        greedy: next(),
        fair_spill: next(),
        track_consumers: next(),
        alone: next(),
        ..Report::of(memgroup)
    });
    Ok((report, turns.has_failed))
}

/// Fails if queries could not spill.
fn check_spill() -> Result<(), RunError> {
    let disk = DiskManagerBuilder::default().build();
    let file = disk.and_then(|disk| Arc::new(disk).create_tmp_file("a check").map(drop));
    let directory = env::temp_dir();
    file.map_err(|error| format!("{error}; TMPDIR chooses another directory"))
        .or_fail(format_args!("make a file in {}, where queries spill", directory.display()))
}

/// The same tenants, in which the greedy ones have no work.
fn without_greedy(spec: &Spec) -> Spec {
    let mut spec = spec.clone();
    for tenant in spec.tenants.iter_mut().filter(|tenant| tenant.workload.is_greedy()) {
        tenant.work = Some(Duration::ZERO);
    }
    spec
}

/// Runs the tenants under the pool of an order in this process.
pub(crate) fn turn(order: Value, job: &Job<'_>) -> Result<Turn, RunError> {
    let (pool, spec) = (turns::regime(order)?, job.spec);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.or_fail("start DataFusion's threads")?;
    let databases = runtime.block_on(Databases::open(pool, spec, job.directory))?;
    let hierarchy = databases.groups.as_ref().map(|groups| &groups.hierarchy);
    let reclaimer = hierarchy.map(ReclaimerThread::spawn).transpose().or_fail("start the reclaimer")?;
    let rows = Arc::default();
    let connect = |index: usize, number| {
        let tenant = &spec.tenants[index];
        Client {
            handle: runtime.handle().clone(),
            database: Arc::clone(&databases.tenants[index]),
            scale: tenant.scale,
            queries: Queries::of(tenant, number, spec.seed),
            name: format!("query-{number}"),
            count: 0,
            rows: Arc::clone(&rows),
        }
    };
    let (elapsed, tallies) = load::run(spec, job.stop, connect, || ())?;
    let seconds = elapsed.as_secs_f64();
    // The end cancels queries. Their tasks, and so their bytes, end with the runtime.
    drop(runtime);
    let mut report = RegimeReport::of_groups(databases.groups.as_ref(), spec, seconds);
    // The victims are groups of queries, which have no name once they ended. Connections count the stopped queries.
    report.kills = None;
    for (index, (tenant, tally)) in report.tenants.iter_mut().zip(&tallies).enumerate() {
        let database = &databases.tenants[index];
        tally.report(tenant);
        (tenant.spilled, tenant.begun_anew) = (Some(database.spilled()), Some(database.begun_anew()));
        tenant.database = files::bytes(&files::directory(job.directory, spec.tenants[index].scale));
    }
    report.resident_peak = child::proc_bytes("self", "VmHWM");
    report.interrupted = job.stop.requested();
    let Databases { groups, tenants } = databases;
    drop((tenants, reclaimer));
    groups.map_or(Ok(()), |groups| groups.check_empty(spec))?;
    Ok(Turn { report, latencies: tallies.into_iter().map(|tally| tally.latencies).collect() })
}

/// The rows that each query had first, as text.
type Rows = Arc<Mutex<HashMap<(u32, &'static str), String>>>;

/// A connection of a tenant: it runs its queries one after the other.
struct Client {
    /// Runs the queries, on threads of their own.
    handle: Handle,
    database: Arc<Database>,
    scale: Scale,
    queries: Queries,
    name: String,
    count: u64,
    rows: Rows,
}

impl Connection for Client {
    async fn ask(&mut self) -> Result<Answer, String> {
        let sql = self.queries.next().expect("queries come without end");
        let (database, name) = (Arc::clone(&self.database), format!("{}-{}", self.name, self.count));
        self.count += 1;
        // Dropping the set cancels the query.
        let mut task = JoinSet::new();
        task.spawn_on(async move { database.run(&name, sql).await }, &self.handle);
        let ended = task.join_next().await.expect("one task was spawned");
        let (rows, was_stopped) = match ended {
            Ok(ended) => ended.map_err(|error| format!("a query could not begin: {error}"))?,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        match rows {
            Ok(rows) => self.check(sql, &rows).map(|()| Answer::Done),
            Err(_) if was_stopped => Ok(Answer::Killed),
            Err(error) if pools::is_out_of_memory(&error) => Ok(Answer::Refused(error.to_string())),
            Err(error) => Err(format!("a query failed: {error}; it was {sql}")),
        }
    }
}

impl Client {
    /// Compares the rows with those that the query had first in this process.
    fn check(&self, sql: &'static str, rows: &[RecordBatch]) -> Result<(), String> {
        let text = memgroup_tpch::text(rows).map_err(|error| error.to_string())?;
        let mut all = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let first = all.entry((self.scale.milli(), sql)).or_insert_with(|| text.clone());
        if memgroup_tpch::are_same(first, &text) {
            return Ok(());
        }
        Err(format!("a query had other rows than before: {text}\ninstead of\n{first}\nIt was {sql}"))
    }
}
