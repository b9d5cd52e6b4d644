//! Sorts that spill, under limits.

use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use datafusion::arrow::array::{Int64Array, RecordBatch, StringArray};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::DataFusionError;
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::datasource::MemTable;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryConsumer, MemoryPool, MemoryReservation,
};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use memgroup::{Config, Group, Hierarchy};
use memgroup_datafusion::{Query, Tenant};

const BATCH: usize = 8192;

fn table(rows: usize, partitions: usize) -> Arc<MemTable> {
    let schema = Arc::new(Schema::new(vec![
        Field::new("key", DataType::Int64, false),
        Field::new("text", DataType::Utf8, false),
    ]));
    let mut seed = 7_u64;
    let mut next = || {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        seed >> 33
    };
    let mut parts = vec![Vec::new(); partitions];
    for number in 0..rows.div_ceil(BATCH) {
        let keys: Vec<i64> = (0..BATCH).map(|_| next() as i64).collect();
        let texts: Vec<String> = keys.iter().map(|key| format!("{key:0>40}")).collect();
        let columns: Vec<Arc<dyn datafusion::arrow::array::Array>> =
            vec![Arc::new(Int64Array::from(keys)), Arc::new(StringArray::from(texts))];
        parts[number % partitions].push(RecordBatch::try_new(Arc::clone(&schema), columns).unwrap());
    }
    Arc::new(MemTable::try_new(schema, parts).unwrap())
}

async fn context(path: &str, partitions: usize, pool: Option<Arc<dyn MemoryPool>>) -> SessionContext {
    let config = SessionConfig::new().with_target_partitions(partitions);
    let runtime = RuntimeEnvBuilder::new();
    let runtime = if let Some(pool) = pool { runtime.with_memory_pool(pool) } else { runtime };
    let context = SessionContext::new_with_config_rt(config, runtime.build_arc().unwrap());
    context.register_parquet("t", path, ParquetReadOptions::default()).await.unwrap();
    context
}

/// A file of 24 MiB of rows.
async fn file(dir: &Path) -> String {
    let path = dir.join("t.parquet").to_str().unwrap().to_owned();
    let writer = SessionContext::new();
    writer.register_table("t", table(400_000, 1)).unwrap();
    let table = writer.table("t").await.unwrap();
    table.write_parquet(&path, DataFrameWriteOptions::new(), None).await.unwrap();
    path
}

const QUERIES: [&str; 2] = [
    "select * from t order by text",
    "select text, count(*) as n, min(key) from t group by text order by n, text",
];

/// Limits of 16 MiB and more, at which DataFusion's own pools fail some of the queries, as the
/// other test shows.
const LIMITS: [usize; 2] = [16 << 20, 30 << 20];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sorts_and_groups_end_within_limits_far_below_their_data() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path()).await;
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    for partitions in [2, 4] {
        let context = context(&path, partitions, None).await;
        for (number, sql) in QUERIES.into_iter().enumerate() {
            let expected = context.sql(sql).await.unwrap().collect().await.unwrap();
            let expected = concat_batches(&expected[0].schema(), &expected).unwrap();
            for limit in LIMITS {
                let group = hierarchy.create(&format!("/tenant{partitions}-{number}-{limit}")).unwrap();
                group.set_max(limit as u64).unwrap();
                let query = Tenant::new(&hierarchy, &group, &context).begin("query").unwrap();
                // All rows together are larger than the limit.
                let rows = uncharged(&query, sql).await.unwrap();
                let rows = concat_batches(&rows[0].schema(), &rows).unwrap();
                assert!(rows == expected, "{sql} within {limit} bytes");
                let ended = query.end();
                let peak = ended.group.peak_bytes;
                assert!(peak <= limit as u64 && peak > limit as u64 / 2, "{ended}");
                until_empty(&group).await;
            }
        }
    }
}

