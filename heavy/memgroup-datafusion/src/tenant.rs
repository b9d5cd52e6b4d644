//! Tenants and their queries, each with a group.

use std::fmt;
use std::future::Future;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use datafusion::common::tree_node::TreeNode;
use datafusion::common::{DataFusionError, Result, resources_datafusion_err};
use datafusion::dataframe::DataFrame;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::context::{SessionContext, SessionState};
use datafusion::execution::disk_manager::DiskManagerBuilder;
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::{LogicalPlan, Statement};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use futures_util::StreamExt;
use memgroup::{Charge, Deadline, EndedGroup, Group, Hierarchy, OwnedGroup};
use memgroup_tokio::Tasks;

use crate::exec::{Figures, GroupRule};
use crate::fit::{EIGHTHS, Fit};
use crate::place::{Place, Placed};
use crate::pool::GroupPool;
use crate::rows::Rows;
use crate::runs::Run;
use crate::spill::SpillFiles;

/// The longest that a query waits for the tasks of its last plan before it is restarted.
const DRAIN_MILLIS_MOST: u32 = 1000;

/// How long the growths of one query wait in all, by default.
const PATIENCE: Duration = Duration::from_secs(1);

/// A tenant of a database: a group, below which each query has a group of its own.
#[derive(Clone)]
pub struct Tenant {
    hierarchy: Hierarchy,
    group: Group,
    allocated: Option<Group>,
    patience: Duration,
    state: SessionState,
    disk: DiskManagerBuilder,
}

