//! Many futures at once that are polled, cancelled and late at random moments: not a byte is lost.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use memgroup::{Charge, ChargeErrorKind, Charging, Config, Group, SlotSource};

use super::super::random::Random;
use super::executor::{Calls, poll_with};
use super::{PAGE, Running};

const STEPS: u32 = 20_000;

/// One thread with futures and charges of its own. The futures may end with errors of these kinds.
fn churn(seed: u64, groups: &[Group], ends: &[ChargeErrorKind]) {
    let mut random = Random(seed + 1);
    let calls = Arc::new(Calls::default());
    let (mut waiting, mut held): (Vec<Charging>, Vec<Charge>) = (Vec::new(), Vec::new());
    for _ in 0..STEPS {
        let group = &groups[random.below(groups.len() as u64) as usize];
        match random.below(10) {
            0..=3 if waiting.len() < 64 => {
                let bytes = 1 + random.below(3 * PAGE);
                let charging = group.charge(bytes);
                waiting.push(if random.below(4) == 0 {
                    charging.until(Instant::now() + Duration::from_micros(random.below(200)))
                } else {
                    charging
                });
            }
            4 | 5 if !waiting.is_empty() => {
                let at = random.below(waiting.len() as u64) as usize;
                drop(waiting.swap_remove(at));
            }
            6 if !held.is_empty() => {
                let at = random.below(held.len() as u64) as usize;
                drop(held.swap_remove(at));
            }
            7 => group.set_weight(1 + random.below(200) as u32).unwrap(),
            _ if !waiting.is_empty() => {
                let at = random.below(waiting.len() as u64) as usize;
                match poll_with(&mut waiting[at], &calls.waker()) {
                    Poll::Pending => continue,
                    Poll::Ready(Ok(charge)) => held.push(charge),
                    Poll::Ready(Err(error)) => assert!(ends.contains(&error.kind()), "{error}"),
                }
                drop(waiting.swap_remove(at));
            }
            _ => {}
        }
    }
}

fn storm(slots: usize, ends: &[ChargeErrorKind], beside: impl Fn(&Running)) {
    let running = Running::new(Config::with_slots(SlotSource::virtual_slots(slots).unwrap()));
    let parent = running.group("parent", 16);
    let groups: Vec<_> = ["a", "b", "c"].map(|name| parent.create(name).unwrap()).into();
    groups[0].set_max(8 * PAGE).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let groups = &groups;
            scope.spawn(move || churn(seed, groups, ends));
        }
        beside(&running);
    });
    let root = running.hierarchy.root();
    for group in groups.iter().chain([&parent, &root]) {
        assert_eq!((group.usage_exact(), group.waiters().now), (0, 0), "{group:?}");
    }
    assert!(running.hierarchy.waits().is_empty());
}

#[test]
fn conserves_on_2_slots() {
    storm(2, &[ChargeErrorKind::Deadline], |_| ());
}

#[test]
fn conserves_on_64_slots() {
    storm(64, &[ChargeErrorKind::Deadline], |_| ());
}

#[test]
fn conserves_while_reclaimers_come_and_go() {
    storm(2, &[ChargeErrorKind::Deadline, ChargeErrorKind::NoReclaimer], |running| {
        running.stop.stop();
        for _ in 0..200 {
            let reclaimer = running.hierarchy.reclaimer();
            let stop = reclaimer.stop_handle();
            let thread = std::thread::spawn(|| reclaimer.run());
            std::thread::yield_now();
            stop.stop();
            thread.join().unwrap();
        }
    });
}
