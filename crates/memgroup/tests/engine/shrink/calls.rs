//! Calls of caches: when, with which arguments, for how long.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memgroup::{Ask, Charge, Count, Group, Scan, Shrinker, ShrinkerConfig, ShrinkerSlot};

use super::cache::{BATCH, Cache, Made, PAGE, Tenant, add, parent, plenty};

#[test]
fn registers_while_a_dropped_shrinkers_call_runs() {
    let (hierarchy, tenants) = parent(2, 10);
    let _held = tenants.try_charge(10 * PAGE).unwrap();
    let ((entered, is_in), (go, wait)) = (channel(), channel::<()>());
    let (entered, wait) = (Mutex::new(entered), Mutex::new(wait));
    let stuck = add(&tenants, "stuck", plenty, move |_| {
        entered.lock().unwrap().send(()).unwrap();
        let _ = wait.lock().unwrap().recv();
        Scan::Stopped { bytes: 0 }
    });
    let number = stuck.registration().id();
    let caller = {
        let tenants = tenants.clone();
        std::thread::spawn(move || tenants.reclaim(PAGE, None))
    };
    is_in.recv().unwrap();
    drop(stuck);
    let next = hierarchy.add_shrinker(ShrinkerConfig::new("next"), Cache::default()).unwrap();
    assert_ne!(next.id(), number, "the number is in use while the call goes on");
    drop(go);
    caller.join().unwrap();
    let after = hierarchy.add_shrinker(ShrinkerConfig::new("after"), Cache::default()).unwrap();
    assert_eq!(after.id(), number);
}

#[test]
fn lets_a_callback_replace_its_own_shrinker() {
    let (_hierarchy, tenants) = parent(2, 10);
    let _held = tenants.try_charge(10 * PAGE).unwrap();
    let own = Arc::new(Mutex::new(None));
    let (mine, group) = (Arc::clone(&own), tenants.clone());
    let first = add(&tenants, "first", plenty, move |_| {
        let second = group.add_shrinker(ShrinkerConfig::new("second"), Cache::default()).unwrap();
        drop(mine.lock().unwrap().replace(second));
        Scan::Freed { bytes: 0 }
    });
    *own.lock().unwrap() = Some(first);
    assert!(tenants.try_charge(PAGE).is_err());
    assert_eq!(own.lock().unwrap().as_ref().unwrap().registration().name(), "second");
}

