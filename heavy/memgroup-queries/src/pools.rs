//! The tenants with the SQL that their connections run, and their databases under memgroup or under
//! one of DataFusion's pools.
//!
//! All databases have the same tables and settings, and may spill. They differ only in the pool,
//! and in that memgroup plans a query for the memory that it can hold, and may restart it.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use datafusion::arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryPool, TrackConsumersPool, UnboundedMemoryPool,
};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use memgroup::{Config, Group, Hierarchy};
use memgroup_datafusion::{Query, Rows};
use memgroup_tokio::ReclaimerThread;
use memgroup_tpch::TABLES;

/// A tenant with its queries, which each connection runs one after the other.
pub(crate) struct Tenant {
    pub(crate) name: &'static str,
    /// Numbers of TPC-H queries. Empty for the runaway.
    numbers: &'static [u32],
    pub(crate) connections: usize,
    /// Pause of a connection between two queries.
    pub(crate) pause: Duration,
}

/// A small tenant, one with joins, one with the heaviest queries, and a runaway, whose queries want
/// several times the available memory.
pub(crate) const TENANTS: [Tenant; 4] = [
    Tenant { name: "dashboards", numbers: &[1, 6, 14], connections: 1, pause: Duration::from_millis(50) },
    Tenant { name: "reports", numbers: &[3, 5, 10, 12], connections: 1, pause: Duration::from_millis(50) },
    Tenant { name: "analysts", numbers: &[9, 18, 21], connections: 2, pause: Duration::ZERO },
    Tenant { name: "runaway", numbers: &[], connections: 1, pause: Duration::ZERO },
];

/// What a runaway runs: an aggregate and a sort, which can spill, and a join, which cannot.
const RUNAWAY: [&str; 3] = [
    // Nearly as many groups as rows.
    "select count(*) as groups, max(lines) as most
     from (select l_orderkey, l_partkey, l_comment, count(*) as lines from lineitem
           group by l_orderkey, l_partkey, l_comment)",
    "select max(place) as places, max(l_comment) as last
     from (select l_comment,
                  row_number() over (order by l_comment, l_orderkey, l_linenumber) as place
           from lineitem)",
    // Each row with itself.
    "select count(*) as pairs, max(one.l_comment || other.l_comment) as last
     from lineitem one join lineitem other
       on one.l_orderkey = other.l_orderkey and one.l_linenumber = other.l_linenumber",
];

impl Tenant {
    pub(crate) fn is_runaway(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Returns the queries of one connection in an endless cycle. Connections start with different
    /// ones.
    pub(crate) fn queries(&self, connection: usize) -> impl Iterator<Item = &'static str> + Send {
        let all: Vec<&str> = match self.numbers {
            [] => RUNAWAY.to_vec(),
            numbers => numbers.iter().filter_map(|&number| memgroup_tpch::query(number)).collect(),
        };
        all.into_iter().cycle().skip(connection)
    }
}

/// How many consumers an error of `TrackConsumersPool` names: as many as in DataFusion's own
/// program.
const TOP: NonZeroUsize = NonZeroUsize::new(5).expect("five is not zero");

/// What bounds the memory of all queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pool {
    /// A group for each tenant, and one below it for each query.
    Memgroup,
    /// memgroup without the runaway, for the latencies that the others have without it.
    Alone,
    Greedy,
    FairSpill,
    /// Around a greedy pool.
    TrackConsumers,
}

impl Pool {
    /// Returns its name in tables and sentences.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Pool::Memgroup => "memgroup",
            Pool::Alone => "alone",
            Pool::Greedy => "Greedy",
            Pool::FairSpill => "FairSpill",
            Pool::TrackConsumers => "TrackConsumers",
        }
    }

    pub(crate) fn has_groups(self) -> bool {
        matches!(self, Pool::Memgroup | Pool::Alone)
    }

    /// Returns DataFusion's pool of this size. memgroup's queries have pools of their own.
    fn of_datafusion(self, bytes: usize) -> Arc<dyn MemoryPool> {
        match self {
            Pool::Memgroup | Pool::Alone => Arc::new(UnboundedMemoryPool::default()),
            Pool::Greedy => Arc::new(GreedyMemoryPool::new(bytes)),
            Pool::FairSpill => Arc::new(FairSpillPool::new(bytes)),
            Pool::TrackConsumers => Arc::new(TrackConsumersPool::new(GreedyMemoryPool::new(bytes), TOP)),
        }
    }
}

/// The tenants' groups. Their parent has the limit, and shares it among them.
pub(crate) struct Groups {
    pub(crate) parent: Group,
    tenants: Vec<Group>,
    _reclaimer: ReclaimerThread,
}

impl Groups {
    /// Fails if a tenant still has charged bytes although all of its work has ended.
    pub(crate) fn check_empty(&self) -> Result<(), String> {
        for group in &self.tenants {
            let bytes = group.usage_exact();
            if bytes > 0 {
                return Err(format!("{bytes} bytes of {} stay charged after its work", group.path()));
            }
        }
        Ok(())
    }
}

