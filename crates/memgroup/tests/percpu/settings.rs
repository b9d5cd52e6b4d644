//! Each mechanism can be switched off, and settings that cannot be are refused with a reason.

use core::time::Duration;
use std::time::Instant;

use memgroup::tuning::{PageSize, Tuning};
use memgroup::{
    Freshness, Hierarchy, Maintenance, Reach, SUBSYSTEMS_MAX, Stat, StatKey, Subsystem, scope, stats,
};

use crate::gauges::nth;
use crate::{
    CHARGED_BYTES, DELTA_MAX, RANGE_DELTAS, STOCK_BYTES, TENANT_BYTES, Tenant, alone, config, gauges, go_on,
    levels, maintain, panic_of, used_on_all_slots,
};

const SLOTS: usize = 4;

/// Creates groups and removes nine in ten; returns the populated bytes before and after.
fn removal_of_most(config: memgroup::Config) -> (Hierarchy, Vec<Tenant>, u64, u64) {
    let hierarchy = used_on_all_slots(config, SLOTS);
    let mut staying = Vec::new();
    let mut going = Vec::new();
    for number in 0..2000 {
        let tenant =
            Tenant::new(&levels(&hierarchy), hierarchy.create(&format!("/{number}")).unwrap(), number, SLOTS);
        if number % 10 == 0 { staying.push(tenant) } else { going.push(tenant) }
    }
    let peak = hierarchy.percpu().populated_bytes;
    for mut tenant in going {
        tenant.charges.clear();
        tenant.group.remove().unwrap();
    }
    let after = hierarchy.percpu().populated_bytes;
    (hierarchy, staying, peak, after)
}

#[test]
fn moves_nothing_without_relocation() {
    let _alone = alone();
    let (hierarchy, staying, ..) = removal_of_most(config(SLOTS).relocate(false));
    let done = hierarchy.maintain(Maintenance::new().all().expedited());
    assert_eq!((done.moved_records, done.moved_bytes), (0, 0));
    let pinned = hierarchy.percpu().populated_bytes;
    drop((hierarchy, staying));
    let (hierarchy, staying, ..) = removal_of_most(config(SLOTS).groups_max(1 << 15));
    let done = hierarchy.maintain(Maintenance::new().all().expedited());
    assert!(
        done.moved_records > 0 && done.moved_bytes > done.moved_records * STOCK_BYTES * SLOTS as u64,
        "{done:?}"
    );
    assert!(hierarchy.percpu().populated_bytes < pinned / 2, "{pinned} without relocation");
    staying.iter().for_each(Tenant::check);
}

#[test]
fn keeps_idle_groups_without_demotion() {
    let _alone = alone();
    let (hierarchy, staying, ..) = removal_of_most(config(SLOTS));
    let start = Instant::now();
    for day in 0..3 {
        let at = start + Duration::from_secs(86_400 * day);
        assert_eq!(hierarchy.maintain(Maintenance::new().at(at).all().expedited()).demoted_groups, 0);
    }
    assert_eq!(hierarchy.percpu().live_bytes, (CHARGED_BYTES + 200 * TENANT_BYTES) * SLOTS as u64);
    staying.iter().for_each(Tenant::check);
}

#[test]
fn returns_memory_only_in_maintain_when_so_set() {
    let _alone = alone();
    let settings = config(SLOTS).maintain_on_removal(false).float(0, Duration::ZERO);
    let (hierarchy, staying, peak, after) = removal_of_most(settings);
    assert_eq!(after, peak);
    assert!(maintain(&hierarchy).populated_bytes < peak / 4);
    staying.iter().for_each(Tenant::check);
    let (hierarchy, _staying, peak, _) = removal_of_most(settings.maintain_on_removal(true));
    go_on(&hierarchy, |now| now.populated_bytes < peak / 2);
}

#[test]
fn lets_pages_float_and_decay() {
    let _alone = alone();
    let (float, decay) = (1 << 20, Duration::from_secs(16));
    let (hierarchy, _staying, ..) =
        removal_of_most(config(SLOTS).float(float, decay).maintain_on_removal(false));
    let start = Instant::now();
    let mut before = u64::MAX;
    for second in 0..=17 {
        let at = start + Duration::from_secs(second);
        while hierarchy.maintain(Maintenance::new().at(at).expedited()).more {}
        let now = hierarchy.percpu();
        let empty = now.populated_bytes.saturating_sub(now.live_bytes);
        assert!(empty <= float + float / 2, "second {second}: {now:?}");
        assert!(now.populated_bytes <= before, "second {second}: it only falls");
        before = now.populated_bytes;
        if second == 0 {
            assert!(empty >= float / 4, "pages that may float do: {now:?}");
        }
    }
    assert_eq!(before, maintain(&hierarchy).populated_bytes, "after the decay nothing floats");
}

