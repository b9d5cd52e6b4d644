//! Hooks come and go, and so do their groups.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memgroup::{
    Config, Hierarchy, KillAnswer, KillHookError, KillOutcome, KillRegistration, KillRequest, SlotSource,
};

use super::tenant::{LONG, PAGE, Tenant, full, outcomes};

#[test]
fn refuses_a_second_hook_and_names_the_group() {
    let (_hierarchy, parent) = full(2, 10, LONG);
    let tenant = Tenant::new(&parent, "tenant", 10);
    let hook = tenant.answers(KillAnswer::Refused);
    let error = tenant.group.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Dying).err().unwrap();
    assert_eq!(error, KillHookError::Exists { group: "/tenants/tenant".to_owned() });
    assert!(error.to_string().contains("/tenants/tenant"));
    assert_eq!(hook.group(), &tenant.group);
    drop(hook);
    let _other = tenant.dies();
    let _charge = parent.try_charge(PAGE).unwrap();
    assert_eq!(tenant.calls(), 1, "it was the second one's");
}

#[test]
fn a_group_that_was_removed_gets_no_hook() {
    let (_hierarchy, parent) = full(2, 10, LONG);
    let tenant = Tenant::new(&parent, "tenant", 1);
    tenant.group.remove().unwrap();
    let error = tenant.group.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Dying).err().unwrap();
    assert_eq!(error, KillHookError::Removed { group: "/tenants/tenant".to_owned() });
}

#[test]
fn kills_a_removed_group_that_still_holds_memory() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let tenant = Tenant::new(&parent, "tenant", 100);
    let hook = tenant.dies();
    tenant.group.remove().unwrap();
    let _charge = parent.try_charge(PAGE).unwrap();
    assert_eq!((tenant.calls(), parent.usage_exact()), (1, PAGE));
    drop((hook, tenant));
    assert!(hierarchy.dying().is_empty());
    let next = parent.create("next").unwrap();
    assert_eq!(
        hierarchy.kills()[0].victim,
        "/tenants/tenant",
        "the next group has its place, and not its report"
    );
    drop(next);
}

#[test]
fn a_group_dies_on_when_its_hook_is_dropped() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let (first, second) = (Tenant::new(&parent, "first", 60), Tenant::new(&parent, "second", 40));
    let hooks = [&first, &second].map(|tenant| tenant.answers(KillAnswer::Dying));
    assert!(parent.try_charge(PAGE).is_err());
    let [hook, _second] = hooks;
    drop(hook);
    assert_eq!(outcomes(&hierarchy), [("first".to_owned(), None)]);
    assert!(parent.try_charge(PAGE).is_err());
    assert_eq!((first.calls(), second.calls()), (1, 0), "its memory is on its way");
    first.free();
    assert_eq!(outcomes(&hierarchy), [("first".to_owned(), Some(KillOutcome::Died))]);
    let _held = parent.try_charge(60 * PAGE).unwrap();
    assert!(parent.try_charge(PAGE).is_err());
    assert_eq!((first.calls(), second.calls()), (1, 1));
}

/// Says when it is dropped.
struct Told(Arc<AtomicU64>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn drops_a_hook_that_removes_itself_after_its_call() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let tenant = Tenant::new(&parent, "tenant", 100);
    let own: Arc<Mutex<Option<KillRegistration>>> = Arc::default();
    let (drops, mine, memory) = (Arc::new(AtomicU64::new(0)), Arc::clone(&own), Arc::clone(&tenant.memory));
    let told = Told(Arc::clone(&drops));
    let seen = Arc::clone(&drops);
    let hook = tenant.group.set_kill_hook(move |killing: &KillRequest<'_>| {
        let _told = &told;
        let hook = mine.lock().unwrap().take().unwrap();
        assert!(
            matches!(hook.remove(), Err(KillHookError::FromWithin { group }) if group == "/tenants/tenant")
        );
        let error = killing.group.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Refused).err();
        assert_eq!(error, Some(KillHookError::InCall { group: "/tenants/tenant".to_owned() }));
        assert_eq!(seen.load(Ordering::Relaxed), 0, "it is in use");
        memory.lock().unwrap().clear();
        KillAnswer::Dying
    });
    *own.lock().unwrap() = Some(hook.unwrap());
    let _charge = parent.try_charge(PAGE).unwrap();
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    assert_eq!(outcomes(&hierarchy), [("tenant".to_owned(), Some(KillOutcome::Died))]);
    assert_eq!(tenant.group.events().oom_kill, 1);
    let _next = tenant.answers(KillAnswer::Refused);
}

