//! From being told to stop to the end: one at a time, in time, or passed over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use memgroup::{Config, Hierarchy, KillAnswer, KillOutcome, KillRequest, SlotSource};
use xtask::Watchdog;

use super::tenant::{LONG, PAGE, Tenant, full, kills, outcomes};

const DIED: Option<KillOutcome> = Some(KillOutcome::Died);
const OVERDUE: Option<KillOutcome> = Some(KillOutcome::Overdue);

#[test]
fn kills_no_other_group_while_one_is_dying() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let (first, second) = (Tenant::new(&parent, "first", 60), Tenant::new(&parent, "second", 40));
    let _hooks = [&first, &second].map(|tenant| tenant.answers(KillAnswer::Dying));
    for _ in 0..10 {
        assert!(parent.try_charge(PAGE).is_err());
    }
    assert_eq!((first.calls(), second.calls()), (1, 0));
    assert_eq!((parent.events().oom, parent.events().oom_kill), (10, 1));
    assert_eq!(outcomes(&hierarchy), [("first".to_owned(), None)], "it is on");

    // A page less than half, and the last one of the half.
    first.memory.lock().unwrap().truncate(31);
    assert!(parent.try_charge(35 * PAGE).is_err());
    assert_eq!(second.calls(), 0);
    first.memory.lock().unwrap().truncate(30);
    assert_eq!(outcomes(&hierarchy), [("first".to_owned(), DIED)]);
    let took = hierarchy.kills()[0].took.expect("it has died");
    assert!(took <= hierarchy.kills()[0].at.elapsed());
    assert!(parent.try_charge(35 * PAGE).is_err());
    assert_eq!((first.calls(), second.calls()), (1, 1), "the larger one now");
}

#[test]
fn ends_a_kill_that_is_reported_done() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let (first, second) = (Tenant::new(&parent, "first", 60), Tenant::new(&parent, "second", 40));
    let _hooks = [&first, &second].map(|tenant| tenant.answers(KillAnswer::Dying));
    assert!(!first.group.kill_done(), "it was not told to stop");
    assert!(parent.try_charge(PAGE).is_err());
    assert!(!second.group.kill_done() && !parent.kill_done());
    assert!(first.group.kill_done());
    assert!(!first.group.kill_done(), "once");
    assert_eq!(outcomes(&hierarchy)[0], ("first".to_owned(), DIED));
    assert!(parent.try_charge(PAGE).is_err());
    assert_eq!((first.calls(), second.calls()), (2, 0), "it is the largest still");
}

#[test]
fn ends_a_kill_reported_done_within_the_hook() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let tenant = Tenant::new(&parent, "tenant", 100);
    let group = tenant.group.clone();
    let _hook = tenant.group.set_kill_hook(move |_: &KillRequest<'_>| {
        assert!(group.kill_done());
        KillAnswer::Dying
    });
    assert!(parent.try_charge(PAGE).is_err());
    assert_eq!(outcomes(&hierarchy), [("tenant".to_owned(), DIED)]);
}

#[test]
fn skips_an_overdue_group_until_it_ends() {
    const PATIENCE: Duration = Duration::from_millis(20);
    let _watchdog = Watchdog::over("a group that does not die in time");
    let (hierarchy, parent) = full(2, 100, PATIENCE);
    let (first, second) = (Tenant::new(&parent, "first", 60), Tenant::new(&parent, "second", 40));
    let _hooks = [first.answers(KillAnswer::Dying), second.dies()];
    let began = Instant::now();
    let charge = loop {
        match parent.try_charge(PAGE) {
            Ok(charge) => break charge,
            Err(_) => std::thread::yield_now(),
        }
    };
    assert!(began.elapsed() >= PATIENCE, "it had its time");
    assert_eq!((first.calls(), second.calls()), (1, 1));
    assert_eq!((first.group.oom_kills_overdue(), second.group.oom_kills_overdue()), (1, 0));
    let (first_died, second_died) = (("first".to_owned(), OVERDUE), ("second".to_owned(), DIED));
    assert_eq!(outcomes(&hierarchy), [first_died, second_died]);
    assert_eq!(hierarchy.kills()[0].took, None);

    // It is still skipped, although it is the largest, and there is no other.
    drop(charge);
    second.fill(40);
    second.group.set_oom_score(-1000).unwrap();
    assert!(parent.try_charge(PAGE).is_err());
    assert_eq!(first.calls(), 1);
    // It has ended after all, and comes to life again.
    first.free();
    first.fill(60);
    let report = &hierarchy.kills()[0];
    assert!(report.took.is_some_and(|took| took >= PATIENCE) && report.outcome == OVERDUE);
    assert!(parent.try_charge(PAGE).is_err());
    assert_eq!(first.calls(), 2);
}