/// All rows of a query. The test has them, and not the tenant.
async fn uncharged(query: &Query, sql: &str) -> Result<Vec<RecordBatch>, DataFusionError> {
    let (mut stream, mut all) = (query.stream(sql).await?, Vec::new());
    while let Some(rows) = stream.next().await? {
        all.extend(rows.into_uncharged());
    }
    Ok(all)
}

/// DataFusion's tasks end by themselves, some time after their query.
async fn until_empty(group: &Group) {
    while group.usage_exact() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_fail_with_the_pools_of_datafusion() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path()).await;
    for limit in LIMITS {
        let pools: [Arc<dyn MemoryPool>; 2] =
            [Arc::new(GreedyMemoryPool::new(limit)), Arc::new(FairSpillPool::new(limit))];
        for pool in pools {
            let context = context(&path, 4, Some(pool)).await;
            for sql in QUERIES {
                let error = async { context.sql(sql).await?.collect().await }.await.unwrap_err();
                assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error}");
            }
        }
    }
}

/// How many of six plans end with each pool, at three limits: the table of the crate's page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes; prints figures"]
async fn prints_which_plans_end_with_each_pool() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path()).await;
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    for mib in [16, 30, 60] {
        let mut ended = [0; 3];
        for partitions in [2, 4, 8] {
            for sql in QUERIES {
                let pools: [Arc<dyn MemoryPool>; 2] =
                    [Arc::new(GreedyMemoryPool::new(mib << 20)), Arc::new(FairSpillPool::new(mib << 20))];
                for (at, pool) in pools.into_iter().enumerate() {
                    let context = context(&path, partitions, Some(pool)).await;
                    let result = async { context.sql(sql).await?.collect().await }.await;
                    ended[at] += u32::from(result.is_ok());
                }
                let group = hierarchy.get_or_create("/tenant").unwrap();
                group.set_max((mib << 20) as u64).unwrap();
                let context = context(&path, partitions, None).await;
                let query = Tenant::new(&hierarchy, &group, &context).begin("query").unwrap();
                ended[2] += u32::from(uncharged(&query, sql).await.is_ok());
                query.end();
                until_empty(&group).await;
            }
        }
        let [greedy, fair, ours] = ended;
        println!(
            "{mib} MiB: of 6 plans end {greedy} with Greedy, {fair} with FairSpill, {ours} with memgroup"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_cannot_fit_fails_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path()).await;
    let context = context(&path, 2, None).await;
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let group = hierarchy.create("/tenant").unwrap();
    group.set_max(1 << 17).unwrap();
    let tenant = Tenant::new(&hierarchy, &group, &context);
    let query = tenant.begin("query").unwrap();
    let error = query.collect(QUERIES[0]).await.unwrap_err();
    assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error}");
    assert!(error.to_string().contains("Top memory consumers: "), "{error}");
    assert!(query.end().group.peak_bytes <= 1 << 17);
    until_empty(&group).await;
    assert!(hierarchy.lookup("/tenant/query").is_err());
    assert!(tenant.begin("query").is_ok(), "the name is free again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_is_ended_for_another_tenant() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path()).await;
    let context = context(&path, 2, None).await;
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let tenants = hierarchy.create("/tenants").unwrap();
    tenants.set_max(64 << 20).unwrap();
    let (hog, other) = (tenants.create("hog").unwrap(), tenants.create("other").unwrap());
    let query = Arc::new(Tenant::new(&hierarchy, &hog, &context).begin("query").unwrap());
    let ran = tokio::spawn({
        let query = Arc::clone(&query);
        async move {
            query
                .run(async {
                    let reservation =
                        MemoryConsumer::new("hog").register(&query.context().runtime_env().memory_pool);
                    reservation.try_grow(60 << 20)?;
                    std::future::pending::<()>().await;
                    drop(reservation);
                    Ok(())
                })
                .await
        }
    });
    while query.pool().reserved() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The charge of a thread of its own stops the hog.
    let charge = tokio::task::spawn_blocking(move || other.charge_until(32 << 20, Duration::from_secs(60)))
        .await
        .unwrap();
    assert_eq!(charge.unwrap().bytes(), 32 << 20);
    let error = ran.await.unwrap().unwrap_err();
    assert!(matches!(error, DataFusionError::ResourcesExhausted(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_queries_leave_no_byte_and_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path()).await;
    let context = context(&path, 4, None).await;
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let group = hierarchy.create("/tenant").unwrap();
    group.set_max(16 << 20).unwrap();
    let spilled = tempfile::tempdir().unwrap();
    let disk = DiskManagerBuilder::default()
        .with_mode(DiskManagerMode::Directories(vec![spilled.path().to_path_buf()]));
    let tenant = Tenant::new(&hierarchy, &group, &context).spill_to(disk);
    let files = || std::fs::read_dir(spilled.path()).unwrap().count();
    let mut most_files = 0;
    for (number, sql) in QUERIES.into_iter().cycle().take(12).enumerate() {
        let query = tenant.begin("query").unwrap();
        let until = Duration::from_millis(60 * number as u64);
        let _ = tokio::time::timeout(until, query.collect(sql)).await;
        most_files = most_files.max(files());
        query.end();
        assert!(hierarchy.lookup("/tenant/query").is_err());
        until_empty(&group).await;
        while files() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    assert!(most_files > 0, "a query was cancelled after it had spilled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_of_a_tenant_with_a_disabled_disk_does_not_spill() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path()).await;
    let context = context(&path, 2, None).await;
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let group = hierarchy.create("/tenant").unwrap();
    group.set_max(LIMITS[0] as u64).unwrap();
    let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
    let query = Tenant::new(&hierarchy, &group, &context).spill_to(disk).begin("query").unwrap();
    assert!(!query.context().runtime_env().disk_manager.tmp_files_enabled());
    let error = query.collect(QUERIES[0]).await.unwrap_err();
    assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error}");
    assert_eq!(query.end().spilled_bytes, 0);
    until_empty(&group).await;
}

/// Rows of which the first attempt runs out of memory, and leaves a task behind that holds memory
/// for a while.
#[derive(Debug)]
struct LeavesATask {
    schema: Arc<Schema>,
    attempts: AtomicUsize,
    reserved_at_second: AtomicUsize,
}

impl PartitionStream for LeavesATask {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let pool = context.memory_pool();
        let result = if self.attempts.fetch_add(1, Ordering::Relaxed) == 0 {
            let held = MemoryConsumer::new("task").register(pool);
            held.try_grow(4 << 20).unwrap();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                drop(held);
            });
            Err(DataFusionError::ResourcesExhausted("the first attempt".to_owned()))
        } else {
            self.reserved_at_second.store(pool.reserved(), Ordering::Relaxed);
            Ok(RecordBatch::new_empty(Arc::clone(&self.schema)))
        };
        let rows = futures_util::stream::iter([result]);
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), rows))
    }
}

