//! The pool as DataFusion's operators call it.

use std::sync::{Arc, Mutex};

use datafusion::arrow::array::{Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::{SessionConfig, SessionContext};
use futures_util::StreamExt as _;
use memgroup::{Config, Group, Hierarchy, SlotSource};
use memgroup_datafusion::GroupPool;

const MIB: usize = 1 << 20;

struct Query {
    tenant: Group,
    group: Group,
    pool: Arc<GroupPool>,
}

impl Query {
    fn new(max: usize) -> Query {
        let slots = SlotSource::virtual_slots(2).unwrap();
        let hierarchy = Hierarchy::new(Config::with_slots(slots).stock_cap_bytes(0)).unwrap();
        let tenant = hierarchy.create("/tenant").unwrap();
        tenant.set_max(max as u64).unwrap();
        let group = tenant.create("query").unwrap();
        let pool = Arc::new(GroupPool::new(&hierarchy, &group));
        Query { tenant, group, pool }
    }

    fn consumer(&self, name: &str, can_spill: bool) -> MemoryReservation {
        let pool: Arc<dyn MemoryPool> = self.pool.clone();
        MemoryConsumer::new(name).with_can_spill(can_spill).register(&pool)
    }
}

fn text_of(error: &DataFusionError) -> String {
    assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error:?}");
    error.strip_backtrace()
}

#[test]
fn charges_the_group_and_all_above() {
    let query = Query::new(10 * MIB);
    let join = query.consumer("HashJoinInput", false);
    join.try_grow(3 * MIB).unwrap();
    join.shrink(MIB);
    assert_eq!((query.group.usage_exact(), query.tenant.usage_exact()), (2 << 20, 2 << 20));
    assert_eq!(query.pool.reserved(), 2 * MIB);
    let other = join.split(MIB);
    drop(join);
    assert_eq!((query.pool.reserved(), query.group.usage_exact()), (MIB, 1 << 20));
    drop(other);
    assert_eq!((query.pool.reserved(), query.group.usage_exact()), (0, 0));
    assert!(query.pool.consumers().is_empty());
}

#[test]
fn the_limit_is_the_least_of_the_tree() {
    let query = Query::new(10 * MIB);
    assert!(matches!(query.pool.memory_limit(), MemoryLimit::Finite(bytes) if bytes == 10 * MIB));
    query.group.set_max(4 << 20).unwrap();
    let join = query.consumer("HashJoinInput", false);
    join.try_grow(MIB).unwrap();
    assert!(matches!(query.pool.memory_limit(), MemoryLimit::Finite(bytes) if bytes == 4 * MIB));
    query.group.set_max(None).unwrap();
    query.tenant.set_max(None).unwrap();
    assert!(matches!(query.pool.memory_limit(), MemoryLimit::Infinite));
}

#[test]
fn an_error_names_the_consumers_and_the_group_that_refuses() {
    let query = Query::new(10 * MIB);
    let (join, sort) = (query.consumer("HashJoinInput", false), query.consumer("ExternalSorter[0]", true));
    sort.try_grow(2 * MIB).unwrap();
    join.try_grow(7 * MIB).unwrap();
    let text = text_of(&join.try_grow(2 * MIB).unwrap_err());
    for part in [
        "additional 2.0 MB for HashJoinInput with 7.0 MB already allocated",
        "1024.0 KB left",
        "refused by group /tenant",
        "HashJoinInput#",
        "(cannot spill) holds 7.0 MB",
        "(can spill) holds 2.0 MB",
    ] {
        assert!(text.contains(part), "no \"{part}\" in: {text}");
    }
    assert_eq!(query.group.usage_exact(), 9 << 20, "a refused growth charges nothing");
}

#[test]
fn a_growth_that_cannot_fail_is_a_debt() {
    let query = Query::new(10 * MIB);
    let join = query.consumer("HashJoinInput", false);
    join.grow(12 * MIB);
    assert_eq!(query.tenant.usage_exact(), 12 << 20);
    assert!(join.try_grow(1).is_err(), "no growth passes until the debt is paid");
    join.shrink(4 * MIB);
    join.try_grow(2 * MIB).unwrap();
    drop(join);
    assert_eq!(query.tenant.usage_exact(), 0);
}