#[test]
fn skips_a_hook_that_hangs() {
    const PATIENCE: Duration = Duration::from_millis(20);
    let _watchdog = Watchdog::over("a hook that hangs");
    let (hierarchy, parent) = full(4, 100, PATIENCE);
    let (first, second) = (Tenant::new(&parent, "first", 60), Tenant::new(&parent, "second", 40));
    let (is_in, hangs) = channel();
    let (free, goes_on) = channel::<()>();
    let ends = std::sync::Mutex::new((is_in, goes_on));
    let _first = first.group.set_kill_hook(move |_: &KillRequest<'_>| {
        let ends = ends.lock().unwrap();
        ends.0.send(()).unwrap();
        ends.1.recv().unwrap();
        KillAnswer::Dying
    });
    let _second = second.dies();
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| parent.try_charge(PAGE).map(drop));
        hangs.recv().unwrap();
        assert_eq!(outcomes(&hierarchy), [("first".to_owned(), None)]);
        while parent.try_charge(PAGE).is_err() {
            std::thread::yield_now();
        }
        assert_eq!((second.calls(), kills(&first.group)), (1, 0), "it has not answered yet");
        assert_eq!(outcomes(&hierarchy)[0], ("first".to_owned(), OVERDUE));
        second.fill(40);
        assert!(
            parent.try_charge(PAGE).is_ok() == (second.calls() == 2),
            "it is not asked while it is in a call"
        );
        free.send(()).unwrap();
        caller.join().unwrap().unwrap();
    });
    assert_eq!((kills(&first.group), first.group.oom_kills_overdue()), (1, 1));
    first.free();
    assert_eq!(outcomes(&hierarchy)[0], ("first".to_owned(), OVERDUE), "an outcome stays");
}

#[test]
fn two_charges_that_are_refused_at_once_kill_one() {
    for round in 0..50 {
        let (hierarchy, parent) = full(4, 100, LONG);
        let tenants: Vec<Tenant> =
            (0..5).map(|number| Tenant::new(&parent, &format!("{number}"), 20)).collect();
        let _hooks: Vec<_> = tenants.iter().map(|tenant| tenant.answers(KillAnswer::Dying)).collect();
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| assert!(parent.try_charge(PAGE).is_err()))));
        });
        assert_eq!((parent.events().oom_kill, hierarchy.kills().len()), (1, 1), "round {round}");
        assert_eq!(parent.events().oom, 4);
    }
}

#[test]
fn does_not_await_a_kill_outside_the_full_group() {
    let (_hierarchy, parent) = full(2, 200, LONG);
    let (inner, beside) = (parent.create("inner").unwrap(), Tenant::new(&parent, "beside", 150));
    inner.set_max(50 * PAGE).unwrap();
    let tenant = Tenant::new(&inner, "tenant", 50);
    let _hooks = [&beside, &tenant].map(|tenant| tenant.answers(KillAnswer::Dying));
    assert!(parent.try_charge(PAGE).is_err());
    assert_eq!((beside.calls(), tenant.calls()), (1, 0));
    assert!(inner.try_charge(PAGE).is_err());
    assert_eq!((beside.calls(), tenant.calls()), (1, 1), "bytes freed beside it are no help");
    beside.group.kill_done();
    assert!(parent.try_charge(PAGE).is_err());
    assert_eq!(beside.calls(), 1, "a group in it is dying");
}

