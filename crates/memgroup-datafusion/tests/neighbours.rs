//! Queries that give memory for others, and queries that wait for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::prelude::SessionContext;
use memgroup::{Config, Group, Hierarchy, SlotSource};
use memgroup_datafusion::{GroupPool, Tenant};
use memgroup_tokio::ReclaimerThread;

const MIB: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

struct Database {
    hierarchy: Hierarchy,
    tenants: Group,
}

impl Database {
    /// Tenants below a limit of 100 MiB, without prepaid bytes.
    fn new() -> Database {
        let slots = SlotSource::virtual_slots(2).unwrap();
        let hierarchy = Hierarchy::new(Config::with_slots(slots).stock_cap_bytes(0)).unwrap();
        let tenants = hierarchy.create("/tenants").unwrap();
        tenants.set_max(100 << 20).unwrap();
        Database { hierarchy, tenants }
    }

    /// A pool of a query of this tenant.
    fn pool(&self, tenant: &str, query: &str) -> Arc<GroupPool> {
        let group = self.hierarchy.get_or_create(&format!("/tenants/{tenant}/{query}")).unwrap();
        Arc::new(GroupPool::new(&self.hierarchy, &group))
    }
}

fn consumer(pool: &Arc<GroupPool>, name: &str, can_spill: bool) -> MemoryReservation {
    let pool: Arc<dyn MemoryPool> = Arc::clone(pool) as _;
    MemoryConsumer::new(name).with_can_spill(can_spill).register(&pool)
}

fn text_of(error: &DataFusionError) -> String {
    assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error:?}");
    error.strip_backtrace()
}

#[test]
fn the_largest_query_of_the_largest_tenant_is_asked_to_spill_once() {
    let database = Database::new();
    let (hog, beside, small) =
        (database.pool("hog", "1"), database.pool("hog", "2"), database.pool("small", "1"));
    let (sort, other) = (consumer(&hog, "sort", true), consumer(&beside, "other", true));
    sort.try_grow(50 * MIB).unwrap();
    other.try_grow(30 * MIB).unwrap();
    let join = consumer(&small, "join", false);
    join.try_grow(30 * MIB).unwrap_err();

    other.try_grow(MIB).expect("it holds less than the one that was asked");
    let error = sort.try_grow(MIB).unwrap_err();
    assert!(text_of(&error).contains("or another query needs its memory"), "{error}");
    sort.shrink(50 * MIB);
    join.try_grow(30 * MIB).unwrap();
    sort.try_grow(2 * MIB).unwrap();
    sort.try_grow(MIB).expect("it was asked once");
}

#[test]
fn the_largest_query_gives_way_itself() {
    let database = Database::new();
    let (hog, small) = (database.pool("hog", "1"), database.pool("small", "1"));
    let (sort, little) = (consumer(&hog, "sort", true), consumer(&small, "little", true));
    sort.try_grow(80 * MIB).unwrap();
    little.try_grow(10 * MIB).unwrap();
    sort.try_grow(20 * MIB).unwrap_err();
    little.try_grow(MIB).expect("no query is asked for the largest");
}

#[test]
fn a_tenant_within_its_low_is_not_asked() {
    let database = Database::new();
    let (kept, small) = (database.pool("kept", "1"), database.pool("small", "1"));
    kept.group().parent().unwrap().set_low(90 << 20).unwrap();
    let sort = consumer(&kept, "sort", true);
    sort.try_grow(80 * MIB).unwrap();
    consumer(&small, "join", false).try_grow(30 * MIB).unwrap_err();
    sort.try_grow(MIB).unwrap();
}

#[test]
fn the_tenant_that_fair_shares_name_is_asked() {
    let database = Database::new();
    database.tenants.set_share(8).unwrap();
    let (above, small) = (database.pool("above", "1"), database.pool("small", "1"));
    // By its `low` it would have no excess; by its share it has.
    above.group().parent().unwrap().set_low(90 << 20).unwrap();
    let (sort, join) = (consumer(&above, "sort", true), consumer(&small, "join", false));
    let mut held = 0;
    while sort.try_grow(MIB).is_ok() {
        held += MIB;
    }
    assert!(held > 50 * MIB, "{held} bytes");
    while join.try_grow(MIB).is_ok() {}
    let before = above.group().refusals();
    sort.shrink(8 * MIB);
    sort.try_grow(MIB).unwrap_err();
    assert_eq!(above.group().refusals(), before, "it was asked by the pool");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_growth_that_cannot_spill_waits_until_another_query_has_spilled() {
    let database = Database::new();
    let hog = database.pool("hog", "1");
    let sort = consumer(&hog, "sort", true);
    sort.try_grow(90 * MIB).unwrap();
    let group = database.hierarchy.get_or_create("/tenants/small/1").unwrap();
    let small = Arc::new(GroupPool::new(&database.hierarchy, &group).patience(LONG));
    // With two workers, both of which wait, the tasks of the hog still run.
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let small = Arc::clone(&small);
            tokio::spawn(async move {
                let join = consumer(&small, "join", false);
                join.try_grow(20 * MIB).map(|()| join)
            })
        })
        .collect();
    let spilled = tokio::spawn(async move {
        loop {
            if sort.try_grow(MIB / 4).is_err() {
                let held = sort.free();
                return (held, sort);
            }
            sort.shrink(MIB / 4);
            tokio::task::yield_now().await;
        }
    });
    let (held, _sort) = spilled.await.unwrap();
    assert_eq!(held, 90 * MIB);
    let mut joins = Vec::new();
    for task in waiting {
        joins.push(task.await.unwrap().unwrap());
    }
    assert_eq!(small.reserved(), 40 * MIB);
    assert!(small.group().pressure().some.total > 0, "the wait is a stall");
}