#[test]
fn one_above_its_share_spills_and_one_that_has_just_begun_does_not() {
    let query = Query::new(20 * MIB);
    let join = query.consumer("HashJoinInput", false);
    let (large, small) =
        (query.consumer("ExternalSorter[0]", true), query.consumer("ExternalSorter[1]", true));
    join.try_grow(4 * MIB).unwrap();
    for _ in 0..8 {
        large.try_grow(MIB).unwrap();
    }
    // 16 MiB are left for two.
    let text = text_of(&large.try_grow(1).unwrap_err());
    assert!(text.contains("more than its even share in group /tenant/query"), "{text}");
    assert!(small.try_grow(9 * MIB).is_err(), "the group's limit refuses it");
    small.try_grow(8 * MIB).unwrap();
    large.free();
    small.try_grow(8 * MIB).unwrap();
    assert!(small.try_grow(MIB).is_err());
    drop((join, large));
    small.try_grow(3 * MIB).unwrap();
}

#[test]
fn one_that_spills_gets_a_quarter_more_until_it_has_freed_half() {
    let query = Query::new(20 * MIB);
    let (sort, _idle) =
        (query.consumer("ExternalSorter[0]", true), query.consumer("ExternalSorter[1]", true));
    let fill = |bytes: usize| (0..bytes / MIB).for_each(|_| sort.try_grow(MIB).unwrap());
    for held in [10 * MIB, 6 * MIB] {
        fill(held);
        assert_eq!(sort.size(), 10 * MIB);
        assert!(sort.try_grow(1).is_err());
        fill(2 * MIB);
        assert!(sort.try_grow(MIB).is_err(), "the bytes that it gets are bounded");
        sort.shrink(8 * MIB);
    }
}

#[test]
fn a_small_sort_that_spills_has_a_batch_beside_its_own() {
    let query = Query::new(4 * MIB);
    let (sort, _idle) =
        (query.consumer("ExternalSorter[0]", true), query.consumer("ExternalSorter[1]", true));
    sort.try_grow(MIB).unwrap();
    sort.try_grow(MIB).unwrap();
    assert!(sort.try_grow(MIB - 1).is_err(), "it is to spill");
    // A quarter of its bytes would be half a MiB.
    sort.try_grow(MIB - 1).unwrap();
    assert!(sort.try_grow(1).is_err(), "the bytes that it gets are bounded");
}

/// DataFusion drops the sorted batches of a spill with tasks that end some time later. Their
/// reservations are of the same consumer.
#[test]
fn a_sort_without_batches_grows_beside_bytes_of_tasks_that_end() {
    let query = Query::new(4 * MIB);
    let mut sort = query.consumer("ExternalSorter[0]", true);
    sort.try_grow(MIB / 2).unwrap();
    let ending = sort.take();
    let others: Vec<_> =
        (1..8).map(|number| query.consumer(&format!("ExternalSorter[{number}]"), true)).collect();
    sort.try_grow(MIB / 2 - 1).expect("it has no batch to spill");
    assert!(sort.try_grow(1).is_err(), "it has one, and more than its share");
    drop((ending, others));
}

/// DataFusion's aggregate frees all memory after its input, and merges its spilled groups under the
/// same name.
#[test]
fn an_aggregate_that_merges_spilled_groups_has_no_share() {
    for name in
        ["FinalHashAggregateStream[0]", "SingleHashAggregateStream[0]", "OrderedFinalAggregateStream[0]"]
    {
        let query = Query::new(20 * MIB);
        let (aggregate, _idle) = (query.consumer(name, true), query.consumer("ExternalSorter[0]", true));
        let fill = |to: usize| (aggregate.size() / MIB..to).try_for_each(|_| aggregate.try_grow(MIB));
        let can_spill = || query.pool.consumers()[0].can_spill;
        for _ in 0..2 {
            fill(10).unwrap();
            let text = text_of(&aggregate.try_grow(1).unwrap_err());
            assert!(text.contains("more than its even share"), "{text}");
            // It spills, and reads on.
            aggregate.shrink(9 * MIB);
        }
        assert!(can_spill());
        aggregate.free();
        fill(20).unwrap();
        assert!(!can_spill(), "{name} can spill its groups once");
        let text = text_of(&aggregate.try_grow(MIB).unwrap_err());
        assert!(text.contains("refused by group /tenant"), "{text}");
    }
}

