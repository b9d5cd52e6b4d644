//! Storm: threads charge with random deadlines and free; limits, weights and groups change under
//! them.
//!
//! The oracle: at rest the usage of each group is the sum of its charges. Every wait has ended by
//! its deadline, except for the time that the system takes to run a thread. No thread is left
//! waiting, and at the end nothing is charged.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use memgroup::{Charge, ChargeErrorKind, Group};
use memgroup_percpu::pin_virtual;
use xtask::Watchdog;

use super::super::random::Random;
use super::{PAGE, parent};

const WORKERS: usize = 6;
const LEAVES: usize = 3;
const ROUNDS: usize = 4;
const STEPS: usize = if cfg!(memgroup_yields) { 800 } else { 1500 };

/// How a call ended, for the storm to be one in which everything happens.
#[derive(Default)]
struct Outcomes([AtomicU64; 4]);

impl Outcomes {
    fn count(&self, outcome: &Result<Charge, memgroup::ChargeError>) {
        let at = match outcome.as_ref().map_err(memgroup::ChargeError::kind) {
            Ok(_) => 0,
            Err(ChargeErrorKind::Deadline) => 1,
            Err(ChargeErrorKind::Woken) => 2,
            Err(_) => 3,
        };
        self.0[at].fetch_add(1, Ordering::Relaxed);
    }
}

struct Fixture {
    tenants: Group,
    leaves: Vec<Group>,
    rest: Barrier,
    done: AtomicBool,
    outcomes: Outcomes,
    /// Waits that have ended.
    ended: Arc<AtomicU64>,
    /// The latest that a wait ended after its deadline, in nanoseconds.
    latest: AtomicU64,
}

struct Worker<'h> {
    fixture: &'h Fixture,
    random: Random,
    slots: usize,
    charges: Vec<(usize, Charge)>,
}

impl Worker<'_> {
    fn charge(&self, group: &Group, bytes: u64) -> Option<Charge> {
        let deadline = Instant::now() + Duration::from_micros(self.random.0 % 3000);
        let outcome = group.charge_until(bytes, deadline);
        let late = Instant::now().saturating_duration_since(deadline);
        self.fixture.latest.fetch_max(late.as_nanos() as u64, Ordering::Relaxed);
        self.fixture.outcomes.count(&outcome);
        self.fixture.ended.fetch_add(1, Ordering::Relaxed);
        outcome.ok()
    }

    fn step(&mut self, step: usize) {
        let _pin = pin_virtual(self.random.below(self.slots as u64) as usize);
        let leaf = self.random.below(LEAVES as u64) as usize;
        let group = &self.fixture.leaves[leaf];
        match self.random.below(100) {
            0..40 => {
                let bytes = self.random.bytes(17);
                self.charges.extend(self.charge(group, bytes).map(|charge| (leaf, charge)));
            }
            40..46 => self.charges.extend(group.try_charge(PAGE).ok().map(|charge| (leaf, charge))),
            46..86 => {
                let count = self.charges.len() as u64;
                if count > 0 {
                    drop(self.charges.swap_remove(self.random.below(count) as usize));
                }
            }
            86..90 => {
                if let Some((_, charge)) = self.charges.last_mut() {
                    let _ = charge.grow_until(PAGE, Instant::now() + Duration::from_micros(200));
                }
            }
            90..93 => group.set_max(((1 << 17) + self.random.below(1 << 18)).max(PAGE)).unwrap(),
            93..95 => group.set_weight(1 + self.random.below(10_000) as u32).unwrap(),
            95..97 => {
                group.wake_waiters();
            }
            _ => self.tenant_comes_and_goes(step),
        }
    }

    /// A group is removed while a charge may wait for it.
    fn tenant_comes_and_goes(&self, step: usize) {
        let name = format!("tenant{step}-{}", self.random.0);
        let tenant = self.fixture.tenants.create(&name).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| self.charge(&tenant, 1 << 17));
            std::thread::yield_now();
            tenant.remove().unwrap();
            drop(waiter.join().unwrap());
        });
        assert_eq!(self.charge(&tenant, 1).map(|charge| charge.bytes()), None, "it was removed");
    }
}

