//! Random queries of several tenants at once, with random limits, full and unwritable disks, and
//! cancellations.
//!
//! Each query has the right rows or an error that fits its faults, and ends. Afterwards each group
//! reads 0 and no file is left. `MEMGROUP_FUZZ_ROUNDS` sets the number of rounds; an assertion that
//! fails names the round, which is its seed.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use datafusion::arrow::array::{Int64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::MemTable;
use datafusion::execution::disk_manager::{DiskManager, DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::{SpillFile, SpillWriter, TempFileFactory};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures_util::Stream;
use memgroup::{Config, Group, Hierarchy};
use memgroup_datafusion::Tenant;
use memgroup_tokio::ReclaimerThread;

const ROWS: u64 = 40_000;
const FAULT: &str = "a fault of the test";

/// Numbers that follow from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % most
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

fn database(partitions: u64) -> SessionContext {
    let schema = Arc::new(Schema::new(vec![
        Field::new("k", DataType::Int64, false),
        Field::new("v", DataType::Int64, false),
        Field::new("t", DataType::Utf8, false),
    ]));
    let mut random = Random(1);
    let mut parts = vec![Vec::new(); partitions as usize];
    for number in 0..ROWS / 1000 {
        let keys: Vec<i64> = (0..1000).map(|row| (number * 1000 + row) as i64).collect();
        let values: Vec<i64> = keys.iter().map(|_| random.below(1 << 40) as i64).collect();
        let texts: Vec<String> = values.iter().map(|value| format!("{:0>30}", value % 9973)).collect();
        let (keys, values) = (Int64Array::from(keys), Int64Array::from(values));
        let columns: Vec<Arc<dyn datafusion::arrow::array::Array>> =
            vec![Arc::new(keys), Arc::new(values), Arc::new(StringArray::from(texts))];
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
        parts[(number % partitions) as usize].push(batch);
    }
    let config = SessionConfig::new().with_target_partitions(partitions as usize);
    let context = SessionContext::new_with_config(config);
    context.register_table("r", Arc::new(MemTable::try_new(schema, parts).unwrap())).unwrap();
    context
}

fn query(random: &mut Random) -> String {
    let (few, many) = (1 + random.below(50), 1 + random.below(20_000));
    match random.below(7) {
        0 => format!("select k, v, t from r where k % {few} > 0 order by t, v"),
        1 => format!("select v % {many} as g, count(*), sum(k), min(t) from r group by g"),
        2 => format!("select a.k, b.t from r a join r b on a.k = b.k + {few} where a.v % 3 > 0"),
        3 => format!("select k, row_number() over (partition by v % {few} order by t, k) from r"),
        4 => format!("select distinct v % {many}, t from r"),
        5 => format!("select t, count(distinct v % {few}) from r group by t order by 2, 1 limit {many}"),
        _ => format!(
            "select k from r where v % {few} in (select v % {many} from r where k < {many}) order by v"
        ),
    }
}

/// The rows as sorted text.
fn text_of(batches: &[RecordBatch]) -> Vec<String> {
    let mut rows = Vec::new();
    for batch in batches {
        for row in 0..batch.num_rows() {
            let fields = batch.columns().iter().map(|column| array_value_to_string(column, row).unwrap());
            rows.push(fields.collect::<Vec<_>>().join("|"));
        }
    }
    rows.sort_unstable();
    rows
}

/// A disk that has some room, and refuses some files.
struct Disk {
    inner: Arc<DiskManager>,
    room: Arc<AtomicI64>,
    /// One file in this many is refused, or none for 0.
    refuses: u32,
    files: AtomicU32,
}

impl TempFileFactory for Disk {
    fn create_temp_file(&self, description: &str) -> Result<Arc<dyn SpillFile>> {
        let number = 1 + self.files.fetch_add(1, Ordering::Relaxed);
        if self.refuses > 0 && number.is_multiple_of(self.refuses) {
            return Err(DataFusionError::IoError(io::Error::new(io::ErrorKind::PermissionDenied, FAULT)));
        }
        let file = self.inner.create_tmp_file(description)?;
        Ok(Arc::new(File { file, room: Arc::clone(&self.room) }))
    }
}

struct File {
    file: Arc<dyn SpillFile>,
    room: Arc<AtomicI64>,
}

impl SpillFile for File {
    fn path(&self) -> Option<&Path> {
        self.file.path()
    }

    fn size(&self) -> Option<u64> {
        self.file.size()
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        self.file.read_stream()
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        Ok(Box::new(Writer { writer: self.file.open_writer()?, room: Arc::clone(&self.room) }))
    }
}

struct Writer {
    writer: Box<dyn SpillWriter>,
    room: Arc<AtomicI64>,
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.room.fetch_sub(bytes.len() as i64, Ordering::Relaxed) < bytes.len() as i64 {
            return Err(io::Error::new(io::ErrorKind::StorageFull, FAULT));
        }
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl SpillWriter for Writer {
    fn finish(&mut self) -> Result<()> {
        self.writer.finish()
    }
}

/// A disk below `directory`, and whether it may fail.
fn disk(random: &mut Random, directory: PathBuf) -> (DiskManagerBuilder, bool) {
    let builder = DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(vec![directory]));
    let (room, refuses) = match random.below(4) {
        0 => (random.below(4 << 20) as i64, 0),
        1 => (i64::MAX, 1 + random.below(6) as u32),
        _ => return (builder, false),
    };
    let inner = Arc::new(builder.build().unwrap());
    let disk = Disk { inner, room: Arc::new(AtomicI64::new(room)), refuses, files: AtomicU32::new(0) };
    (DiskManagerBuilder::default().with_temp_file_factory(Arc::new(disk)), true)
}

/// Counts of the ends that queries had.
#[derive(Debug, Default)]
struct Ends {
    done: AtomicU32,
    exhausted: AtomicU32,
    faults: AtomicU32,
    cancelled: AtomicU32,
    spilled: AtomicU32,
}

fn count(end: &AtomicU32) {
    end.fetch_add(1, Ordering::Relaxed);
}

/// One query, from its begin to its end.
async fn run(tenant: &Tenant, sql: &str, expected: &[String], plan: Plan, has_faults: bool, ends: &Ends) {
    let name = plan.name;
    let query = match plan.admitted {
        None => tenant.begin(&name).unwrap(),
        Some(bytes) => {
            let soon = Instant::now() + Duration::from_millis(20);
            match tenant.begin_when_room(&name, bytes, soon).await {
                Ok(query) => query,
                Err(error) => {
                    assert!(
                        matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)),
                        "{name}: {error}"
                    );
                    return count(&ends.exhausted);
                }
            }
        }
    };
    let rows = match plan.cancelled_after {
        Some(time) => tokio::time::timeout(time, query.collect(sql)).await.ok(),
        None => Some(query.collect(sql).await),
    };
    let is_killed = query.group().events().oom_kill > 0;
    let ended = query.end();
    if ended.spilled_bytes > 0 {
        count(&ends.spilled);
    }
    match rows {
        None => count(&ends.cancelled),
        Some(Ok(rows)) => {
            assert!(text_of(&rows) == expected, "{name}: other rows than without a limit: {sql}");
            count(&ends.done);
        }
        Some(Err(error)) => {
            let text = error.to_string();
            let is_fault = text.contains(FAULT);
            assert!(has_faults || !is_fault, "{name}: {text}");
            let is_memory = matches!(error.find_root(), DataFusionError::ResourcesExhausted(_));
            assert!(is_fault || is_memory, "{name}, stopped: {is_killed}: {error:?}");
            count(if is_fault { &ends.faults } else { &ends.exhausted });
        }
    }
}

