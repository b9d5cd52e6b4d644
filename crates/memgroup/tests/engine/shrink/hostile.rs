//! Callbacks that panic, lie, block, and come back into the engine.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memgroup::{
    Ask, CallsError, Charge, Config, Count, Group, GroupShrinker, Hierarchy, Maintenance, Quarantine,
    Registration, Scan, ShrinkerConfig, SlotSource,
};

use super::cache::{BATCH, Made, PAGE, Tenant, add, parent, plenty};

#[test]
fn quarantines_a_panicking_shrinker_and_asks_others() {
    for in_count in [true, false] {
        let (hierarchy, tenants) = parent(2, 100);
        let idle = Tenant::new(&tenants, "idle");
        idle.fill(100);
        let count = move || if in_count { panic!("count") } else { plenty() };
        let bad = add(&tenants, "bad", count, |_| panic!("scan"));
        let _charge = tenants.create("busy").unwrap().try_charge(50 * PAGE).unwrap();
        assert_eq!(bad.registration().quarantine(), Some(Quarantine::Panicked));
        let panics = |report: memgroup::ShrinkerReport| (report.name == "bad").then_some(report.panics);
        assert_eq!(hierarchy.shrinkers().into_iter().find_map(panics), Some(1));
        bad.registration().reinstate();
        assert_eq!(bad.registration().quarantine(), None);
        bad.remove().unwrap();
    }
}

#[test]
fn keeps_or_returns_bytes_freed_before_a_panic() {
    let (hierarchy, tenants) = parent(2, 100);
    let idle = tenants.create("idle").unwrap();
    let pages: Arc<Mutex<Vec<Charge>>> = Arc::default();
    (0..100).for_each(|_| pages.lock().unwrap().push(idle.try_charge(PAGE).unwrap()));
    let given = Arc::clone(&pages);
    let bad = add(&idle, "half way", plenty, move |_| {
        let given: Vec<Charge> = given.lock().unwrap().drain(..10).collect();
        drop(given);
        panic!("half way")
    });
    let busy = tenants.create("busy").unwrap();
    assert!(busy.try_charge(20 * PAGE).is_err());
    assert_eq!((tenants.usage_exact(), idle.usage_exact()), (90 * PAGE, 90 * PAGE));
    bad.registration().reinstate();
    let charge = busy.try_charge(20 * PAGE).unwrap();
    assert_eq!((tenants.usage_exact(), idle.usage_exact()), (100 * PAGE, 80 * PAGE));
    drop(charge);
    pages.lock().unwrap().clear();
    assert_eq!(hierarchy.root().usage_exact(), 0);
}

/// Calls whatever takes a lock of the engine or waits for something.
fn call_all(hierarchy: &Hierarchy, tenants: &Group, number: u64) {
    let outer = hierarchy.create(&format!("/outer{number}")).unwrap();
    let inner = outer.create("inner").unwrap();
    let tenant = Tenant::new(&inner, "tenant");
    tenant.fill(1);
    hierarchy.maintain(Maintenance::new().expedited());
    drop(hierarchy.snapshot());
    for report in hierarchy.shrinkers() {
        assert!(tenants.ask_shrinker(report.id, PAGE).is_err(), "reclaim within reclaim");
    }
    assert_eq!(inner.reclaim(PAGE, None).scans, 0);
    tenants.set_max(tenants.max()).unwrap();
    tenants.drain();
    let _ = (tenants.stock(), tenants.usage_exact(), hierarchy.dying());
    let other = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap();
    drop(other.root().try_charge(PAGE).unwrap());
    [&tenant.group, &inner, &outer].iter().for_each(|group| group.remove().unwrap());
    drop((other, tenant));
}

#[test]
fn lets_callbacks_call_every_function() {
    let (hierarchy, tenants) = parent(2, 100);
    let _held = tenants.try_charge(100 * PAGE).unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let all = || {
        let (hierarchy, tenants, calls) = (hierarchy.clone(), tenants.clone(), Arc::clone(&calls));
        move || call_all(&hierarchy, &tenants, calls.fetch_add(1, Ordering::Relaxed))
    };
    let (in_count, in_scan) = (all(), all());
    let count = move || {
        in_count();
        plenty()
    };
    let scan = move |_: &Ask<'_>| {
        in_scan();
        Scan::Freed { bytes: 0 }
    };
    let shrinker = add(&tenants, "calls all", count, scan);
    std::thread::scope(|scope| {
        (0..3).for_each(|_| drop(scope.spawn(|| assert!(tenants.try_charge(PAGE).is_err()))));
    });
    assert_eq!(shrinker.registration().quarantine(), None, "nothing has panicked");
    assert!(calls.load(Ordering::Relaxed) >= 2);
    drop(shrinker);
    assert_eq!(tenants.usage_exact(), 100 * PAGE);
}

