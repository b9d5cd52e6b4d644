//! Hooks that panic, lie, and come back into the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::{Group, Hierarchy, KillOutcome, Killed, Killing, Maintenance};

use super::tenant::{LONG, PAGE, Tenant, full, kills, outcomes};

#[test]
fn a_hook_that_panics_is_set_aside_and_the_next_is_asked() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let (bad, good) = (Tenant::new(&parent, "bad", 60), Tenant::new(&parent, "good", 40));
    let hook = bad.group.set_kill_hook(|_: &Killing<'_>| panic!("a hook")).unwrap();
    let _good = good.dies();
    assert!(!hook.is_set_aside());
    let charge = parent.try_charge(PAGE).unwrap();
    assert!(hook.is_set_aside() && kills(&bad.group) == 0);
    let of = |name: &str, outcome| (name.to_owned(), Some(outcome));
    assert_eq!(outcomes(&hierarchy), [of("bad", KillOutcome::Panicked), of("good", KillOutcome::Died)]);
    drop(charge);
    good.fill(40);
    let charge = parent.try_charge(PAGE).unwrap();
    assert_eq!((hierarchy.kills().len(), good.calls()), (3, 2), "the bad one is not asked again");
    drop(charge);
    good.fill(40);
    hook.reinstate();
    assert!(!hook.is_set_aside());
    let _charge = parent.try_charge(PAGE).unwrap();
    assert_eq!(hierarchy.kills().len(), 5);
}

/// What is thrown, and throws when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("the panic's payload panics");
    }
}

#[test]
fn a_panic_whose_payload_panics_is_caught_too_and_nothing_is_lost() {
    let (_hierarchy, parent) = full(2, 100, LONG);
    let bad = Tenant::new(&parent, "bad", 100);
    let memory = Arc::clone(&bad.memory);
    let hook = bad.group.set_kill_hook(move |_: &Killing<'_>| {
        memory.lock().unwrap().truncate(90);
        std::panic::panic_any(Bomb)
    });
    assert!(parent.try_charge(20 * PAGE).is_err());
    assert_eq!(parent.usage_exact(), 90 * PAGE, "what it has freed is free");
    assert!(hook.unwrap().is_set_aside());
}

#[test]
fn a_hook_that_lies_about_what_it_freed_is_not_believed() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let (liar, other) = (Tenant::new(&parent, "liar", 60), Tenant::new(&parent, "other", 40));
    let _liar = liar.answers(Killed::Idle { freed: u64::MAX });
    let _other = other.answers(Killed::Refused);
    let error = parent.try_charge(PAGE).unwrap_err();
    assert_eq!((error.usage(), error.max()), (100 * PAGE, 100 * PAGE));
    assert_eq!((liar.calls(), other.calls()), (1, 1), "each is asked once for a charge");
    let idle = KillOutcome::Idle { freed: u64::MAX };
    assert_eq!(outcomes(&hierarchy)[0], ("liar".to_owned(), Some(idle)));
}

#[test]
fn a_charge_asks_no_more_than_so_many_hooks_that_refuse() {
    let (_hierarchy, parent) = full(2, 1000, LONG);
    let tenants: Vec<Tenant> =
        (0..1000).map(|number| Tenant::new(&parent, &format!("{number}"), 1)).collect();
    let _hooks: Vec<_> = tenants.iter().map(|tenant| tenant.answers(Killed::Refused)).collect();
    assert!(parent.try_charge(PAGE).is_err());
    assert_eq!(tenants.iter().map(Tenant::calls).sum::<u64>(), 64);
}

/// Calls whatever takes a lock of the engine or waits for something.
fn call_all(hierarchy: &Hierarchy, group: &Group, number: u64) {
    let outer = hierarchy.create(&format!("/outer{number}")).unwrap();
    let inner = Tenant::new(&outer, "inner", 1);
    let hook = inner.dies();
    hierarchy.maintain(Maintenance::new().expedited());
    assert!(hierarchy.kills().last().is_some_and(|kill| kill.outcome.is_none()), "this one is on");
    assert_eq!(group.reclaim(PAGE, None).scans, 0);
    group.set_max(group.max()).unwrap();
    group.drain();
    let _ = (group.stock(), group.usage_exact(), hierarchy.dying(), group.events());
    // It may use the reserve, and no more; nobody is killed for it.
    drop(group.try_charge(16 * PAGE).unwrap());
    assert!(group.try_charge(group.config_reserve() + PAGE).is_err());
    inner.group.set_max(0).unwrap();
    assert!(inner.group.try_charge(1 << 30).is_err());
    assert_eq!(inner.calls(), 0);
    hook.remove().unwrap();
    inner.free();
    inner.group.remove().unwrap();
    outer.remove().unwrap();
}

/// What callbacks may charge beyond a limit.
trait Reserve {
    fn config_reserve(&self) -> u64;
}

impl Reserve for Group {
    fn config_reserve(&self) -> u64 {
        256 << 10
    }
}

#[test]
fn hooks_may_call_whatever_there_is() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let _held = parent.try_charge(90 * PAGE).unwrap();
    let tenant = Tenant::new(&parent, "tenant", 10);
    let calls = Arc::new(AtomicU64::new(0));
    let (tree, group, counted) = (hierarchy.clone(), parent.clone(), Arc::clone(&calls));
    let hook = tenant.group.set_kill_hook(move |_: &Killing<'_>| {
        call_all(&tree, &group, counted.fetch_add(1, Ordering::Relaxed));
        Killed::Refused
    });
    std::thread::scope(|scope| {
        (0..3).for_each(|_| drop(scope.spawn(|| assert!(parent.try_charge(PAGE).is_err()))));
    });
    let hook = hook.unwrap();
    assert!(!hook.is_set_aside(), "nothing has panicked");
    assert!(calls.load(Ordering::Relaxed) >= 1);
    drop((hook, tenant));
    assert_eq!(parent.usage_exact(), 90 * PAGE);
}
