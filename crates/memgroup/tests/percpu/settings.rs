//! Each mechanism can be switched off, and settings that cannot be are refused with a reason.

use core::time::Duration;
use std::time::Instant;

use memgroup::{Hierarchy, Maintained, Maintenance, PageSize, SlotSource};

use crate::{Tenant, alone, config, maintain, used_on_all_slots};

const SLOTS: usize = 4;

/// Groups come and one in ten stays; what is populated before and after the others are removed.
fn removal_of_most(config: memgroup::Config) -> (Hierarchy, Vec<Tenant>, u64, u64) {
    let hierarchy = used_on_all_slots(config, SLOTS);
    let mut staying = Vec::new();
    let mut going = Vec::new();
    for number in 0..2000 {
        let tenant = Tenant::new(hierarchy.create(&format!("/{number}")).unwrap(), number, SLOTS);
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
fn without_depopulation_nothing_is_given_back() {
    let _alone = alone();
    let settings =
        config(SLOTS).depopulate(false).float(0, Duration::ZERO).demote_after(Some(Duration::ZERO));
    let (hierarchy, staying, peak, after) = removal_of_most(settings);
    let done = hierarchy.maintain(Maintenance::new().all().expedited());
    assert_eq!((after, done), (peak, Maintained::default()));
    assert_eq!(hierarchy.percpu().populated_bytes, peak);
    staying.iter().for_each(Tenant::check);
}

#[test]
fn without_relocation_nothing_moves() {
    let _alone = alone();
    let (hierarchy, staying, ..) = removal_of_most(config(SLOTS).relocate(false));
    let done = hierarchy.maintain(Maintenance::new().all().expedited());
    assert_eq!((done.moved_groups, done.moved_bytes), (0, 0));
    let pinned = hierarchy.percpu().populated_bytes;
    drop((hierarchy, staying));
    let (hierarchy, staying, ..) = removal_of_most(config(SLOTS).groups_max(1 << 15));
    let done = hierarchy.maintain(Maintenance::new().all().expedited());
    assert!(done.moved_groups > 0 && done.moved_bytes == done.moved_groups * 392 * SLOTS as u64, "{done:?}");
    assert!(hierarchy.percpu().populated_bytes < pinned / 2, "{pinned} without relocation");
    staying.iter().for_each(Tenant::check);
}

#[test]
fn without_demotion_idle_groups_stay() {
    let _alone = alone();
    let (hierarchy, staying, ..) = removal_of_most(config(SLOTS));
    let start = Instant::now();
    for day in 0..3 {
        let at = start + Duration::from_secs(86_400 * day);
        assert_eq!(hierarchy.maintain(Maintenance::new().at(at).all().expedited()).demoted_groups, 0);
    }
    assert_eq!(hierarchy.percpu().live_bytes, (1 + 200) * 392 * SLOTS as u64);
    staying.iter().for_each(Tenant::check);
}

#[test]
fn without_maintenance_on_removal_only_maintain_gives_back() {
    let _alone = alone();
    let settings = config(SLOTS).maintain_on_removal(false).float(0, Duration::ZERO);
    let (hierarchy, staying, peak, after) = removal_of_most(settings);
    assert_eq!(after, peak);
    assert!(maintain(&hierarchy).populated_bytes < peak / 4);
    staying.iter().for_each(Tenant::check);
    let (.., peak, after) = removal_of_most(settings.maintain_on_removal(true));
    assert!(after < peak / 2, "{after} of {peak}");
}

#[test]
fn what_may_float_floats_and_decays() {
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
            assert!(empty >= float / 4, "what may float does: {now:?}");
        }
    }
    assert_eq!(before, maintain(&hierarchy).populated_bytes, "after the decay nothing floats");
}

#[test]
fn bad_settings_are_refused_with_a_reason() {
    let reason = |config| Hierarchy::new(config).expect_err("a bad setting").to_string();
    assert_eq!(reason(config(2).counters(4001)), "counters is 4001; allowed: 0 to 4000");
    assert_eq!(reason(config(2).counters(u32::MAX)), "counters is 4294967295; allowed: 0 to 4000");
    if PageSize::of_system() > PageSize::Kib4 {
        let text = reason(config(2).page_size(PageSize::Kib4));
        assert!(text.contains("pages of 4096 bytes"), "{text}");
    }
    for good in [
        config(2).counters(4000),
        config(2).counters(0).page_size(PageSize::Mib2),
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
fn a_counter_that_is_not_there_is_a_panic_that_says_so() {
    let hierarchy = used_on_all_slots(config(2).counters(2).slots(SlotSource::virtual_slots(2).unwrap()), 2);
    let group = hierarchy.create("/group").unwrap();
    for bad in [2, u32::MAX] {
        for (name, act) in [
            ("add", (|group, bad| group.add(bad, 1)) as fn(&memgroup::Group, u32)),
            ("sum", |group, bad| {
                group.sum(bad);
            }),
        ] {
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(&group, bad)));
            let text = panic.expect_err(name).downcast::<String>().unwrap();
            assert!(
                text.contains("a group has 2 counters (`Config::counters`), none of number"),
                "{name}: {text}"
            );
        }
    }
    group.add(1, 1);
    assert_eq!(group.sum(1), 1);
}

#[test]
fn a_counter_that_left_its_range_is_a_panic_and_no_endless_loop() {
    let hierarchy = used_on_all_slots(config(1).counters(2), 1);
    let group = hierarchy.create("/group").unwrap();
    group.add(0, i64::MIN / 2);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| group.add(0, 1)));
    let text = panic.expect_err("it is out of range").downcast::<String>().unwrap();
    assert_eq!(*text, "counter 0 of a group has left its range, -2^61 to 2^61, in one slot");
    group.add(1, i64::MAX / 8);
    group.add(1, -1);
    assert_eq!(group.sum(1), i64::MAX / 8 - 1, "others go on");
}

#[test]
fn a_pass_that_may_move_nothing_does_not_say_that_more_moves_are_left() {
    let _alone = alone();
    let (hierarchy, staying, ..) = removal_of_most(config(SLOTS).maintain_on_removal(false));
    let nothing_moves = Maintenance::new().all().expedited().move_bytes_max(0);
    let done = hierarchy.maintain(nothing_moves);
    assert_eq!((done.moved_groups, done.more), (0, false));
    let little = hierarchy.maintain(Maintenance::new().all().expedited().move_bytes_max(1));
    assert_eq!((little.moved_groups, little.more), (1, true), "at least one, to come to an end");
    staying.iter().for_each(Tenant::check);
}