/// Opens the tenants' databases, in the order of [`TENANTS`], under a limit for all of them.
pub(crate) async fn open(
    pool: Pool,
    max: u64,
    tables: &Path,
) -> Result<(Option<Groups>, Vec<Arc<Database>>), Box<dyn std::error::Error>> {
    let bytes = usize::try_from(max)?;
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool.of_datafusion(bytes)).build_arc()?;
    let hierarchy = Hierarchy::new(Config::new())?;
    let groups = if pool.has_groups() {
        let parent = hierarchy.create("/tenants")?;
        parent.set_max(max)?;
        parent.set_share(8)?;
        let tenants = TENANTS.iter().map(|tenant| parent.create(tenant.name));
        let (tenants, reclaimer) = (tenants.collect::<Result<_, _>>()?, ReclaimerThread::spawn(&hierarchy)?);
        Some(Groups { parent, tenants, _reclaimer: reclaimer })
    } else {
        None
    };
    let mut databases = Vec::new();
    for index in 0..TENANTS.len() {
        let context = SessionContext::new_with_config_rt(SessionConfig::new(), Arc::clone(&runtime));
        memgroup_tpch::register(&context, tables, &TABLES).await?;
        let group = groups.as_ref().map(|groups| &groups.tenants[index]);
        let tenant = group.map(|group| memgroup_datafusion::Tenant::new(&hierarchy, group, &context));
        databases.push(Arc::new(Database { context, tenant, ..Database::default() }));
    }
    Ok((groups, databases))
}

/// One tenant's database.
#[derive(Default)]
pub(crate) struct Database {
    context: SessionContext,
    /// None under a pool of DataFusion.
    tenant: Option<memgroup_datafusion::Tenant>,
    /// Bytes that its queries wrote to disk, until they ended or were cancelled.
    pub(crate) spilled: AtomicU64,
    /// How often its queries were restarted.
    pub(crate) restarted: AtomicU64,
}

/// How a query ended.
pub(crate) enum Outcome {
    Done(Vec<RecordBatch>),
    /// There was no memory, as the text says.
    Refused(String),
    /// It was stopped to free memory for another query.
    Killed,
}

impl Database {
    /// Runs a query to its end. If the future is dropped, the query is cancelled.
    pub(crate) async fn run(&self, name: &str, sql: &str) -> Result<Outcome> {
        let (rows, was_killed) = match &self.tenant {
            None => (self.run_in_pool(sql).await, false),
            Some(tenant) => {
                let mut running = Running { query: Some(tenant.begin(name)?), database: self };
                let rows = match &running.query {
                    Some(query) => query.collect(sql).await.map(Rows::into_uncharged),
                    None => Ok(Vec::new()),
                };
                (rows, running.end())
            }
        };
        match rows {
            Ok(rows) => Ok(Outcome::Done(rows)),
            Err(_) if was_killed => Ok(Outcome::Killed),
            Err(error) => match error.find_root() {
                DataFusionError::ResourcesExhausted(_) => Ok(Outcome::Refused(error.to_string())),
                _ => Err(error),
            },
        }
    }

    async fn run_in_pool(&self, sql: &str) -> Result<Vec<RecordBatch>> {
        let plan = self.context.sql(sql).await?.create_physical_plan().await?;
        let _spilling = Spilling { plan: Arc::clone(&plan), database: self };
        collect(plan, self.context.task_ctx()).await
    }
}

/// A query of memgroup. Dropping it ends the query, which the end of the run may cancel.
struct Running<'a> {
    query: Option<Query>,
    database: &'a Database,
}

impl Running<'_> {
    /// Ends the query, and returns whether it was stopped.
    fn end(&mut self) -> bool {
        let Some(ended) = self.query.take().map(Query::end) else { return false };
        // ORDERING: Relaxed, both, because the figures are read after the runtime has ended.
        self.database.restarted.fetch_add(ended.begun_anew, Ordering::Relaxed);
        self.database.spilled.fetch_add(ended.spilled_bytes, Ordering::Relaxed);
        ended.group.events.oom_kill > 0
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// A plan under a pool of DataFusion. Dropping it counts the bytes that its operators wrote to
/// disk.
struct Spilling<'a> {
    plan: Arc<dyn ExecutionPlan>,
    database: &'a Database,
}

impl Drop for Spilling<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed, because the figure is read after the runtime has ended.
        self.database.spilled.fetch_add(spilled(self.plan.as_ref()), Ordering::Relaxed);
    }
}

fn spilled(plan: &dyn ExecutionPlan) -> u64 {
    let own = plan.metrics().and_then(|metrics| metrics.spilled_bytes()).unwrap_or(0) as u64;
    own + plan.children().into_iter().map(|child| spilled(child.as_ref())).sum::<u64>()
}
