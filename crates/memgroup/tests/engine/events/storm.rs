//! Events of groups that come and go, compared with the counts of the threads that made them.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memgroup::{Config, Events, Group, Hierarchy, SlotSource};

use super::super::random::Random;
use super::within_a_minute;

fn assert_grown(group: &Group, before: &mut Events, now: Events) {
    for ((key, before), (_, now)) in before.pairs().into_iter().zip(now.pairs()) {
        assert!(before <= now, "{key} of {group:?} ran from {before} back to {now}");
    }
    *before = now;
}

/// Makes groups in `parent`, has them refuse and go over, and removes them. Returns the sum of
/// their local counts.
fn coming_and_going(parent: &Group, thread: u64, rounds: u64) -> u64 {
    let mut random = Random(thread + 1);
    let mut local = 0;
    for round in 0..rounds {
        let group = parent.create(&format!("{thread}-{round}")).unwrap();
        group.set_max(4096).unwrap();
        let (mut seen, mut held) = (Events::default(), Vec::new());
        for _ in 0..random.below(8) {
            match random.below(3) {
                0 => held.extend(group.try_charge(random.below(4000) + 1).ok()),
                1 => held.push(group.charge_forced(random.below(2000) + 1).unwrap()),
                _ => drop(group.try_charge(5000).unwrap_err()),
            }
            assert_grown(&group, &mut seen, group.events());
        }
        if random.below(2) == 0 {
            held.clear();
        }
        group.remove().unwrap();
        // Charges that are still held may exceed a limit yet.
        if let Some(charge) = held.last_mut() {
            charge.grow_forced(random.below(4000) + 1).unwrap();
        }
        assert_eq!(group.events(), group.events_local(), "nothing was ever below it");
        local += group.events_local().max;
    }
    local
}

#[test]
fn never_decreases_a_count_while_groups_come_and_go() {
    const THREADS: u64 = 4;
    within_a_minute(|| {
        let config = Config::with_slots(SlotSource::virtual_slots(4).unwrap()).groups_max(64);
        let hierarchy = Hierarchy::new(config).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        // Small enough to refuse some charges of its children.
        parent.set_max(20_000).unwrap();
        let (over, begin) = (AtomicBool::new(false), Barrier::new(THREADS as usize));
        let (local, woken) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let mut seen = Events::default();
                while let Some(now) = parent.wait_events(&seen, None) {
                    assert_grown(&parent, &mut seen, now);
                    woken.fetch_add(1, Ordering::Relaxed);
                }
                seen
            });
            let reads = scope.spawn(|| {
                let (root, mut seen) = (hierarchy.root(), Events::default());
                while !over.load(Ordering::Relaxed) {
                    assert_grown(&root, &mut seen, root.events());
                }
            });
            let threads = (0..THREADS).map(|thread| {
                let (parent, begin, local) = (&parent, &begin, &local);
                scope.spawn(move || {
                    begin.wait();
                    local.fetch_add(coming_and_going(parent, thread, 500), Ordering::Relaxed);
                })
            });
            threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
            over.store(true, Ordering::Relaxed);
            reads.join().unwrap();
            parent.remove().unwrap();
            assert_eq!(waits.join().unwrap(), parent.events(), "the waiter has seen the last event");
        });
        let local = local.into_inner();
        assert_eq!(parent.events().max, local + parent.events_local().max);
        assert_eq!(hierarchy.root().events().max, parent.events().max);
        assert!(local > 1000 && woken.into_inner() > 0);
    });
}