fn external(error: impl std::error::Error + Send + Sync + 'static) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

impl Tenant {
    /// Makes a tenant that charges `group`. Its queries see the tables and functions of `context`,
    /// with its settings and caches. They spill to the system's directory for temporary files.
    pub fn new(hierarchy: &Hierarchy, group: &Group, context: &SessionContext) -> Tenant {
        Tenant {
            hierarchy: hierarchy.clone(),
            group: group.clone(),
            allocated: None,
            patience: PATIENCE,
            state: context.state(),
            disk: DiskManagerBuilder::default(),
        }
    }

    /// Sets the place where queries of this tenant spill. They do not spill if `disk` is disabled.
    #[must_use]
    pub fn spill_to(self, disk: DiskManagerBuilder) -> Tenant {
        Tenant { disk, ..self }
    }

    /// Sets how long growths of each query wait in all ([`GroupPool::patience`]); one second by
    /// default.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Tenant {
        Tenant { patience, ..self }
    }

    /// Charges all that the tenant's queries allocate to groups below `group`, one for each query.
    ///
    /// It needs the global allocator of `memgroup-alloc`, and [`GroupTracer`](crate::GroupTracer)
    /// for DataFusion's tasks. The groups must belong to another hierarchy than the tenant's, so
    /// that no byte counts twice in one tree. Both may have limits. A growth that has no room in
    /// the second tree is refused, and the consumer spills. Bytes that DataFusion allocates without
    /// asking its pool exceed the limit.
    ///
    /// Without this call the allocations of queries are charged to no group: the pool charges the
    /// bytes that they reserve.
    ///
    /// # Panics
    /// The group belongs to the tenant's own hierarchy.
    #[must_use]
    pub fn count_allocated(self, group: &Group) -> Tenant {
        assert!(
            self.hierarchy.group(group.id()).as_ref() != Some(group),
            "allocations in group {}: it is of the hierarchy in which the tenant's pools charge the same bytes; use another hierarchy",
            group.path()
        );
        Tenant { allocated: Some(group.clone()), ..self }
    }

    /// The tenant's group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Begins a query, and makes its group `name` below the tenant's.
    ///
    /// Under a limit the query is planned to fit it, with fewer rows in a batch, fewer partitions,
    /// smaller reservations for merges, and fewer spilled files in a merge than the context says.
    /// The page of the crate has the figures.
    ///
    /// # Errors
    /// The tenant has a query of this name or was removed, or the hierarchy is full.
    pub fn begin(&self, name: &str) -> Result<Query> {
        let group = self.group.create_owned(name).map_err(external)?;
        self.query(group, None)
    }

    /// Begins a query once there is room for `bytes` bytes. It waits in line with other queries
    /// without blocking a thread. The query has these bytes for itself.
    ///
    /// The hierarchy's [reclaimer](memgroup::Hierarchy::reclaimer) shrinks caches for it, so the
    /// program must run one.
    ///
    /// # Errors
    /// As [`begin`](Tenant::begin). [`DataFusionError::ResourcesExhausted`] if there is no room at
    /// the deadline, or no reclaimer runs, or a limit allows less in all.
    pub async fn begin_when_room(
        &self,
        name: &str,
        bytes: u64,
        deadline: impl Into<Deadline>,
    ) -> Result<Query> {
        let group = self.group.create_owned(name).map_err(external)?;
        let admitted = group.charge(bytes).until(deadline).await;
        let admitted =
            admitted.map_err(|error| resources_datafusion_err!("query {name} was not begun: {error}"))?;
        self.query(group, Some(admitted))
    }

    fn query(&self, group: OwnedGroup, admitted: Option<Charge>) -> Result<Query> {
        let ended: Arc<OnceLock<EndedGroup>> = Arc::default();
        let told = Arc::clone(&ended);
        group.on_end(move |figures| _ = told.set(figures)).map_err(external)?;
        let tasks = Tasks::of(&group).map_err(external)?;
        let allocated = self.allocated.as_ref().map(|above| above.create_owned(&group_name(&group)));
        let allocated = allocated.transpose().map_err(external)?;
        let pool = GroupPool::new(&self.hierarchy, &group)
            .patience(self.patience)
            .beside(allocated.as_deref().cloned());
        if let Some(admitted) = admitted {
            pool.admit(admitted);
        }
        let pool = Arc::new(pool);
        let fit = self.fit(&pool);
        let figures = Figures {
            group: (*group).clone(),
            member: Arc::clone(pool.member()),
            io: self.hierarchy.io(),
            allocated: allocated.as_deref().cloned(),
        };
        let place = match &figures.allocated {
            Some(allocated) => Place { group: allocated.clone(), is_uncounted: false },
            None => Place { group: (*group).clone(), is_uncounted: true },
        };
        let rule: Arc<dyn PhysicalOptimizerRule + Send + Sync> =
            Arc::new(GroupRule { place: place.clone(), figures: figures.clone() });
        let state =
            SessionStateBuilder::new_from_existing(self.state.clone()).with_physical_optimizer_rule(rule);
        let context = self.context(state.build(), &pool, &figures, fit)?;
        let tenant = self.clone();
        let begun_anew = AtomicU64::new(0);
        Ok(Query {
            tenant,
            context,
            fit,
            pool,
            place,
            figures,
            tasks,
            _allocated: allocated,
            group,
            ended,
            begun_anew,
        })
    }

    /// The settings for the memory that a query can hold now.
    fn fit(&self, pool: &GroupPool) -> Option<Fit> {
        match pool.memory_limit() {
            MemoryLimit::Finite(most) => Some(Fit::of(most, self.state.config().target_partitions())),
            _ => None,
        }
    }

    /// A context with the settings and functions of `state`, and those of the fit. Its plans charge
    /// the pool.
    fn context(
        &self,
        state: SessionState,
        pool: &Arc<GroupPool>,
        figures: &Figures,
        fit: Option<Fit>,
    ) -> Result<SessionContext> {
        // A new default catalog would hide the tables.
        let mut config = state.config().clone().with_create_default_catalog_and_schema(false);
        let mut disk = self.disk.clone();
        if let Some(fit) = fit {
            config = fit.apply(config);
            disk = disk.with_max_spill_merge_fan_in(fit.fan_in);
        }
        let files = disk.clone().build()?;
        // A factory would enable a disk that is disabled.
        if files.tmp_files_enabled() {
            let files = SpillFiles::new(files, &figures.group, figures.io.clone());
            disk = disk.with_temp_file_factory(Arc::new(files));
        }
        let runtime = RuntimeEnvBuilder::from_runtime_env(state.runtime_env())
            .with_memory_pool(Arc::clone(pool) as Arc<dyn MemoryPool>)
            .with_disk_manager_builder(disk);
        let state = SessionStateBuilder::new_from_existing(state)
            .with_config(config)
            .with_runtime_env(runtime.build_arc()?)
            .build();
        Ok(SessionContext::new_with_state(state))
    }
}

/// The last part of a group's path.
fn group_name(group: &Group) -> String {
    group.path().rsplit('/').next().unwrap_or_default().to_owned()
}

/// Returns whether a plan writes rows to a table or a file.
fn writes(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|plan| Ok(matches!(plan, LogicalPlan::Dml(_) | LogicalPlan::Copy(_))))
}

