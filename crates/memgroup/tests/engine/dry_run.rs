//! Limits that only measure, against limits in force and against a plain ledger.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memgroup::{Charge, Config, Group, Hierarchy, SlotSource};
use memgroup_percpu::pin_virtual;
use xtask::Watchdog;

use super::random::Random;

const SLOTS: u64 = 8;

fn config() -> Config {
    Config::with_slots(SlotSource::virtual_slots(SLOTS as usize).unwrap())
}

/// The root's child, and children of that.
struct Family {
    hierarchy: Hierarchy,
    parent: Group,
    children: Vec<Group>,
}

fn family(config: Config) -> Family {
    let hierarchy = Hierarchy::new(config).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    let children = (0..3).map(|number| parent.create(&format!("child{number}")).unwrap()).collect();
    Family { hierarchy, parent, children }
}

#[test]
fn counts_each_charge_that_an_enforced_twin_refuses() {
    let _watchdog = Watchdog::over("charges beside an enforced twin");
    for seed in 1..=40 {
        let config = if seed % 4 == 0 { config().stock_cap_bytes(0) } else { config() };
        let (twin, ours) = (family(config), family(config));
        ours.parent.set_enforced(false);
        let mut random = Random(seed);
        let mut held: Vec<(Charge, Charge)> = Vec::new();
        let (mut refused, mut step) = (0, 0);
        while step < 3000 {
            step += 1;
            let _pin = pin_virtual(random.below(SLOTS) as usize);
            let (child, bytes) = (random.below(3) as usize, random.bytes(18));
            match random.below(16) {
                0..6 => match twin.children[child].try_charge(bytes) {
                    // Bytes that the twin does not have are freed here, so that both hold the same.
                    Err(_) => drop(ours.children[child].try_charge(bytes).unwrap()),
                    Ok(charge) => held.push((charge, ours.children[child].try_charge(bytes).unwrap())),
                },
                6..12 if !held.is_empty() => {
                    drop(held.swap_remove(random.below(held.len() as u64) as usize));
                }
                12 if !held.is_empty() => {
                    let at = random.below(held.len() as u64) as usize;
                    let (theirs, charge) = &mut held[at];
                    charge.try_grow(bytes).unwrap();
                    if theirs.try_grow(bytes).is_err() {
                        charge.shrink(bytes);
                    }
                }
                13 => [&twin, &ours].iter().for_each(|family| {
                    family.parent.drain();
                }),
                14 => {
                    let max = random.below(600_000);
                    [&twin, &ours].iter().for_each(|family| family.parent.set_max(max).unwrap());
                }
                _ => held.push((
                    twin.children[child].charge_forced(bytes / 8 + 1).unwrap(),
                    ours.children[child].charge_forced(bytes / 8 + 1).unwrap(),
                )),
            }
            let now = twin.parent.refusals();
            assert_eq!(ours.parent.would_refuse(), now, "seed {seed}, step {step}: {bytes} bytes");
            refused = now;
        }
        assert!(refused > 50, "seed {seed}: {refused} refusals show nothing");
        assert_eq!((ours.parent.refusals(), ours.hierarchy.root().events().max), (0, 0));
        assert_eq!(ours.parent.overdraft().charges, 0, "a limit that is not in force is not overdrawn");
        assert_eq!(ours.hierarchy.root().events().would_refuse, refused);
        drop(held);
        assert_eq!((ours.parent.usage_exact(), twin.parent.usage_exact()), (0, 0));
    }
}

/// Live bytes and limit of each level of one path.
#[derive(Clone, Copy)]
struct Level {
    live: u64,
    max: Option<u64>,
    enforced: bool,
    would_refuse: u64,
    over_most: u64,
}

