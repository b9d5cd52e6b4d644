//! Hooks that panic, lie, and come back into the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::{Group, Hierarchy, KillAnswer, KillOutcome, KillRequest, Maintenance};

use super::tenant::{LONG, PAGE, Tenant, full, kills, outcomes};

#[test]
fn a_hook_that_panics_is_set_aside_and_the_next_is_asked() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let (bad, good) = (Tenant::new(&parent, "bad", 60), Tenant::new(&parent, "good", 40));
    let hook = bad.group.set_kill_hook(|_: &KillRequest<'_>| panic!("a hook")).unwrap();
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

/// A panic payload that panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("the panic's payload panics");
    }
}

#[test]
fn catches_a_panic_with_a_payload_that_panics() {
    let (_hierarchy, parent) = full(2, 100, LONG);
    let bad = Tenant::new(&parent, "bad", 100);
    let memory = Arc::clone(&bad.memory);
    let hook = bad.group.set_kill_hook(move |_: &KillRequest<'_>| {
        memory.lock().unwrap().truncate(90);
        std::panic::panic_any(Bomb)
    });
    assert!(parent.try_charge(20 * PAGE).is_err());
    assert_eq!(parent.usage_exact(), 90 * PAGE, "the bytes that it freed are free");
    assert!(hook.unwrap().is_set_aside());
}

#[test]
fn does_not_believe_a_hook_that_lies_about_freed_bytes() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let (liar, other) = (Tenant::new(&parent, "liar", 60), Tenant::new(&parent, "other", 40));
    let _liar = liar.answers(KillAnswer::Idle { freed: u64::MAX });
    let _other = other.answers(KillAnswer::Refused);
    let error = parent.try_charge(PAGE).unwrap_err();
    assert_eq!((error.usage(), error.max()), (100 * PAGE, Some(100 * PAGE)));
    assert_eq!((liar.calls(), other.calls()), (1, 1), "each is asked once for a charge");
    let idle = KillOutcome::Idle { freed: u64::MAX };
    assert_eq!(outcomes(&hierarchy)[0], ("liar".to_owned(), Some(idle)));
}

#[test]
fn asks_at_most_64_hooks_that_refuse() {
    let (_hierarchy, parent) = full(2, 1000, LONG);
    let tenants: Vec<Tenant> =
        (0..1000).map(|number| Tenant::new(&parent, &format!("{number}"), 1)).collect();
    let _hooks: Vec<_> = tenants.iter().map(|tenant| tenant.answers(KillAnswer::Refused)).collect();
    assert!(parent.try_charge(PAGE).is_err());
    assert_eq!(tenants.iter().map(Tenant::calls).sum::<u64>(), 64);
}

/// Calls every function that takes a lock of the engine or waits.
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
    // It may use the reserve, and no more. No group is killed for it.
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

/// Bytes that callbacks may charge beyond a limit.
trait Reserve {
    fn config_reserve(&self) -> u64;
}

impl Reserve for Group {
    fn config_reserve(&self) -> u64 {
        256 << 10
    }
}

#[test]
fn lets_hooks_call_the_whole_engine() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let _held = parent.try_charge(90 * PAGE).unwrap();
    let tenant = Tenant::new(&parent, "tenant", 10);
    let calls = Arc::new(AtomicU64::new(0));
    let (tree, group, counted) = (hierarchy.clone(), parent.clone(), Arc::clone(&calls));
    let hook = tenant.group.set_kill_hook(move |_: &KillRequest<'_>| {
        call_all(&tree, &group, counted.fetch_add(1, Ordering::Relaxed));
        KillAnswer::Refused
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
