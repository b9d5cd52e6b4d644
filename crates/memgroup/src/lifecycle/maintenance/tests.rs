//! Passes of maintenance, whole and in steps.

use core::time::Duration;
use std::sync::mpsc::channel;

use memgroup_percpu::SlotSource;
use xtask::Watchdog;

use super::*;
use crate::state::stats::builtin::MEMORY;
use crate::state::tuning::Tuning;
use crate::stats::{cpu, flush};
use crate::{Config, Freshness, Group, Hierarchy, Reach, Stat, Subsystem};

/// A configuration of which each removal begins a step, and which no other test uses.
fn config(number: u32) -> Config {
    Config::new().slots(SlotSource::virtual_slots(3).unwrap()).groups_max(9000 + number)
}

/// So many groups that were charged.
fn charged(hierarchy: &Hierarchy, groups: u32) -> Vec<Group> {
    let charge = |number| {
        let group = hierarchy.create(&format!("/{number}")).unwrap();
        drop(group.try_charge(1).unwrap());
        group
    };
    (0..groups).map(charge).collect()
}

#[test]
#[cfg_attr(memgroup_emulated, ignore = "does not end in an emulator; the cause is not known")]
fn steps_of_a_stalled_grace_period_give_nothing_more_up() {
    let (tell, told) = channel();
    let (leave, left) = channel::<()>();
    let _watchdog = Watchdog::over("removals beside a section that lasts");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _section = grace::enter();
            tell.send(()).unwrap();
            left.recv().unwrap_err();
        });
        told.recv().unwrap();
        let hierarchy = Hierarchy::new(config(0)).unwrap();
        let shared = hierarchy.shared();
        charged(&hierarchy, 4000).into_iter().for_each(|group| group.remove().unwrap());
        // A slow machine does less in a step.
        while shared.upkeep().steps.lock().period.is_none() {
            hierarchy.create("/one").unwrap().remove().unwrap();
        }
        assert!(is_under_way(shared));
        let waiting = limbo_bytes(shared);
        assert!(waiting >= FREED_LEAST, "{waiting}");
        charged(&hierarchy, 4000).into_iter().for_each(|group| group.remove().unwrap());
        assert_eq!(limbo_bytes(shared), waiting, "places keep their records for their next groups");
        assert_eq!(hierarchy.maintained().grace, Duration::ZERO);
        drop(leave);
        while limbo_bytes(shared) >= FREED_LEAST {
            hierarchy.create("/one").unwrap().remove().unwrap();
        }
    });
}

#[test]
#[cfg_attr(memgroup_emulated, ignore = "does not end in an emulator; the cause is not known")]
fn steps_come_to_an_end() {
    let _watchdog = Watchdog::over("steps of maintenance");
    let hierarchy = Hierarchy::new(config(1)).unwrap();
    let shared = hierarchy.shared();
    charged(&hierarchy, 4000).into_iter().for_each(|group| group.remove().unwrap());
    while is_under_way(shared) {
        hierarchy.create("/one").unwrap().remove().unwrap();
    }
    assert!(limbo_bytes(shared) < FREED_LEAST);
    let done = hierarchy.maintained();
    assert!(done.node_bytes > 0 && done.grace == Duration::ZERO, "{done:?}");
}

#[test]
fn a_step_waits_for_no_flush() {
    let _watchdog = Watchdog::over("removals beside flushes that last");
    let hierarchy = Hierarchy::new(config(2)).unwrap();
    let shared = hierarchy.shared();
    let turns: Vec<_> = shared.statistics.trees().map(|updates| flush::lock(updates, shared)).collect();
    charged(&hierarchy, 4000).into_iter().for_each(|group| group.remove().unwrap());
    drop(turns);
    assert_eq!(hierarchy.groups().len(), 1);
    assert!(hierarchy.dying().is_empty(), "the thread with the turn has finished the releases");
}