/// Groups by a number leave no byte behind when DataFusion's aggregate spills them.
#[test]
fn an_aggregate_that_frees_all_bytes_when_it_spills_reads_on() {
    let query = Query::new(20 * MIB);
    let (aggregate, _idle) =
        (query.consumer("SingleHashAggregateStream[0]", true), query.consumer("ExternalSorter[0]", true));
    for _ in 0..3 {
        (0..10).for_each(|_| aggregate.try_grow(MIB).unwrap());
        let text = text_of(&aggregate.try_grow(1).unwrap_err());
        assert!(text.contains("more than its even share"), "{text}");
        aggregate.free();
        assert!(query.pool.consumers()[0].can_spill);
    }
    aggregate.try_grow(MIB).unwrap();
    aggregate.free();
    assert!(!query.pool.consumers()[0].can_spill, "its input ended");
}

#[test]
fn an_aggregate_that_spilled_its_last_batch_merges_once_it_has_two_reservations() {
    let query = Query::new(20 * MIB);
    let (aggregate, _idle) =
        (query.consumer("SingleHashAggregateStream[0]", true), query.consumer("ExternalSorter[0]", true));
    (0..10).for_each(|_| aggregate.try_grow(MIB).unwrap());
    aggregate.try_grow(1).unwrap_err();
    aggregate.free();
    let files = aggregate.new_empty();
    (0..10).for_each(|_| files.try_grow(MIB).unwrap());
    assert!(query.pool.consumers()[0].can_spill);
    (0..10).for_each(|_| aggregate.try_grow(MIB).unwrap());
    assert!(!query.pool.consumers()[0].can_spill);
    let text = text_of(&files.try_grow(1).unwrap_err());
    assert!(text.contains("refused by group /tenant"), "{text}");
}

const BATCHES: i64 = 100;

/// Numbers, each in one row. Before each batch they note whether the aggregate above them can
/// spill.
#[derive(Debug)]
struct Numbers {
    schema: Arc<Schema>,
    can_spill: Arc<Mutex<Vec<bool>>>,
}

/// Whether the one aggregate of a plan can spill.
fn aggregate_can_spill(pool: &GroupPool) -> bool {
    let consumers = pool.consumers();
    let [aggregate] = &consumers[..] else { panic!("{consumers:?}") };
    assert!(aggregate.name.contains("AggregateStream"), "{consumers:?}");
    aggregate.can_spill
}

impl PartitionStream for Numbers {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (schema, can_spill) = (Arc::clone(&self.schema), Arc::clone(&self.can_spill));
        let batches = (0..BATCHES).map(move |batch| {
            let pool = context.memory_pool().downcast_ref::<GroupPool>().unwrap();
            can_spill.lock().unwrap().push(aggregate_can_spill(pool));
            let numbers = Int64Array::from_iter_values((batch * 1000)..(batch + 1) * 1000);
            Ok(RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(numbers)])?)
        });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), futures_util::stream::iter(batches)))
    }
}

/// The stages that the pool tells by the names, spills and reservations of DataFusion's aggregates.
#[tokio::test]
async fn an_aggregate_of_datafusion_can_spill_until_its_input_ends() {
    for key in ["number", "cast(number as varchar)"] {
        let query = Query::new(MIB);
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(query.pool.clone()).build_arc().unwrap();
        let config = SessionConfig::new().with_target_partitions(1).with_batch_size(1000);
        let context = SessionContext::new_with_config_rt(config, runtime);
        let schema = Arc::new(Schema::new(vec![Field::new("number", DataType::Int64, false)]));
        let can_spill = Arc::default();
        let numbers = Numbers { schema: Arc::clone(&schema), can_spill: Arc::clone(&can_spill) };
        let table = StreamingTable::try_new(schema, vec![Arc::new(numbers)]).unwrap();
        context.register_table("numbers", Arc::new(table)).unwrap();
        let sql = format!("select {key} as key, count(*) from numbers group by key");
        let mut groups = context.sql(&sql).await.unwrap().execute_stream().await.unwrap();
        let mut rows = 0;
        while let Some(batch) = groups.next().await {
            rows += batch.unwrap().num_rows();
            assert!(!aggregate_can_spill(&query.pool), "by {key} it merges");
        }
        assert_eq!(rows, BATCHES as usize * 1000);
        assert!(query.pool.refused() > 2, "by {key} it spilled {} times", query.pool.refused());
        let noted = can_spill.lock().unwrap();
        assert_eq!(noted.len(), BATCHES as usize);
        assert!(noted.iter().all(|&can_spill| can_spill), "by {key}: {noted:?}");
    }
}

