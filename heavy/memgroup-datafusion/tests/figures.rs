//! A query's figures in its plans and its record; DataFusion's caches as shrinkers.

use std::path::Path;
use std::time::Duration;

use datafusion::common::{DataFusionError, Result};
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::execution::cache::cache_manager::CacheManagerConfig;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use memgroup::stats::io::{RBYTES, WBYTES};
use memgroup::{Config, Freshness, Group, Hierarchy, Reach};
use memgroup_datafusion::{Query, Tenant, charged_caches};

const SORT: &str =
    "select value, 'text ' || value as t from generate_series(1, 400000) order by value % 1000, t";

/// The table of its hash join cannot spill.
const JOIN: &str = "select one.value, other.value from generate_series(1, 400000) one \
                    join generate_series(1, 400000) other on one.value = other.value";

/// Runs a statement without keeping its rows, and returns their number.
async fn drain(query: &Query, sql: &str) -> Result<usize> {
    let (mut stream, mut rows) = (query.stream(sql).await?, 0);
    while let Some(batches) = stream.next().await? {
        rows += batches.iter().map(|batch| batch.num_rows()).sum::<usize>();
    }
    Ok(rows)
}

async fn until_empty(group: &Group) {
    while group.usage_exact() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spilled_bytes_are_in_the_statistics_the_plan_and_the_record() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let alice = hierarchy.create("/alice").unwrap();
    alice.set_max(8 << 20).unwrap();
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
    let tenant = Tenant::new(&hierarchy, &alice, &context);
    let query = tenant.begin("query").unwrap();
    let rows = query.collect(&format!("explain analyze {SORT}")).await.unwrap();
    let text = datafusion::arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string();
    let line = text
        .lines()
        .find(|line| line.contains("GroupExec: group=/alice/query"))
        .unwrap_or_else(|| panic!("{text}"));
    for metric in ["group_peak_bytes=", "spilled_bytes=", "refused_growths=", "stalled_us="] {
        assert!(line.contains(metric), "{metric} in {line}");
    }
    assert!(!line.contains("spilled_bytes=0,"), "{line}");
    assert!(!line.contains("allocated_peak_bytes"), "{line}");

    let io = hierarchy.io();
    let written = io.get(query.group(), WBYTES, Reach::Subtree, Freshness::Fresh);
    assert!(written > 1 << 20, "{written} bytes written");
    let ended = query.end();
    assert_eq!(ended.spilled_bytes, written as u64);
    assert!(ended.refused_growths > 0);
    let figures = format!(
        " spilled_bytes={written} refused_growths={} begun_anew={}",
        ended.refused_growths, ended.begun_anew
    );
    assert!(ended.to_string().ends_with(&figures), "{ended}");
    assert_eq!(
        io.get(&alice, WBYTES, Reach::Subtree, Freshness::Fresh),
        written,
        "they stay with the tenant"
    );
    let read = io.get(&alice, RBYTES, Reach::Subtree, Freshness::Fresh);
    assert!(read > 0, "{read} bytes read");
    drop(rows); // They are charged to the query until then.
    until_empty(&alice).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_without_a_limit_spills_nothing_and_shows_its_group() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let alice = hierarchy.create("/alice").unwrap();
    let query = Tenant::new(&hierarchy, &alice, &SessionContext::new()).begin("query").unwrap();
    let rows = query.collect(&format!("explain {SORT}")).await.unwrap();
    let text = datafusion::arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string();
    assert!(text.contains("GroupExec: group=/alice/query"), "{text}");
    query.collect(SORT).await.unwrap();
    let ended = query.end();
    assert_eq!((ended.spilled_bytes, ended.refused_growths, ended.begun_anew), (0, 0, 0));
    assert!(ended.group.peak_bytes > 1 << 20, "{ended}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_a_sort_and_of_a_plan_are_compacted_under_a_limit() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let alice = hierarchy.create("/alice").unwrap();
    let sort = "select arrow_cast('text ' || value, 'Utf8View') as t from generate_series(1, 9) order by t";
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    for (limit, nodes) in [(Some(8 << 20), 2), (None, 0)] {
        alice.set_max(limit).unwrap();
        let query = Tenant::new(&hierarchy, &alice, &context).begin("query").unwrap();
        let rows = query.collect(&format!("explain {sort}")).await.unwrap();
        let text = datafusion::arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string();
        assert_eq!(text.matches("CompactExec").count(), nodes, "{text}");
        assert_eq!(query.collect(sort).await.unwrap()[0].num_rows(), 9);
        query.end();
    }
}

/// Parquet files with footers that are cached.
async fn files(dir: &Path, count: usize) {
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    for number in 0..count {
        let path = dir.join(format!("{number}.parquet"));
        let sql = format!("select value + {number} as v from generate_series(1, 100)");
        let table = context.sql(&sql).await.unwrap();
        table.write_parquet(path.to_str().unwrap(), DataFrameWriteOptions::new(), None).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caches_are_charged_and_give_way_before_a_tenant_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    files(dir.path(), 40).await;
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let all = hierarchy.create("/all").unwrap();
    let (caches, alice) = (all.create("caches").unwrap(), all.create("alice").unwrap());
    let config = charged_caches(&caches, CacheManagerConfig::default()).unwrap();
    let runtime = RuntimeEnvBuilder::new().with_cache_manager(config).build_arc().unwrap();
    let context = SessionContext::new_with_config_rt(SessionConfig::new(), runtime);
    context.register_parquet("t", dir.path().to_str().unwrap(), ParquetReadOptions::default()).await.unwrap();
    let count = "select count(*), sum(v) from t";
    let query = Tenant::new(&hierarchy, &alice, &context).begin("query").unwrap();
    let expected = query.collect(count).await.unwrap();
    let cached = caches.usage_exact();
    let manager = &context.runtime_env().cache_manager;
    assert!(manager.get_file_metadata_cache().len() == 40 && cached > 40 << 10, "{cached} bytes cached");

    all.set_max(all.usage_exact() + (64 << 10)).unwrap();
    let charge = alice.try_charge(96 << 10).unwrap();
    assert!(caches.usage_exact() <= cached - (32 << 10), "the caches gave way");
    assert!(manager.get_file_metadata_cache().len() < 40);
    assert_eq!(query.collect(count).await.unwrap(), expected);
    drop(charge);

    manager.get_file_metadata_cache().clear();
    manager.get_file_statistic_cache().unwrap().clear();
    manager.get_list_files_cache().unwrap().clear();
    assert_eq!(caches.usage_exact(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_not_cached_where_their_group_has_no_room() {
    let dir = tempfile::tempdir().unwrap();
    files(dir.path(), 10).await;
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let caches = hierarchy.create("/caches").unwrap();
    caches.set_max(8 << 10).unwrap();
    let config = charged_caches(&caches, CacheManagerConfig::default()).unwrap();
    let runtime = RuntimeEnvBuilder::new().with_cache_manager(config).build_arc().unwrap();
    let context = SessionContext::new_with_config_rt(SessionConfig::new(), runtime);
    context.register_parquet("t", dir.path().to_str().unwrap(), ParquetReadOptions::default()).await.unwrap();
    let rows = context.sql("select v from t").await.unwrap().collect().await.unwrap();
    assert_eq!(rows.iter().map(|batch| batch.num_rows()).sum::<usize>(), 1000);
    assert!(caches.usage_exact() <= 8 << 10);
    assert!(context.runtime_env().cache_manager.get_file_metadata_cache().len() < 10);
    drop((context, rows));
    assert_eq!(caches.usage_exact(), 0, "the caches went with their context");
    assert!(hierarchy.shrinkers().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_writes_is_not_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let alice = hierarchy.create("/alice").unwrap();
    alice.set_max(1 << 20).unwrap();
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
    let tenant = Tenant::new(&hierarchy, &alice, &context);
    let run = async |sql: &str| drain(&tenant.begin("query").unwrap(), sql).await;
    assert_eq!(run(SORT).await.expect("a later attempt ends"), 400_000);
    let path = dir.path().join("rows.parquet");
    let error = run(&format!("copy ({SORT}) to '{}'", path.display())).await.unwrap_err();
    assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error}");
    until_empty(&alice).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_is_begun_anew_keeps_its_settings() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let alice = hierarchy.create("/alice").unwrap();
    alice.set_max(1 << 20).unwrap();
    let config = SessionConfig::new().with_target_partitions(2).with_information_schema(true);
    let context = SessionContext::new_with_config(config);
    let query = Tenant::new(&hierarchy, &alice, &context).begin("query").unwrap();
    query.collect("set datafusion.execution.time_zone = '+05:00'").await.unwrap();
    query.collect(&format!("prepare joined as {JOIN}")).await.unwrap();
    assert_eq!(drain(&query, "execute joined").await.unwrap(), 400_000);
    assert!(query.pool().refused() > 0);
    let zone = query.collect("show datafusion.execution.time_zone").await.unwrap();
    let zone = datafusion::arrow::util::pretty::pretty_format_batches(&zone).unwrap().to_string();
    assert!(zone.contains("+05:00"), "{zone}");
    assert!(query.end().begun_anew > 0);
}

#[test]
fn a_query_ends_beside_a_thread_that_removes_its_tenant() {
    for _ in 0..500 {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let alice = hierarchy.create("/alice").unwrap();
        let query = Tenant::new(&hierarchy, &alice, &SessionContext::new()).begin("query").unwrap();
        let (ended, removed) = std::thread::scope(|threads| {
            let remover = threads.spawn(|| alice.remove_all());
            (query.end(), remover.join().unwrap())
        });
        assert_eq!((ended.group.path.as_str(), ended.group.usage_bytes), ("/alice/query", 0));
        removed.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_statement_replaces_the_pool_of_its_query() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let alice = hierarchy.create("/alice").unwrap();
    let query = Tenant::new(&hierarchy, &alice, &SessionContext::new()).begin("query").unwrap();
    for sql in ["set datafusion.runtime.memory_limit = '10G'", "reset datafusion.runtime.memory_limit"] {
        let error = query.collect(sql).await.unwrap_err().to_string();
        let expected =
            "datafusion.runtime.memory_limit in query /alice/query: a query has the runtime of its tenant";
        assert!(error.contains(expected), "{error}");
        assert_eq!(query.context().runtime_env().memory_pool.name(), query.pool().name(), "{sql}");
    }
}