/// The setting of the runtime that a statement would change.
fn runtime_setting(plan: &LogicalPlan) -> Option<&str> {
    let variable = match plan {
        LogicalPlan::Statement(Statement::SetVariable(set)) => &set.variable,
        LogicalPlan::Statement(Statement::ResetVariable(reset)) => &reset.variable,
        _ => return None,
    };
    variable.starts_with("datafusion.runtime.").then_some(variable)
}

fn is_out_of_memory(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

/// The eighths of a pool while its query is restarted. Afterwards the initial ones apply again, for
/// plans of the query's own context.
struct Eighths<'q>(&'q GroupPool);

impl Eighths<'_> {
    fn set(&self, fit: Option<Fit>) {
        self.0.spill_at_eighths(fit.map_or(EIGHTHS, |fit| fit.eighths));
    }
}

impl Drop for Eighths<'_> {
    fn drop(&mut self) {
        self.set(None);
    }
}

/// One query, with a group that is removed at its end.
pub struct Query {
    tenant: Tenant,
    context: SessionContext,
    fit: Option<Fit>,
    pool: Arc<GroupPool>,
    place: Place,
    figures: Figures,
    tasks: Tasks,
    _allocated: Option<OwnedGroup>,
    group: OwnedGroup,
    /// Sent by the thread that removes the group.
    ended: Arc<OnceLock<EndedGroup>>,
    begun_anew: AtomicU64,
}

impl Query {
    /// Returns the context to plan the query with. All memory of its plans is charged to the
    /// query's group.
    ///
    /// `SET datafusion.runtime.memory_limit` in it replaces the pool, and later plans are charged
    /// to no group. Where tenants write the SQL, call [`collect`](Query::collect), or
    /// [`sql_with_options`](SessionContext::sql_with_options) with
    /// [`SQLOptions`](datafusion::execution::context::SQLOptions) that allow no statements.
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

    /// Runs a part of the query, such as a stream of its rows. It ends with an error when the
    /// engine stops the query's group for the memory of another one.
    ///
    /// ```
    /// use datafusion::prelude::SessionContext;
    /// use futures_util::StreamExt;
    /// use memgroup::{Config, Hierarchy};
    /// use memgroup_datafusion::Tenant;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let hierarchy = Hierarchy::new(Config::new())?;
    /// let tenant = Tenant::new(&hierarchy, &hierarchy.create("/alice")?, &SessionContext::new());
    /// let query = tenant.begin("query-1")?;
    /// let part = async {
    ///     let plan = query.context().sql("select value from generate_series(1, 20000)").await?;
    ///     let (mut stream, mut rows) = (plan.execute_stream().await?, 0);
    ///     while let Some(batch) = stream.next().await {
    ///         rows += batch?.num_rows();
    ///     }
    ///     Ok(rows)
    /// };
    /// assert_eq!(query.run(part).await?, 20_000);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// That of the part; [`DataFusionError::ResourcesExhausted`] if the query is stopped.
    pub async fn run<T>(&self, part: impl Future<Output = Result<T>>) -> Result<T> {
        let _run = Run::of(self.pool.member().runs());
        match self.tasks.track(Placed::new(part, self.place.clone())).await {
            Ok(result) => result,
            Err(ended) => Err(resources_datafusion_err!("{ended}")),
        }
    }

    /// Runs SQL and returns all of its rows, which are charged to the query's group as long as they
    /// exist. If there may be too many of them, use [`stream`](Query::stream).
    ///
    /// If memory runs out, the query is restarted. While other queries of the tenant run, it first
    /// waits until there is room for all that it held and the growth that was refused. That room
    /// belongs to the query until its end. All waits end a minute after the first one began. The
    /// first plan after a wait is for all that the query can hold at that time. Each further plan
    /// is for half the memory, until a plan cannot be smaller. As an exception, the second one is
    /// for as much as the first, but its joins sort both sides, as do those of all later plans. A
    /// plan of the smallest size is restarted only after a wait, while other queries run. A
    /// statement that writes (`INSERT`, `COPY`) is not restarted, because it may have written some
    /// of its rows. Neither is a query whose rows alone exceed the limit.
    ///
    /// # Errors
    /// As [`run`](Query::run); a query that is stopped is not restarted.
    /// [`DataFusionError::ResourcesExhausted`] if there is no room for the rows.
    /// [`DataFusionError::Configuration`] for `SET` or `RESET` of a setting `datafusion.runtime`,
    /// such as `memory_limit`: DataFusion would replace the query's pool.
    pub async fn collect(&self, sql: &str) -> Result<Rows> {
        Ok(self.begin(sql, Extent::All).await?.rows)
    }