#[test]
fn an_aggregate_that_did_not_spill_merges_nothing() {
    let query = Query::new(20 * MIB);
    let (aggregate, _idle) =
        (query.consumer("FinalHashAggregateStream[0]", true), query.consumer("ExternalSorter[0]", true));
    for _ in 0..2 {
        aggregate.free();
        (0..10).for_each(|_| aggregate.try_grow(MIB).unwrap());
        assert!(query.pool.consumers()[0].can_spill);
    }
    assert!(aggregate.try_grow(1).is_err());
}

/// A place is free again once its consumer has left.
#[test]
fn a_consumer_does_not_merge_because_one_before_it_did() {
    let query = Query::new(MIB);
    for _ in 0..100 {
        // Three numbers a round: with two, no sort would have the place of an aggregate.
        drop(query.consumer("RepartitionExec[0]", false));
        let aggregate = query.consumer("SingleHashAggregateStream[0]", true);
        aggregate.try_grow(MIB).unwrap();
        aggregate.try_grow(1).unwrap_err();
        aggregate.free();
        aggregate.try_grow(1).unwrap();
        aggregate.free();
        assert!(!query.pool.consumers()[0].can_spill);
        drop(aggregate);
        let _sort = query.consumer("ExternalSorter[0]", true);
        assert!(query.pool.consumers()[0].can_spill);
    }
}

#[test]
fn a_share_is_smaller_once_there_are_more_consumers() {
    let query = Query::new(20 * MIB);
    let sort = query.consumer("ExternalSorter[0]", true);
    (0..9).for_each(|_| sort.try_grow(MIB).unwrap());
    let _others: Vec<_> =
        (1..10).map(|number| query.consumer(&format!("ExternalSorter[{number}]"), true)).collect();
    let text = text_of(&sort.try_grow(1).unwrap_err());
    assert!(text.contains("more than its even share"), "{text}");
}

#[test]
fn consumers_that_are_not_charged_have_no_share() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let group = hierarchy.create("/query").unwrap();
    group.set_max(10 << 20).unwrap();
    let pool: Arc<dyn MemoryPool> = Arc::new(GroupPool::new(&hierarchy, &group).uncharged("buffers"));
    let [_buffers, sort] = ["buffers", "ExternalSorter[0]"]
        .map(|name| MemoryConsumer::new(name).with_can_spill(true).register(&pool));
    (0..10).for_each(|_| sort.try_grow(MIB).unwrap());
}

#[test]
fn without_a_limit_no_consumer_spills() {
    let query = Query::new(20 * MIB);
    query.tenant.set_max(None).unwrap();
    let (sort, _idle) =
        (query.consumer("ExternalSorter[0]", true), query.consumer("ExternalSorter[1]", true));
    (0..100).for_each(|_| sort.try_grow(MIB).unwrap());
}

#[test]
fn threads_share_a_consumer_without_losing_a_byte() {
    let query = Query::new(1 << 40);
    let shared = query.consumer("RepartitionExec[0]", true);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let own = shared.new_empty();
                for at in 0..20_000 {
                    own.try_grow(at).unwrap();
                    if at % 3 == 0 {
                        own.free();
                    }
                }
                assert!(own.size() > 0);
                // Another thread gives back the bytes that this one grew by.
                std::thread::scope(|other| drop(other.spawn(|| own.free())));
            });
        }
    });
    assert_eq!((query.pool.reserved(), query.group.usage_exact()), (0, 0));
}

/// Random calls of four threads on the same reservations, which also come and go with their
/// consumers.
#[test]
fn the_group_has_the_bytes_of_all_reservations_whatever_threads_call() {
    let query = Query::new(10 * MIB);
    for round in 0..20 {
        let names =
            ["ExternalSorter[0]", "SingleHashAggregateStream[0]", "RepartitionExec[0]", "HashJoinInput"];
        let consumers = names.map(|name| query.consumer(name, name != "HashJoinInput"));
        let shared: Vec<_> = consumers.iter().flat_map(|all| [all.new_empty(), all.new_empty()]).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (query, shared) = (&query, &shared);
                let mut seed: u64 = 1 + thread + 4 * round;
                let mut random = move |below: u64| {
                    seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                    ((seed >> 33) % below) as usize
                };
                scope.spawn(move || {
                    for _ in 0..3000 {
                        let (one, bytes) = (&shared[random(shared.len() as u64)], random(1 << 20));
                        match random(9) {
                            0..4 => _ = one.try_grow(bytes),
                            4 => one.grow(bytes / 64),
                            5 => _ = one.try_shrink(bytes),
                            6 => _ = one.free(),
                            7 => {
                                let own = one.new_empty();
                                own.grow(bytes / 64);
                                drop(own.split(bytes / 128));
                            }
                            _ => {
                                let other = query.consumer("ExternalSorter[1]", true);
                                _ = other.try_grow(bytes);
                                drop((other.new_empty(), other));
                            }
                        }
                    }
                });
            }
        });
        let sizes: usize = shared.iter().map(MemoryReservation::size).sum();
        assert_eq!((query.pool.reserved(), query.group.usage_exact()), (sizes, sizes as u64));
        for (consumer, known) in shared.chunks(2).zip(query.pool.consumers()) {
            assert_eq!(known.held, consumer[0].size() + consumer[1].size(), "{known:?}");
            assert!(known.most >= known.held, "{known:?}");
        }
        drop((consumers, shared));
        assert_eq!((query.pool.reserved(), query.group.usage_exact()), (0, 0));
    }
}