/// The payload of a panic, which panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("the panic's payload panics");
    }
}

#[test]
fn catches_a_panic_with_a_payload_that_panics() {
    let (_hierarchy, tenants) = parent(2, 10);
    let _held = tenants.try_charge(10 * PAGE).unwrap();
    let bad = add(&tenants, "bad", plenty, |_| std::panic::panic_any(Bomb));
    assert!(tenants.try_charge(PAGE).is_err());
    assert_eq!(bad.registration().quarantine(), Some(Quarantine::Panicked));
}

#[test]
fn believes_the_counters_and_not_the_callback() {
    let (_hierarchy, tenants) = parent(2, 10);
    let held = tenants.try_charge(10 * PAGE).unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let lies = move |ask: &Ask<'_>| {
        counted.fetch_add(1, Ordering::Relaxed);
        Scan::Freed { bytes: ask.bytes() * 1000 }
    };
    let liar = add(&tenants, "liar", plenty, lies);
    let error = tenants.try_charge(PAGE).unwrap_err();
    assert_eq!((error.usage(), error.max()), (10 * PAGE, Some(10 * PAGE)));
    assert!(calls.load(Ordering::Relaxed) > 0);
    assert_eq!(tenants.reclaim(PAGE, None).bytes, 0);
    drop((liar, held));
    assert_eq!(tenants.usage_exact(), 0);
}

#[test]
fn refuses_when_a_callback_always_stops() {
    let (_hierarchy, tenants) = parent(2, 10);
    let _held = tenants.try_charge(10 * PAGE).unwrap();
    let _shrinker = add(&tenants, "stops", plenty, |_| Scan::Stopped { bytes: 0 });
    assert!(tenants.try_charge(PAGE).is_err());
}

#[test]
fn lets_a_callback_charge_up_to_the_reserve() {
    let (_hierarchy, tenants) = parent(2, 100);
    let helper = tenants.create("helper").unwrap();
    let pages: Arc<Mutex<Vec<Charge>>> = Arc::default();
    (0..100).for_each(|_| pages.lock().unwrap().push(tenants.try_charge(PAGE).unwrap()));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (cache, log) = (Arc::clone(&pages), Arc::clone(&seen));
    let _shrinker = add(&tenants, "needs memory itself", plenty, move |ask| {
        // 256 KiB are reserved.
        let small = helper.try_charge(200 << 10);
        let large = helper.try_charge(200 << 10).map(drop).map_err(|error| error.usage());
        log.lock().unwrap().push((small.is_ok(), large.is_ok()));
        let count = (ask.bytes() / PAGE) as usize;
        let mut pages = cache.lock().unwrap();
        let keep = pages.len().saturating_sub(count);
        pages.truncate(keep);
        drop(small);
        Scan::Freed { bytes: count as u64 * PAGE }
    });
    let _charge = tenants.create("busy").unwrap().try_charge(10 * PAGE).unwrap();
    assert_eq!(seen.lock().unwrap()[0], (true, false));
    assert!(tenants.usage() <= tenants.max().unwrap());
}