/// One cache for many groups. Its owner acts once, in a call of `count`.
#[derive(Default)]
struct Moving {
    pages: [Mutex<Vec<Charge>>; 2],
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Shrinker for Moving {
    fn count(&self, token: u64) -> Count {
        let pages = self.pages[token as usize].lock().unwrap().len() as u64;
        if let Some(meanwhile) = self.meanwhile.lock().unwrap().take() {
            meanwhile();
        }
        Count::of(pages * PAGE, pages)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        self.pages[ask.token() as usize].lock().unwrap().clear();
        Scan::Freed { bytes: 0 }
    }
}

#[test]
fn does_not_scan_a_group_that_got_place_and_slot_meanwhile() {
    let (hierarchy, _) = parent(2, 100);
    let (here, there) = (hierarchy.create("/here").unwrap(), hierarchy.create("/there").unwrap());
    let moving = Arc::new(Moving::default());
    // At cost 0 it is asked for half of its bytes at once.
    let config = ShrinkerConfig::new("moving").cost(0).batch_bytes(PAGE);
    let registration = Arc::new(Mutex::new(hierarchy.add_shrinker(config, Arc::clone(&moving)).unwrap()));
    let first = here.create("first").unwrap();
    let slot = registration.lock().unwrap().attach(&first, 0).unwrap();
    let fill = move |pages: &Mutex<Vec<Charge>>, group: &Group| {
        (0..40).for_each(|_| pages.lock().unwrap().push(group.try_charge(PAGE).unwrap()));
    };
    fill(&moving.pages[0], &first);
    slot.mark();
    let place = first.id().node();
    let second: Arc<Mutex<Option<(Group, ShrinkerSlot)>>> = Arc::default();
    let (log, registered, cache) = (Arc::clone(&second), Arc::clone(&registration), Arc::clone(&moving));
    *moving.meanwhile.lock().unwrap() = Some(Box::new(move || {
        first.remove().unwrap();
        cache.pages[0].lock().unwrap().clear();
        drop((slot, first));
        let second = there.create("second").unwrap();
        fill(&cache.pages[1], &second);
        let slot = registered.lock().unwrap().attach(&second, 1).unwrap();
        slot.mark();
        *log.lock().unwrap() = Some((second, slot));
    }));
    here.reclaim(100 * PAGE, None);
    let (second, _seat) = second.lock().unwrap().take().expect("it was counted");
    assert_eq!(second.id().node(), place, "the second has the first one's place");
    assert_eq!(moving.pages[1].lock().unwrap().len(), 40, "it is not below the group that was asked");
}

#[test]
fn keeps_the_group_until_the_call_ends() {
    let (hierarchy, tenants) = parent(2, 100);
    let all: Arc<Mutex<Option<(ShrinkerSlot, Charge)>>> = Arc::default();
    let seen = Arc::new(Mutex::new(None));
    let (given_up, log, parent) = (Arc::clone(&all), Arc::clone(&seen), tenants.clone());
    let scan = move |ask: &Ask<'_>| {
        let before = (ask.group().path(), ask.group().id());
        if let Some((slot, page)) = given_up.lock().unwrap().take() {
            slot.group().remove().unwrap();
            drop((slot, page));
            let _next = parent.create("next").unwrap();
            *log.lock().unwrap() = Some((before, (ask.group().path(), ask.group().id())));
        }
        Scan::Stopped { bytes: 0 }
    };
    let registration = hierarchy.add_shrinker(ShrinkerConfig::new("gives up"), Made(plenty, scan)).unwrap();
    let group = tenants.create("group").unwrap();
    let slot = registration.attach(&group, 0).unwrap();
    slot.mark();
    *all.lock().unwrap() = Some((slot, group.try_charge(PAGE).unwrap()));
    drop(group);
    tenants.reclaim(PAGE, None);
    let (before, after) = seen.lock().unwrap().take().expect("it was asked");
    assert_eq!(before, after);
    assert_eq!(
        tenants.create("new").unwrap().id().node(),
        before.1.node(),
        "it is released when the call has ended"
    );
}

#[test]
fn counts_a_small_cache_again_when_it_has_grown() {
    for (cost, small) in [(2, 0), (8, 1), (100, 3), (0, 15), (u32::MAX, 10)] {
        let (_hierarchy, tenants) = parent(2, 400);
        let group = tenants.create("idle").unwrap();
        let pages: Arc<Mutex<Vec<Charge>>> = Arc::default();
        let (counted, given) = (Arc::clone(&pages), Arc::clone(&pages));
        let count = move || {
            let pages = counted.lock().unwrap().len() as u64;
            Count::Holds { bytes: pages * PAGE, objects: pages + 1 }
        };
        let scan = move |ask: &Ask<'_>| {
            let mut pages = given.lock().unwrap();
            let keep = pages.len().saturating_sub(ask.bytes().div_ceil(PAGE) as usize);
            pages.truncate(keep);
            Scan::Freed { bytes: 0 }
        };
        let config = ShrinkerConfig::new("idle").cost(cost);
        let shrinker = group.add_shrinker(config, Made(count, scan)).unwrap();
        let fill = |pages: &Mutex<Vec<Charge>>, count| {
            (0..count).for_each(|_| pages.lock().unwrap().push(group.try_charge(PAGE).unwrap()));
        };
        fill(&pages, small);
        shrinker.mark();
        let held = tenants.try_charge((300 - small) * PAGE).unwrap();
        tenants.set_max(300 * PAGE).unwrap();
        let _ = tenants.try_charge(PAGE);
        drop(held);
        let left = 300 - pages.lock().unwrap().len() as u64;
        fill(&pages, left);
        shrinker.mark();
        let charge = tenants.try_charge(PAGE);
        assert!(charge.is_ok(), "cost {cost}, {small} pages at first: {charge:?}");
    }
}

#[test]
fn does_not_refuse_beside_a_dear_cache() {
    for cost in [0, 5, 8, 1000, u32::MAX] {
        let (_hierarchy, tenants) = parent(2, 20);
        let group = tenants.create("idle").unwrap();
        let cache = Arc::new(Cache::default());
        let shrinker =
            group.add_shrinker(ShrinkerConfig::new("dear").cost(cost), Arc::clone(&cache)).unwrap();
        (0..10).for_each(|_| cache.push(group.try_charge(PAGE).unwrap()));
        shrinker.mark();
        let charge = tenants.try_charge(20 * PAGE);
        assert!(charge.is_ok(), "cost {cost}: {} pages are left", cache.len());
    }
}