#[test]
fn leaves_nothing_when_a_hook_drops_its_groups_last_handle() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let (group, memory) = {
        let tenant = Tenant::new(&parent, "tenant", 100);
        (tenant.group.clone(), Arc::clone(&tenant.memory))
    };
    let own: Arc<Mutex<Option<KillRegistration>>> = Arc::default();
    let (mine, handle) = (Arc::clone(&own), Mutex::new(Some(group.clone())));
    let hook = group.set_kill_hook(move |_: &KillRequest<'_>| {
        let group = handle.lock().unwrap().take().unwrap();
        memory.lock().unwrap().clear();
        group.remove().unwrap();
        drop((mine.lock().unwrap().take(), group));
        KillAnswer::Dying
    });
    *own.lock().unwrap() = Some(hook.unwrap());
    drop(group);
    let _charge = parent.try_charge(100 * PAGE).unwrap();
    assert!(hierarchy.dying().is_empty() && parent.children().is_empty());
    assert_eq!(parent.events().oom_kill, 1);
    assert_eq!(hierarchy.kills()[0].outcome, Some(KillOutcome::Died));
}

#[test]
fn the_last_64_calls_are_known() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let tenant = Tenant::new(&parent, "tenant", 100);
    let _hook = tenant.answers(KillAnswer::Refused);
    for asked in 1..=100 {
        assert!(parent.try_charge(asked).is_err());
    }
    let kills = hierarchy.kills();
    assert!(kills.iter().map(|kill| kill.asked_bytes).eq(37..=100), "the oldest first");
    assert!(kills.windows(2).all(|pair| pair[0].at <= pair[1].at));
    let last = kills.last().unwrap();
    assert_eq!((last.victim.as_str(), last.requester.as_str()), ("/tenants/tenant", "/tenants"));
    assert_eq!((last.full.as_str(), last.unit.as_deref(), last.usage_bytes), ("/tenants", None, 100 * PAGE));
}

#[test]
fn forgets_the_kills_of_a_hierarchy_that_is_used_again() {
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).depth_max(7);
    for _ in 0..3 {
        let hierarchy = Hierarchy::new(config).unwrap();
        let group = hierarchy.create("/group").unwrap();
        assert!(hierarchy.kills().is_empty() && group.oom_score() == 0 && !group.oom_group());
        group.set_oom_score(5).unwrap();
        group.set_oom_group(true);
        group.set_max(PAGE).unwrap();
        let tenant = Tenant::of(&group, 1);
        let _hook = tenant.dies();
        drop(group.try_charge(PAGE).unwrap());
        assert_eq!((hierarchy.kills().len(), group.events().oom_group_kill), (1, 1));
    }
}

#[test]
fn a_patience_that_is_none_or_absurd_is_refused() {
    for patience in [Duration::ZERO, Duration::from_micros(999), Duration::from_secs(3601), Duration::MAX] {
        let error = Hierarchy::new(Config::new().kill_patience(patience)).unwrap_err().to_string();
        assert!(error.contains("kill_patience") && error.contains("1000 to 3600000000"), "{error}");
    }
}

#[test]
fn finds_the_largest_of_ten_thousand_groups() {
    const GROUPS: u64 = 10_000;
    let (_hierarchy, parent) = full(2, 2 * GROUPS, LONG);
    let tenants: Vec<Tenant> = (0..GROUPS)
        .map(|number| Tenant::new(&parent, &format!("{number}"), 1 + u64::from(number == 7777)))
        .collect();
    let hooks: Vec<_> = tenants.iter().map(Tenant::dies).collect();
    let _rest = parent.try_charge((GROUPS - 1) * PAGE).unwrap();
    let _charge = parent.try_charge(2 * PAGE).unwrap();
    assert_eq!((tenants[7777].calls(), parent.events().oom_kill), (1, 1));
    parent.set_oom_group(true);
    tenants[7777].fill(0);
    let _all = parent.try_charge((GROUPS - 1) * PAGE).unwrap();
    assert_eq!(parent.events().oom_kill, 1 + GROUPS);
    drop(hooks);
}

#[test]
fn reports_keep_the_paths_of_groups_that_are_gone() {
    let long = "x".repeat(200);
    let (hierarchy, parent) = full(2, 100, LONG);
    let above = parent.create("above").unwrap();
    above.set_oom_group(true);
    let victim = Tenant::new(&above, "victim", 60);
    let requester = parent.create("requester").unwrap();
    let of_long = parent.create(&long).unwrap();
    let hook = victim.dies();
    let _rest = parent.try_charge(40 * PAGE).unwrap();
    let charge = requester.try_charge(PAGE).unwrap();
    victim.fill(59);
    let other = of_long.try_charge(PAGE).unwrap();
    drop((hook, charge, other));
    let Tenant { group: of_victim, memory, .. } = victim;
    drop(memory);
    let mut groups = vec![of_victim, above, requester, of_long];
    let path_of = |name: &str| format!("/tenants/{name}");
    for is_there in [true, false] {
        let kills = hierarchy.kills();
        for kill in &kills {
            assert_eq!((kill.victim.as_str(), kill.full.as_str()), ("/tenants/above/victim", "/tenants"));
            assert_eq!(kill.unit.as_deref(), Some("/tenants/above"));
        }
        let requesters = [&kills[0], &kills[1]].map(|kill| kill.requester.clone());
        let shown = if is_there { path_of(&long) } else { format!("…{}", &long[..157]) };
        assert_eq!(requesters, [path_of("requester"), shown]);
        groups.drain(..).for_each(|group| group.remove().unwrap());
    }
}