/// A context with such rows.
fn leaves_a_task() -> (SessionContext, Arc<LeavesATask>) {
    let schema = Arc::new(Schema::new(vec![Field::new("key", DataType::Int64, false)]));
    let rows = Arc::new(LeavesATask {
        schema: Arc::clone(&schema),
        attempts: AtomicUsize::new(0),
        reserved_at_second: AtomicUsize::new(usize::MAX),
    });
    let table = StreamingTable::try_new(schema, vec![Arc::clone(&rows) as _]).unwrap();
    let context = SessionContext::new();
    context.register_table("rows", Arc::new(table)).unwrap();
    (context, rows)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_is_begun_anew_once_the_tasks_of_its_last_plan_have_ended() {
    let (context, rows) = leaves_a_task();
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let group = hierarchy.create("/tenant").unwrap();
    group.set_max(8 << 20).unwrap();
    let query = Tenant::new(&hierarchy, &group, &context).begin("query").unwrap();
    query.collect("select key from rows").await.unwrap();
    assert_eq!(rows.attempts.load(Ordering::Relaxed), 2);
    assert_eq!(rows.reserved_at_second.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_have_their_whole_share_again_after_a_query_was_begun_anew() {
    let (context, rows) = leaves_a_task();
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
    let group = hierarchy.create("/tenant").unwrap();
    group.set_max(8 << 20).unwrap();
    let query = Tenant::new(&hierarchy, &group, &context).begin("query").unwrap();
    query.collect("select key from rows").await.unwrap();
    assert_eq!(rows.attempts.load(Ordering::Relaxed), 2);
    let pool: Arc<dyn MemoryPool> = query.pool().clone();
    let sort = MemoryConsumer::new("sort").with_can_spill(true).register(&pool);
    (0..8).for_each(|_| sort.try_grow(1 << 20).unwrap());
}

/// Rows that need 20 MiB for a while, in this many growths. They note the rows in a batch of each
/// attempt.
#[derive(Debug)]
struct Needs {
    growths: usize,
    schema: Arc<Schema>,
    attempts: Mutex<Vec<usize>>,
}

impl PartitionStream for Needs {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        self.attempts.lock().unwrap().push(context.session_config().batch_size());
        let held = MemoryConsumer::new("rows").register(context.memory_pool());
        let (schema, growths) = (Arc::clone(&self.schema), self.growths);
        let rows = futures_util::stream::once(async move {
            (0..growths).try_for_each(|_| held.try_grow((20 << 20) / growths))?;
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok(RecordBatch::new_empty(schema))
        });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), rows))
    }
}