#[test]
fn refuses_bad_settings_with_a_reason() {
    let reason = |config| Hierarchy::new(config).expect_err("a bad setting").to_string();
    assert_eq!(
        reason(config(2).stock_cap_bytes((8 << 20) + 1)),
        "stock_cap_bytes is 8388609; allowed: 0 to 8 MiB"
    );
    if PageSize::of_system() > PageSize::Kib4 {
        let text = reason(config(2).page_size(PageSize::Kib4));
        assert!(text.contains("pages of 4096 bytes"), "{text}");
    }
    for good in [
        config(2).stock_cap_bytes(8 << 20),
        config(2).page_size(PageSize::Mib2),
        config(2).float(u64::MAX, Duration::MAX),
        config(2).float(0, Duration::ZERO),
        config(2).float(u64::MAX, Duration::from_nanos(1)),
        config(2).demote_after(Some(Duration::MAX)),
    ] {
        let hierarchy = used_on_all_slots(good, 2);
        let group = hierarchy.create("/group").unwrap();
        drop(group.try_charge(100).unwrap());
        let far = Instant::now() + Duration::from_secs(1 << 31);
        hierarchy.maintain(Maintenance::new().expedited());
        hierarchy.maintain(Maintenance::new().at(far).expedited());
        drop(group.try_charge(100).unwrap());
        group.drain();
        assert_eq!(hierarchy.root().usage_exact(), 0);
        group.remove().unwrap();
    }
}

#[test]
fn panics_with_both_names_for_a_foreign_key() {
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(2).groups_max(3), 2);
    let two = gauges::register(&hierarchy, 2);
    let group = hierarchy.create("/group").unwrap();
    let add = |bad| two.add(&group, bad, 1);
    let add_current = |bad| {
        let _scope = scope::enter(&group);
        assert!(two.add_current(bad, 1));
    };
    let get = |bad| {
        two.get(&group, bad, Reach::Local, Freshness::Flushed);
    };
    for bad in [stats::io::RIOS, stats::memory::FILE] {
        for act in [&add as &dyn Fn(StatKey), &add_current, &get] {
            let (stat, owner) = (bad.stat().name(), bad.subsystem());
            let text = format!(
                "failed to use the key {stat} of the subsystem {owner} with the statistics of gauges"
            );
            assert_eq!(panic_of(|| act(bad)), text);
        }
    }
    let read = || two.read(&group, Reach::Local, Freshness::Fresh, &mut [0; 3]);
    assert_eq!(panic_of(read), "failed to read 3 values of gauges: it has 2");
    two.add(&group, nth(&two, 1), 1);
    assert_eq!([0, 1].map(|gauge| gauges::own(&two, &group, gauge)), [0, 1]);
}

#[test]
fn panics_for_invalid_additions() {
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(2).groups_max(3), 2);
    let (levels, io) = (gauges::register(&hierarchy, 2), hierarchy.io());
    let group = hierarchy.create("/group").unwrap();
    let too_much = |delta: i64| {
        let text = panic_of(|| levels.add(&group, nth(&levels, 1), delta));
        assert_eq!(
            text,
            format!(
                "failed to add {delta} to gauge1 of gauges: one addition is 2^48 at the most, up or down"
            )
        );
    };
    [DELTA_MAX + 1, -DELTA_MAX - 1, i64::MAX, i64::MIN].into_iter().for_each(too_much);
    let fewer = panic_of(|| io.add(&group, stats::io::RIOS, -1));
    assert_eq!(fewer, "failed to add -1 to rios of io: it only grows");
    let other = Hierarchy::new(config(2).groups_max(5)).unwrap();
    let foreign = panic_of(|| levels.add(&other.create("/other").unwrap(), nth(&levels, 1), 1));
    assert_eq!(
        foreign,
        "failed to find gauges of the group /other: the statistics are those of another hierarchy"
    );
    for delta in [DELTA_MAX, -DELTA_MAX, 0] {
        levels.add(&group, nth(&levels, 1), delta);
    }
    assert_eq!((gauges::own(&levels, &group, 1), gauges::own(&io, &group, stats::io::RIOS.index())), (0, 0));
}

