//! Hazard records under stress: a value is given back or dropped once, after its last use.

#![cfg(not(memgroup_loom))]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use memgroup_sync::hazard::{Domain, Place, WaitError};
use memgroup_sync::interleave;
use tracked::{Counted, Tracked};
use xtask::Watchdog;

mod tracked;

/// xorshift, from a seed that is not 0.
struct Random(usize);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

const PLACES: usize = 6;
const ROUNDS: usize = if cfg!(miri) { 12 } else { 10_000 };

struct Field {
    domain: &'static Domain,
    places: [Place<Tracked>; PLACES],
    counted: Counted,
    over: AtomicBool,
    begin: Barrier,
    /// Values that were given back lately: still memory, so that a use that comes too late is seen.
    graves: std::sync::Mutex<VecDeque<Box<Tracked>>>,
}

impl Field {
    fn bury(&self, value: Box<Tracked>) {
        value.is_gone();
        let mut graves = self.graves.lock().unwrap();
        graves.push_back(value);
        if graves.len() > 32 {
            graves.pop_front();
        }
    }
}

/// Uses a value for a while; panics if it is not whole.
fn uses(field: &'static Field, value: &Tracked, random: &mut Random) {
    assert!(value.is_good(), "found after it was given back");
    match random.below(64) {
        0 => std::thread::sleep(Duration::from_micros(50)),
        1..4 => std::thread::yield_now(),
        4 => {
            // A walk within the walk.
            let mut lease = field.domain.lease();
            if let Some(inner) = lease.pin(&field.places[random.below(PLACES)]) {
                assert!(inner.is_good());
            }
        }
        _ => interleave::point(),
    }
    assert!(value.is_good(), "given back while it was used");
}

/// Walks over all places again and again; how many values it met.
fn walks(field: &'static Field, seed: usize) -> usize {
    let (mut random, mut met) = (Random(seed), 0);
    field.begin.wait();
    loop {
        // ORDERING: Acquire; pairs with the Release of the test: the last walk finds the last
        // values.
        let last = field.over.load(Ordering::Acquire);
        let mut lease = field.domain.lease();
        for place in &field.places {
            if let Some(pinned) = lease.pin(place) {
                if random.below(2) == 0 {
                    pinned.long_use(|value| uses(field, value, &mut random));
                } else {
                    uses(field, &pinned, &mut random);
                }
                met += 1;
            }
        }
        drop(lease);
        if last {
            return met;
        }
    }
}

/// Puts values into half of the places and withdraws them, in all ways.
fn owns(field: &'static Field, half: usize, seed: usize) {
    let mut random = Random(seed);
    field.begin.wait();
    for round in 0..ROUNDS {
        let place = &field.places[half * (PLACES / 2) + random.below(PLACES / 2)];
        if place.is_taken() {
            // Detached and still in use: only this thread puts values there.
            std::thread::yield_now();
            continue;
        }
        place.put(field.counted.value(round));
        for _ in 0..random.below(4) {
            interleave::point();
            std::hint::spin_loop();
        }
        if random.below(4) == 0 {
            std::thread::yield_now();
        }
        let withdrawn = place.withdraw().expect("nobody else withdraws it");
        match random.below(5) {
            0 => field.bury(withdrawn.wait().unwrap()),
            1 => match withdrawn.wait_until(Instant::now() + Duration::from_micros(20)) {
                Ok(value) => field.bury(value),
                Err(WaitError::Deadline(withdrawn) | WaitError::UsedHere(withdrawn)) => {
                    withdrawn.detach(|value| field.bury(value));
                }
            },
            2 => drop(withdrawn),
            3 => {
                assert!(withdrawn.is_good() && !withdrawn.is_used_here());
                withdrawn.detach(|value| {
                    field.bury(value);
                    assert!(field.domain.lease().pin(&field.places[0]).is_none_or(|value| value.is_good()));
                });
            }
            _ => withdrawn.detach(|value| field.bury(value)),
        }
        assert!(domain_is_sane(field));
    }
}

/// Each reported thread is in a place of the field.
fn domain_is_sane(field: &'static Field) -> bool {
    field.domain.busy().all(|occupant| field.places.iter().any(|place| occupant.is_in(place)))
}

#[test]
fn no_walk_meets_a_value_that_was_given_back_and_each_is_dropped_once() {
    let domain: &'static Domain = memgroup_sync::keep(Box::new(Domain::new()));
    let field: &'static Field = memgroup_sync::keep(Box::new(Field {
        domain,
        places: std::array::from_fn(|_| Place::empty(domain)),
        counted: Counted::default(),
        over: AtomicBool::new(false),
        begin: Barrier::new(5),
        graves: std::sync::Mutex::default(),
    }));
    let dropped = || field.counted.dropped() as u64;
    let _watchdog = Watchdog::new(dropped, || "walks beside withdrawals\n".to_owned());
    let walkers = [3, 5, 7].map(|seed| std::thread::spawn(move || walks(field, seed)));
    let owners = [0, 1].map(|half| std::thread::spawn(move || owns(field, half, 11 + half)));
    for owner in owners {
        owner.join().unwrap();
    }
    // ORDERING: Release; pairs with the Acquire in `walks`.
    field.over.store(true, Ordering::Release);
    let met: usize = walkers.map(|walker| walker.join().unwrap()).iter().sum();
    assert!(met > 0 || cfg!(miri));
    assert!(field.places.iter().all(|place| !place.is_taken()), "every departure has ended");
    assert_eq!(domain.busy().count(), 0);
    field.graves.lock().unwrap().clear();
    // Each value that was made held a count of this until it was dropped.
    assert_eq!(Arc::strong_count(&field.counted.0), 1);
    assert!(field.counted.dropped() > 0);
    println!("{met} uses, {} values", field.counted.dropped());
}