/// Two values for a tenant of 36 MiB with a table `rows` of such rows. Growths do not wait.
fn needs(hierarchy: &Hierarchy, growths: usize) -> ([Tenant; 2], Arc<Needs>) {
    let schema = Arc::new(Schema::new(vec![Field::new("key", DataType::Int64, false)]));
    let rows = Arc::new(Needs { growths, schema: Arc::clone(&schema), attempts: Mutex::default() });
    let table = StreamingTable::try_new(schema, vec![Arc::clone(&rows) as _]).unwrap();
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    context.register_table("rows", Arc::new(table)).unwrap();
    let group = hierarchy.create("/tenant").unwrap();
    group.set_max(36 << 20).unwrap();
    let tenant = || Tenant::new(hierarchy, &group, &context).patience(Duration::ZERO);
    ([tenant(), tenant()], rows)
}

fn held(query: &Query, bytes: usize) -> MemoryReservation {
    let pool: Arc<dyn MemoryPool> = query.pool().clone();
    let held = MemoryConsumer::new("held").register(&pool);
    held.try_grow(bytes).unwrap();
    held
}

/// Runs a query that holds these bytes until `free`, and runs until `end`.
async fn hold(
    query: &Query,
    held: MemoryReservation,
    free: impl Future<Output = ()>,
    end: impl Future<Output = ()>,
) {
    let part = async {
        free.await;
        drop(held);
        end.await;
        Ok(())
    };
    query.run(part).await.unwrap();
}

