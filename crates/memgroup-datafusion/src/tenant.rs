//! Tenants and their queries: a group each.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{DataFusionError, Result, resources_datafusion_err};
use datafusion::execution::context::{SessionContext, SessionState};
use datafusion::execution::disk_manager::DiskManagerBuilder;
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionStateBuilder;
use memgroup::{EndedGroup, Group, Hierarchy, OwnedGroup};
use memgroup_tokio::Tasks;

use crate::fit::Fit;
use crate::pool::GroupPool;

/// The most that a query waits for the tasks of its last plan, before it is begun anew.
const DRAIN_MILLIS_MOST: u32 = 1000;

/// A tenant of a database: a group, below which each query has one of its own.
#[derive(Clone)]
pub struct Tenant {
    hierarchy: Hierarchy,
    group: Group,
    state: SessionState,
    disk: DiskManagerBuilder,
}

fn external(error: impl std::error::Error + Send + Sync + 'static) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

impl Tenant {
    /// A tenant that charges `group`. Its queries see the tables and functions of `context`, with its settings and caches.
    /// They spill to the system's directory for temporary files.
    pub fn new(hierarchy: &Hierarchy, group: &Group, context: &SessionContext) -> Tenant {
        Tenant {
            hierarchy: hierarchy.clone(),
            group: group.clone(),
            state: context.state(),
            disk: DiskManagerBuilder::default(),
        }
    }

    /// The same tenant. Its queries spill as `disk` says.
    #[must_use]
    pub fn spill_to(self, disk: DiskManagerBuilder) -> Tenant {
        Tenant { disk, ..self }
    }

    /// The tenant's group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Begins a query: makes its group `name` below the tenant's.
    ///
    /// Under a limit the query is planned to fit it: with fewer rows a batch, fewer partitions, smaller reservations for merges, and fewer
    /// spilled files in a merge than the context says. The page of the crate has the figures.
    ///
    /// # Errors
    /// The tenant has a query of this name, or was removed, or the hierarchy is full.
    pub fn begin(&self, name: &str) -> Result<Query> {
        let group = self.group.create_owned(name).map_err(external)?;
        let ended: Arc<Mutex<Option<EndedGroup>>> = Arc::default();
        let told = Arc::clone(&ended);
        group
            .on_end(move |figures| *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(figures))
            .map_err(external)?;
        let tasks = Tasks::of(&group).map_err(external)?;
        let pool = Arc::new(GroupPool::new(&self.hierarchy, &group));
        let fit = match pool.memory_limit() {
            MemoryLimit::Finite(most) => Some(Fit::of(most, self.state.config().target_partitions())),
            _ => None,
        };
        let context = self.context(&pool, fit)?;
        Ok(Query { tenant: self.clone(), context, fit, pool, tasks, group, ended })
    }

    /// A context with these settings. Its plans charge the pool.
    fn context(&self, pool: &Arc<GroupPool>, fit: Option<Fit>) -> Result<SessionContext> {
        // A new default catalog would hide the tables.
        let mut config = self.state.config().clone().with_create_default_catalog_and_schema(false);
        let mut runtime = RuntimeEnvBuilder::from_runtime_env(self.state.runtime_env())
            .with_memory_pool(Arc::clone(pool) as Arc<dyn MemoryPool>);
        if let Some(fit) = fit {
            config = fit.apply(config);
            runtime =
                runtime.with_disk_manager_builder(self.disk.clone().with_max_spill_merge_fan_in(fit.fan_in));
        }
        let state = SessionStateBuilder::new_from_existing(self.state.clone())
            .with_config(config)
            .with_runtime_env(runtime.build_arc()?)
            .build();
        Ok(SessionContext::new_with_state(state))
    }
}

fn is_out_of_memory(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

/// One query, with a group that is removed at its end.
pub struct Query {
    tenant: Tenant,
    context: SessionContext,
    fit: Option<Fit>,
    pool: Arc<GroupPool>,
    tasks: Tasks,
    group: OwnedGroup,
    ended: Arc<Mutex<Option<EndedGroup>>>,
}

impl Query {
    /// The context to plan the query with. All memory of its plans is charged to the query's group.
    pub fn context(&self) -> &SessionContext {
        &self.context
    }

    /// The pool of the context.
    pub fn pool(&self) -> &Arc<GroupPool> {
        &self.pool
    }

    /// The query's group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Runs a part of the query. It ends with an error when the engine stops the query's group for the memory of another one.
    ///
    /// # Errors
    /// That of the part; [`DataFusionError::ResourcesExhausted`] if the query is stopped.
    pub async fn run<T>(&self, part: impl Future<Output = Result<T>>) -> Result<T> {
        match self.tasks.track(part).await {
            Ok(result) => result,
            Err(ended) => Err(resources_datafusion_err!("{ended}")),
        }
    }

    /// Runs SQL and returns all of its rows. Where memory runs out it is begun anew, with half the memory for each partition in mind, until a plan
    /// cannot be smaller.
    ///
    /// # Errors
    /// As [`run`](Query::run); a query that is stopped is not begun anew.
    pub async fn collect(&self, sql: &str) -> Result<Vec<RecordBatch>> {
        let (mut context, mut fit, reserved) = (self.context.clone(), self.fit, self.pool.reserved());
        loop {
            let result = self.tasks.track(async { context.sql(sql).await?.collect().await }).await;
            let result = result.map_err(|ended| resources_datafusion_err!("{ended}"))?;
            let smaller = fit.and_then(Fit::smaller);
            match result {
                Err(error) if smaller.is_some() && is_out_of_memory(&error) => {}
                result => return result,
            }
            // DataFusion's tasks end by themselves, some time after their query.
            for _ in 0..DRAIN_MILLIS_MOST {
                if self.pool.reserved() <= reserved {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            (context, fit) = (self.tenant.context(&self.pool, smaller)?, smaller);
        }
    }

    /// Ends the query: removes its group, and returns the group's figures. DataFusion's tasks end by themselves, and the bytes that they still hold stay
    /// charged to the tenant until then.
    pub fn end(self) -> EndedGroup {
        let Query { context, pool, tasks, group, ended, .. } = self;
        drop((context, pool, tasks));
        // No other owner is handed out, so this removes the group and tells its figures.
        drop(group);
        let told = ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        told.expect("the removal of the group told its figures")
    }
}
