//! Tasks that fit the memory of their session's group.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use ballista_core::JobId;
use ballista_core::execution_plans::{RuntimeStatsExec, ShuffleWriterExec};
use ballista_core::serde::protobuf::ShuffleWritePartition;
use ballista_executor::execution_engine::{DefaultExecutionEngine, ExecutionEngine, QueryStageExecutor};
use ballista_executor::executor_process::ExecutorProcessConfig;
use datafusion::common::Result;
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::execution::TaskContext;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use memgroup::{Config, Hierarchy};
use memgroup_ballista::{TenantOptions, Tenants, tenant_executor};

const SORT: &str =
    "select value, 'text ' || value as t from generate_series(1, 400000) order by value % 1000, t";

/// An executor of one tenant.
struct Executor {
    hierarchy: Hierarchy,
    tenants: Tenants,
}

impl Executor {
    fn new(max: Option<u64>) -> Executor {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let tree = toml::from_str("['/tenants'.groups.alice]\n").unwrap();
        let tenants = Tenants::new(&hierarchy, &tree).unwrap();
        hierarchy.lookup("/tenants/alice").unwrap().set_max(max).unwrap();
        Executor { hierarchy, tenants }
    }

    /// The engine of an executor that runs four partitions at a time, around another one.
    fn engine(&self, around: Option<Arc<dyn ExecutionEngine>>) -> Arc<dyn ExecutionEngine> {
        let config =
            ExecutorProcessConfig { vcores: 4, override_execution_engine: around, ..Default::default() };
        tenant_executor(&self.tenants, config).override_execution_engine.unwrap()
    }

    /// Runs a query as one stage, which the scheduler has planned. Returns its rows, and the number
    /// of operators with metrics.
    async fn run(
        &self,
        engine: &dyn ExecutionEngine,
        planner: &SessionContext,
        sql: &str,
    ) -> Result<(u64, usize)> {
        let dir = tempfile::tempdir().unwrap();
        let work_dir = dir.path().to_str().unwrap();
        let plan = planner.sql(sql).await?.create_physical_plan().await?;
        let plan = Arc::new(ShuffleWriterExec::try_new("job".into(), 1, plan, work_dir.to_owned())?);
        let config = planner.copied_config();
        let base = Arc::new(|_: &SessionConfig| RuntimeEnvBuilder::new().build_arc());
        let runtime = self.tenants.runtimes(base)(&config)?;
        let stage = engine.create_query_stage_exec("job".into(), 1, 1, vec![0], plan, work_dir, &config)?;
        let context = SessionContext::new_with_config_rt(config, runtime).task_ctx();
        let written = stage.execute_query_stage(1, context).await?;
        Ok((written.iter().map(|part| part.num_rows).sum(), stage.collect_plan_metrics().len()))
    }
}

fn planner() -> SessionContext {
    let options = TenantOptions::of("alice");
    let config = SessionConfig::new().with_target_partitions(4).with_option_extension(options);
    SessionContext::new_with_config(config)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sort_ends_within_limits_that_refuse_it_otherwise() {
    for mib in [4, 16, 32] {
        let executor = Executor::new(Some(mib << 20));
        let own = executor.run(&DefaultExecutionEngine::new(), &planner(), SORT).await;
        let error = own.unwrap_err().to_string();
        assert!(error.contains("Resources exhausted"), "{error}");
        let (rows, _) = executor.run(&*executor.engine(None), &planner(), SORT).await.unwrap();
        assert_eq!(rows, 400_000, "within {mib} MiB");
    }
}

/// An engine that notes the plan, the rows of a batch and the reservation of sorts, and runs
/// nothing.
#[derive(Clone, Debug, Default)]
struct Notes {
    plan: Arc<Mutex<String>>,
    tasks: Arc<Mutex<Vec<(usize, usize)>>>,
}

impl ExecutionEngine for Notes {
    fn create_query_stage_exec(
        &self,
        _: JobId,
        _: usize,
        _: usize,
        _: Vec<usize>,
        plan: Arc<dyn ExecutionPlan>,
        _: &str,
        _: &SessionConfig,
    ) -> Result<Arc<dyn QueryStageExecutor>> {
        *self.plan.lock().unwrap() = displayable(plan.as_ref()).indent(false).to_string();
        Ok(Arc::new(self.clone()))
    }
}

impl fmt::Display for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("notes")
    }
}

