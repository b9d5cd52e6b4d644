//! Pressure: stalls, threads at work, and triggers.

mod full;
mod hostile;
mod reclaim;
mod storm;
mod tasks;
mod triggers;
mod waits;

use std::time::{Duration, Instant};

use memgroup::{Config, Group, Hierarchy, SlotSource};

use super::future::{executor, running};

fn hierarchy() -> Hierarchy {
    Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(4).unwrap())).unwrap()
}

/// Runs for so long.
fn busy(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

const MILLI: Duration = Duration::from_millis(1);

fn some_us(group: &Group) -> u64 {
    group.pressure().some.total
}

fn full_us(group: &Group) -> u64 {
    group.pressure().full.total
}

fn us(elapsed: Duration) -> u64 {
    elapsed.as_micros() as u64
}

#[test]
fn adds_up_stalls_that_do_not_overlap_at_every_level() {
    let hierarchy = hierarchy();
    let above = hierarchy.create("/above").unwrap();
    let below = [above.create("a").unwrap(), above.create("b").unwrap()];
    let (mut least, mut most) = (Duration::ZERO, Duration::ZERO);
    for round in 0..200 {
        let around = Instant::now();
        let stalled = below[round % 2].stall();
        let within = Instant::now();
        busy(Duration::from_micros(20 * (round as u64 % 7)));
        least += within.elapsed();
        drop(stalled);
        most += around.elapsed();
        busy(Duration::from_micros(10));
    }
    let total = some_us(&above);
    assert!((us(least)..=us(most)).contains(&total), "{least:?} {total} {most:?}");
    assert_eq!(some_us(&hierarchy.root()), total, "every level has one reading of the clock");
    let parts: u64 = below.iter().map(some_us).sum();
    assert!(total.abs_diff(parts) <= 2, "{total} is not the sum of both, {parts}, each cut off");
    assert_eq!(full_us(&above), total, "no thread was at work");
}

#[test]
fn a_stall_that_is_on_shows_before_it_ends() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    let stalled = group.stall();
    let mut before = 0;
    for _ in 0..5 {
        busy(MILLI);
        let pressure = group.pressure();
        assert!(pressure.some.total >= before + 1000, "{pressure}");
        assert!(pressure.some.avg10 > 0.0 && pressure.full.avg10 > 0.0, "{pressure:?}");
        before = pressure.some.total;
    }
    drop(stalled);
    let after = group.pressure();
    busy(MILLI);
    assert_eq!(group.pressure().some.total, after.some.total, "it is over");
}

#[test]
fn keeps_the_pressure_of_a_removed_group_in_its_ancestors() {
    let hierarchy = hierarchy();
    let above = hierarchy.create("/above").unwrap();
    let group = above.create("group").unwrap();
    let other = group.clone();
    let stalled = other.stall();
    busy(MILLI);
    group.remove().unwrap();
    busy(MILLI);
    assert!(some_us(&group) >= 2000, "a stall goes on in a group that is removed");
    drop(stalled);
    let total = some_us(&group);
    assert_eq!(some_us(&above), total);
    drop((group, other));
    let new = above.create("group").unwrap();
    assert_eq!((new.pressure(), some_us(&above)), (Default::default(), total));
}

#[test]
fn a_root_that_is_left_unaccounted_has_the_pressure_of_all() {
    let config = Config::with_slots(SlotSource::virtual_slots(4).unwrap()).account_root(false);
    let hierarchy = Hierarchy::new(config).unwrap();
    let group = hierarchy.create("/group").unwrap();
    let stalled = group.stall();
    busy(MILLI);
    drop(stalled);
    assert!(some_us(&group) >= 1000);
    assert_eq!(some_us(&hierarchy.root()), some_us(&group));
}
