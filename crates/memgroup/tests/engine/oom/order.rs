//! The choice of a victim: by score, then by size, and none in vain.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memgroup::{ChargeErrorKind, Config, Group, Hierarchy, KillAnswer, KillRequest, SlotSource};

use super::tenant::{LONG, PAGE, Tenant, full, kills, outcomes};

/// The names of those that were asked, in this order; all refuse.
fn asked(parent: &Group, hierarchy: &Hierarchy) -> Vec<String> {
    let before = hierarchy.kills().len();
    assert!(parent.try_charge(PAGE).is_err());
    outcomes(hierarchy).into_iter().skip(before).map(|(name, _)| name).collect()
}

#[test]
fn asks_the_highest_score_then_the_largest_then_the_lowest_id() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let mut groups = ["a", "b", "c", "d", "e"].map(|name| parent.create(name).unwrap());
    let names = |groups: &[Group; 5], order: &[usize]| -> Vec<String> {
        order.iter().map(|&at| groups[at].name()).collect()
    };
    groups.sort_by_key(Group::id);
    let sizes = [10, 30, 30, 20, 10];
    let tenants: [Tenant; 5] = std::array::from_fn(|at| Tenant::of(&groups[at], sizes[at]));
    let _hooks = tenants.each_ref().map(|tenant| tenant.answers(KillAnswer::Refused));
    assert_eq!(asked(&parent, &hierarchy), names(&groups, &[1, 2, 3, 0, 4]));
    tenants[4].group.set_oom_score(1).unwrap();
    tenants[0].group.set_oom_score(1000).unwrap();
    tenants[2].group.set_oom_score(-999).unwrap();
    tenants[1].group.set_oom_score(-1000).unwrap();
    assert_eq!(asked(&parent, &hierarchy), names(&groups, &[0, 4, 3, 2]));
    assert!(tenants.iter().all(|tenant| kills(&tenant.group) == 0), "no group was killed");
}

#[test]
fn a_score_out_of_range_is_refused_and_changes_nothing() {
    let (_hierarchy, group) = full(2, 1, LONG);
    group.set_oom_score(7).unwrap();
    for score in [-1001, 1001, i32::MIN, i32::MAX] {
        let error = group.set_oom_score(score).unwrap_err().to_string();
        assert!(error.contains(&score.to_string()) && error.contains("-1000 (never) to 1000"), "{error}");
    }
    assert_eq!(group.oom_score(), 7);
    group.set_oom_score(-1000).unwrap();
    assert_eq!(group.oom_score(), -1000);
}

#[test]
fn a_small_neighbour_is_never_killed_beside_a_giant() {
    let (_hierarchy, parent) = full(2, 1000, LONG);
    let small: Vec<Tenant> = (0..10).map(|number| Tenant::new(&parent, &format!("{number}"), 5)).collect();
    let giant = Tenant::new(&parent, "giant", 950);
    let _hooks: Vec<_> = small.iter().chain([&giant]).map(Tenant::dies).collect();
    // It is one of the small that asks, and that is not its fault.
    let _charge = small[3].group.try_charge(PAGE).unwrap();
    assert_eq!((kills(&giant.group), parent.events().oom_kill), (1, 1));
}

#[test]
fn kills_no_group_when_all_together_are_too_small() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let (a, b) = (Tenant::new(&parent, "a", 20), Tenant::new(&parent, "b", 20));
    let unkillable = Tenant::new(&parent, "unkillable", 60);
    let _hooks = [&a, &b].map(Tenant::dies);
    assert!(unkillable.group.try_charge(41 * PAGE).is_err());
    assert!(hierarchy.kills().is_empty() && a.calls() + b.calls() == 0);
    assert_eq!(parent.events_local().oom, 1, "it is out of memory all the same");
    // 40 pages are there to be had, and it takes both.
    let _charge = unkillable.group.try_charge(40 * PAGE).unwrap();
    assert_eq!((a.calls(), b.calls(), parent.events().oom_kill, parent.events().oom), (1, 1, 2, 2));
}

