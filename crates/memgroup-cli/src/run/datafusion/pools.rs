//! Pools: the tenants' databases under the pool of one regime.
//!
//! - I1. All regimes have the same tables, settings and files to spill to. They differ in their pools only, and in that memgroup plans a query for the
//!   memory that it can hold, and may begin it anew.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryPool, TrackConsumersPool, UnboundedMemoryPool,
};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use memgroup::{Config, Hierarchy};
use memgroup_datafusion::{Query, Rows, Tenant};
use memgroup_tpch::TABLES;
use serde::{Deserialize, Serialize};

use super::files;
use crate::run::backend::Groups;
use crate::run::base::error::{OrFail, RunError};
use crate::run::spec::{Spec, TenantSpec};

/// Consumers that an error of `TrackConsumersPool` names; DataFusion's program has as many.
const TOP: NonZeroUsize = NonZeroUsize::new(5).expect("five is not zero");

/// The pool of all queries in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Pool {
    /// A group for each tenant, and one below it for each query.
    Memgroup,
    Greedy,
    FairSpill,
    /// Over a greedy one.
    TrackConsumers,
}

impl Pool {
    /// Its name in messages.
    pub(super) fn title(self) -> &'static str {
        match self {
            Pool::Memgroup => "with memgroup",
            Pool::Greedy => "with GreedyMemoryPool",
            Pool::FairSpill => "with FairSpillPool",
            Pool::TrackConsumers => "with TrackConsumersPool",
        }
    }

    /// DataFusion's pool of that size. memgroup's queries have pools of their own.
    fn of_datafusion(self, bytes: usize) -> Arc<dyn MemoryPool> {
        match self {
            Pool::Memgroup => Arc::new(UnboundedMemoryPool::default()),
            Pool::Greedy => Arc::new(GreedyMemoryPool::new(bytes)),
            Pool::FairSpill => Arc::new(FairSpillPool::new(bytes)),
            Pool::TrackConsumers => Arc::new(TrackConsumersPool::new(GreedyMemoryPool::new(bytes), TOP)),
        }
    }
}

/// The tenants' databases.
pub(super) struct Databases {
    pub(super) groups: Option<Groups>,
    /// In the order of the SPEC.
    pub(super) tenants: Vec<Arc<Database>>,
}

/// One tenant's database.
pub(super) struct Database {
    context: SessionContext,
    /// None under a pool of DataFusion.
    tenant: Option<Tenant>,
    spilled: AtomicU64,
    begun_anew: AtomicU64,
}

impl Databases {
    pub(super) async fn open(pool: Pool, spec: &Spec, data: &Path) -> Result<Databases, RunError> {
        let bytes = spec.max_bytes.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool.of_datafusion(bytes)).build_arc();
        let runtime = runtime.or_fail("set up DataFusion")?;
        let groups = (pool == Pool::Memgroup).then(|| groups(spec)).transpose()?;
        let mut tenants = Vec::new();
        for (index, tenant) in spec.tenants.iter().enumerate() {
            let context = context(tenant, &runtime, data).await;
            let context = context.or_fail(format_args!("open the tables of tenant `{}`", tenant.name))?;
            let of_group = |groups: &Groups| {
                Tenant::new(&groups.hierarchy, &groups.tenants[index], &context).patience(tenant.patience)
            };
            let tenant = groups.as_ref().map(of_group);
            tenants.push(Arc::new(Database {
                context,
                tenant,
                spilled: AtomicU64::new(0),
                begun_anew: AtomicU64::new(0),
            }));
        }
        Ok(Databases { groups, tenants })
    }
}

fn groups(spec: &Spec) -> Result<Groups, RunError> {
    let hierarchy = Hierarchy::new(Config::new().oom(spec.oom)).or_fail("set up the hierarchy")?;
    Groups::create(hierarchy, None, spec)
}

async fn context(tenant: &TenantSpec, runtime: &Arc<RuntimeEnv>, data: &Path) -> Result<SessionContext> {
    let config = SessionConfig::new();
    let config = match tenant.partitions {
        Some(partitions) => config.with_target_partitions(partitions as usize),
        None => config,
    };
    let context = SessionContext::new_with_config_rt(config, Arc::clone(runtime));
    memgroup_tpch::register(&context, &files::directory(data, tenant.scale), &TABLES).await?;
    Ok(context)
}

// ORDERING: Relaxed, all below; counts, which are read after the threads that add to them were joined.
impl Database {
    /// Bytes that its queries wrote to disk, until they ended or were cancelled.
    pub(super) fn spilled(&self) -> u64 {
        self.spilled.load(Ordering::Relaxed)
    }

    /// How often its queries were begun anew.
    pub(super) fn begun_anew(&self) -> u64 {
        self.begun_anew.load(Ordering::Relaxed)
    }

    /// Runs a query to its end. Returns its rows, which the caller only compares, and whether it was stopped for the memory of another one.
    pub(super) async fn run(&self, name: &str, sql: &str) -> Result<(Result<Vec<RecordBatch>>, bool)> {
        let Some(tenant) = &self.tenant else { return Ok((self.run_in_pool(sql).await, false)) };
        let mut running = Running { query: Some(tenant.begin(name)?), database: self };
        let rows = match &running.query {
            Some(query) => query.collect(sql).await.map(Rows::into_uncharged),
            None => Ok(Vec::new()),
        };
        let was_stopped = running.end();
        Ok((rows, was_stopped))
    }

    async fn run_in_pool(&self, sql: &str) -> Result<Vec<RecordBatch>> {
        let plan = self.context.sql(sql).await?.create_physical_plan().await?;
        let _spilling = Spilling { plan: Arc::clone(&plan), database: self };
        collect(plan, self.context.task_ctx()).await
    }
}

/// A query of memgroup. Dropping it ends the query: the end of the run may cancel it.
struct Running<'a> {
    query: Option<Query>,
    database: &'a Database,
}

impl Running<'_> {
    /// Ends the query, and returns whether it was stopped.
    fn end(&mut self) -> bool {
        let Some(ended) = self.query.take().map(Query::end) else { return false };
        // ORDERING: Relaxed, both; figures that are read after all threads have ended.
        self.database.begun_anew.fetch_add(ended.begun_anew, Ordering::Relaxed);
        // Not those in the statistics of the tenant's group: tasks of a cancelled query go on for a while, are refused, and spill.
        self.database.spilled.fetch_add(ended.spilled_bytes, Ordering::Relaxed);
        ended.group.events.oom_kill > 0
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// A plan under a pool of DataFusion. Dropping it adds the bytes that its operators wrote to disk.
struct Spilling<'a> {
    plan: Arc<dyn ExecutionPlan>,
    database: &'a Database,
}

impl Drop for Spilling<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed; as in `end`.
        self.database.spilled.fetch_add(spilled(self.plan.as_ref()), Ordering::Relaxed);
    }
}

fn spilled(plan: &dyn ExecutionPlan) -> u64 {
    let own = plan.metrics().and_then(|metrics| metrics.spilled_bytes()).unwrap_or(0) as u64;
    own + plan.children().into_iter().map(|child| spilled(child.as_ref())).sum::<u64>()
}

/// Whether a query failed for lack of memory.
pub(super) fn is_out_of_memory(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}