#[tonic::async_trait]
impl QueryStageExecutor for Notes {
    async fn execute_query_stage(
        &self,
        _: usize,
        context: Arc<TaskContext>,
    ) -> Result<Vec<ShuffleWritePartition>> {
        let config = context.session_config();
        let reserved = config.options().execution.sort_spill_reservation_bytes;
        self.tasks.lock().unwrap().push((config.batch_size(), reserved));
        assert_eq!(config.target_partitions(), 4);
        assert_eq!(TenantOptions::tenant_of(config), Some("alice"));
        Ok(Vec::new())
    }

    fn collect_plan_metrics(&self) -> Vec<MetricsSet> {
        Vec::new()
    }
}

/// The rows of a batch and the reservation of sorts, of a task of this query, and its plan.
async fn noted(executor: &Executor, planner: &SessionContext, sql: &str) -> ((usize, usize), String) {
    let notes = Notes::default();
    let engine = executor.engine(Some(Arc::new(notes.clone())));
    executor.run(&*engine, planner, sql).await.unwrap();
    (notes.tasks.lock().unwrap()[0], notes.plan.lock().unwrap().clone())
}

#[tokio::test]
async fn a_task_has_the_settings_for_the_least_limit_above_it() {
    let executor = Executor::new(None);
    let own = (8192, SessionConfig::new().options().execution.sort_spill_reservation_bytes);
    assert_eq!(noted(&executor, &planner(), SORT).await.0, own);
    executor.hierarchy.lookup("/tenants/alice").unwrap().set_max(1 << 30).unwrap();
    assert_eq!(noted(&executor, &planner(), SORT).await.0, own);
    executor.hierarchy.lookup("/tenants").unwrap().set_max(64 << 20).unwrap();
    assert_eq!(noted(&executor, &planner(), SORT).await.0, (4096, 2 << 20));
}

#[tokio::test]
async fn a_task_that_reads_texts_from_files_compacts_them() {
    let dir = tempfile::tempdir().unwrap();
    let (executor, planner) = (Executor::new(Some(16 << 20)), planner());
    for (table, column) in [("texts", "'text ' || value"), ("numbers", "value * 2")] {
        let path = file(dir.path(), table, column).await;
        planner.register_parquet(table, path, ParquetReadOptions::default()).await.unwrap();
    }
    for (sql, compacts) in [
        ("select * from texts order by c", true),
        ("select * from numbers order by c", false),
        ("select n from texts order by n", false),
    ] {
        let (settings, plan) = noted(&executor, &planner, sql).await;
        assert_eq!(settings, (1024, 512 << 10));
        assert_eq!(plan.contains("CompactExec: views\n"), compacts, "{plan}");
        // The scheduler refuses a task with metrics of more operators than its plan has.
        let unlimited = Executor::new(None);
        let own = unlimited.run(&DefaultExecutionEngine::new(), &planner, sql).await.unwrap();
        assert_eq!(executor.run(&*executor.engine(None), &planner, sql).await.unwrap(), own);
    }
}

/// The scheduler fails a job with windows over ranges if its tasks report none.
#[tokio::test]
async fn a_task_with_texts_reports_its_statistics_of_ranges() {
    let (executor, planner) = (Executor::new(Some(16 << 20)), planner());
    let texts = planner.sql("select arrow_cast('a', 'Utf8View') as text").await.unwrap();
    let plan =
        Arc::new(RuntimeStatsExec::try_new(texts.create_physical_plan().await.unwrap(), None).unwrap());
    let plan = Arc::new(ShuffleWriterExec::try_new("job".into(), 1, plan, String::new()).unwrap());
    let engine = executor.engine(None);
    let config = planner.copied_config();
    let stage = engine.create_query_stage_exec("job".into(), 1, 1, vec![0], plan, "", &config).unwrap();
    assert_eq!(stage.collect_runtime_stats_reports().len(), 1);
}

async fn file(dir: &Path, name: &str, column: &str) -> String {
    let path = dir.join(format!("{name}.parquet")).to_str().unwrap().to_owned();
    let sql = format!("select value as n, {column} as c from generate_series(1, 100)");
    let rows = SessionContext::new().sql(&sql).await.unwrap();
    rows.write_parquet(&path, DataFrameWriteOptions::new(), None).await.unwrap();
    path
}