/// The random parts of one query besides its text.
struct Plan {
    name: String,
    admitted: Option<u64>,
    cancelled_after: Option<Duration>,
}

async fn until_empty(group: &Group) {
    while group.usage_exact() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn round(seed: u64, ends: &Arc<Ends>) {
    let mut random = Random(seed << 20);
    let partitions = 1 + random.below(4);
    let context = database(partitions);
    let directory = tempfile::tempdir().unwrap();
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let _reclaimer = ReclaimerThread::spawn(&hierarchy).unwrap();
    let tenants = hierarchy.create("/tenants").unwrap();
    tenants.set_max((2 << 20) + random.below(20 << 20)).unwrap();
    if random.below(2) == 0 {
        tenants.set_share(8).unwrap();
    }
    let mut running = Vec::new();
    for number in 0..2 + random.below(2) {
        let group = tenants.create(&format!("{number}")).unwrap();
        match random.below(4) {
            0 => group.set_max((1 << 20) + random.below(8 << 20)).unwrap(),
            1 => group.set_low(random.below(8 << 20)).unwrap(),
            _ => {}
        }
        let (disk, has_faults) = disk(&mut random, directory.path().to_path_buf());
        let patience = Duration::from_millis(random.one(&[0, 5, 100]));
        let tenant = Tenant::new(&hierarchy, &group, &context).spill_to(disk).patience(patience);
        let mut queries = Vec::new();
        for index in 0..3 {
            let sql = query(&mut random);
            let rows = context.sql(&sql).await.unwrap().collect().await.unwrap();
            let plan = Plan {
                name: format!("round{seed}-{number}-{index}"),
                admitted: (random.below(3) == 0).then(|| random.below(4 << 20)),
                cancelled_after: (random.below(4) == 0).then(|| Duration::from_millis(random.below(200))),
            };
            queries.push((sql, text_of(&rows), plan));
        }
        let ends = Arc::clone(ends);
        running.push(tokio::spawn(async move {
            for (sql, expected, plan) in queries {
                run(&tenant, &sql, &expected, plan, has_faults, &ends).await;
            }
        }));
    }
    for tenant in running {
        tenant.await.unwrap();
    }
    until_empty(&tenants).await;
    let groups = hierarchy.groups();
    assert!(groups.iter().all(|group| group.usage_exact() == 0), "round {seed}: {groups:?}");
    assert_eq!(groups.iter().filter(|group| group.path().contains("round")).count(), 0, "round {seed}");
    while std::fs::read_dir(directory.path()).unwrap().count() > 0 {
        // The directory of a tenant's files goes with the last of its tasks.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn random_queries_have_the_right_rows_or_an_error_and_leave_nothing() {
    let rounds = std::env::var("MEMGROUP_FUZZ_ROUNDS").map_or(12, |rounds| rounds.parse().unwrap());
    let first = std::env::var("MEMGROUP_FUZZ_FIRST").map_or(1, |first| first.parse().unwrap());
    let ends = Arc::new(Ends::default());
    for seed in first..first + rounds {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(round(seed, &ends));
    }
    println!("{ends:?}");
    if rounds >= 12 && first == 1 {
        for end in [&ends.done, &ends.exhausted, &ends.faults, &ends.cancelled, &ends.spilled] {
            assert!(end.load(Ordering::Relaxed) > 0, "each kind of end came up: {ends:?}");
        }
    }
}
