//! Growths that wait until others have spilled.

use std::cell::Cell;
use std::panic;
use std::sync::{Arc, Barrier, Mutex, Once};
use std::time::{Duration, Instant};

use datafusion::execution::memory_pool::{MemoryPool, MemoryReservation};
use memgroup::{Ask, Charge, Count, KillAnswer, KillRequest, Scan, Shrinker, ShrinkerConfig};
use memgroup_datafusion::GroupPool;
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

use crate::{Database, LONG, MIB, consumer};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_growth_that_cannot_spill_waits_until_another_query_has_spilled() {
    let database = Database::new();
    let sort = database.hog();
    let small = database.patient(LONG);
    // With two workers, both of which wait, the tasks of the hog still run.
    let waiting = [false, true].map(|can_spill| {
        let small = Arc::clone(&small);
        tokio::spawn(async move {
            // One that can spill has nothing to spill yet.
            let join = consumer(&small, "join", can_spill);
            join.try_grow(20 * MIB).map(|()| join)
        })
    });
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
    let _sort = database.hog();
    let small = database.patient(LONG);
    consumer(&small, "join", false).try_grow(20 * MIB).unwrap_err();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn growths_of_a_query_wait_no_longer_than_its_patience_in_all() {
    let database = Database::new();
    let _sort = database.hog();
    let patience = Duration::from_millis(50);
    let small = database.patient(patience);
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

#[test]
fn growths_that_wait_at_once_share_the_patience() {
    const GROWTHS: u32 = 4;
    let runtime = runtime(GROWTHS as usize);
    let database = Database::new();
    let _sort = database.hog();
    let patience = Duration::from_secs(1);
    let (small, all) = (database.patient(patience), Arc::new(Barrier::new(GROWTHS as usize)));
    let waiting: Vec<_> = (0..GROWTHS)
        .map(|_| {
            let (small, all) = (Arc::clone(&small), Arc::clone(&all));
            runtime.spawn_blocking(move || {
                let join = consumer(&small, "join", false);
                all.wait();
                let begin = Instant::now();
                join.try_grow(20 * MIB).unwrap_err();
                begin.elapsed()
            })
        })
        .collect();
    let waited: Duration = waiting.into_iter().map(|task| runtime.block_on(task).unwrap()).sum();
    assert!(waited >= patience && waited < patience * GROWTHS / 2, "{waited:?}");
}

fn runtime(workers: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(workers).build().unwrap()
}

thread_local! {
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

/// Growths that are refused where tokio lets no thread block. It says so once, by a panic that the
/// pool catches.
fn refused(small: &Arc<GroupPool>) {
    static COUNTING: Once = Once::new();
    COUNTING.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            PANICS.set(PANICS.get() + 1);
            print(panic);
        }));
    });
    let join = consumer(small, "join", false);
    (0..2).for_each(|_| _ = join.try_grow(20 * MIB).unwrap_err());
    assert_eq!((PANICS.get(), small.group().pressure().some.total), (1, 0));
}

#[test]
fn no_growth_panics_within_a_local_set() {
    let (database, runtime) = (Database::new(), runtime(2));
    let (_sort, small) = (database.hog(), database.patient(LONG));
    LocalSet::new().block_on(&runtime, async {
        tokio::task::spawn_local(async move { refused(&small) }).await.unwrap();
    });
}

#[test]
fn no_growth_panics_on_one_thread_within_an_entered_runtime() {
    let (database, entered) = (Database::new(), runtime(2));
    let (_sort, small) = (database.hog(), database.patient(LONG));
    let one = Builder::new_current_thread().build().unwrap();
    one.block_on(async {
        let _entered = entered.enter();
        refused(&small);
    });
}

/// A cache with one charge, of which it gives as much as it is asked for.
struct Cache(Mutex<Charge>);

impl Shrinker for Cache {
    fn count(&self, _: u64) -> Count {
        Count::of(self.0.lock().unwrap().bytes(), 1)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        let mut charge = self.0.lock().unwrap();
        let bytes = ask.bytes().min(charge.bytes());
        charge.shrink(bytes);
        Scan::Freed { bytes }
    }
}

#[test]
fn a_growth_that_waits_takes_the_memory_of_caches() {
    let (database, runtime) = (Database::new(), runtime(2));
    let caches = database.tenants.create("caches").unwrap();
    let cache = Cache(Mutex::new(caches.try_charge(30 << 20).unwrap()));
    let cache = caches.add_shrinker(ShrinkerConfig::new("cache"), cache).unwrap();
    cache.mark();
    let hog = database.pool("hog", "1");
    let sort = consumer(&hog, "sort", true);
    sort.try_grow(70 * MIB).unwrap();
    let small = database.patient(LONG);
    runtime.block_on(async {
        consumer(&small, "join", false).try_grow(20 * MIB).unwrap();
    });
    let stalled = Duration::from_micros(small.group().pressure().some.total);
    assert!(stalled < LONG, "it did not wait for the end of its patience");
}

#[test]
fn a_growth_stops_a_victim_at_the_end_of_its_patience() {
    let (database, runtime) = (Database::new(), runtime(2));
    let sort = database.hog();
    let hog = database.hierarchy.lookup("/tenants/hog/1").unwrap();
    let sort: Mutex<Option<MemoryReservation>> = Mutex::new(Some(sort));
    let hook = hog.set_kill_hook(move |_: &KillRequest<'_>| {
        drop(sort.lock().unwrap().take());
        KillAnswer::Dying
    });
    let _hook = hook.unwrap();
    let small = database.patient(Duration::from_millis(20));
    runtime.block_on(async {
        consumer(&small, "join", false).try_grow(20 * MIB).unwrap();
    });
    assert!(small.group().pressure().some.total >= 20_000, "after its patience");
}

#[test]
fn a_growth_that_waits_asks_although_its_query_wasted_memory_before() {
    let (database, runtime) = (Database::new(), runtime(2));
    let (sort, small) = (database.hog(), database.patient(LONG));
    let join = consumer(&small, "join", false);
    // Outside of the runtime no growth waits.
    join.try_grow(20 * MIB).unwrap_err();
    sort.try_grow(MIB).unwrap_err();
    join.try_grow(20 * MIB).unwrap_err();
    sort.try_grow(MIB).expect("its query pauses");
    let waits = runtime.spawn_blocking(move || join.try_grow(20 * MIB).map(|()| join));
    while !waits.is_finished() {
        if sort.try_grow(MIB / 4).is_err() {
            sort.free();
        } else {
            sort.shrink(MIB / 4);
        }
    }
    runtime.block_on(waits).unwrap().unwrap();
}

#[test]
fn a_growth_that_waits_is_not_forgotten_for_another_one() {
    let (database, runtime) = (Database::new(), runtime(2));
    let (sort, small) = (database.hog(), database.patient(LONG));
    let join = consumer(&small, "join", false);
    let waits = runtime.spawn_blocking(move || join.try_grow(30 * MIB).map(|()| join));
    // A stall that is on counts.
    while small.group().pressure().some.total == 0 {
        std::thread::yield_now();
    }
    // Outside of the runtime no growth waits. This one asks after the one that waits.
    let other = consumer(&small, "other", false);
    other.try_grow(20 * MIB).unwrap_err();
    sort.shrink(16 * MIB);
    other.try_grow(20 * MIB).unwrap();
    sort.shrink(10 * MIB);
    // Now their query holds more than the growth that waits asked for.
    other.try_grow(15 * MIB).unwrap();
    sort.try_grow(MIB / 4).expect_err("the first growth still waits, and has no room");
    sort.free();
    runtime.block_on(waits).unwrap().unwrap();
}
