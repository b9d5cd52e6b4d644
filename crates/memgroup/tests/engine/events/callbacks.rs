//! Callbacks for events: delivered by threads that come for it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use memgroup::{Config, EventSubscription, Group, Hierarchy};

use super::within_a_minute;

fn tenant() -> (Hierarchy, Group) {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let alice = hierarchy.create("/alice").unwrap();
    alice.set_max(4096).unwrap();
    (hierarchy, alice)
}

fn event(group: &Group) {
    group.try_charge(1 << 30).unwrap_err();
}

fn now(hierarchy: &Hierarchy) -> usize {
    hierarchy.deliver_events(Instant::now())
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

#[test]
fn calls_a_callback_once_for_events_since_its_last_call() {
    let (hierarchy, alice) = tenant();
    event(&alice);
    let told = Arc::new(Mutex::new(Vec::new()));
    let subscription = hierarchy.root().on_events({
        let told = Arc::clone(&told);
        move |group, events| told.lock().unwrap().push((group.path(), events.max))
    });
    assert_eq!(now(&hierarchy), 0, "that was before");
    for _ in 0..3 {
        event(&alice);
    }
    assert_eq!((now(&hierarchy), now(&hierarchy)), (1, 0));
    event(&alice);
    assert_eq!(now(&hierarchy), 1);
    assert_eq!(*told.lock().unwrap(), [("/".to_owned(), 4), ("/".to_owned(), 5)]);
    assert_eq!((subscription.report().calls, subscription.report().panic), (2, None));
    drop(subscription);
    event(&alice);
    assert_eq!((now(&hierarchy), hierarchy.event_subscriptions()), (0, vec![]));
    assert_eq!(Arc::strong_count(&told), 1, "the callback went with its subscription");
}

#[test]
fn a_callback_that_panics_is_called_no_more_and_reported() {
    /// Panics when it is dropped, too.
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let (hierarchy, alice) = tenant();
    let bad = Bad;
    let panics = alice.on_events(move |_, events| {
        let _held = &bad;
        panic!("at {}", events.max);
    });
    let throws = alice.on_events(|_, _| std::panic::panic_any(Bad));
    let heard = Arc::new(AtomicU64::new(0));
    let good = alice.on_events({
        let heard = Arc::clone(&heard);
        move |_, events| heard.store(events.max, Ordering::SeqCst)
    });
    for round in 1..3 {
        event(&alice);
        assert_eq!(now(&hierarchy), if round == 1 { 3 } else { 1 });
        assert_eq!(heard.load(Ordering::SeqCst), round);
    }
    assert_eq!(panics.report().panic.as_deref(), Some("at 1"));
    assert_eq!(throws.report().panic.as_deref(), Some("a panic without a message"));
    let reported: Vec<bool> = hierarchy.event_subscriptions().iter().map(|one| one.panic.is_some()).collect();
    assert_eq!(reported, [true, true, false]);
    drop((panics, throws, good));
}

#[test]
fn a_callback_that_hangs_holds_up_only_its_thread() {
    within_a_minute(|| {
        let (hierarchy, alice) = tenant();
        let (release, held) = mpsc::channel::<()>();
        let (began, begins) = mpsc::channel();
        let hangs = alice.on_events(move |_, _| {
            began.send(()).unwrap();
            let _ = held.recv();
        });
        event(&alice);
        std::thread::scope(|scope| {
            let stuck = scope.spawn(|| hierarchy.deliver_events(far()));
            begins.recv().unwrap();
            assert!(hangs.report().running_for.is_some());
            let heard = Arc::new(AtomicU64::new(0));
            let other = alice.on_events({
                let heard = Arc::clone(&heard);
                move |_, events| heard.store(events.max, Ordering::SeqCst)
            });
            // Charges, waits and other callbacks go on.
            event(&alice);
            assert_eq!(now(&hierarchy), 1);
            assert_eq!(heard.load(Ordering::SeqCst), 2);
            drop(other);
            // When it has returned, a waiting thread tells it of events counted meanwhile.
            let waits = scope.spawn(|| hierarchy.deliver_events(far()));
            release.send(()).unwrap();
            assert_eq!(stuck.join().unwrap(), 1);
            begins.recv().unwrap();
            drop(release);
            assert_eq!(waits.join().unwrap(), 1);
        });
        assert_eq!((hangs.report().calls, hangs.report().running_for), (2, None));
    });
}

#[test]
fn a_callback_may_end_itself_or_others_and_make_events() {
    within_a_minute(|| {
        let (hierarchy, alice) = tenant();
        let slot: Arc<Mutex<Vec<EventSubscription>>> = Arc::default();
        let calls = Arc::new(AtomicU64::new(0));
        for _ in 0..3 {
            let (all, calls, alice) = (Arc::clone(&slot), Arc::clone(&calls), alice.clone());
            let one = alice.clone().on_events(move |_, _| {
                calls.fetch_add(1, Ordering::SeqCst);
                event(&alice);
                let ended = std::mem::take(&mut *all.lock().unwrap());
                drop(ended);
            });
            slot.lock().unwrap().push(one);
        }
        event(&alice);
        assert_eq!((now(&hierarchy), now(&hierarchy)), (1, 0));
        assert_eq!(calls.load(Ordering::SeqCst), 1, "the first one ended all three");
        drop(alice);
        assert_eq!(Arc::strong_count(&slot), 1, "no callback is left");
    });
}

#[test]
fn loses_no_event_between_makers_and_deliveries() {
    within_a_minute(|| {
        let (hierarchy, alice) = tenant();
        let (heard, over) = (Arc::new(AtomicU64::new(0)), AtomicBool::new(false));
        let subscription = hierarchy.root().on_events({
            let heard = Arc::clone(&heard);
            move |_, events| {
                let before = heard.swap(events.max, Ordering::SeqCst);
                assert!(before < events.max, "{before}, then {}", events.max);
            }
        });
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::SeqCst) {
                        hierarchy.deliver_events(Instant::now() + Duration::from_millis(100));
                    }
                });
            }
            for round in 1..=1000 {
                event(&alice);
                // The next event is made only when this one was heard of: a lost wake-up costs a deadline here.
                while heard.load(Ordering::SeqCst) < round {
                    std::thread::yield_now();
                }
            }
            over.store(true, Ordering::SeqCst);
        });
        assert_eq!((subscription.report().panic, heard.load(Ordering::SeqCst)), (None, 1000));
    });
}
