//! Peaks: of all time, and for each reader since it was reset.

use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::{Charge, Config, Group, Hierarchy, PeakReader, SlotSource};
use memgroup_percpu::pin_virtual;

use super::random::Random;

/// Without stock: usage is the sum of charges.
fn exact() -> (Hierarchy, Group) {
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
    let group = hierarchy.create("/group").unwrap();
    (hierarchy, group)
}

fn touch(group: &Group, usage: u64) {
    drop(group.try_charge(usage - group.usage()).unwrap());
}

#[test]
fn a_reset_takes_no_peak_from_another_reader() {
    let (_hierarchy, group) = exact();
    let (mut a, mut b) = (group.peak_reader(), group.peak_reader());
    let _ten = group.try_charge(10).unwrap();
    a.reset();
    assert_eq!(a.read(), 10);
    touch(&group, 100);
    let _twenty = group.try_charge(10).unwrap();
    b.reset();
    assert_eq!((a.read(), b.read(), group.peak()), (100, 20, 100));
    touch(&group, 50);
    assert_eq!((a.read(), b.read(), group.peak()), (100, 50, 100));
    a.reset();
    assert_eq!((a.read(), b.read(), group.peak()), (20, 50, 100));
    assert_eq!(group.peak_reader().read(), 100, "a reader that was never reset reads the group's");
}

/// The steps of the kernel's own test of memory.peak, with two open files and one more.
#[test]
fn readers_are_as_the_kernels_open_files() {
    const MIB: u64 = 1 << 20;
    let (hierarchy, group) = exact();
    let (mut first, mut second, idle) = (group.peak_reader(), group.peak_reader(), group.peak_reader());
    let cycle = |bytes: u64| drop(group.try_charge(bytes).unwrap());
    cycle(50 * MIB);
    assert_eq!([&first, &second, &idle].map(PeakReader::read), [50 * MIB; 3]);
    first.reset();
    assert_eq!((first.read(), second.read()), (0, 50 * MIB));
    cycle(30 * MIB);
    assert_eq!((first.read(), second.read()), (30 * MIB, 50 * MIB));
    second.reset();
    cycle(20 * MIB);
    assert_eq!((first.read(), second.read(), idle.read()), (30 * MIB, 20 * MIB, 50 * MIB));
    cycle(60 * MIB);
    assert_eq!([&first, &second, &idle].map(PeakReader::read), [60 * MIB; 3]);
    assert_eq!(hierarchy.root().peak(), 60 * MIB, "bytes charged below are charged above");
}

#[test]
fn readers_agree_with_a_ledger_in_any_order_of_resets() {
    for seed in 1..=50 {
        let (_hierarchy, group) = exact();
        let mut random = Random(seed);
        let mut held: Vec<Charge> = Vec::new();
        let (mut live, mut highest) = (0, 0);
        // Each reader with its expected peak; `None`: the group's.
        let mut readers: Vec<(PeakReader, Option<u64>)> = Vec::new();
        for step in 0..2000 {
            match random.below(8) {
                0..3 => {
                    let charge = group.try_charge(random.bytes(12)).unwrap();
                    live += charge.bytes();
                    held.push(charge);
                }
                3..6 if !held.is_empty() => {
                    live -= held.swap_remove(random.below(held.len() as u64) as usize).bytes();
                }
                6 if readers.len() < 20 => readers.push((group.peak_reader(), None)),
                6 => drop(readers.swap_remove(random.below(20) as usize)),
                _ if !readers.is_empty() => {
                    let at = random.below(readers.len() as u64) as usize;
                    readers[at].0.reset();
                    readers[at].1 = Some(live);
                }
                _ => {}
            }
            highest = live.max(highest);
            assert_eq!(group.peak(), highest);
            for (reader, expected) in &mut readers {
                *expected = expected.map(|expected| expected.max(live));
                assert_eq!(reader.read(), expected.unwrap_or(highest), "seed {seed}, step {step}");
            }
        }
    }
}

#[test]
fn keeps_the_answer_of_a_reader_of_a_removed_group() {
    let (hierarchy, group) = exact();
    let mut reader = group.peak_reader();
    touch(&group, 100);
    reader.reset();
    touch(&group, 30);
    let node = group.id().node();
    group.remove().unwrap();
    drop(group);
    assert_eq!((reader.read(), reader.group().peak()), (30, 100));
    assert_ne!(hierarchy.create("/other").unwrap().id().node(), node, "the reader holds the place");
    drop(reader);
    let again = hierarchy.create("/again").unwrap();
    assert_eq!((again.id().node(), again.peak(), again.peak_reader().read()), (node, 0, 0));
}

#[test]
fn charges_that_were_refused_higher_up_are_in_no_peak() {
    let (hierarchy, group) = exact();
    hierarchy.root().set_max(100).unwrap();
    let mut reader = group.peak_reader();
    reader.reset();
    group.try_charge(101).unwrap_err();
    assert_eq!((reader.read(), group.peak()), (0, 0));
}

#[test]
fn begins_a_reset_after_a_drain_with_charged_bytes() {
    let config = Config::with_slots(SlotSource::virtual_slots(4).unwrap());
    let hierarchy = Hierarchy::new(config).unwrap();
    let group = hierarchy.create("/group").unwrap();
    for slot in 0..4 {
        let _pin = pin_virtual(slot);
        drop(group.try_charge(4096).unwrap());
    }
    let _held = group.try_charge(1000).unwrap();
    let mut reader = group.peak_reader();
    reader.reset();
    assert!(reader.read() > 1000, "prepaid bytes are a part of usage");
    group.drain();
    reader.reset();
    assert_eq!(reader.read(), 1000);
}

/// Each thread holds a part of its own for a while; a reader that was reset before has to know of
/// all of it.
#[test]
fn no_peak_is_lost_while_readers_are_reset_and_threads_charge() {
    const PART: u64 = 1 << 20;
    let config = Config::with_slots(SlotSource::virtual_slots(4).unwrap());
    let hierarchy = Hierarchy::new(config).unwrap();
    let group = hierarchy.create("/group").unwrap();
    let rounds = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for slot in 0..2 {
            let (group, rounds) = (&group, &rounds);
            scope.spawn(move || {
                let _pin = pin_virtual(slot);
                let mut reader = group.peak_reader();
                for round in 0..3000 {
                    reader.reset();
                    let base = group.try_charge(PART + round).unwrap();
                    assert!(reader.read() >= PART + round, "{} is lost", PART + round);
                    if round % 3 == 0 {
                        drop(base);
                        assert!(reader.read() >= PART + round, "{} is lost when it is over", PART + round);
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            let mut other = group.peak_reader();
            while rounds.load(Ordering::Relaxed) < 6000 {
                other.reset();
                assert!(other.read() <= group.peak());
            }
        });
    });
    assert!(
        group.peak() < 2 * (PART + 3000) + (16 << 20),
        "{} is more than was ever charged and prepaid",
        group.peak()
    );
}
