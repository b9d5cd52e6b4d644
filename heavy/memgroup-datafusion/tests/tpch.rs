//! The 22 queries of TPC-H within limits: the rows are those without one.

use std::path::Path;
use std::time::{Duration, Instant};

use datafusion::common::Result;
use datafusion::prelude::{SessionConfig, SessionContext};
use memgroup::{Config, Group, Hierarchy};
use memgroup_datafusion::Tenant;
use memgroup_tpch::{QUERIES, TABLES, are_same, query, text};
use tempfile::TempDir;

/// Makes the tables of this scale, with plans of four partitions.
async fn database(dir: &Path, scale: f64) -> SessionContext {
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(4));
    for table in TABLES {
        memgroup_tpch::write(dir, table, scale, &mut |_| true).unwrap();
    }
    memgroup_tpch::register(&context, dir, &TABLES).await.unwrap();
    context
}

/// DataFusion's tasks end by themselves, some time after their query.
async fn until_empty(group: &Group) {
    while group.usage_exact() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A tenant's database.
struct Bench {
    hierarchy: Hierarchy,
    group: Group,
    tenant: Tenant,
    _dir: TempDir,
}

impl Bench {
    async fn new(scale: f64) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let database = database(dir.path(), scale).await;
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let group = hierarchy.create("/tenant").unwrap();
        let tenant = Tenant::new(&hierarchy, &group, &database);
        Bench { hierarchy, group, tenant, _dir: dir }
    }

    /// The rows of a query within a limit, and the most bytes that it held.
    async fn run(&self, sql: &str, limit: Option<u64>) -> (Result<String>, u64) {
        self.group.set_max(limit).unwrap();
        let query = self.tenant.begin("query").unwrap();
        let rows = query.collect(sql).await.map(|rows| text(&rows).unwrap());
        let ended = query.end();
        assert!(self.hierarchy.lookup("/tenant/query").is_err());
        until_empty(&self.group).await;
        (rows, ended.group.peak_bytes)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_queries_have_the_same_rows_within_three_quarters_of_their_peak() {
    let bench = Bench::new(0.1).await;
    for number in 1..=QUERIES {
        let sql = query(number).unwrap();
        let (expected, peak) = bench.run(sql, None).await;
        let expected = expected.unwrap();
        assert!(expected.lines().count() > 4, "query {number} has rows:\n{expected}");
        let limit = (peak * 3 / 4).max(1 << 20);
        let (rows, peak) = bench.run(sql, Some(limit)).await;
        let rows = rows.unwrap_or_else(|error| panic!("query {number} within {limit} bytes: {error}"));
        assert!(
            are_same(&rows, &expected),
            "query {number} within {limit} bytes:\n{rows}\ninstead of\n{expected}"
        );
        assert!(peak <= limit, "query {number} within {limit} bytes: {peak}");
    }
}

/// So many times as long as without a limit a query may take.
const TIMES: u32 = 10;

/// Narrows the limit of each query down to an eighth between one in which it ends soon and one in
/// which it fails or takes [`TIMES`] as long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures; MEMGROUP_TPCH_SCALE is the scale"]
async fn prints_the_least_limit_of_each_query() {
    let scale = std::env::var("MEMGROUP_TPCH_SCALE").map_or(0.1, |text| text.parse().unwrap());
    let bench = Bench::new(scale).await;
    for number in 1..=QUERIES {
        let sql = query(number).unwrap();
        let began = Instant::now();
        let (expected, peak) = bench.run(sql, None).await;
        let (expected, alone) = (expected.unwrap(), began.elapsed());
        let most = TIMES * alone.max(Duration::from_millis(500));
        let (mut least, mut took, mut too_little) = (peak, alone, 0);
        let mut refused = "it holds no memory".to_owned();
        while least - too_little > (least / 8).max(1 << 10) {
            let (limit, began) = (too_little.midpoint(least), Instant::now());
            let soon = tokio::time::timeout(most, bench.run(sql, Some(limit))).await;
            match soon {
                Ok((Ok(rows), _)) => {
                    assert!(are_same(&rows, &expected), "query {number} within {limit} bytes:\n{rows}");
                    (least, took) = (limit, began.elapsed());
                }
                Ok((Err(error), _)) => (too_little, refused) = (limit, error.find_root().to_string()),
                Err(_) => {
                    (too_little, refused) = (limit, "it takes longer".to_owned());
                    until_empty(&bench.group).await;
                }
            }
        }
        println!(
            "query {number:2}: {:7} KiB in {alone:.2?} alone; {:6} KiB in {took:.2?} at least; with less {}",
            peak >> 10,
            least >> 10,
            refused.split(" with ").next().unwrap_or_default()
        );
    }
}
