//! The node on top of each plan of a query. Its work runs in the query's place, and its metrics are
//! the figures of the query's group.

use std::fmt;
use std::iter;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::analyze::AnalyzeExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use memgroup::stats::io::WBYTES;
use memgroup::{BYTES_MAX, Freshness, Group, Reach, Statistics};

use crate::neighbours::Member;
use crate::place::{Place, Placed};
use crate::views::hands_on_its_input;
use crate::views::{compact, compact_views};

/// The figures of a query's group that its plans show.
#[derive(Clone)]
pub(crate) struct Figures {
    pub(crate) group: Group,
    pub(crate) member: Arc<Member>,
    pub(crate) io: Statistics,
    pub(crate) allocated: Option<Group>,
}

impl fmt::Debug for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Figures").field("group", &self.group).finish_non_exhaustive()
    }
}

impl Figures {
    /// Bytes that the query wrote to files that it spilled to.
    pub(crate) fn spilled(&self) -> u64 {
        self.io.get(&self.group, WBYTES, Reach::Subtree, Freshness::Fresh).unsigned_abs()
    }

    /// Returns whether a limit is in force, in the tree of the pools or in that of the allocations.
    fn is_limited(&self) -> bool {
        let groups = iter::once(&self.group).chain(&self.allocated);
        groups.map(Group::headroom).any(|headroom| headroom < BYTES_MAX / 2)
    }

    fn metrics(&self) -> MetricsSet {
        let set = ExecutionPlanMetricsSet::new();
        let gauge = |name: &'static str, value: u64| {
            MetricBuilder::new(&set).global_gauge(name).set(usize::try_from(value).unwrap_or(usize::MAX));
        };
        gauge("group_peak_bytes", self.group.peak());
        if let Some(allocated) = &self.allocated {
            gauge("allocated_peak_bytes", allocated.peak());
        }
        gauge("spilled_bytes", self.spilled());
        gauge("refused_growths", self.member.refused());
        gauge("stalled_us", self.group.pressure().some.total);
        set.clone_inner()
    }
}

/// The node. A plan that was serialised and sent elsewhere has none, because the pool there charges
/// the group there.
#[derive(Clone, Debug)]
struct GroupExec {
    input: Arc<dyn ExecutionPlan>,
    place: Place,
    figures: Figures,
}

impl DisplayAs for GroupExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GroupExec: group={}", self.figures.group.path())
    }
}

impl ExecutionPlan for GroupExec {
    fn name(&self) -> &'static str {
        "GroupExec"
    }

    hands_on_its_input!();

    // DataFusion calls `replace_children`, which calls this.
    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(input), true) => Ok(Arc::new(GroupExec { input, ..(*self).clone() })),
            _ => internal_err!("GroupExec has one input"),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let stream = self.place.call(|| self.input.execute(partition, context))?;
        Ok(Box::pin(Placed::new(stream, self.place.clone())))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.figures.metrics())
    }
}

/// Puts a [`GroupExec`] on top of each plan; in `EXPLAIN ANALYZE`, on top of the plan that is
/// analysed.
#[derive(Debug)]
pub(crate) struct GroupRule {
    pub(crate) place: Place,
    pub(crate) figures: Figures,
}

impl PhysicalOptimizerRule for GroupRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let over = |input: &Arc<dyn ExecutionPlan>| -> Arc<dyn ExecutionPlan> {
            let (place, figures) = (self.place.clone(), self.figures.clone());
            Arc::new(GroupExec { input: Arc::clone(input), place, figures })
        };
        let is_limited = self.figures.is_limited();
        let plan = if is_limited { compact_views(plan)? } else { plan };
        match plan.downcast_ref::<AnalyzeExec>() {
            Some(analyze) => {
                let input = over(analyze.input());
                let recompute = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
                plan.replace_children(vec![input], recompute)
            }
            None => Ok(over(&if is_limited { compact(plan) } else { plan })),
        }
    }

    fn name(&self) -> &'static str {
        "memgroup"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
