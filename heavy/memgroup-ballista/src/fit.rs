//! Tasks that fit the memory of their session's group.
//!
//! The scheduler makes a plan without knowing the memory of an executor's groups, and partitions
//! and joins are fixed when a task arrives. Operators read the rows of a batch and the reservations
//! of sorts from the task's configuration when they start, so the executor fits those.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use ballista_core::JobId;
use ballista_core::execution_plans::RuntimeStatsExec;
use ballista_core::serde::protobuf::{
    RuntimeStatsReport, ShuffleWritePartition, TaskColumnStats, WindowStateReport,
};
use ballista_executor::execution_engine::{ExecutionEngine, QueryStageExecutor};
use datafusion::common::Result;
use datafusion::common::tree_node::TreeNode;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::prelude::SessionConfig;
use memgroup_datafusion::{compact_views, fit_config};

use crate::tenants::SessionPool;

/// An engine with tasks that fit their memory.
pub(crate) struct FittingEngine {
    pub(crate) inner: Arc<dyn ExecutionEngine>,
    /// Partitions that the executor runs at a time.
    pub(crate) partitions: usize,
}

impl ExecutionEngine for FittingEngine {
    fn create_query_stage_exec(
        &self,
        job_id: JobId,
        stage_id: usize,
        task_id: usize,
        global_output_partition_ids: Vec<usize>,
        plan: Arc<dyn ExecutionPlan>,
        work_dir: &str,
        config: &SessionConfig,
    ) -> Result<Arc<dyn QueryStageExecutor>> {
        let ids = global_output_partition_ids;
        // Ballista looks for these statistics below nodes that it knows, and fails a job that lacks
        // them.
        let has_statistics = plan.exists(|node| Ok(node.is::<RuntimeStatsExec>()))?;
        let plan = if has_statistics { plan } else { compact_views(plan)? };
        let stage =
            self.inner.create_query_stage_exec(job_id, stage_id, task_id, ids, plan, work_dir, config)?;
        Ok(Arc::new(FittedStage { stage, partitions: self.partitions }))
    }
}

/// A stage with tasks that fit.
#[derive(Debug)]
struct FittedStage {
    stage: Arc<dyn QueryStageExecutor>,
    partitions: usize,
}

impl FittedStage {
    /// Returns the same context with a configuration that fits the limits of the session.
    fn fitted(&self, context: Arc<TaskContext>) -> Arc<TaskContext> {
        let pool: &dyn Any = &**context.memory_pool();
        let Some(bytes) = pool.downcast_ref().and_then(SessionPool::limit) else {
            return context;
        };
        let config = context.session_config();
        let fitted = fit_config(config.clone(), bytes, self.partitions);
        Arc::new(TaskContext::new(
            context.task_id(),
            context.session_id(),
            fitted,
            context.scalar_functions().clone(),
            context.higher_order_functions().clone(),
            context.aggregate_functions().clone(),
            context.window_functions().clone(),
            context.runtime_env(),
        ))
    }
}

#[tonic::async_trait]
impl QueryStageExecutor for FittedStage {
    async fn execute_query_stage(
        &self,
        task_id: usize,
        context: Arc<TaskContext>,
    ) -> Result<Vec<ShuffleWritePartition>> {
        self.stage.execute_query_stage(task_id, self.fitted(context)).await
    }

    fn collect_plan_metrics(&self) -> Vec<MetricsSet> {
        self.stage.collect_plan_metrics()
    }

    fn collect_runtime_stats_reports(&self) -> Vec<RuntimeStatsReport> {
        self.stage.collect_runtime_stats_reports()
    }

    fn collect_window_state_reports(&self) -> Result<Vec<WindowStateReport>> {
        self.stage.collect_window_state_reports()
    }

    fn collect_column_stats(&self) -> Vec<TaskColumnStats> {
        self.stage.collect_column_stats()
    }
}

impl fmt::Display for FittedStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stage.fmt(f)
    }
}
