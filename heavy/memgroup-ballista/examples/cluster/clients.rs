//! The tenants' clients: they run queries one after the other, and compare their rows.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::prelude::SessionContext;
use memgroup_ballista::Answer;
use tokio::time::timeout;

use crate::processes::Cluster;
use crate::{Failure, data};

/// A query that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A query with its rows.
#[derive(Clone)]
pub(crate) struct Query {
    sql: &'static str,
    rows: String,
}

async fn rows(context: &SessionContext, sql: &str) -> Result<String, Failure> {
    let batches = timeout(PATIENCE, async { context.sql(sql).await?.collect().await }).await??;
    Ok(pretty_format_batches(&batches)?.to_string())
}

/// The queries with the rows that DataFusion has without a cluster and without a limit.
pub(crate) async fn queries(dir: &Path, sql: &[&'static str]) -> Result<Vec<Query>, Failure> {
    let context = data::local(dir).await?;
    let mut queries = Vec::new();
    for sql in sql {
        queries.push(Query { sql, rows: rows(&context, sql).await? });
    }
    Ok(queries)
}

/// The queries of one tenant, as they went.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Queries with the right rows, and the time that each took.
    pub(crate) times: Vec<Duration>,
    /// The errors of those that failed.
    pub(crate) failed: Vec<String>,
    /// Queries with other rows, and those rows.
    pub(crate) wrong: Vec<String>,
    /// Times that a query was sent again.
    pub(crate) resent: usize,
}

/// The executors that the scheduler knows, and whether each answers.
async fn executors(cluster: &Arc<Cluster>) -> Result<BTreeMap<String, bool>, Failure> {
    let cluster = Arc::clone(cluster);
    let usage = tokio::task::spawn_blocking(move || cluster.usage()).await??;
    Ok(usage.executors.into_iter().map(|(id, executor)| (id, executor.answer == Answer::Now)).collect())
}

impl Outcome {
    /// Runs one query. It is sent again if an executor was lost while it ran, even if it has rows:
    /// Ballista 55 may count rows twice after it ran the tasks of a lost executor again.
    pub(crate) async fn query(
        &mut self,
        cluster: &Arc<Cluster>,
        context: &SessionContext,
        query: &Query,
    ) -> Result<(), Failure> {
        let begin = Instant::now();
        let mut before = executors(cluster).await?;
        loop {
            let result = rows(context, query.sql).await;
            let after = executors(cluster).await?;
            if before != after {
                self.resent += 1;
                before = after;
                continue;
            }
            match result {
                Ok(rows) if rows == query.rows => self.times.push(begin.elapsed()),
                Ok(rows) => {
                    self.wrong.push(format!("{}\n{rows}\ninstead of\n{}", query.sql, query.rows));
                }
                Err(error) => self.failed.push(error.to_string()),
            }
            return Ok(());
        }
    }
}

/// Runs the queries over and over until then.
pub(crate) async fn run(
    cluster: Arc<Cluster>,
    context: SessionContext,
    queries: Vec<Query>,
    until: Instant,
) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::default();
    for query in queries.iter().cycle() {
        if Instant::now() >= until {
            break;
        }
        outcome.query(&cluster, &context, query).await?;
    }
    Ok(outcome)
}