#[test]
fn refuses_a_giant_that_cannot_be_stopped_and_spares_others() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let (small, giant) = (Tenant::new(&parent, "small", 30), Tenant::new(&parent, "giant", 70));
    let _hooks = (small.dies(), giant.answers(KillAnswer::Refused));
    assert!(giant.group.try_charge(PAGE).is_err(), "30 pages could be had from its neighbour");
    assert_eq!((giant.calls(), small.calls()), (1, 0));
    assert_eq!((parent.events().oom, parent.events().oom_kill), (1, 0));
    // It is no requester now, and says no all the same.
    let _charge = parent.try_charge(PAGE).unwrap();
    assert_eq!((giant.calls(), small.calls(), hierarchy.kills().len()), (2, 1, 3));
}

#[test]
fn kills_no_group_for_a_charge_that_never_fits() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let tenant = Tenant::new(&parent, "tenant", 100);
    let _hook = tenant.dies();
    assert!(parent.try_charge(101 * PAGE).is_err());
    assert_eq!((tenant.calls(), hierarchy.kills().len()), (0, 0));
}

#[test]
fn a_group_that_holds_nothing_is_not_asked() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let empty = Tenant::new(&parent, "empty", 0);
    empty.group.set_oom_score(1000).unwrap();
    let _hook = empty.dies();
    let _held = parent.try_charge(100 * PAGE).unwrap();
    assert!(parent.try_charge(PAGE).is_err());
    assert!(hierarchy.kills().is_empty());
}

#[test]
fn a_hook_covers_groups_below_that_have_none_of_their_own() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let service = parent.create("service").unwrap();
    let (plain, own) = (Tenant::new(&service, "plain", 30), Tenant::new(&service, "own", 45));
    let other = Tenant::new(&parent, "other", 25);
    let told: Arc<Mutex<Vec<(u64, bool)>>> = Arc::default();
    let seen = Arc::clone(&told);
    let _service = service.set_kill_hook(move |killing: &KillRequest<'_>| {
        seen.lock().unwrap().push((killing.usage, killing.kills_requester));
        KillAnswer::Refused
    });
    let _hooks = [own.answers(KillAnswer::Refused), other.answers(KillAnswer::Refused)];
    assert_eq!(asked(&parent, &hierarchy), ["own", "service", "other"], "45, 30 and 25 pages");
    assert!(own.group.try_charge(PAGE).is_err());
    assert!(plain.group.try_charge(PAGE).is_err());
    let pages = 30 * PAGE;
    // The charge of `own` ends with its own hook's answer.
    assert_eq!(*told.lock().unwrap(), [(pages, false), (pages, true)]);
}

#[test]
fn only_groups_that_count_in_the_full_one_die_for_it() {
    let (_hierarchy, parent) = full(2, 1000, LONG);
    let (inner, beside) = (parent.create("inner").unwrap(), Tenant::new(&parent, "beside", 500));
    inner.set_max(10 * PAGE).unwrap();
    let tenant = Tenant::new(&inner, "tenant", 10);
    let _hooks = [&tenant, &beside].map(Tenant::dies);
    let _charge = inner.try_charge(PAGE).unwrap();
    assert_eq!((tenant.calls(), beside.calls()), (1, 0));
    assert_eq!((inner.events_local().oom, parent.events_local().oom), (1, 0));
}

#[test]
fn kills_no_group_below_an_unaccounted_root() {
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).account_root(false);
    let hierarchy = Hierarchy::new(config).unwrap();
    let root = hierarchy.root();
    root.set_max(PAGE).unwrap();
    let tenant = Tenant::new(&root, "tenant", 100);
    let _hook = tenant.dies();
    let _held = root.try_charge(PAGE).unwrap();
    assert!(root.try_charge(PAGE).is_err());
    assert_eq!(tenant.calls(), 0);
}