#[test]
fn panics_when_a_level_left_its_range() {
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(1).groups_max(3), 1);
    let levels = gauges::register(&hierarchy, 2);
    let group = hierarchy.create("/group").unwrap();
    let lower = |gauge| (0..RANGE_DELTAS).for_each(|_| levels.add(&group, nth(&levels, gauge), -DELTA_MAX));
    lower(0);
    assert_eq!(gauges::own(&levels, &group, 0), -DELTA_MAX * RANGE_DELTAS, "a flush makes room");
    lower(0);
    assert_eq!(
        panic_of(|| (0..3).for_each(|_| levels.add(&group, nth(&levels, 0), -DELTA_MAX))),
        "gauge0 of gauges has changed by more than 2^61 on one slot since it was last flushed"
    );
    levels.add(&group, nth(&levels, 1), 5);
    levels.add(&group, nth(&levels, 1), -1);
    assert_eq!(gauges::own(&levels, &group, 1), 4, "others go on");
    levels.add(&group, nth(&levels, 0), 5);
    let left = gauges::own(&levels, &group, 0);
    assert_eq!(left, 5 - DELTA_MAX * RANGE_DELTAS, "only unflushed additions are lost");
}

#[test]
fn refuses_a_subsystem_and_changes_nothing() {
    let _alone = alone();
    let kind = config(2).groups_max(6);
    let hierarchy = used_on_all_slots(kind, 2);
    let builtin = hierarchy.subsystems();
    assert_eq!(builtin, ["memory", "cpu", "io"]);
    let group = hierarchy.create("/group").unwrap();
    let two = gauges::register(&hierarchy, 2);
    two.add(&group, nth(&two, 1), 7);
    assert_eq!(gauges::own(&gauges::register(&hierarchy, 2), &group, 1), 7, "the same is found");
    for (taken, stats) in [("gauges", gauges::gauges(3).stats), ("io", gauges::gauges(2).stats)] {
        assert_eq!(
            hierarchy.register(Subsystem { name: taken, stats }).unwrap_err().to_string(),
            format!(
                "failed to register the subsystem {taken:?}: a subsystem of this name has other statistics"
            )
        );
    }
    const ONE: &[Stat] = &[Stat::count("one")];
    for name in ["a", "b", "c", "d"] {
        hierarchy.register(Subsystem { name, stats: ONE }).unwrap();
    }
    assert_eq!(hierarchy.subsystems().len(), SUBSYSTEMS_MAX);
    let full = hierarchy.register(Subsystem { name: "e", stats: ONE }).unwrap_err().to_string();
    assert!(
        full.ends_with("the hierarchy has all the 8 subsystems it can have, the built-in ones included"),
        "{full}"
    );
    assert!(hierarchy.statistics("e").is_none() && hierarchy.statistics("d").is_some());
    assert_eq!(gauges::own(&two, &group, 1), 7);
    drop((group, two, hierarchy));
    // The next of its kind begins with the built-in ones, and has room for as many.
    let next = Hierarchy::new(kind).unwrap();
    assert_eq!(next.subsystems(), builtin);
    let (two, group) = (gauges::register(&next, 2), next.create("/group").unwrap());
    assert_eq!(two.get(&next.root(), nth(&two, 1), Reach::Subtree, Freshness::Fresh), 0);
    two.add(&group, nth(&two, 0), 3);
    assert_eq!(two.get(&next.root(), nth(&two, 0), Reach::Subtree, Freshness::Fresh), 3);
    for name in ["w", "x", "y", "z"] {
        let statistics = next.register(Subsystem { name, stats: ONE }).unwrap();
        assert_eq!(gauges::own(&statistics, &group, 0), 0);
    }
}

#[test]
fn reports_no_more_moves_when_none_are_allowed() {
    let _alone = alone();
    let (hierarchy, staying, ..) = removal_of_most(config(SLOTS).maintain_on_removal(false));
    let nothing_moves = Maintenance::new().all().expedited().move_bytes_max(0);
    let done = hierarchy.maintain(nothing_moves);
    assert_eq!((done.moved_records, done.more), (0, false));
    let little = hierarchy.maintain(Maintenance::new().all().expedited().move_bytes_max(1));
    assert_eq!((little.moved_records, little.more), (1, true), "at least one, to come to an end");
    staying.iter().for_each(Tenant::check);
}