#[test]
fn keeps_bytes_freed_on_the_charging_thread_for_its_charge() {
    let (_hierarchy, parent) = full(4, 100, LONG);
    let tenant = Tenant::new(&parent, "tenant", 100);
    let (memory, greedy) = (Arc::clone(&tenant.memory), parent.create("greedy").unwrap());
    let hook = tenant.group.set_kill_hook(move |_: &KillRequest<'_>| {
        let freed = memory.lock().unwrap().pop();
        drop(freed);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| assert!(greedy.try_charge(PAGE).is_err(), "kept for the requester"));
            other.join().unwrap();
        });
        KillAnswer::Idle { freed: PAGE }
    });
    let hook = hook.unwrap();
    let group = parent.create("group").unwrap();
    let charges: Vec<_> = (0..20).map(|_| group.try_charge(PAGE).expect("it was freed for it")).collect();
    assert!(!hook.is_set_aside(), "nothing was wrong within");
    assert_eq!((group.usage_exact(), tenant.group.usage_exact()), (20 * PAGE, 80 * PAGE));
    drop(charges);
}

#[test]
fn records_the_time_at_which_half_was_freed() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let tenant = Tenant::new(&parent, "tenant", 100);
    let _hook = tenant.answers(KillAnswer::Dying);
    assert!(parent.try_charge(PAGE).is_err());
    tenant.free();
    let gone = Instant::now();
    std::thread::sleep(Duration::from_millis(50));
    let kill = &hierarchy.kills()[0];
    assert!(kill.at + kill.took.unwrap() <= gone, "{kill:?}");
}

#[test]
fn chooses_a_queued_victim_again_when_the_hook_before_hangs() {
    const PATIENCE: Duration = Duration::from_millis(20);
    let _watchdog = Watchdog::over("a group of which one hook hangs");
    let (hierarchy, parent) = full(4, 100, PATIENCE);
    parent.set_oom_group(true);
    let tenants = [60, 40].map(|pages| Tenant::new(&parent, &pages.to_string(), pages));
    let (is_in, hangs) = channel();
    let (free, goes_on) = channel::<()>();
    let ends = Arc::new(std::sync::Mutex::new((is_in, goes_on)));
    let calls = Arc::new(AtomicU64::new(0));
    // Whichever is called first hangs.
    let _hooks = tenants.each_ref().map(|tenant| {
        let (ends, calls, memory) = (Arc::clone(&ends), Arc::clone(&calls), Arc::clone(&tenant.memory));
        tenant.group.set_kill_hook(move |_: &KillRequest<'_>| {
            if calls.fetch_add(1, Ordering::Relaxed) == 0 {
                let ends = ends.lock().unwrap();
                ends.0.send(()).unwrap();
                ends.1.recv().unwrap();
            }
            memory.lock().unwrap().clear();
            KillAnswer::Dying
        })
    });
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| parent.try_charge(PAGE).map(drop));
        hangs.recv().unwrap();
        assert!(parent.try_charge(PAGE).is_err() && calls.load(Ordering::Relaxed) == 1, "it has its time");
        while parent.try_charge(PAGE).is_err() {
            std::thread::yield_now();
        }
        assert_eq!(
            (calls.load(Ordering::Relaxed), hierarchy.kills().len()),
            (2, 2),
            "the other one has died"
        );
        free.send(()).unwrap();
        caller.join().unwrap().unwrap();
    });
    assert_eq!(
        (parent.events().oom_kill, parent.events_local().oom_group_kill),
        (2, 2),
        "by one charge each"
    );
    assert!(hierarchy.kills().iter().all(|kill| kill.outcome.is_some()));
}

#[test]
fn chooses_an_overdue_victim_again_after_ten_patiences() {
    let patience = Duration::from_millis(2);
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).kill_patience(patience);
    let hierarchy = Hierarchy::new(config).unwrap();
    let full = hierarchy.create("/full").unwrap();
    full.set_max(1000).unwrap();
    let (victim, other) = (full.create("victim").unwrap(), full.create("other").unwrap());
    let _held = victim.try_charge(900).unwrap();
    let _hook = victim.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Dying).unwrap();
    assert!(other.try_charge(200).is_err());
    assert_eq!(victim.events_local().oom_kill, 1);
    std::thread::sleep(11 * patience);
    assert!(other.try_charge(200).is_err());
    assert_eq!(victim.events_local().oom_kill, 2, "it was passed over for ten times its patience");
    std::thread::sleep(11 * patience);
    assert_eq!(hierarchy.kills().len(), 2);
    full.set_max(1 << 30).unwrap();
    let hits = victim.stock().hits;
    (0..100).for_each(|_| drop(victim.try_charge(10).unwrap()));
    assert!(victim.stock().hits - hits > 90, "{:?}", victim.stock());
}