#[test]
fn kills_the_requester_when_it_is_the_giant() {
    let (_hierarchy, parent) = full(2, 100, LONG);
    let (hog, small) = (Tenant::new(&parent, "hog", 90), Tenant::new(&parent, "small", 10));
    let told = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&told);
    let _hog = hog.group.set_kill_hook(move |killing: &KillRequest<'_>| {
        let names = [killing.group, killing.requester, killing.full].map(Group::name);
        seen.lock().unwrap().push((names, killing.asked, killing.kills_requester));
        KillAnswer::Dying
    });
    let _small = small.dies();
    assert!(hog.group.try_charge(3 * PAGE).is_err());
    let names = ["hog", "hog", "tenants"].map(str::to_owned);
    assert_eq!(*told.lock().unwrap(), [(names, 3 * PAGE, true)]);
    assert!(small.group.try_charge(PAGE).is_err(), "the hog is dying, so no other group is killed");
    hog.free();
    let _charge = small.group.try_charge(PAGE).unwrap();
    assert_eq!((small.calls(), parent.events().oom_kill), (0, 1));
}

#[test]
fn a_waiter_with_a_refusing_hook_has_no_other_group_killed() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let (hog, small) = (Tenant::new(&parent, "hog", 90), Tenant::new(&parent, "small", 10));
    let _hooks = (hog.answers(KillAnswer::Refused), small.dies());
    // The next victim is chosen every tenth of a second.
    let error = hog.group.charge_until(PAGE, Instant::now() + Duration::from_millis(500)).unwrap_err();
    assert_eq!(error.kind(), ChargeErrorKind::Deadline);
    assert_eq!((small.calls(), small.group.usage_exact()), (0, 10 * PAGE));
    assert!(outcomes(&hierarchy).iter().all(|(name, _)| name == "hog"));
}

#[test]
fn shrinks_an_idle_group_and_asks_the_next() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let (idle, busy) = (Tenant::new(&parent, "idle", 60), Tenant::new(&parent, "busy", 40));
    let memory = Arc::clone(&idle.memory);
    let _idle = idle.group.set_kill_hook(move |_: &KillRequest<'_>| {
        memory.lock().unwrap().truncate(50);
        KillAnswer::Idle { freed: 10 * PAGE }
    });
    let _busy = busy.dies();
    let enough = parent.try_charge(10 * PAGE).unwrap();
    assert_eq!((idle.group.usage_exact(), busy.calls()), (50 * PAGE, 0));
    let _more = parent.try_charge(10 * PAGE).unwrap();
    assert_eq!((busy.calls(), kills(&idle.group), kills(&busy.group)), (1, 0, 1));
    let idle = Some(memgroup::KillOutcome::Idle { freed: 10 * PAGE });
    let died = Some(memgroup::KillOutcome::Died);
    let outcomes = outcomes(&hierarchy).into_iter().map(|(_, outcome)| outcome);
    assert!(outcomes.eq([idle, idle, died]));
    drop(enough);
}

#[test]
fn kills_no_group_when_switched_off() {
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).oom(false);
    let hierarchy = Hierarchy::new(config).unwrap();
    let group = hierarchy.create("/group").unwrap();
    group.set_max(10 * PAGE).unwrap();
    let tenant = Tenant::of(&group, 10);
    let _hook = tenant.dies();
    assert!(group.try_charge(PAGE).is_err());
    assert_eq!((tenant.calls(), group.events().oom), (0, 1));
}

#[test]
fn a_hierarchy_without_stock_kills_as_well() {
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).stock_cap_bytes(0);
    let hierarchy = Hierarchy::new(config).unwrap();
    let group = hierarchy.create("/group").unwrap();
    group.set_max(10 * PAGE).unwrap();
    let tenant = Tenant::of(&group.create("tenant").unwrap(), 10);
    let hook = tenant.dies();
    let _charge = group.try_charge(PAGE).unwrap();
    assert_eq!((tenant.calls(), group.events().oom, group.usage()), (1, 1, PAGE));
    drop(hook);
    let _rest = group.try_charge(9 * PAGE).unwrap();
    assert!(group.try_charge(PAGE).is_err());
    assert_eq!(group.events().oom, 2);
}

