//! The assertions of Linux' selftests: events are exact, and a flagged group is killed as a whole.

use std::sync::Arc;

use memgroup::{Charge, Group, KillAnswer, KillRequest};

use super::tenant::{LONG, PAGE, Tenant, full, kills, outcomes};

#[test]
fn kills_a_group_at_its_own_limit_once_and_empties_it() {
    let (hierarchy, tenants) = full(2, 1000, LONG);
    let tenant = Tenant::new(&tenants, "tenant", 0);
    tenant.group.set_max(100 * PAGE).unwrap();
    let hook = tenant.answers(KillAnswer::Dying);
    let mut memory: Vec<Charge> = Vec::new();
    // It goes on until it is refused, and stops then as it was told.
    let error = loop {
        match tenant.group.try_charge(PAGE) {
            Ok(charge) => memory.push(charge),
            Err(error) => break error,
        }
    };
    assert_eq!((error.group(), tenant.calls()), (tenant.group.id(), 1));
    drop(memory);
    let events = tenant.group.events();
    assert_eq!((events.max, events.oom, events.oom_kill, events.oom_group_kill), (1, 1, 1, 0));
    assert_eq!((tenant.group.usage_exact(), tenants.events().oom_kill), (0, 1));
    assert_eq!(tenants.events_local(), memgroup::Events::default(), "it happened to the tenant alone");
    assert!(outcomes(&hierarchy)[0].1.is_some(), "it has died");
    drop(hook);
}

/// A parent of three tenants with hooks, and one below the first that asks for more than there is.
fn family(unit: impl Fn(&Group, &[Tenant])) -> (Group, Vec<Tenant>) {
    let (_hierarchy, parent) = full(2, 300, LONG);
    let tenants: Vec<Tenant> =
        [150, 100, 50].map(|pages| Tenant::new(&parent, &pages.to_string(), pages)).into();
    let hooks: Vec<_> = tenants.iter().map(Tenant::dies).collect();
    unit(&parent, &tenants);
    let _charge = tenants[2].group.try_charge(PAGE).unwrap();
    drop(hooks);
    (parent, tenants)
}

#[test]
fn kills_one_group_without_the_flag() {
    let (parent, tenants) = family(|_, _| ());
    assert_eq!(tenants.iter().map(Tenant::calls).collect::<Vec<_>>(), [1, 0, 0]);
    let events = parent.events();
    assert_eq!((events.oom, events.oom_kill, events.oom_group_kill), (1, 1, 0));
}

#[test]
fn kills_a_flagged_leaf_alone_and_counts_it_there() {
    let (parent, tenants) = family(|_, tenants| tenants[0].group.set_oom_group(true));
    assert_eq!(tenants.iter().map(Tenant::calls).collect::<Vec<_>>(), [1, 0, 0]);
    assert_eq!((kills(&parent), parent.events_local().oom_group_kill), (0, 0), "nothing was killed there");
    assert_eq!(tenants[0].group.events_local().oom_group_kill, 1);
    assert!(tenants[0].group.oom_group() && !parent.oom_group());
}

#[test]
fn the_flag_of_the_parent_kills_all_below_it() {
    let (parent, tenants) = family(|parent, _| parent.set_oom_group(true));
    assert_eq!(tenants.iter().map(Tenant::calls).collect::<Vec<_>>(), [1, 1, 1]);
    let events = parent.events();
    assert_eq!((events.oom, events.oom_kill, events.oom_group_kill), (1, 3, 1));
    assert_eq!(parent.events_local().oom_group_kill, 1);
}

#[test]
fn spares_a_group_with_the_lowest_score_below_a_killed_parent() {
    let (parent, tenants) = family(|parent, tenants| {
        parent.set_oom_group(true);
        tenants[1].group.set_oom_score(-1000).unwrap();
    });
    assert_eq!(tenants.iter().map(Tenant::calls).collect::<Vec<_>>(), [1, 0, 1]);
    assert_eq!((parent.events().oom_kill, tenants[1].group.usage_exact()), (2, 100 * PAGE));
}

#[test]
fn takes_the_topmost_flag_not_above_the_full_group() {
    let (hierarchy, tenants) = full(2, 1000, LONG);
    let middle = tenants.create("middle").unwrap();
    let inner = middle.create("inner").unwrap();
    middle.set_max(100 * PAGE).unwrap();
    let outside = Tenant::new(&tenants, "outside", 500);
    let (big, small) = (Tenant::new(&inner, "big", 70), Tenant::new(&inner, "small", 10));
    let beside = Tenant::new(&middle, "beside", 20);
    let all = [&outside, &big, &small, &beside];
    let _hooks = all.map(Tenant::dies);
    [&tenants, &inner].iter().for_each(|group| group.set_oom_group(true));
    let units: Arc<std::sync::Mutex<Vec<Option<Group>>>> = Arc::default();
    let _charge = beside.group.try_charge(PAGE).unwrap();
    assert_eq!(all.map(Tenant::calls), [0, 1, 1, 0], "the flag above the full group is not looked at");
    assert_eq!(hierarchy.kills()[0].unit.as_deref(), Some("/tenants/middle/inner"));

    // Now with a flag at the group that is full, which is above the other.
    middle.set_oom_group(true);
    big.fill(79);
    let told = Arc::clone(&units);
    drop(_hooks);
    let _hooks = [&big, &small, &beside].map(|tenant| {
        let (told, memory) = (Arc::clone(&told), Arc::clone(&tenant.memory));
        tenant.group.set_kill_hook(move |killing: &KillRequest<'_>| {
            told.lock().unwrap().push(killing.unit.cloned());
            memory.lock().unwrap().clear();
            KillAnswer::Dying
        })
    });
    let _more = middle.try_charge(50 * PAGE).unwrap();
    assert_eq!(*units.lock().unwrap(), vec![Some(middle.clone()); 3], "also those that have nothing");
    assert_eq!((middle.events_local().oom_group_kill, outside.calls()), (1, 0));
}