async fn until_refused(query: &Query, times: u64) {
    while query.pool().refused() < times {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_waits_for_the_room_that_another_one_of_its_tenant_frees() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let ([tenant, again], rows) = needs(&hierarchy, 1);
    let other = tenant.begin("other").unwrap();
    let query = again.begin("query").unwrap();
    let held = held(&other, 28 << 20);
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    let holds = hold(&other, held, until_refused(&query, 1), async { end.await.unwrap() });
    let collects = async {
        query.collect("select key from rows").await.unwrap();
        ended.send(()).unwrap();
    };
    tokio::join!(holds, collects);
    assert_eq!(*rows.attempts.lock().unwrap(), [BATCH, BATCH], "the plan did not become smaller");
    assert_eq!(query.end().begun_anew, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_is_begun_anew_as_long_as_others_free_memory_for_it() {
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
    let ([tenant, again], rows) = needs(&hierarchy, 20);
    let (other, query) = (tenant.begin("other").unwrap(), again.begin("query").unwrap());
    let (held, (ended, end)) = (held(&other, 30 << 20), tokio::sync::oneshot::channel::<()>());
    // Room for one more growth after each refusal.
    let frees = async {
        for times in 1..=14 {
            until_refused(&query, times).await;
            held.shrink(1 << 20);
        }
        end.await.unwrap();
        Ok(())
    };
    let collects = async {
        query.collect("select key from rows").await.unwrap();
        ended.send(()).unwrap();
    };
    let (ran, ()) = tokio::join!(other.run(frees), collects);
    ran.unwrap();
    let attempts = rows.attempts.lock().unwrap();
    assert_eq!((attempts[0], attempts.last()), (BATCH, Some(&1024)));
    assert_eq!((attempts.len() as u64, query.end().begun_anew), (15, 14));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_of_a_tenant_are_begun_anew_one_after_the_other() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let ([tenant, again], rows) = needs(&hierarchy, 1);
    let (one, two, other) =
        (again.begin("one").unwrap(), tenant.begin("two").unwrap(), tenant.begin("other").unwrap());
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    let free = async {
        until_refused(&one, 1).await;
        until_refused(&two, 1).await;
    };
    let holds = hold(&other, held(&other, 28 << 20), free, async { end.await.unwrap() });
    let collects = async {
        let sql = "select key from rows";
        let (first, second) = tokio::join!(one.collect(sql), two.collect(sql));
        assert!(first.is_ok() && second.is_ok());
        ended.send(()).unwrap();
    };
    tokio::join!(holds, collects);
    assert_eq!(*rows.attempts.lock().unwrap(), [BATCH; 4]);
    assert_eq!((one.end().begun_anew, two.end().begun_anew), (1, 1));
}

/// A tenant with a table of this many rows of 52 bytes in memory, in one partition and batches of
/// 8192.
fn with_rows(hierarchy: &Hierarchy, rows: usize) -> (Group, Tenant) {
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    context.register_table("t", table(rows, 1)).unwrap();
    let group = hierarchy.create("/tenant").unwrap();
    (group.clone(), Tenant::new(hierarchy, &group, &context))
}

/// Bytes of a row of [`table`]: the key, the text, and the offset of the text.
const ROW: usize = 8 + 40 + 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collected_rows_are_charged_as_long_as_they_last() {
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
    let (group, tenant) = with_rows(&hierarchy, 64 * BATCH);
    let query = tenant.begin("query").unwrap();
    let rows = query.collect("select * from t").await.unwrap();
    let data = rows.iter().map(|batch| batch.num_rows() * ROW).sum::<usize>();
    assert_eq!(data, 64 * BATCH * ROW);
    assert!((data..2 * data).contains(&rows.bytes()), "{} for {data}", rows.bytes());
    assert_eq!(group.usage_exact(), rows.bytes() as u64);
    let ended = query.end();
    assert_eq!(ended.group.usage_bytes, rows.bytes() as u64, "also after the query");
    assert!(ended.group.peak_bytes >= rows.bytes() as u64);
    drop(rows);
    until_empty(&group).await;
    assert!(hierarchy.dying().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_do_not_fit_are_refused_and_the_next_query_works() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let (group, tenant) = with_rows(&hierarchy, 64 * BATCH);
    group.set_max(8 << 20).unwrap();
    let query = tenant.begin("query").unwrap();
    let error = query.collect("select * from t").await.unwrap_err();
    assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error}");
    assert!(error.to_string().contains("for ReturnedRows with"), "{error}");
    let rows = query.collect("select * from t limit 1000").await.unwrap();
    assert_eq!(rows.iter().map(|batch| batch.num_rows()).sum::<usize>(), 1000);
    drop(rows);
    let ended = query.end();
    assert!(ended.group.peak_bytes <= 8 << 20, "{ended}");
    assert_eq!(ended.begun_anew, 0, "no smaller plan returns fewer rows");
    until_empty(&group).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_charged_for_the_batch_in_hand() {
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
    let (group, tenant) = with_rows(&hierarchy, 64 * BATCH);
    group.set_max(8 << 20).unwrap();
    let query = tenant.begin("query").unwrap();
    let (mut stream, mut number) = (query.stream("select * from t").await.unwrap(), 0);
    while let Some(rows) = stream.next().await.unwrap() {
        assert_eq!(group.usage_exact(), rows.bytes() as u64);
        assert!(rows.bytes() >= rows[0].num_rows() * ROW);
        number += rows[0].num_rows();
    }
    assert!(stream.next().await.unwrap().is_none(), "it stays at its end");
    drop(stream);
    assert_eq!(number, 64 * BATCH);
    assert!(query.end().group.peak_bytes < 4 << 20);
    until_empty(&group).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_of_one_buffer_count_once() {
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
    let keys: Vec<i64> = (0..1 << 20).collect();
    let schema = Arc::new(Schema::new(vec![Field::new("key", DataType::Int64, false)]));
    let whole = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(Int64Array::from(keys))]).unwrap();
    let slices = (0..128).map(|at| whole.slice(at << 13, 1 << 13)).collect();
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    context.register_table("t", Arc::new(MemTable::try_new(schema, vec![slices]).unwrap())).unwrap();
    let group = hierarchy.create("/tenant").unwrap();
    let query = Tenant::new(&hierarchy, &group, &context).begin("query").unwrap();
    let rows = query.collect("select key from t").await.unwrap();
    assert!(rows.len() > 100, "{} batches", rows.len());
    assert!((8 << 20..9 << 20).contains(&rows.bytes()), "{} bytes for 8 MiB", rows.bytes());
}

/// A sort and a join of 4000 rows on one partition, collected and streamed.
async fn sweep_scenario(tenant: &Tenant) -> Result<(), DataFusionError> {
    let query = tenant.begin("query").unwrap();
    let sort = "select key, text from t order by text desc";
    let sorted = query.collect(sort).await?;
    assert_eq!(sorted.iter().map(|batch| batch.num_rows()).sum::<usize>(), BATCH);
    let (mut stream, mut number) = (query.stream("select key from t where key % 2 = 0").await?, 0);
    while let Some(rows) = stream.next().await? {
        number += rows.iter().map(|batch| batch.num_rows()).sum::<usize>();
    }
    assert!((1..BATCH).contains(&number));
    drop(stream);
    let joined = "select count(*) from t a join t b on a.key = b.key";
    let joined = query.collect(joined).await?;
    assert_eq!(joined[0].num_rows(), 1);
    Ok(())
}

#[test]
fn sweep_queries() {
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    context.register_table("t", table(BATCH, 1)).unwrap();
    xtask::sweep::sweep("queries", |run| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let group = hierarchy.create("/tenant").unwrap();
        let tenant = Tenant::new(&hierarchy, &group, &context).patience(Duration::ZERO);
        let injection = hierarchy.root().inject_failures_at(run.refused());
        let outcome = runtime.block_on(sweep_scenario(&tenant));
        let charges = injection.drawn();
        match &outcome {
            // A sort that is refused spills, or is restarted, and continues.
            Ok(()) => assert!(!run.refuses_any_of(charges) || run.form == xtask::sweep::Form::Once),
            Err(error) => {
                assert!(run.refuses_any_of(charges), "{error}");
                assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error}");
            }
        }
        drop(injection);
        runtime.block_on(until_empty(&group));
        assert!(hierarchy.dying().is_empty(), "{:?}", hierarchy.dying());
        runtime.block_on(sweep_scenario(&tenant)).unwrap();
        charges
    });
}