#[test]
fn reads_one_subsystem_beside_a_flush_of_another_and_a_mover() {
    let _watchdog = Watchdog::over("a reader beside a flush of another subsystem");
    let hierarchy = Hierarchy::new(config(3).demote_after(Some(Duration::ZERO))).unwrap();
    let shared = hierarchy.shared();
    let group = hierarchy.create("/group").unwrap();
    let read = || {
        hierarchy.cpu().add(&group, cpu::NR_SCOPES, 1);
        hierarchy.cpu().get(&hierarchy.root(), cpu::NR_SCOPES, Reach::Subtree, Freshness::Fresh)
    };
    assert_eq!(read(), 1);
    // A flush of `memory` that takes long, and a mover that waits for it.
    let slow = flush::lock(shared.statistics.store(MEMORY).updates, shared);
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| hierarchy.maintain(Maintenance::new().expedited()));
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(100) {
            read();
        }
        assert!(!mover.is_finished(), "the group's charges are counted in memory");
        drop(slow);
        assert_eq!(mover.join().unwrap().demoted_groups, 1, "the root has no record");
    });
}

#[test]
#[cfg_attr(memgroup_emulated, ignore = "does not end in an emulator; the cause is not known")]
fn adds_up_all_passes_of_one_hierarchy() {
    for on_removal in [true, false] {
        let config = Config::new().slots(SlotSource::virtual_slots(1).unwrap()).float(0, Duration::ZERO);
        let config = config.groups_max(1001).maintain_on_removal(on_removal);
        let hierarchy = Hierarchy::new(config).unwrap();
        let stats: &'static [Stat] =
            (0..501).map(|number| Stat::gauge(format!("gauge{number}").leak())).collect::<Vec<_>>().leak();
        let counts = hierarchy.register(Subsystem { name: "gauges", stats }).unwrap();
        let key = counts.keys().next().unwrap();
        let groups: Vec<_> = (0..1000)
            .map(|number| {
                let group = hierarchy.root().create(&format!("g{number}")).unwrap();
                counts.add(&group, key, 1);
                group
            })
            .collect();
        let (stay, go): (Vec<_>, Vec<_>) = (0..).zip(groups).partition(|(number, _)| number % 10 == 0);
        go.into_iter().for_each(|(_, group)| group.remove().unwrap());
        // Removals leave work to later calls, of which a further removal may do as little as it
        // leaves.
        while is_under_way(hierarchy.shared()) {
            step(hierarchy.shared());
        }
        let removals = hierarchy.maintained();
        let pass = hierarchy.maintain(Maintenance::new().all());
        let all = hierarchy.maintained();
        // All that can move moves once.
        let [first, then] = if on_removal { [removals, pass] } else { [pass, removals] };
        assert!(first.moved_bytes > 0 && first.moved_records > 0 && first.pages_held_max > 0, "{first:?}");
        assert!(first.depopulated_bytes > then.depopulated_bytes, "{first:?} {then:?}");
        assert_eq!(all.moved_bytes, removals.moved_bytes + pass.moved_bytes);
        assert_eq!(all.depopulated_bytes, removals.depopulated_bytes + pass.depopulated_bytes);
        assert_eq!(all.grace, removals.grace + pass.grace);
        drop((stay, counts, hierarchy));
        assert_eq!(Hierarchy::new(config).unwrap().maintained(), Maintained::default());
    }
}

#[test]
fn a_group_of_a_hierarchy_that_gave_everything_back_has_a_record_from_its_first_addition_on() {
    const CACHE: Subsystem = Subsystem { name: "cache", stats: &[Stat::count("hits")] };
    let begin = |_| {
        let hierarchy = Hierarchy::new(config(70)).unwrap();
        let cache = hierarchy.register(CACHE).unwrap();
        let group = hierarchy.create("/group").unwrap();
        cache.add(&group, CACHE.key("hits"), 1);
        let store = hierarchy.shared().statistics.stores().last().expect("it was registered just now");
        assert!(group.node().entry(store).record.is_linked(), "the addition found memory for a record");
        (hierarchy, group)
    };
    // The last ones find many that wait for a user, and give all memory back.
    for _ in 0..3 {
        drop((0..2 * release::POOLED_MOST as u32).map(begin).collect::<Vec<_>>());
    }
}
