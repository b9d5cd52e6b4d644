//! Views of texts and bytes that keep only their own bytes alive.
//!
//! DataFusion reads texts from Parquet as views into the pages of a file. A batch keeps whole pages
//! alive, and their bytes count for each batch that has a view into them, which is some MiB for a
//! thousand rows of 30 bytes. So a plan with few rows in a batch would need as much memory as one
//! with many, and would write it to disk more often. Other nodes also return views into more bytes
//! than their rows have. A filter that lets few rows through combines many batches into one, and
//! may start a page of a MiB for each. A sort or a join returns views into all batches of one side.
//!
//! Most nodes read a batch once. The others hold batches: joins, sorts, and all nodes that this
//! module does not know. Each of those gets batches with a copy of their own bytes, while a filter
//! above a scan gets the pages as they are.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BinaryViewArray, GenericByteViewArray, RecordBatch, StringViewArray,
};
use datafusion::arrow::datatypes::{ByteViewType, DataType, FieldRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures_util::StreamExt as _;

/// Implements the properties and children of a node with a field `input` that keeps the order and
/// partitions of the rows.
macro_rules! hands_on_its_input {
    () => {
        fn properties(&self) -> &Arc<PlanProperties> {
            self.input.properties()
        }

        fn maintains_input_order(&self) -> Vec<bool> {
            vec![true]
        }

        fn benefits_from_input_partitioning(&self) -> Vec<bool> {
            vec![false]
        }

        fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
            vec![&self.input]
        }

        fn apply_expressions(
            &self,
            _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
        ) -> Result<TreeNodeRecursion> {
            Ok(TreeNodeRecursion::Continue)
        }
    };
}

pub(crate) use hands_on_its_input;

/// A batch is copied only if its buffers are more than this many times as long as the bytes its
/// views refer to.
const TIMES: usize = 2;

/// Puts a node `CompactExec` below each node that holds batches of its inputs, where they have
/// texts or bytes as views. It copies the bytes that a batch refers to, if the batch keeps more
/// than twice as many alive. Views within lists and structs stay as they are.
/// [`Tenant::begin`](crate::Tenant::begin) does it for its plans, and also compacts the rows that a
/// plan returns.
///
/// ```
/// use datafusion::physical_plan::displayable;
/// use datafusion::prelude::SessionContext;
/// use memgroup_datafusion::compact_views;
///
/// # #[tokio::main]
/// # async fn main() -> datafusion::common::Result<()> {
/// let context = SessionContext::new();
/// context.sql("create table texts as select arrow_cast('a', 'Utf8View') as text").await?.collect().await?;
/// let plan = context.sql("select text from texts order by text").await?.create_physical_plan().await?;
/// let plan = compact_views(plan)?;
/// assert!(displayable(plan.as_ref()).indent(false).to_string().contains("CompactExec"));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of DataFusion, when it puts a new node into the plan.
pub fn compact_views(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let below = |node: Arc<dyn ExecutionPlan>| {
        let (inputs, held) = (node.children(), inputs_held(node.as_ref()));
        if !inputs.iter().take(held).any(|input| needs_compaction(input)) {
            return Ok(Transformed::no(node));
        }
        let compacted = |(at, input)| {
            let input = Arc::clone(input);
            if at < held { compact(input) } else { input }
        };
        let inputs = inputs.into_iter().enumerate().map(compacted).collect();
        let keep = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep);
        Ok(Transformed::yes(Arc::clone(&node).replace_children(inputs, keep)?))
    };
    plan.transform_up(below).data()
}

/// The node, with compacted views.
pub(crate) fn compact(node: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    if needs_compaction(&node) { Arc::new(CompactExec { input: node }) } else { node }
}

fn needs_compaction(node: &Arc<dyn ExecutionPlan>) -> bool {
    let is_view = |field: &FieldRef| matches!(field.data_type(), DataType::Utf8View | DataType::BinaryView);
    node.schema().fields().iter().any(is_view) && !node.is::<CompactExec>()
}