#[test]
fn kills_a_second_victim_for_a_full_level_above() {
    let (_hierarchy, parent) = full(2, 100, LONG);
    let inner = parent.create("inner").unwrap();
    inner.set_max(40 * PAGE).unwrap();
    let (within, beside) = (Tenant::new(&inner, "within", 40), Tenant::new(&parent, "beside", 60));
    let _beside = beside.dies();
    let memory = Arc::clone(&within.memory);
    // A charge above takes the freed bytes at once.
    let (taken, above) = (Arc::new(Mutex::new(None)), parent.clone());
    let take = Arc::clone(&taken);
    let _within = within.group.set_kill_hook(move |_: &KillRequest<'_>| {
        memory.lock().unwrap().clear();
        std::thread::scope(|scope| {
            scope.spawn(|| *take.lock().unwrap() = above.charge_forced(40 * PAGE).ok());
        });
        KillAnswer::Dying
    });
    let charge = inner.try_charge(2 * PAGE).unwrap();
    assert_eq!((kills(&within.group), beside.calls()), (1, 1), "one for each level that was full");
    let once = |group: &Group| (group.events_local().max, group.events_local().oom);
    // The forced charge was one more that the limit above did not hold up.
    assert_eq!((once(&inner), once(&parent)), ((1, 1), (2, 1)));
    drop(charge);
}

#[test]
fn chooses_the_largest_excess_among_equal_scores() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let (large, small) = (Tenant::new(&parent, "large", 60), Tenant::new(&parent, "small", 40));
    let _hooks = [&large, &small].map(|tenant| tenant.answers(KillAnswer::Refused));
    assert_eq!(asked(&parent, &hierarchy), ["large", "small"]);
    large.group.set_low(30 * PAGE).unwrap();
    assert_eq!(asked(&parent, &hierarchy), ["small", "large"], "40 pages above it, and 30");
    small.group.set_min(20 * PAGE).unwrap();
    assert_eq!(asked(&parent, &hierarchy), ["large", "small"], "30 pages, and 20");
    large.group.set_oom_score(-1).unwrap();
    assert_eq!(asked(&parent, &hierarchy), ["small", "large"]);
    assert!(large.group.try_charge(PAGE).is_err(), "its own protection does not help its own charges");
}

#[test]
fn kills_no_group_for_a_dry_run() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let inner = parent.create("inner").unwrap();
    inner.set_max(40 * PAGE).unwrap();
    let (within, beside) = (Tenant::new(&inner, "within", 40), Tenant::new(&parent, "beside", 30));
    let hooks = [&within, &beside].map(Tenant::dies);
    parent.set_enforced(false);
    let charge = beside.group.try_charge(50 * PAGE).unwrap();
    assert!(hierarchy.kills().is_empty());
    parent.set_enforced(true);
    inner.set_enforced(false);
    parent.set_max(120 * PAGE).unwrap();
    // Both are without room, and only the one above holds it up.
    let _charge = inner.try_charge(PAGE).unwrap();
    assert_eq!((within.calls(), beside.calls()), (0, 1));
    assert_eq!((inner.events_local().oom, parent.events_local().oom), (0, 1));
    drop((hooks, charge));
}

#[test]
fn asks_no_group_within_its_min_and_tells_others_the_excess() {
    let (hierarchy, parent) = full(2, 100, LONG);
    let (within, above) = (Tenant::new(&parent, "within", 40), Tenant::new(&parent, "above", 60));
    within.group.set_min(40 * PAGE).unwrap();
    above.group.set_min(45 * PAGE).unwrap();
    let _within = within.answers(KillAnswer::Dying);
    let told = Arc::new(Mutex::new(0));
    let seen = Arc::clone(&told);
    let _above = above
        .group
        .set_kill_hook(move |killing: &KillRequest<'_>| {
            *seen.lock().unwrap() = killing.above_min;
            KillAnswer::Refused
        })
        .unwrap();
    assert_eq!(asked(&parent, &hierarchy), ["above"]);
    assert_eq!((*told.lock().unwrap(), kills(&within.group)), (15 * PAGE, 0));
}
