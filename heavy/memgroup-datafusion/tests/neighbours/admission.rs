//! Queries that wait before they begin, and the end of queries.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use datafusion::prelude::SessionContext;
use memgroup_datafusion::Tenant;
use memgroup_tokio::ReclaimerThread;

use crate::{Database, LONG, MIB, consumer, text_of};

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

#[tokio::test]
async fn a_growth_that_panics_leaves_the_admitted_bytes() {
    let database = Database::new();
    let small = database.tenants.create("small").unwrap();
    let small = Tenant::new(&database.hierarchy, &small, &SessionContext::new());
    let query = small.begin_when_room("query", 10 << 20, Instant::now() + LONG).await.unwrap();
    let memory = consumer(query.pool(), "join", false);
    catch_unwind(AssertUnwindSafe(|| memory.grow(1 << 50))).unwrap_err();
    assert_eq!((memory.size(), query.group().usage_exact()), (0, 10 << 20));
    drop(memory);
    query.end();
    assert_eq!(small.group().usage_exact(), 0);
}