fn work(fixture: &Fixture, number: usize, slots: usize, live: &Mutex<[u64; LEAVES]>) {
    let random = Random(0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1));
    let mut worker = Worker { fixture, random, slots, charges: Vec::new() };
    for round in 0..ROUNDS {
        for step in 0..STEPS {
            worker.step(round * STEPS + step);
        }
        for (leaf, charge) in &worker.charges {
            live.lock().unwrap()[*leaf] += charge.bytes();
        }
        fixture.rest.wait();
        fixture.rest.wait();
    }
}

fn storm(slots: usize) {
    let (hierarchy, tenants) = parent(slots, 120);
    let leaves = (0..LEAVES).map(|n| tenants.create(&format!("leaf{n}")).unwrap()).collect();
    let fixture = Fixture {
        tenants,
        leaves,
        rest: Barrier::new(WORKERS + 1),
        done: AtomicBool::new(false),
        outcomes: Outcomes::default(),
        ended: Arc::default(),
        latest: AtomicU64::new(0),
    };
    let (ended, waiting) = (Arc::clone(&fixture.ended), hierarchy.clone());
    let report = move || waiting.waits().iter().map(|wait| format!("{wait}\n")).collect();
    let _watchdog = Watchdog::new(move || ended.load(Ordering::Relaxed), report);
    let (live, calm) = (Mutex::new([0; LEAVES]), Mutex::new(()));
    std::thread::scope(|scope| {
        let (fixture, live, calm) = (&fixture, &live, &calm);
        let disturber = scope.spawn(|| {
            let mut random = Random(0x5eed);
            while !fixture.done.load(Ordering::Acquire) {
                let at_work = calm.lock().unwrap();
                fixture.tenants.set_max((60 + random.below(100)) * PAGE).unwrap();
                fixture.tenants.drain();
                drop(at_work);
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        for number in 0..WORKERS {
            scope.spawn(move || work(fixture, number, slots, live));
        }
        for _ in 0..ROUNDS {
            fixture.rest.wait();
            // Exact bytes are read while no thread drains.
            let still = calm.lock().unwrap();
            assert!(hierarchy.waits().is_empty(), "all are at rest");
            let live = std::mem::take(&mut *live.lock().unwrap());
            for (leaf, live) in fixture.leaves.iter().zip(live) {
                assert_eq!(leaf.usage_exact(), live, "{leaf:?}");
            }
            assert_eq!(fixture.tenants.usage_exact(), live.iter().sum::<u64>());
            drop(still);
            fixture.rest.wait();
        }
        fixture.done.store(true, Ordering::Release);
        disturber.join().unwrap();
    });
    fixture.tenants.drain();
    for group in fixture.leaves.iter().chain([&fixture.tenants, &hierarchy.root()]) {
        assert_eq!((group.usage(), group.waiters().now, group.stock().prepaid_bytes), (0, 0, 0), "{group:?}");
    }
    assert!(hierarchy.dying().is_empty());
    let outcomes = fixture.outcomes.0.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert!(outcomes.iter().all(|&count| count > 0), "made, late, woken, refused: {outcomes:?}");
    let latest = Duration::from_nanos(fixture.latest.load(Ordering::Relaxed));
    assert!(latest < Duration::from_secs(30), "a wait ended {latest:?} after its deadline");
    for leaf in &fixture.leaves {
        // The level above may have been drained for a charge.
        (0..10_000).for_each(|_| drop(leaf.try_charge(PAGE / 8).unwrap()));
        assert!(leaf.stock().prepaid_bytes > 0, "no charge waits, so {leaf:?} has a stock again");
    }
}

#[test]
fn conserves_and_wakes_on_2_slots() {
    storm(2);
}

#[test]
fn conserves_and_wakes_on_8_slots() {
    storm(8);
}

#[test]
fn conserves_and_wakes_on_128_slots() {
    storm(128);
}