/// Returns how many inputs of a node, counted from the first, have batches that it holds. An
/// aggregate copies texts that it groups by.
fn inputs_held(node: &dyn ExecutionPlan) -> usize {
    let holds_none = node.is::<CompactExec>()
        || node.is::<FilterExec>()
        || node.is::<ProjectionExec>()
        || node.is::<AggregateExec>()
        || node.is::<CoalescePartitionsExec>()
        || node.is::<CooperativeExec>()
        || node.is::<GlobalLimitExec>()
        || node.is::<LocalLimitExec>()
        || node.is::<UnionExec>();
    match node.is::<HashJoinExec>() {
        _ if holds_none => 0,
        true => 1,
        false => usize::MAX,
    }
}

/// Returns the same rows with views that keep only their own bytes alive.
fn compacted(batch: RecordBatch) -> Result<RecordBatch> {
    let copies = batch.columns().iter().map(|column| {
        let column = column.as_ref();
        let texts = column.as_any().downcast_ref::<StringViewArray>().and_then(copied);
        let bytes = || column.as_any().downcast_ref::<BinaryViewArray>().and_then(copied);
        texts.or_else(bytes)
    });
    let copies: Vec<_> = copies.collect();
    if copies.iter().all(Option::is_none) {
        return Ok(batch);
    }
    let columns = copies
        .into_iter()
        .zip(batch.columns())
        .map(|(copy, column)| copy.unwrap_or_else(|| Arc::clone(column)));
    Ok(RecordBatch::try_new(batch.schema(), columns.collect())?)
}

/// Returns a copy with the bytes that the views refer to, if the array keeps far more alive.
fn copied<T: ByteViewType + ?Sized>(array: &GenericByteViewArray<T>) -> Option<ArrayRef> {
    let kept: usize = array.data_buffers().iter().map(|buffer| buffer.capacity()).sum();
    (kept > TIMES * array.total_buffer_bytes_used()).then(|| Arc::new(array.gc()) as ArrayRef)
}

/// The node below one that holds batches. It has no metrics, because a scheduler of Ballista counts
/// those of the plan that it sent.
#[derive(Debug)]
struct CompactExec {
    input: Arc<dyn ExecutionPlan>,
}

impl DisplayAs for CompactExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompactExec: views")
    }
}