#[test]
fn counts_at_each_level_as_if_its_limit_were_alone() {
    let _watchdog = Watchdog::over("charges below limits that only count");
    let mut counted = 0;
    for seed in 1..=40 {
        let hierarchy = Hierarchy::new(config()).unwrap();
        let a = hierarchy.create("/a").unwrap();
        let b = a.create("b").unwrap();
        let groups = [hierarchy.root(), a.clone(), b.clone(), b.create("c").unwrap()];
        let mut levels = [Level { live: 0, max: None, enforced: true, would_refuse: 0, over_most: 0 }; 4];
        let mut random = Random(seed);
        let mut held: Vec<(usize, Charge)> = Vec::new();
        for step in 0..3000 {
            let _pin = pin_virtual(random.below(SLOTS) as usize);
            let (at, bytes) = (random.below(4) as usize, random.bytes(18));
            match random.below(12) {
                0..5 => {
                    let fits = |level: &Level| level.max.is_none_or(|max| level.live + bytes <= max);
                    let may = levels[..=at].iter().all(|level| fits(level) || !level.enforced);
                    let charge = groups[at].try_charge(bytes);
                    assert_eq!(charge.is_ok(), may, "seed {seed}, step {step}: {charge:?}");
                    if let Ok(charge) = charge {
                        held.push((at, charge));
                        for level in &mut levels[..=at] {
                            level.would_refuse += u64::from(!fits(level));
                            level.live += bytes;
                            let limit = level.max.filter(|_| !level.enforced);
                            let over = limit.map_or(0, |max| level.live.saturating_sub(max));
                            level.over_most = level.over_most.max(over);
                        }
                    }
                }
                5..10 if !held.is_empty() => {
                    let (at, charge) = held.swap_remove(random.below(held.len() as u64) as usize);
                    levels[..=at].iter_mut().for_each(|level| level.live -= charge.bytes());
                }
                10 => {
                    levels[at].max = (random.below(8) > 0).then(|| random.below(500_000));
                    groups[at].set_max(levels[at].max).unwrap();
                }
                _ => {
                    levels[at].enforced = random.below(3) == 0;
                    groups[at].set_enforced(levels[at].enforced);
                }
            }
            for (group, level) in groups.iter().zip(&levels) {
                let now = (group.is_enforced(), group.max(), group.would_refuse(), group.over_bytes_max());
                let expected = (level.enforced, level.max, level.would_refuse, level.over_most);
                assert_eq!(now, expected, "seed {seed}, step {step}, {group:?}");
            }
        }
        counted += levels.iter().map(|level| level.would_refuse).sum::<u64>();
        drop(held);
        assert!(groups.iter().all(|group| group.usage_exact() == 0));
    }
    assert!(counted > 5000, "{counted} charges show nothing");
}

#[test]
fn counts_nothing_while_all_charges_fit() {
    const PART: u64 = 100_000;
    let family = family(config());
    family.parent.set_enforced(false);
    family.parent.set_max(4 * PART).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let children = &family.children;
            scope.spawn(move || {
                let mut random = Random(thread + 1);
                let (mut held, mut live): (Vec<Charge>, u64) = (Vec::new(), 0);
                for _ in 0..20_000 {
                    let bytes = random.bytes(15);
                    let _pin = pin_virtual(random.below(SLOTS) as usize);
                    while live + bytes > PART {
                        live -= held.swap_remove(random.below(held.len() as u64) as usize).bytes();
                    }
                    held.push(children[random.below(3) as usize].try_charge(bytes).unwrap());
                    live += bytes;
                }
            });
        }
    });
    assert_eq!((family.parent.would_refuse(), family.parent.over_bytes_max()), (0, 0));
}

#[test]
fn counts_every_charge_while_others_hold_the_limit() {
    const CHARGES: u64 = 5000;
    let family = family(config());
    family.parent.set_enforced(false);
    family.parent.set_max(100_000).unwrap();
    let _all = family.children[0].try_charge(100_000).unwrap();
    assert_eq!(family.parent.would_refuse(), 0, "that fits");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let children = &family.children;
            scope.spawn(move || {
                let mut random = Random(thread + 1);
                let mut held = Vec::new();
                for _ in 0..CHARGES {
                    let _pin = pin_virtual(random.below(SLOTS) as usize);
                    held.push(children[random.below(3) as usize].try_charge(random.bytes(12)).unwrap());
                    if random.below(2) == 0 {
                        drop(held.swap_remove(random.below(held.len() as u64) as usize));
                    }
                    if held.len() > 100 {
                        held.clear();
                    }
                }
            });
        }
    });
    assert_eq!(family.parent.would_refuse(), 4 * CHARGES);
}

#[test]
fn holds_a_limit_from_when_the_switch_returns() {
    const MAX: u64 = 200_000;
    let family = family(config());
    family.parent.set_max(MAX).unwrap();
    let (over, refused) = (AtomicBool::new(false), AtomicU64::new(0));
    /// Ends the chargers, also where an assertion fails.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let _end = End(&over);
        for thread in 0..3 {
            let (children, over, refused) = (&family.children, &over, &refused);
            scope.spawn(move || {
                let (mut random, mut held) = (Random(thread + 1), Vec::new());
                while !over.load(Ordering::Relaxed) {
                    let _pin = pin_virtual(random.below(SLOTS) as usize);
                    match children[random.below(3) as usize].try_charge(random.bytes(14)) {
                        Ok(charge) => held.push(charge),
                        Err(_) => {
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    if held.len() > 200 {
                        held.truncate(random.below(200) as usize);
                    }
                }
            });
        }
        // Until both have come about, on a machine however busy.
        let both = || family.parent.would_refuse() > 0 && refused.load(Ordering::Relaxed) > 0;
        for _ in (0..300).chain((0..100_000).take_while(|_| !both())) {
            family.parent.set_enforced(true);
            let mut least = family.parent.usage();
            for look in 0..50 {
                let now = family.parent.usage();
                assert!(now <= least.max(MAX), "{now} after {least}: it rises above a limit in force");
                least = least.min(now);
                if look % 10 == 0 {
                    // Chargers run while the limit is in force.
                    std::thread::yield_now();
                }
            }
            family.parent.set_enforced(false);
            std::thread::yield_now();
        }
        assert!(both(), "{} would be, {refused:?} were refused", family.parent.would_refuse());
    });
    assert_eq!(family.parent.usage_exact(), 0);
}

