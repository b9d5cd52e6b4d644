//! Queries under a global allocator that charges groups: reserved and allocated bytes, each counted
//! once.

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::{Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::runtime::JoinSetTracer;
use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::prelude::{SessionConfig, SessionContext};
use futures_util::TryStreamExt;
use futures_util::future::BoxFuture;
use memgroup::{Config, Group, Hierarchy};
use memgroup_alloc::Allocator;
use memgroup_datafusion::{GroupTracer, Tenant};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::system();

/// A tracer of the program's own, which counts.
#[derive(Default)]
struct Counting(std::sync::atomic::AtomicUsize);

type Output = Box<dyn std::any::Any + Send>;

impl JoinSetTracer for Counting {
    fn trace_future(&self, future: BoxFuture<'static, Output>) -> BoxFuture<'static, Output> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        future
    }

    fn trace_block(&self, act: Box<dyn FnOnce() -> Output + Send>) -> Box<dyn FnOnce() -> Output + Send> {
        act
    }
}

static COUNTING: Counting = Counting(std::sync::atomic::AtomicUsize::new(0));
static TRACER: GroupTracer = GroupTracer::over(&COUNTING);

const ROWS: i64 = 200_000;
const SORT: &str =
    "select v, v * 7919 % 100003 as k, cast(v as varchar) as t from numbers order by k, t desc";

const NUMBERED: &str = "select max(t), sum(n) from (select cast(v as varchar) as t, \
     row_number() over (order by v * 7919 % 100003, v) as n from numbers) where n % 2 = 0";

fn database() -> SessionContext {
    let schema = Arc::new(Schema::new(vec![Field::new("v", DataType::Int64, false)]));
    let parts = (0..4).map(|part| {
        let batches = (0..ROWS / 4 / 1000).map(|batch| {
            let first = (part * ROWS / 4) + batch * 1000;
            let column = Arc::new(Int64Array::from_iter_values(first..first + 1000));
            RecordBatch::try_new(Arc::clone(&schema), vec![column]).unwrap()
        });
        batches.collect()
    });
    let table = MemTable::try_new(Arc::clone(&schema), parts.collect()).unwrap();
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(4));
    context.register_table("numbers", Arc::new(table)).unwrap();
    context
}

async fn until_below(group: &Group, bytes: u64) {
    while group.usage_exact() > bytes {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Blocks that a query left to the process, such as buffers of threads and of the runtime.
const LEFT: u64 = 64 << 10;

// One test: the process has one tracer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allocations_are_charged_beside_reservations_and_counted_once() {
    TRACER.install().unwrap();
    assert!(TRACER.install().is_err(), "a process has one tracer");
    let context = database();
    let (hierarchy, allocations) =
        (Hierarchy::new(Config::new()).unwrap(), Hierarchy::new(Config::new()).unwrap());
    let (alice, allocated) = (hierarchy.create("/alice").unwrap(), allocations.create("/alice").unwrap());

    // Without a second tree, the pool's tree has the reserved bytes, and no allocated ones.
    let tenant = Tenant::new(&hierarchy, &alice, &context);
    let query = tenant.begin("plain").unwrap();
    let rows = query.collect(SORT).await.unwrap();
    let reserved = query.pool().reserved() as u64;
    assert_eq!(query.group().usage_exact(), reserved, "no block is charged to the pool's tree");
    let held: usize = rows.iter().map(RecordBatch::get_array_memory_size).sum();
    assert!(held > 1 << 20);
    let plain = query.end();
    assert_eq!(plain.allocated_peak_bytes, None);
    drop(rows);

    // With one, it has all blocks of the same query, of all its tasks.
    let counted = Tenant::new(&hierarchy, &alice, &context).count_allocated(&allocated);
    let query = counted.begin("counted").unwrap();
    let rows = query.collect(SORT).await.unwrap();
    assert_eq!(query.group().usage_exact(), query.pool().reserved() as u64);
    let held: usize = rows.iter().map(RecordBatch::get_array_memory_size).sum();
    let usage = allocated.usage_exact() as usize;
    assert!(usage > held / 2 && usage < 4 * held, "{usage} bytes charged for rows of {held}");
    let ended = query.end();
    let peak = ended.allocated_peak_bytes.unwrap();
    assert!(peak >= usage as u64 && peak < 16 * held as u64, "{ended}");
    assert!(ended.to_string().contains(&format!(" allocated_peak_bytes={peak}")), "{ended}");
    assert!(COUNTING.0.load(std::sync::atomic::Ordering::Relaxed) > 4, "the inner tracer saw the tasks");
    drop(rows);
    until_below(&alice, 0).await;

    // So it has where the rows are polled outside of the query's own calls.
    let query = counted.begin("outside").unwrap();
    let before = allocated.usage_exact();
    let rows = query.context().sql(SORT).await.unwrap().execute_stream().await.unwrap();
    let rows: Vec<RecordBatch> = rows.try_collect().await.unwrap();
    let held: usize = rows.iter().map(RecordBatch::get_array_memory_size).sum();
    let usage = (allocated.usage_exact() - before) as usize;
    assert!(usage > held / 2 && usage < 4 * held, "{usage} bytes charged for rows of {held}");
    query.end();
    drop(rows);
    until_below(&alice, 0).await;

    // Its limit refuses growths, and plans fit it. Few rows are left at the end: those that a
    // caller holds are charged, too.
    let expected = context.sql(NUMBERED).await.unwrap().collect().await.unwrap();
    let query = counted.begin("numbered").unwrap();
    assert_eq!(query.collect(NUMBERED).await.unwrap()[..], expected[..]);
    let unlimited = query.end();
    assert_eq!(unlimited.spilled_bytes, 0);
    let peak = unlimited.allocated_peak_bytes.unwrap();
    until_below(&allocated, LEFT).await;
    allocated.set_max(peak * 3 / 4).unwrap();
    let query = counted.begin("limited").unwrap();
    assert_eq!(query.collect(NUMBERED).await.unwrap()[..], expected[..]);
    let limited = query.end();
    println!("without a limit: {unlimited}\nwithin {} bytes: {limited}", peak * 3 / 4);
    assert!(limited.allocated_peak_bytes.unwrap() < peak * 9 / 10, "{limited}, {peak} without a limit");
    until_below(&allocated, LEFT).await;
}
