//! The 22 queries of TPC-H within limits: the rows are those without one.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::common::Result;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use memgroup::{Config, Group, Hierarchy};
use memgroup_datafusion::Tenant;
use tempfile::TempDir;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RecordBatchIterator,
    RegionArrow, SupplierArrow,
};

/// The queries with their numbers.
fn queries() -> Vec<(usize, &'static str)> {
    let numbered = |part: &'static str| {
        let (number, sql) = part.split_once('\n')?;
        Some((number.trim().parse().ok()?, sql))
    };
    include_str!("queries.sql").split("-- ").filter_map(numbered).collect()
}

fn write(dir: &Path, name: &str, batches: impl RecordBatchIterator) {
    let file = File::create(dir.join(format!("{name}.parquet"))).unwrap();
    let mut writer = ArrowWriter::try_new(file, batches.schema().clone(), None).unwrap();
    batches.for_each(|batch| writer.write(&batch).unwrap());
    writer.close().unwrap();
}

/// Writes the tables of this scale.
fn generate(dir: &Path, scale: f64) {
    write(dir, "customer", CustomerArrow::new(CustomerGenerator::new(scale, 1, 1)));
    write(dir, "lineitem", LineItemArrow::new(LineItemGenerator::new(scale, 1, 1)));
    write(dir, "nation", NationArrow::new(NationGenerator::new(scale, 1, 1)));
    write(dir, "orders", OrderArrow::new(OrderGenerator::new(scale, 1, 1)));
    write(dir, "part", PartArrow::new(PartGenerator::new(scale, 1, 1)));
    write(dir, "partsupp", PartSuppArrow::new(PartSuppGenerator::new(scale, 1, 1)));
    write(dir, "region", RegionArrow::new(RegionGenerator::new(scale, 1, 1)));
    write(dir, "supplier", SupplierArrow::new(SupplierGenerator::new(scale, 1, 1)));
}

async fn database(dir: &Path, config: SessionConfig) -> SessionContext {
    let context = SessionContext::new_with_config(config);
    for name in ["customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier"] {
        let path = dir.join(format!("{name}.parquet"));
        context.register_parquet(name, path.to_str().unwrap(), ParquetReadOptions::default()).await.unwrap();
    }
    context
}

fn text(rows: &[RecordBatch]) -> String {
    pretty_format_batches(rows).unwrap().to_string()
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
        generate(dir.path(), scale);
        let database = database(dir.path(), SessionConfig::new().with_target_partitions(4)).await;
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let group = hierarchy.create("/tenant").unwrap();
        let tenant = Tenant::new(&hierarchy, &group, &database);
        Bench { hierarchy, group, tenant, _dir: dir }
    }

    /// The rows of a query within a limit, and the most bytes that it held.
    async fn run(&self, sql: &str, limit: Option<u64>) -> (Result<String>, u64) {
        self.group.set_max(limit).unwrap();
        let query = self.tenant.begin("query").unwrap();
        let rows = query.collect(sql).await.map(|rows| text(&rows));
        let ended = query.end();
        assert!(self.hierarchy.lookup("/tenant/query").is_err());
        until_empty(&self.group).await;
        (rows, ended.group.peak_bytes)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_queries_have_the_same_rows_within_three_quarters_of_their_peak() {
    let bench = Bench::new(0.02).await;
    let queries = queries();
    assert_eq!(queries.iter().map(|(number, _)| *number).collect::<Vec<_>>(), (1..=22).collect::<Vec<_>>());
    for (number, sql) in queries {
        let (expected, peak) = bench.run(sql, None).await;
        let expected = expected.unwrap();
        assert!(expected.lines().count() > 4, "query {number} has rows:\n{expected}");
        let limit = (peak * 3 / 4).max(1 << 20);
        let (rows, peak) = bench.run(sql, Some(limit)).await;
        let rows = rows.unwrap_or_else(|error| panic!("query {number} within {limit} bytes: {error}"));
        assert!(rows == expected, "query {number} within {limit} bytes:\n{rows}\ninstead of\n{expected}");
        assert!(peak <= limit, "query {number} within {limit} bytes: {peak}");
    }
}

/// Halves the limit of each query until it fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures; MEMGROUP_TPCH_SCALE is the scale"]
async fn prints_the_least_limit_of_each_query() {
    let scale = std::env::var("MEMGROUP_TPCH_SCALE").map_or(0.1, |text| text.parse().unwrap());
    let bench = Bench::new(scale).await;
    for (number, sql) in queries() {
        let began = Instant::now();
        let (expected, peak) = bench.run(sql, None).await;
        let (expected, alone) = (expected.unwrap(), began.elapsed());
        let (mut least, mut took, mut limit) = (peak, alone, peak / 2);
        let refused = loop {
            let began = Instant::now();
            match bench.run(sql, Some(limit)).await.0 {
                Ok(rows) if limit > 0 => {
                    assert!(rows == expected, "query {number} within {limit} bytes");
                    (least, took, limit) = (limit, began.elapsed(), limit / 2);
                }
                Ok(_) => break "it holds no memory".to_owned(),
                Err(error) => break error.find_root().to_string(),
            }
        };
        println!(
            "query {number:2}: {:6} KiB in {alone:.2?} alone; {:6} KiB in {took:.2?} at least; then {}",
            peak >> 10,
            least >> 10,
            refused.split(" with ").next().unwrap_or_default()
        );
    }
}