#[test]
fn lets_a_callback_register_remove_and_reclaim() {
    let (_hierarchy, tenants) = parent(2, 100);
    let idle = Tenant::new(&tenants, "idle");
    idle.fill(50);
    let other = tenants.add_shrinker(
        ShrinkerConfig::new("other"),
        Made(|| Count::Empty, |_: &Ask<'_>| Scan::Freed { bytes: 0 }),
    );
    let _held = tenants.try_charge(50 * PAGE).unwrap();
    let own: Arc<Mutex<Option<GroupShrinker>>> = Arc::default();
    let others = Mutex::new(Some(other.unwrap()));
    let outcome = Arc::new(Mutex::new(None));
    let (group, mine, log) = (tenants.clone(), Arc::clone(&own), Arc::clone(&outcome));
    let shrinker = add(&tenants, "restless", plenty, move |_| {
        let made = group.add_shrinker(
            ShrinkerConfig::new("made within"),
            Made(|| Count::Empty, |_: &Ask<'_>| Scan::Freed { bytes: 0 }),
        );
        made.unwrap().remove().unwrap();
        if let Some(other) = others.lock().unwrap().take() {
            other.remove().unwrap();
        }
        let within = group.reclaim(PAGE, None);
        if let Some(own) = mine.lock().unwrap().take() {
            *log.lock().unwrap() = Some((own.remove(), within.scans));
        }
        Scan::Stopped { bytes: 0 }
    });
    *own.lock().unwrap() = Some(shrinker);
    let _charge = tenants.create("busy").unwrap().try_charge(20 * PAGE).unwrap();
    let (removed, scans) = outcome.lock().unwrap().take().expect("it was asked");
    assert_eq!(removed, Err(CallsError::FromWithin { name: Some("restless".to_owned()) }));
    assert_eq!(scans, 0);
}

/// A shrinker with a call that ends when the test says so.
fn blocked(group: &Group, patience: Duration) -> (GroupShrinker, Receiver<()>, Sender<()>) {
    blocked_until(group, patience, Scan::Freed { bytes: 0 })
}

/// The same, with the answer of the call.
fn blocked_until(
    group: &Group,
    patience: Duration,
    answer: Scan,
) -> (GroupShrinker, Receiver<()>, Sender<()>) {
    let ((entered, is_in), (go, wait)) = (channel(), channel());
    let (entered, wait) = (Mutex::new(entered), Mutex::new(wait));
    let config = ShrinkerConfig::new("blocked").patience(patience);
    let scan = move |_: &Ask<'_>| {
        entered.lock().unwrap().send(()).unwrap();
        let _ = wait.lock().unwrap().recv();
        answer
    };
    let shrinker = group.add_shrinker(config, Made(plenty, scan)).unwrap();
    shrinker.mark();
    (shrinker, is_in, go)
}

#[test]
fn serves_others_while_a_callback_blocks() {
    let (_hierarchy, tenants) = parent(2, 100);
    let idle = Tenant::new(&tenants, "idle");
    idle.fill(100);
    let (shrinker, is_in, go) = blocked(&tenants, Duration::from_millis(1));
    let stuck = {
        let tenants = tenants.clone();
        let thread = std::thread::Builder::new().name("stuck".to_owned());
        thread.spawn(move || tenants.reclaim(10 * PAGE, None)).unwrap()
    };
    is_in.recv().unwrap();
    std::thread::sleep(Duration::from_millis(5));

    let busy = tenants.create("busy").unwrap();
    let charge = busy.try_charge(30 * PAGE).unwrap();
    let more = Tenant::new(&tenants, "more");
    more.fill(10);
    more.shrinker.remove().unwrap();
    assert_eq!(shrinker.registration().quarantine(), Some(Quarantine::Overdue));

    let deadline = Instant::now() + Duration::from_millis(5);
    let (error, removal) = shrinker.withdraw().wait_until(deadline).unwrap_err();
    let CallsError::Blocked { name, thread, .. } = &error else { panic!("{error:?}") };
    assert_eq!((name.as_deref(), thread.as_ref().unwrap().1.as_str()), (Some("blocked"), "stuck"));
    assert!(error.to_string().contains("\"stuck\""), "{error}");
    let ended = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&ended);
    removal.detach(move || told.store(true, Ordering::Release));
    assert!(!ended.load(Ordering::Acquire));

    drop(go);
    stuck.join().unwrap();
    assert!(ended.load(Ordering::Acquire), "the thread that ended the last call ran the closure");
    drop(charge);
}

#[test]
fn calls_a_shrinker_again_after_one_overdue_call() {
    // A call that others follow in its series, and the last of one.
    for answer in [Scan::Freed { bytes: 0 }, Scan::Stopped { bytes: 0 }] {
        let (_hierarchy, tenants) = parent(2, 100);
        let _held = tenants.try_charge(100 * PAGE).unwrap();
        let patience = Duration::from_millis(200);
        let (shrinker, is_in, go) = blocked_until(&tenants, patience, answer);
        let stuck = {
            let tenants = tenants.clone();
            std::thread::spawn(move || tenants.reclaim(10 * PAGE, None))
        };
        is_in.recv().unwrap();
        std::thread::sleep(patience + Duration::from_millis(5));
        assert_eq!(tenants.reclaim(PAGE, None).scans, 0);
        assert_eq!(shrinker.registration().quarantine(), Some(Quarantine::Overdue));
        drop(go);
        stuck.join().unwrap();
        assert_eq!(shrinker.registration().quarantine(), None);
        assert!(tenants.reclaim(PAGE, None).scans > 0);
    }
}

