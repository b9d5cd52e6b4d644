//! Reclaimers: caches that give back for futures, threads beside tasks, and the end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memgroup::{Ask, Charge, Config, Count, Hierarchy, Scan, Shrinker, ShrinkerConfig};

use super::executor::block_on;
use super::{PAGE, Running, until};

/// A cache. Its items are charges of a page.
#[derive(Clone, Default)]
struct Cache(Arc<Mutex<Vec<Charge>>>);

impl Cache {
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

impl Shrinker for Cache {
    fn count(&self, _token: u64) -> Count {
        let items = self.len() as u64;
        Count::of(items * PAGE, items)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        let mut bytes = 0;
        while bytes < ask.bytes() {
            let Some(item) = self.0.lock().unwrap().pop() else { break };
            bytes += item.bytes();
        }
        Scan::Freed { bytes }
    }
}

#[test]
fn every_future_succeeds_beside_a_full_cache() {
    const PAGES: u64 = 400;
    let running = Running::new(Config::new());
    let parent = running.group("parent", PAGES);
    let (cached, asks) = (parent.create("cached").unwrap(), parent.create("asks").unwrap());
    let cache = Cache::default();
    let items: Vec<_> = (0..PAGES).map(|_| cached.try_charge(PAGE).unwrap()).collect();
    *cache.0.lock().unwrap() = items;
    let shrinker = cached.add_shrinker(ShrinkerConfig::new("cache"), cache.clone()).unwrap();
    shrinker.mark();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let asks = asks.clone();
            std::thread::spawn(move || {
                Vec::from_iter((0..PAGES / 8).map(|_| block_on(asks.charge(PAGE)).unwrap()))
            })
        })
        .collect();
    let charges: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    assert_eq!((charges.len() as u64, cache.len()), (PAGES, 0));
    drop(charges);
    assert_eq!((parent.usage_exact(), parent.waiters().now), (0, 0));
}

#[test]
fn asks_a_cache_that_is_filled_while_a_future_waits() {
    let running = Running::new(Config::new());
    let group = running.group("group", 1);
    let cache = Cache::default();
    let shrinker = group.add_shrinker(ShrinkerConfig::new("cache"), cache.clone()).unwrap();
    let held = group.try_charge(PAGE).unwrap();
    let waiting = {
        let group = group.clone();
        std::thread::spawn(move || block_on(group.charge(PAGE)).unwrap())
    };
    until(|| group.waiters().now == 1);
    cache.0.lock().unwrap().push(held);
    shrinker.mark();
    assert_eq!(waiting.join().unwrap().bytes(), PAGE);
}

#[test]
fn threads_and_tasks_wait_in_one_order() {
    let running = Running::new(Config::new());
    let group = running.group("group", 1);
    let mut held = Some(group.try_charge(PAGE).unwrap());
    let order = Arc::new(Mutex::new(Vec::new()));
    let waiters: Vec<_> = (0..6)
        .map(|number| {
            let (group, order) = (group.clone(), Arc::clone(&order));
            let thread = std::thread::spawn(move || {
                let charge = if number % 2 == 0 {
                    block_on(group.charge(PAGE)).unwrap()
                } else {
                    group.charge_until(PAGE, Duration::from_secs(3600)).unwrap()
                };
                order.lock().unwrap().push(number);
                drop(charge);
            });
            until(|| running.hierarchy.waits().len() == number + 1);
            thread
        })
        .collect();
    held.take();
    waiters.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn stocks_open_again_when_no_task_waits() {
    let running = Running::new(Config::new());
    let group = running.group("group", 100);
    let held = group.try_charge(100 * PAGE).unwrap();
    let waiting = {
        let group = group.clone();
        std::thread::spawn(move || block_on(group.charge(PAGE)).unwrap())
    };
    until(|| group.waiters().now == 1);
    drop(held);
    drop(waiting.join().unwrap());
    until(|| {
        drop(group.try_charge(64).unwrap());
        group.stock().prepaid_bytes > 0
    });
}

#[test]
fn ends_with_its_hierarchy_and_keeps_it_not() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let reclaimer = hierarchy.reclaimer();
    let stop = reclaimer.stop_handle();
    let thread = std::thread::spawn(|| reclaimer.run());
    drop(hierarchy);
    thread.join().unwrap();
    stop.stop();
    let next = Hierarchy::new(Config::new()).unwrap();
    let group = next.create("/group").unwrap();
    drop(block_on(group.charge(PAGE)).unwrap());
}