    /// Runs SQL and returns its rows batch by batch. Each batch is charged to the query's group as
    /// long as it exists; buffers that several batches share are charged for each of them.
    ///
    /// Until the first batch, the query is restarted if memory runs out, as by
    /// [`collect`](Query::collect). After that an error is final, because the caller has seen rows.
    /// Sorts and aggregations return their first batch after they have read all of their input.
    ///
    /// ```
    /// use datafusion::prelude::SessionContext;
    /// use memgroup::{Config, Hierarchy};
    /// use memgroup_datafusion::Tenant;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let hierarchy = Hierarchy::new(Config::new())?;
    /// let alice = hierarchy.create("/alice")?;
    /// alice.set_max(1 << 20)?;
    /// let tenant = Tenant::new(&hierarchy, &alice, &SessionContext::new());
    /// let query = tenant.begin("query-1")?;
    /// let (mut rows, mut number) = (query.stream("select value from generate_series(1, 400000)").await?, 0);
    /// while let Some(batch) = rows.next().await? {
    ///     number += batch.iter().map(|batch| batch.num_rows()).sum::<usize>();
    /// }
    /// assert_eq!(number, 400_000);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`collect`](Query::collect).
    pub async fn stream(&self, sql: &str) -> Result<RowStream<'_>> {
        let Begun { rows, rest, guards } = self.begin(sql, Extent::First).await?;
        Ok(RowStream { query: self, first: Some(rows), is_over: false, rest, _guards: guards })
    }

    /// Runs SQL up to its first rows, or to the last. Restarts it if memory runs out.
    async fn begin(&self, sql: &str, extent: Extent) -> Result<Begun<'_>> {
        let (mut context, mut fit, reserved) = (self.context.clone(), self.fit, self.pool.reserved());
        // Later contexts have the settings and functions of the first one, but not its prepared
        // statements, so the first context plans for all of them.
        let (mut plan, mut may_begin_anew) = (None, true);
        let eighths = Eighths(&self.pool);
        let (mut run, mut is_first) = (Run::of(self.pool.member().runs()), true);
        loop {
            eighths.set(fit);
            self.pool.member().forget_wanted();
            let mut is_final = false;
            let part = async {
                let known = match plan.take() {
                    Some(known) => known,
                    None => self.plan(&context, sql).await?,
                };
                may_begin_anew = !writes(&known)?;
                plan = Some(known.clone());
                let mut rest = DataFrame::new(context.state(), known).execute_stream().await?;
                let mut rows = Rows::of(&self.pool);
                while let Some(batch) = rest.next().await {
                    rows.push(batch?).map_err(|refused| {
                        is_final = refused.is_final(&self.pool);
                        refused.error
                    })?;
                    if extent == Extent::First {
                        break;
                    }
                }
                Ok((rows, rest))
            };
            let result = self.tasks.track(Placed::new(part, self.place.clone())).await;
            let result = result.map_err(|ended| resources_datafusion_err!("{ended}"))?;
            is_final &= !run.is_beside_others();
            let error = match result {
                Ok((rows, rest)) => {
                    let rest = Placed::new(rest, self.place.clone());
                    return Ok(Begun { rows, rest, guards: Guards { _eighths: eighths, _run: run } });
                }
                Err(error) if !may_begin_anew || is_final || !is_out_of_memory(&error) => return Err(error),
                Err(error) => error,
            };
            // DataFusion's tasks end by themselves, some time after their query.
            for _ in 0..DRAIN_MILLIS_MOST {
                if self.pool.reserved() <= reserved {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let room = self.tasks.track(run.wait(&self.group, self.pool.lacked())).await;
            let room = room.map_err(|ended| resources_datafusion_err!("{ended}"))?;
            let has_room = room.map(|room| self.pool.admit(room)).is_some();
            fit = match fit.and_then(Fit::smaller) {
                // One more plan is of the same size.
                _ if has_room && mem::take(&mut is_first) => self.tenant.fit(&self.pool),
                // Without other queries it would run out again.
                None if !has_room || !run.is_beside_others() => return Err(error),
                smaller => smaller.or(fit),
            };
            // ORDERING: Relaxed, because the number publishes nothing else.
            self.begun_anew.fetch_add(1, Ordering::Relaxed);
            context = self.tenant.context(self.context.state(), &self.pool, &self.figures, fit)?;
        }
    }

    /// The plan of a statement, which runs at once if it is a setting or a definition.
    async fn plan(&self, context: &SessionContext, sql: &str) -> Result<LogicalPlan> {
        let plan = context.state().create_logical_plan(sql).await?;
        // The new pool would count in no group, and its files in no statistics.
        if let Some(setting) = runtime_setting(&plan) {
            return Err(DataFusionError::Configuration(format!(
                "{setting} in query {}: a query has the runtime of its tenant; the limit of its memory is `max` of its group and those above",
                self.group.path()
            )));
        }
        Ok(context.execute_logical_plan(plan).await?.into_unoptimized_plan())
    }

    /// Ends the query: removes its group, and returns its figures. DataFusion's tasks end by
    /// themselves later. Until then the bytes that they hold stay charged to the tenant.
    ///
    /// If another thread is removing the tenant or the query, it waits until that thread has sent
    /// the figures. Don't call it in an [`on_end`](Group::on_end) callback of a group below the
    /// query's, because that callback must return first.
    pub fn end(self) -> EndedQuery {
        let spilled_bytes = self.figures.spilled();
        let refused_growths = self.pool.refused();
        let allocated_peak_bytes = self.figures.allocated.as_ref().map(Group::peak);
        let Query { context, pool, tasks, group, ended, begun_anew, .. } = self;
        drop((context, pool, tasks));
        // Other owners, which the hierarchy returns by the path, do not keep it alive. An error
        // means that another thread is removing it.
        _ = group.remove_all();
        drop(group);
        let group = ended.wait().clone();
        let begun_anew = begun_anew.into_inner();
        EndedQuery { group, spilled_bytes, refused_growths, begun_anew, allocated_peak_bytes }
    }
}

