//! Lifetime: groups that are made, used and removed by the million leave nothing behind.
#![cfg(all(not(memgroup_loom), target_os = "linux"))]

use std::time::{Duration, Instant};

use memgroup::tuning::Tuning;
use memgroup::{
    Ask, Charge, Config, Count, Freshness, Group, Hierarchy, KillAnswer, KillRequest, Maintenance, Reach,
    Scan, Shrinker, ShrinkerConfig, SlotSource, stats,
};
use memgroup_percpu::pin_virtual;

const SLOTS: usize = 4;
/// Groups that are there at a time, and a place each for those that are dying.
const AT_A_TIME: usize = 16;
/// The most bytes by which the process may grow after its first tenth: some pages of the
/// allocator, for any number of groups.
// An emulator's own memory grows while it translates code.
const GROWTH_MOST: u64 = if cfg!(memgroup_emulated) { 4 << 20 } else { 1 << 20 };

/// Resident bytes of the process.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

struct Nothing;

impl Shrinker for Nothing {
    fn count(&self, _: u64) -> Count {
        Count::Empty
    }

    fn scan(&self, _: &Ask<'_>) -> Scan {
        Scan::Freed { bytes: 0 }
    }
}

/// The states of a group, in turn: no two always occur together.
fn use_it(hierarchy: &Hierarchy, group: &Group, round: u64) -> Charge {
    let charge = group.try_charge(1 + round % 10_000).unwrap();
    let has = |one_in: u64| round.is_multiple_of(one_in);
    if has(2) {
        hierarchy.io().add(group, stats::io::RBYTES, 1);
    }
    if has(3) {
        group.set_min(round % 5000).unwrap();
        group.set_low(round % 9000).unwrap();
    }
    if has(5) {
        group.set_high(100).unwrap();
        drop(group.take_throttle());
    }
    if has(7) {
        drop(group.try_charge(10).unwrap());
    }
    if has(11) {
        let shrinker = group.add_shrinker(ShrinkerConfig::new("nothing"), Nothing).unwrap();
        shrinker.mark();
    }
    if has(13) {
        let hook = group.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Refused).unwrap();
        group.set_max(charge.bytes()).unwrap();
        group.try_charge(100_000).unwrap_err();
        drop(hook);
    }
    if has(17) {
        assert!(group.wait_events(&group.events(), Some(Instant::now())).is_none());
    }
    if has(19) {
        let trigger = group.add_pressure_trigger("some 400000 500000".parse().unwrap());
        drop(group.stall());
        assert!(!trigger.wait(Instant::now()) || round > 0);
    }
    if has(23) {
        let mut peak = group.peak_reader();
        peak.reset();
    }
    charge
}

/// Creates and removes so many groups, and checks the remains.
fn come_and_go(groups: u64) {
    let source = SlotSource::virtual_slots(SLOTS).unwrap();
    let hierarchy =
        Hierarchy::new(Config::with_slots(source).groups_max(3 * AT_A_TIME as u32).float(0, Duration::ZERO))
            .unwrap();
    let later = Instant::now() + Duration::from_secs(1 << 20);
    let give_back = || {
        hierarchy.maintain(Maintenance::new().expedited().all().at(later));
        hierarchy.percpu()
    };
    let parent = hierarchy.create("/parent").unwrap();
    for slot in 0..SLOTS {
        let _pin = pin_virtual(slot);
        for group in [&parent, &hierarchy.root()] {
            drop(group.try_charge(1).unwrap());
            hierarchy.io().add(group, stats::io::RBYTES, 0);
        }
    }
    let (before, mut resident) = (give_back(), 0);
    let mut here = std::collections::VecDeque::new();
    for round in 0..groups {
        let _pin = pin_virtual(round as usize % SLOTS);
        // Names are used again, also while the last of that name is dying.
        let group = parent.create(&format!("g{}", round % (AT_A_TIME as u64 + 1))).unwrap();
        let charge = use_it(&hierarchy, &group, round);
        here.push_back((group, charge));
        if here.len() > AT_A_TIME {
            let (group, charge): (Group, Charge) = here.pop_front().unwrap();
            group.remove().unwrap();
            // Its last byte ends it, or its last handle.
            if round % 2 == 0 { drop((group, charge)) } else { drop((charge, group)) }
        }
        if round == groups / 10 {
            resident = resident_bytes();
        }
    }
    let grown = resident_bytes().saturating_sub(resident);
    assert!(grown <= GROWTH_MOST, "{grown} bytes for {groups} groups");
    here.drain(..).for_each(|(group, _charge)| group.remove().unwrap());
    assert_eq!((hierarchy.dying(), hierarchy.snapshot().groups.len()), (Vec::new(), 2));
    assert!(hierarchy.waits().is_empty() && hierarchy.shrinkers().is_empty());
    let after = give_back();
    assert_eq!((after.live_bytes, after.limbo_bytes), (before.live_bytes, 0), "{before:?}, then {after:?}");
    hierarchy.root().drain();
    assert_eq!(hierarchy.root().usage(), 0);
    let read = hierarchy.io().get(&parent, stats::io::RBYTES, Reach::Subtree, Freshness::Fresh);
    assert_eq!(read, groups.div_ceil(2) as i64, "their additions are their parent's, once");
}

#[test]
fn frees_everything_after_a_hundred_thousand_groups() {
    come_and_go(match () {
        () if cfg!(memgroup_emulated) => 200_000,
        () if cfg!(any(debug_assertions, memgroup_yields)) => 20_000,
        () => 100_000,
    });
}

#[test]
#[ignore = "a million take a minute in an optimised build"]
fn frees_everything_after_a_million_groups() {
    come_and_go(1_000_000);
}