/// A shrinker that is in a call until it is let go.
struct Blocks {
    cache: Cache,
    is_called: Arc<AtomicBool>,
    is_let_go: Arc<AtomicBool>,
}

impl Shrinker for Blocks {
    fn count(&self, token: u64) -> Count {
        self.cache.count(token)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        self.is_called.store(true, Ordering::Relaxed);
        until(|| self.is_let_go.load(Ordering::Relaxed));
        self.cache.scan(ask)
    }
}

#[test]
fn another_reclaimer_makes_room_while_one_is_in_a_shrinkers_call() {
    let running = Running::new(Config::new());
    let second = running.hierarchy.reclaimer();
    let stop = second.stop_handle();
    let second = std::thread::spawn(|| second.run());
    let [slow, quick] = ["slow", "quick"].map(|name| running.group(name, 1));
    let (is_called, is_let_go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let blocks = Blocks {
        cache: Cache::default(),
        is_called: Arc::clone(&is_called),
        is_let_go: Arc::clone(&is_let_go),
    };
    blocks.cache.0.lock().unwrap().push(slow.try_charge(PAGE).unwrap());
    let cache = Cache::default();
    let held = quick.try_charge(PAGE).unwrap();
    let blocks = slow.add_shrinker(ShrinkerConfig::new("blocks"), blocks).unwrap();
    let registered = quick.add_shrinker(ShrinkerConfig::new("cache"), cache.clone()).unwrap();
    blocks.mark();
    std::thread::scope(|threads| {
        let waits = threads.spawn(|| block_on(quick.charge(PAGE)).map(drop));
        // Its first review finds nothing. The next one is due in 100 ms.
        std::thread::sleep(Duration::from_millis(50));
        let slow_waits = threads.spawn(|| block_on(slow.charge(PAGE)).map(drop));
        until(|| is_called.load(Ordering::Relaxed));
        cache.0.lock().unwrap().push(held);
        registered.mark();
        waits.join().unwrap().unwrap();
        is_let_go.store(true, Ordering::Relaxed);
        slow_waits.join().unwrap().unwrap();
    });
    stop.stop();
    second.join().unwrap();
}

#[test]
fn a_reclaimer_that_woke_by_its_time_is_not_the_one_that_is_notified() {
    let running = Running::new(Config::new());
    let second = running.hierarchy.reclaimer();
    let stop = second.stop_handle();
    let second = std::thread::spawn(|| second.run());
    let [slow, quick] = ["slow", "quick"].map(|name| running.group(name, 1));
    let (is_called, is_let_go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let [slow_cache, quick_cache] = [(); 2].map(|()| Cache::default());
    let blocks = Blocks {
        cache: slow_cache.clone(),
        is_called: Arc::clone(&is_called),
        is_let_go: Arc::clone(&is_let_go),
    };
    let held = slow.try_charge(PAGE).unwrap();
    quick_cache.0.lock().unwrap().push(quick.try_charge(PAGE).unwrap());
    let blocks = slow.add_shrinker(ShrinkerConfig::new("blocks"), blocks).unwrap();
    let registered = quick.add_shrinker(ShrinkerConfig::new("cache"), quick_cache).unwrap();
    registered.mark();
    // Both sleep by then.
    std::thread::sleep(Duration::from_millis(30));
    std::thread::scope(|threads| {
        let waits = threads.spawn(|| block_on(slow.charge(PAGE)).map(drop));
        until(|| slow.waiters().now == 1);
        // The first review finds nothing. The time of the next one, in 100 ms, wakes the reclaimer.
        std::thread::sleep(Duration::from_millis(50));
        slow_cache.0.lock().unwrap().push(held);
        blocks.mark();
        until(|| is_called.load(Ordering::Relaxed));
        drop(block_on(quick.charge(PAGE)).unwrap());
        is_let_go.store(true, Ordering::Relaxed);
        waits.join().unwrap().unwrap();
    });
    stop.stop();
    second.join().unwrap();
}