#[test]
fn reclaims_nothing_for_a_dry_run() {
    use memgroup::{Ask, Count, Scan, Shrinker, ShrinkerConfig};
    struct Never;
    impl Shrinker for Never {
        fn count(&self, _: u64) -> Count {
            panic!("asked for a limit that is not in force")
        }
        fn scan(&self, _: &Ask<'_>) -> Scan {
            panic!("asked for a limit that is not in force")
        }
    }
    let family = family(config());
    let cache = family.children[0].add_shrinker(ShrinkerConfig::new("never"), Never).unwrap();
    cache.mark();
    family.parent.set_max(10_000).unwrap();
    family.parent.set_enforced(false);
    let held: Vec<_> = (0..10).map(|_| family.children[1].try_charge(4096).unwrap()).collect();
    assert_eq!((family.parent.would_refuse(), family.parent.over_bytes_max()), (8, 30_960));
    assert_eq!(family.hierarchy.shrinkers()[0].quarantine, None);
    assert_eq!(family.children[1].headroom(), family.hierarchy.root().headroom());
    drop(held);
}

#[test]
fn has_stocks_again_below_its_limit() {
    let family = family(config());
    family.parent.set_max(1 << 20).unwrap();
    family.parent.set_enforced(false);
    let child = &family.children[0];
    drop(child.try_charge(2 << 20).unwrap());
    assert_eq!(family.parent.would_refuse(), 1);
    let before = child.stock().hits;
    for _ in 0..100 {
        drop(child.try_charge(100).unwrap());
    }
    assert!(child.stock().hits >= before + 98, "{:?}", child.stock());
    assert_eq!(family.parent.would_refuse(), 1);
}

#[test]
fn refuses_more_than_a_counter_holds_at_any_limit() {
    let family = family(config());
    family.parent.set_max(1000).unwrap();
    family.parent.set_enforced(false);
    let _held = family.children[0].try_charge(5000).unwrap();
    let error = family.children[0].try_charge((1 << 48) - 5000).unwrap_err();
    assert_eq!(error.kind(), memgroup::ChargeErrorKind::TooLarge);
    family.children[0].remove().unwrap();
    assert_eq!(family.children[0].try_charge(1).unwrap_err().kind(), memgroup::ChargeErrorKind::Offline);
    assert_eq!(family.parent.would_refuse(), 1);
}

#[test]
fn wakes_a_watcher_for_a_charge_above_a_dry_run() {
    let family = family(config());
    family.parent.set_max(1000).unwrap();
    family.parent.set_enforced(false);
    let seen = family.hierarchy.root().events();
    let _held = family.children[0].try_charge(5000).unwrap();
    let now = family.hierarchy.root().wait_events(&seen, None).unwrap();
    assert_eq!((now.would_refuse, now.max), (1, 0));
    assert_eq!(family.children[0].events().would_refuse, 0, "it is its parent's");
}

#[test]
fn a_new_group_in_the_place_is_enforced_and_has_no_past() {
    let family = family(config());
    let group = family.parent.create("group").unwrap();
    group.set_max(10).unwrap();
    group.set_enforced(false);
    drop(group.try_charge(100).unwrap());
    let node = group.id().node();
    group.remove().unwrap();
    drop(group);
    let again = family.parent.create("again").unwrap();
    assert_eq!(again.id().node(), node);
    assert_eq!((again.is_enforced(), again.would_refuse(), again.over_bytes_max()), (true, 0, 0));
}

#[test]
fn delays_no_thread_for_a_dry_run() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let (group, other) = (hierarchy.create("/group").unwrap(), hierarchy.create("/other").unwrap());
    other.set_high(1 << 20).unwrap();
    group.set_max(1 << 20).unwrap();
    group.set_enforced(false);
    let held = [group.try_charge(2 << 20).unwrap(), group.charge_forced(2 << 20).unwrap()];
    assert_eq!((group.owed(), group.throttle(None).slept), (0, std::time::Duration::ZERO));
    drop(held);
}