impl ExecutionPlan for CompactExec {
    fn name(&self) -> &'static str {
        "CompactExec"
    }

    hands_on_its_input!();

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(input), true) => Ok(Arc::new(CompactExec { input })),
            _ => internal_err!("CompactExec has one input"),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let batches = self.input.execute(partition, context)?.map(|batch| batch.and_then(compacted));
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches)))
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::Int32Array;
    use datafusion::datasource::MemTable;
    use datafusion::physical_plan::collect;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;

    /// Texts of 30 bytes, some of them null.
    fn texts(rows: usize) -> StringViewArray {
        (0..rows).map(|row| (row % 7 > 0).then(|| format!("the text of row {row:014}"))).collect()
    }

    fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable(
            columns.into_iter().map(|(name, column)| (name, column, true)),
        )
        .unwrap()
    }

    #[test]
    fn a_part_of_a_page_keeps_its_own_bytes_alone() {
        let page = texts(100_000);
        let bytes: BinaryViewArray = page.iter().map(|text| text.map(str::as_bytes)).collect();
        let part = batch(vec![("texts", Arc::new(page)), ("bytes", Arc::new(bytes))]).slice(70_000, 1000);
        let compact = compacted(part.clone()).unwrap();
        assert_eq!(compact, part);
        let kept = |batch: &RecordBatch| batch.get_array_memory_size();
        assert!(kept(&part) > 5_000_000 && kept(&compact) < 120_000, "{} {}", kept(&part), kept(&compact));
    }

    #[test]
    fn a_batch_that_keeps_little_else_is_not_copied() {
        let whole = batch(vec![("texts", Arc::new(texts(1000)))]).slice(10, 980);
        let buffers = |batch: &RecordBatch| {
            let texts = batch.column(0).as_any().downcast_ref::<StringViewArray>().unwrap();
            texts.data_buffers().iter().map(|buffer| buffer.as_ptr()).collect::<Vec<_>>()
        };
        assert_eq!(buffers(&compacted(whole.clone()).unwrap()), buffers(&whole));
        let none = batch(vec![("texts", Arc::new(texts(0)))]);
        assert_eq!(compacted(none).unwrap().num_rows(), 0);
    }

    fn nodes(plan: &dyn ExecutionPlan) -> String {
        datafusion::physical_plan::displayable(plan).indent(false).to_string()
    }

    #[tokio::test]
    async fn a_node_that_holds_views_has_a_node_below_and_one_that_holds_numbers_has_none() {
        let plan = async |column: ArrayRef, sql: &str| {
            let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
            context.register_batch("rows", batch(vec![("value", column)])).unwrap();
            let plan = context.sql(sql).await.unwrap();
            nodes(compact_views(plan.create_physical_plan().await.unwrap()).unwrap().as_ref())
        };
        let sort = "select value from rows where value is not null order by value";
        let views = plan(Arc::new(texts(100)), sort).await;
        assert!(views.contains("CompactExec: views\n    FilterExec"), "{views}");
        assert_eq!(views.matches("CompactExec").count(), 1, "{views}");
        let numbers: ArrayRef = Arc::new(Int32Array::from(vec![1, 2]));
        let numbers = plan(numbers, sort).await;
        assert!(!numbers.contains("CompactExec"), "{numbers}");
        let groups = plan(Arc::new(texts(100)), "select value, count(*) from rows group by value").await;
        assert!(groups.contains("AggregateExec") && !groups.contains("CompactExec"), "{groups}");
        let join = plan(Arc::new(texts(100)), "select * from rows a join rows b using (value)").await;
        let (held, probed) = join.split_once("CompactExec: views\n").unwrap();
        assert!(held.contains("HashJoinExec") && !probed.contains("CompactExec"), "{join}");
    }

    /// The most bytes that a batch of a plan keeps: as it is, and with compacted views.
    async fn kept(context: &SessionContext, sql: &str, rows: usize) -> (usize, usize) {
        let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        let most = async |plan: Arc<dyn ExecutionPlan>| {
            let batches = collect(plan, context.task_ctx()).await.unwrap();
            assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), rows);
            batches.iter().map(RecordBatch::get_array_memory_size).max().unwrap()
        };
        (most(Arc::clone(&plan)).await, most(compact(compact_views(plan).unwrap())).await)
    }

    #[tokio::test]
    async fn batches_keep_little_of_the_other_batches() {
        let context = SessionContext::new_with_config(
            SessionConfig::new().with_batch_size(1000).with_target_partitions(1),
        );
        let keys: ArrayRef = Arc::new(Int32Array::from_iter_values(0..50_000));
        let rows = |text: &str| batch(vec![("key", Arc::clone(&keys)), (text, Arc::new(texts(50_000)))]);
        context.register_batch("one", rows("a")).unwrap();
        context.register_batch("two", rows("b")).unwrap();
        // A filter copies the texts of a page that has many others, and else takes the page. After
        // each change it begins a page of up to a MiB.
        let own = |nth: i32| {
            let text = |row| (nth % 2 == 0 || row == 1).then(|| format!("the text of row {row:014}"));
            let texts = (0..1000).map(text).collect::<StringViewArray>().gc();
            batch(vec![("key", Arc::new(Int32Array::from_iter_values(0..1000))), ("a", Arc::new(texts))])
        };
        let many = MemTable::try_new(own(0).schema(), vec![(0..100).map(own).collect()]).unwrap();
        context.register_table("many", Arc::new(many)).unwrap();
        for (sql, rows) in [
            ("select a, b from one join two using (key)", 50_000),
            ("select a from many where key = 1", 100),
            ("select a from one order by key % 1000", 50_000),
        ] {
            let (kept, compact) = kept(&context, sql, rows).await;
            assert!(kept > 1_500_000 && compact < 300_000, "{sql}: {kept} {compact}");
        }
    }
}
