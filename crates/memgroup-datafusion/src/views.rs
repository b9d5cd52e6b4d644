//! Views of texts and bytes that keep no more than their own bytes.
//!
//! DataFusion reads texts from Parquet as views into the pages of a file. A batch keeps whole pages, and their bytes count for each batch that has a view
//! into them: some MiB for a thousand rows of 30 bytes. So a plan with few rows a batch would need as much memory as one with many, and
//! would write it to disk more often. A join returns views into all batches of one side, so one of its batches counts as much as that side.
//! A scan or a join with compacted views hands on batches with a copy of their own bytes.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BinaryViewArray, GenericByteViewArray, RecordBatch, StringViewArray,
};
use datafusion::arrow::datatypes::{ByteViewType, DataType, FieldRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_err};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures_util::StreamExt as _;

use crate::node::hands_on_its_input;

/// Buffers that are less than so many times as long as their views show stay as they are.
const TIMES: usize = 2;

/// Puts a node `CompactExec` above each scan and each join of a plan that returns texts or bytes as views. It copies the bytes that a batch shows, where the batch
/// keeps more than twice as many. Views within lists and structs stay as they are. [`Tenant::begin`](crate::Tenant::begin) does it for its plans.
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
/// let plan = context.sql("select text from texts").await?.create_physical_plan().await?;
/// let plan = compact_views(plan)?;
/// assert!(displayable(plan.as_ref()).indent(false).to_string().contains("CompactExec"));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of DataFusion, when it puts a new node into the plan.
pub fn compact_views(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let is_view = |field: &FieldRef| matches!(field.data_type(), DataType::Utf8View | DataType::BinaryView);
    let compact = |node: Arc<dyn ExecutionPlan>| {
        let has_foreign_bytes = node.is::<DataSourceExec>() || is_join(node.as_ref());
        Ok(match has_foreign_bytes && node.schema().fields().iter().any(is_view) {
            true => Transformed::yes(Arc::new(CompactExec { input: node }) as Arc<dyn ExecutionPlan>),
            false => Transformed::no(node),
        })
    };
    plan.transform_up(compact).data()
}

fn is_join(node: &dyn ExecutionPlan) -> bool {
    node.is::<HashJoinExec>()
        || node.is::<SortMergeJoinExec>()
        || node.is::<NestedLoopJoinExec>()
        || node.is::<CrossJoinExec>()
}

/// The same rows. Views keep their own bytes alone.
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

/// A copy with the bytes that the views show, where the array keeps far more.
fn copied<T: ByteViewType + ?Sized>(array: &GenericByteViewArray<T>) -> Option<ArrayRef> {
    let kept: usize = array.data_buffers().iter().map(|buffer| buffer.capacity()).sum();
    (kept > TIMES * array.total_buffer_bytes_used()).then(|| Arc::new(array.gc()) as ArrayRef)
}

/// The node over a scan or a join. It has no metrics: a scheduler of Ballista counts those of the plan that it sent.
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
    async fn a_scan_of_views_has_a_node_above_and_one_of_numbers_has_none() {
        let plan = async |column: ArrayRef| {
            let context = SessionContext::new();
            context.register_batch("rows", batch(vec![("value", column)])).unwrap();
            let plan = context.sql("select value from rows order by value").await.unwrap();
            compact_views(plan.create_physical_plan().await.unwrap()).unwrap()
        };
        let views = nodes(plan(Arc::new(texts(100))).await.as_ref());
        assert!(views.contains("CompactExec: views\n    DataSourceExec"), "{views}");
        let numbers = Arc::new(Int32Array::from(vec![1, 2]));
        let numbers = nodes(plan(numbers).await.as_ref());
        assert!(!numbers.contains("CompactExec"), "{numbers}");
    }

    #[tokio::test]
    async fn batches_of_a_join_keep_little_of_the_other_batches() {
        let context = SessionContext::new_with_config(SessionConfig::new().with_batch_size(1000));
        let keys: ArrayRef = Arc::new(Int32Array::from_iter_values(0..50_000));
        let rows = |text: &str| batch(vec![("key", Arc::clone(&keys)), (text, Arc::new(texts(50_000)))]);
        context.register_batch("one", rows("a")).unwrap();
        context.register_batch("two", rows("b")).unwrap();
        let plan = context.sql("select a, b from one join two using (key)").await.unwrap();
        let plan = plan.create_physical_plan().await.unwrap();
        let most = async |plan: Arc<dyn ExecutionPlan>| {
            let batches = collect(plan, context.task_ctx()).await.unwrap();
            assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 50_000);
            batches.iter().map(RecordBatch::get_array_memory_size).max().unwrap()
        };
        let kept = most(Arc::clone(&plan)).await;
        let compact = most(compact_views(plan).unwrap()).await;
        assert!(kept > 1_500_000 && compact < 300_000, "{kept} {compact}");
    }
}