/// The rows that a query runs for before it returns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    First,
    All,
}

/// A query that runs.
struct Begun<'q> {
    rows: Rows,
    rest: Placed<SendableRecordBatchStream>,
    guards: Guards<'q>,
}

/// Settings and numbers of a query that last as long as it runs.
struct Guards<'q> {
    _eighths: Eighths<'q>,
    _run: Run<'q>,
}

/// The rows of a query, batch by batch; from [`Query::stream`].
pub struct RowStream<'q> {
    query: &'q Query,
    first: Option<Rows>,
    is_over: bool,
    rest: Placed<SendableRecordBatchStream>,
    _guards: Guards<'q>,
}

impl RowStream<'_> {
    /// Returns the next batch with its charge, or `None` after the last one.
    ///
    /// **Cancel safety**: no batch is lost.
    ///
    /// # Errors
    /// As [`Query::run`]; [`DataFusionError::ResourcesExhausted`] if there is no room for the
    /// batch, which is lost then.
    pub async fn next(&mut self) -> Result<Option<Rows>> {
        if let Some(first) = self.first.take() {
            self.is_over = first.is_empty();
            return Ok(Some(first).filter(|first| !first.is_empty()));
        }
        if self.is_over {
            return Ok(None);
        }
        let next = self.query.tasks.track(self.rest.next()).await;
        let next = next.map_err(|ended| resources_datafusion_err!("{ended}"))?;
        let Some(batch) = next.transpose()? else {
            self.is_over = true;
            return Ok(None);
        };
        let mut rows = Rows::of(&self.query.pool);
        rows.push(batch).map_err(|refused| refused.error)?;
        Ok(Some(rows))
    }
}

impl fmt::Debug for RowStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowStream").field("group", self.query.group()).finish_non_exhaustive()
    }
}

/// The figures of an ended query, from [`Query::end`]. Printed, it is a line for a log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndedQuery {
    /// The figures of its group.
    pub group: EndedGroup,
    /// Bytes that it wrote to files for lack of memory.
    pub spilled_bytes: u64,
    /// Growths of its consumers that were refused ([`GroupPool::refused`]). `group.refusals` are
    /// those that the query's own limit refused.
    pub refused_growths: u64,
    /// How often [`Query::collect`] restarted it, with a plan of the same size or a smaller one.
    pub begun_anew: u64,
    /// The most bytes that it had allocated at one time, if they are counted
    /// ([`Tenant::count_allocated`]).
    pub allocated_peak_bytes: Option<u64>,
}

impl fmt::Display for EndedQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} spilled_bytes={}", self.group, self.spilled_bytes)?;
        write!(f, " refused_growths={} begun_anew={}", self.refused_growths, self.begun_anew)?;
        match self.allocated_peak_bytes {
            Some(bytes) => write!(f, " allocated_peak_bytes={bytes}"),
            None => Ok(()),
        }
    }
}