#[tokio::test]
async fn no_growth_waits_on_a_runtime_of_one_thread() {
    let database = Database::new();
    let hog = database.pool("hog", "1");
    let sort = consumer(&hog, "sort", true);
    sort.try_grow(90 * MIB).unwrap();
    let group = database.hierarchy.get_or_create("/tenants/small/1").unwrap();
    let small = Arc::new(GroupPool::new(&database.hierarchy, &group).patience(LONG));
    consumer(&small, "join", false).try_grow(20 * MIB).unwrap_err();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn growths_of_a_query_wait_no_longer_than_its_patience_in_all() {
    let database = Database::new();
    let hog = database.pool("hog", "1");
    let sort = consumer(&hog, "sort", true);
    sort.try_grow(90 * MIB).unwrap();
    let group = database.hierarchy.get_or_create("/tenants/small/1").unwrap();
    let patience = Duration::from_millis(50);
    let small = Arc::new(GroupPool::new(&database.hierarchy, &group).patience(patience));
    tokio::spawn(async move {
        let begin = Instant::now();
        let join = consumer(&small, "join", false);
        join.try_grow(20 * MIB).unwrap_err();
        assert!(begin.elapsed() >= patience);
        let stalled = small.group().pressure().some.total;
        (0..100).for_each(|_| _ = join.try_grow(20 * MIB).unwrap_err());
        assert_eq!(small.group().pressure().some.total, stalled, "its patience is used up");
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_is_begun_when_there_is_room_and_has_it_for_itself() {
    let database = Database::new();
    let context = SessionContext::new();
    let _reclaimer = ReclaimerThread::spawn(&database.hierarchy).unwrap();
    let (hog, small) = (database.tenants.create("hog").unwrap(), database.tenants.create("small").unwrap());
    let held = hog.try_charge(95 << 20).unwrap();
    let small = Tenant::new(&database.hierarchy, &small, &context);
    let soon = Instant::now() + Duration::from_millis(20);
    let Err(error) = small.begin_when_room("query", 10 << 20, soon).await else {
        panic!("there is no room");
    };
    assert!(text_of(&error).contains("query query was not begun"), "{error}");
    assert!(database.hierarchy.lookup("/tenants/small/query").is_err());

    let begun = tokio::spawn({
        let small = small.clone();
        async move { small.begin_when_room("query", 10 << 20, Instant::now() + LONG).await }
    });
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(!begun.is_finished());
    drop(held);
    let query = begun.await.unwrap().unwrap();
    let _all = hog.try_charge(90 << 20).unwrap();
    let memory = consumer(query.pool(), "join", false);
    memory.try_grow(4 * MIB).unwrap();
    memory.try_grow(7 * MIB).unwrap_err();
    memory.try_grow(6 * MIB).unwrap();
    memory.try_grow(1).unwrap_err();
    memory.shrink(7 * MIB);
    assert_eq!(query.group().usage_exact(), 3 << 20);
    drop(memory);
    query.end();
    assert_eq!(small.group().usage_exact(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admitted_bytes_that_no_consumer_took_go_back_at_the_end() {
    let database = Database::new();
    let small = database.tenants.create("small").unwrap();
    let small = Tenant::new(&database.hierarchy, &small, &SessionContext::new());
    let query = small.begin_when_room("query", 10 << 20, Instant::now() + LONG).await.unwrap();
    let memory = consumer(query.pool(), "join", false);
    memory.try_grow(4 * MIB).unwrap();
    assert_eq!(query.group().usage_exact(), 10 << 20);
    drop(memory);
    assert_eq!(query.group().usage_exact(), 6 << 20);
    query.end();
    assert_eq!(small.group().usage_exact(), 0);
}

#[test]
fn a_growth_that_no_spill_can_help_makes_no_query_spill() {
    let database = Database::new();
    let (hog, small) = (database.pool("hog", "1"), database.pool("small", "1"));
    let (sort, join) = (consumer(&hog, "sort", true), consumer(&small, "join", false));
    sort.try_grow(50 * MIB).unwrap();
    join.try_grow(1 << 40).unwrap_err();
    join.try_grow(101 * MIB).unwrap_err();
    sort.try_grow(MIB).expect("it was not asked");
}

#[tokio::test]
async fn a_query_with_another_owner_ends_all_the_same() {
    let database = Database::new();
    let tenant = Tenant::new(&database.hierarchy, &database.tenants, &SessionContext::new());
    let query = tenant.begin("query").unwrap();
    let other = database.hierarchy.get_or_create_owned("/tenants/query").unwrap();
    assert_eq!(query.end().group.path, "/tenants/query");
    drop(other);
    assert!(database.hierarchy.lookup("/tenants/query").is_err());
}

#[tokio::test]
async fn a_growth_takes_the_rest_of_the_admitted_bytes_and_charges_the_others() {
    let database = Database::new();
    let small = database.tenants.create("small").unwrap();
    small.set_max(12 << 20).unwrap();
    let small = Tenant::new(&database.hierarchy, &small, &SessionContext::new());
    let query = small.begin_when_room("query", 10 << 20, Instant::now() + LONG).await.unwrap();
    let memory = consumer(query.pool(), "join", false);
    (0..4).for_each(|_| memory.try_grow(3 * MIB).unwrap());
    memory.try_grow(1).unwrap_err();
    assert_eq!(query.group().usage_exact(), 12 << 20);
    drop(memory);
    assert_eq!(query.group().usage_exact(), 0);
}