#[test]
fn skips_a_shrinker_in_all_groups_during_an_overdue_call() {
    let (hierarchy, tenants) = parent(2, 100);
    let groups = ["here", "there"].map(|name| tenants.create(name).unwrap());
    let _held = groups.each_ref().map(|group| group.try_charge(50 * PAGE).unwrap());
    let ((entered, is_in), (go, wait)) = (channel(), channel::<()>());
    let (entered, wait) = (Mutex::new(entered), Mutex::new(wait));
    let (calls, is_slow) = (Arc::new(AtomicU64::new(0)), AtomicBool::new(true));
    let counted = Arc::clone(&calls);
    let scan = move |_: &Ask<'_>| {
        counted.fetch_add(1, Ordering::Relaxed);
        if is_slow.swap(false, Ordering::Relaxed) {
            entered.lock().unwrap().send(()).unwrap();
            let _ = wait.lock().unwrap().recv();
        }
        Scan::Stopped { bytes: 0 }
    };
    let config = ShrinkerConfig::new("blocked").patience(Duration::from_millis(1));
    let registration = hierarchy.add_shrinker(config, Made(plenty, scan)).unwrap();
    let slots = groups.each_ref().map(|group| registration.attach(group, 0).unwrap());
    slots.iter().for_each(memgroup::ShrinkerSlot::mark);
    let stuck = {
        let here = groups[0].clone();
        std::thread::spawn(move || here.reclaim(PAGE, None))
    };
    is_in.recv().unwrap();
    std::thread::sleep(Duration::from_millis(5));
    // The first walk that visits the stuck slot notes that the call lasts.
    groups[0].reclaim(PAGE, None);
    calls.store(0, Ordering::Relaxed);
    groups[1].reclaim(PAGE, None);
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    // A charge is refused after one round: the slot does not count as one that will soon be free.
    let rounds = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&rounds);
    let nothing = move |_: &Ask<'_>| {
        counted.fetch_add(1, Ordering::Relaxed);
        Scan::Freed { bytes: 0 }
    };
    let config = ShrinkerConfig::new("nothing").batch_bytes(1 << 40);
    let other = tenants.add_shrinker(config, Made(plenty, nothing)).unwrap();
    other.mark();
    assert!(tenants.try_charge(PAGE).is_err());
    assert_eq!(rounds.load(Ordering::Relaxed), 2, "calls at the last two priorities of a round");
    drop(go);
    stuck.join().unwrap();
    drop((slots, registration));
}

#[test]
fn quarantines_a_shrinker_after_three_overdue_calls() {
    let (_hierarchy, tenants) = parent(2, 10);
    let _held = tenants.try_charge(10 * PAGE).unwrap();
    let config = ShrinkerConfig::new("slow").patience(Duration::from_micros(100));
    let slow = Made(plenty, |_: &Ask<'_>| {
        std::thread::sleep(Duration::from_millis(1));
        Scan::Stopped { bytes: 0 }
    });
    let slow: Registration = {
        let registration = _hierarchy.add_shrinker(config, slow).unwrap();
        let slot = registration.attach(&tenants, 7).unwrap();
        slot.mark();
        let _ = tenants.try_charge(PAGE);
        drop(slot);
        registration
    };
    assert_eq!(slow.quarantine(), Some(Quarantine::Overdue));
}

#[test]
fn does_not_call_a_removed_shrinker() {
    let (_hierarchy, tenants) = parent(2, 10);
    let _held = tenants.try_charge(10 * PAGE).unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let count = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        plenty()
    };
    let shrinker = add(&tenants, "removed", count, |_| Scan::Freed { bytes: 0 });
    assert!(tenants.try_charge(PAGE).is_err());
    shrinker.remove().unwrap();
    let before = calls.load(Ordering::Relaxed);
    assert!(before > 0 && tenants.try_charge(PAGE).is_err());
    assert_eq!(calls.load(Ordering::Relaxed), before);
}

#[test]
fn asks_a_cache_by_hand_for_no_more_than_its_group_has() {
    let (_hierarchy, tenants) = parent(2, 100);
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    // It is empty, and does not stop.
    let empty = add(&tenants, "empty", plenty, move |_| {
        // ORDERING: Relaxed; a count.
        assert!(counted.fetch_add(1, Ordering::Relaxed) < 1000, "it is asked without end");
        Scan::Freed { bytes: 0 }
    });
    let id = empty.registration().id();
    for (held, most) in [(0, 1), (100 * PAGE, 100 * PAGE / BATCH + 1)] {
        let _held = tenants.try_charge(held).unwrap();
        // ORDERING: Relaxed; one thread.
        let before = calls.load(Ordering::Relaxed);
        assert_eq!(tenants.ask_shrinker(id, u64::MAX).unwrap().bytes, 0);
        // ORDERING: Relaxed; one thread.
        let asked = calls.load(Ordering::Relaxed) - before;
        assert!((1..=most).contains(&asked), "{asked} calls");
    }
    assert_eq!(empty.registration().quarantine(), None);
}