#[test]
fn no_growth_is_too_large_to_be_refused() {
    let query = Query::new(10 * MIB);
    for can_spill in [false, true] {
        let consumer = query.consumer("consumer", can_spill);
        for held in [0, MIB, 5 * MIB] {
            consumer.resize(held);
            for bytes in [usize::MAX, usize::MAX - held, 1 << 63, 1 << 62] {
                text_of(&consumer.try_grow(bytes).unwrap_err());
            }
            assert_eq!((query.pool.reserved(), query.group.usage_exact()), (held, held as u64));
        }
    }
}

#[test]
fn reports_the_bytes_of_a_consumer_of_seven_threads() {
    let query = Query::new(1 << 40);
    let shared = query.consumer("RepartitionExec[0]", true);
    (0..3).for_each(|_| shared.try_grow(MIB).unwrap());
    let figures = || {
        let known = &query.pool.consumers()[0];
        (known.held, known.most)
    };
    assert_eq!(figures(), (3 * MIB, 3 * MIB));
    for at in 1..=6 {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                shared.try_grow(MIB).unwrap();
                shared.grow(MIB);
                shared.shrink(MIB);
            });
            other.join().unwrap();
        });
        assert_eq!(figures(), ((3 + at) * MIB, (4 + at) * MIB));
    }
    shared.try_grow(0).unwrap();
    shared.shrink(0);
    shared.try_grow(2 * MIB).unwrap();
    shared.shrink(11 * MIB);
    assert_eq!(figures(), (0, 11 * MIB));
    assert_eq!((query.pool.reserved(), query.group.usage_exact()), (0, 0));
}

#[test]
fn finds_each_of_many_consumers() {
    let query = Query::new(1 << 40);
    let all: Vec<_> = (0..3000).map(|at| query.consumer(&format!("HashJoinInput[{at}]"), false)).collect();
    for (at, consumer) in all.iter().enumerate() {
        consumer.try_grow(at + 1).unwrap();
    }
    let list = query.pool.consumers();
    assert_eq!(list.iter().map(|consumer| consumer.held).collect::<Vec<_>>(), (1..=3000).collect::<Vec<_>>());
    drop(all);
    assert_eq!((query.pool.reserved(), query.group.usage_exact()), (0, 0));
}

#[test]
fn consumers_that_others_reserve_for_are_listed_and_count_once() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let group = hierarchy.create("/query").unwrap();
    group.set_max(10 << 20).unwrap();
    let pool = Arc::new(GroupPool::new(&hierarchy, &group).uncharged("buffers"));
    let shared: Arc<dyn MemoryPool> = pool.clone();
    let operator = MemoryConsumer::new("operator").register(&shared);
    let buffers = MemoryConsumer::new("buffers").register(&shared);
    operator.try_grow(8 * MIB).unwrap();
    buffers.try_grow(8 * MIB).unwrap();
    buffers.grow(MIB);
    assert_eq!((pool.reserved(), group.usage_exact()), (8 * MIB, 8 << 20));
    assert!(matches!(pool.memory_limit(), MemoryLimit::Finite(bytes) if bytes == 10 * MIB));
    let listed: Vec<_> =
        pool.consumers().into_iter().map(|known| (known.name, known.is_charged, known.held)).collect();
    let operators = ("operator".to_owned(), true, 8 * MIB);
    assert_eq!(listed, [operators, ("buffers".to_owned(), false, 9 * MIB)]);
    buffers.shrink(4 * MIB);
    drop(buffers);
    assert_eq!(group.usage_exact(), 8 << 20);
    operator.try_grow(3 * MIB).unwrap_err();
    drop(operator);
    assert_eq!(group.usage_exact(), 0);
}