#[test]
fn counts_no_overrun_for_many_quick_calls() {
    let (hierarchy, tenants) = parent(2, 100_000);
    let group = tenants.create("idle").unwrap();
    let pages: Arc<Mutex<Vec<Charge>>> = Arc::default();
    let (counted, given) = (Arc::clone(&pages), Arc::clone(&pages));
    let count = move || Count::of(counted.lock().unwrap().len() as u64 * BATCH, 1);
    let scan = move |_: &Ask<'_>| {
        std::thread::sleep(Duration::from_millis(3));
        given.lock().unwrap().pop();
        Scan::Freed { bytes: BATCH }
    };
    let config = ShrinkerConfig::new("quick").patience(Duration::from_secs(2));
    let shrinker = group.add_shrinker(config, Made(count, scan)).unwrap();
    (0..800).for_each(|_| pages.lock().unwrap().push(group.try_charge(BATCH).unwrap()));
    shrinker.mark();
    // The others find it busy.
    std::thread::scope(|scope| {
        let reclaims = || tenants.reclaim(700 * BATCH, None);
        (0..2).for_each(|_| drop(scope.spawn(reclaims)));
    });
    tenants.reclaim(u64::MAX, None);
    let report = &hierarchy.shrinkers()[0];
    assert!(report.time >= Duration::from_millis(2_100), "{report:?}");
    assert_eq!((report.quarantine, report.overruns), (None, 0));
}

#[test]
fn ends_a_reclaim_with_the_call_that_passes_the_deadline() {
    for answer in [Count::Unknown, Count::Empty, plenty()] {
        let (_hierarchy, tenants) = parent(2, 100);
        let _held = tenants.try_charge(100 * PAGE).unwrap();
        let (calls, deadline) = (Arc::new(AtomicU64::new(0)), Instant::now() + Duration::from_millis(20));
        let pass = move |calls: &AtomicU64| {
            calls.fetch_add(1, Ordering::Relaxed);
            while Instant::now() < deadline {
                std::thread::yield_now();
            }
        };
        let shrinkers: Vec<_> = (0..10)
            .map(|at| {
                let (in_count, in_scan) = (Arc::clone(&calls), Arc::clone(&calls));
                let count = move || {
                    if answer != plenty() {
                        pass(&in_count);
                    }
                    answer
                };
                let scan = move |_: &Ask<'_>| {
                    pass(&in_scan);
                    Scan::Freed { bytes: 0 }
                };
                add(&tenants, &format!("{at}"), count, scan)
            })
            .collect();
        tenants.reclaim(u64::MAX, Some(deadline));
        let calls = calls.load(Ordering::Relaxed);
        // A cache that says it is empty is asked once more.
        assert!((1..=2).contains(&calls), "{calls} calls where the answer was {answer:?}");
        drop(shrinkers);
    }
}

#[test]
fn asks_by_hand_for_all_bytes() {
    let (_hierarchy, tenants) = parent(2, 100);
    let tenant = Tenant::new(&tenants, "tenant");
    tenant.fill(100);
    let reclaimed = tenant.group.ask_shrinker(tenant.shrinker.registration().id(), BATCH + 8 * PAGE).unwrap();
    assert_eq!((reclaimed.bytes, tenant.cache.len()), (BATCH + 8 * PAGE, 100 - 24));
}

#[test]
fn survives_impossible_figures() {
    let (hierarchy, tenants) = parent(2, 100);
    let _held = tenants.try_charge(100 * PAGE).unwrap();
    let is_called = Arc::new(AtomicBool::new(false));
    let called = Arc::clone(&is_called);
    let _liar = add(
        &tenants,
        "liar",
        || Count::Holds { bytes: u64::MAX, objects: u64::MAX },
        move |_| {
            called.store(true, Ordering::Relaxed);
            Scan::Freed { bytes: u64::MAX }
        },
    );
    for _ in 0..3 {
        assert!(tenants.try_charge(PAGE).is_err());
    }
    assert!(is_called.load(Ordering::Relaxed));
    let report = &hierarchy.shrinkers()[0];
    assert_eq!((report.quarantine, report.claimed_bytes), (None, u64::MAX), "{} scans", report.scans);
}
