//! Threads that add to counters while sets move, come and go: nothing is lost and nothing is counted twice. The seed is printed.
//!
//! Windows of a few instructions are opened by
//!
//! ```text
//! RUSTFLAGS="--cfg memgroup_yields" cargo test --release -p memgroup-percpu --test counters
//! ```

#![cfg(not(memgroup_loom))]

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use memgroup_percpu::{ArenaConfig, CounterId, Counters, PageSize, SlotSource, pin_virtual};
use memgroup_sync::grace::Form;

/// Counters of a set.
const COUNTERS: usize = 40;
/// Places for sets in the test's own list; a fifth of them is taken at a time.
const SETS: usize = if cfg!(miri) { 60 } else { 600 };
const ADDS: usize = if cfg!(miri) { 200 } else { 150_000 };
const ADDERS: usize = 3;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % end
    }
}

/// One set from its creation to its removal, and what was added to it.
struct Life {
    set: CounterId,
    added: Vec<AtomicI64>,
    /// What `remove` returned.
    removed: Mutex<Option<Vec<i64>>>,
}

impl Life {
    fn begin(table: &'static Counters) -> Arc<Self> {
        let set = table.create().expect("the system has memory");
        let added = (0..COUNTERS).map(|_| AtomicI64::new(0)).collect();
        Arc::new(Life { set, added, removed: Mutex::new(None) })
    }

    fn end(&self, table: &'static Counters) {
        let sums = table.remove(self.set).expect("it is removed once");
        let before = self.removed.lock().unwrap_or_else(PoisonError::into_inner).replace(sums);
        assert!(before.is_none(), "it is removed once");
    }

    /// Panics unless what the table counted is what was added.
    fn check(&self, table: &'static Counters) {
        let removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner).take();
        for (counter, added) in self.added.iter().enumerate() {
            let added = added.load(Ordering::Relaxed);
            match &removed {
                Some(sums) => {
                    assert_eq!(sums[counter], added, "counter {counter} of {:?}, removed", self.set)
                }
                None => {
                    assert_eq!(table.sum(self.set, counter), Ok(added), "counter {counter} of {:?}", self.set)
                }
            }
        }
    }
}

struct Lives {
    table: &'static Counters,
    slots: usize,
    now: Vec<Mutex<Arc<Life>>>,
    past: Mutex<Vec<Arc<Life>>>,
    /// The additions are made.
    over: AtomicBool,
}

impl Lives {
    fn at(&self, place: usize) -> Arc<Life> {
        Arc::clone(&self.now[place].lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds to sets of all slots, those that were removed meanwhile among them.
    fn add(&self, mut random: Random) -> (usize, usize) {
        let (mut made, mut refused) = (0, 0);
        for _ in 0..ADDS {
            let _pinned = pin_virtual(random.below(self.slots));
            let (life, counter) = (self.at(random.below(SETS)), random.below(COUNTERS));
            let delta = random.below(1000) as i64;
            match self.table.add(life.set, counter, delta) {
                Ok(()) => {
                    life.added[counter].fetch_add(delta, Ordering::Release);
                    made += 1;
                }
                Err(_) => refused += 1,
            }
        }
        (made, refused)
    }

    /// Removes sets and now and then creates one where one was removed.
    fn come_and_go(&self, mut random: Random) {
        // ORDERING: Relaxed; a flag that ends the loops.
        while !self.over.load(Ordering::Relaxed) {
            let mut place = self.now[random.below(SETS)].lock().unwrap_or_else(PoisonError::into_inner);
            let is_over = place.removed.lock().unwrap_or_else(PoisonError::into_inner).is_some();
            if !is_over {
                place.end(self.table);
            } else if random.below(4) == 0 {
                let past = std::mem::replace(&mut *place, Life::begin(self.table));
                self.past.lock().unwrap_or_else(PoisonError::into_inner).push(past);
            }
            drop(place);
            std::thread::yield_now();
        }
    }

    /// Looks at sums, which never shrink: nothing negative is added.
    fn look(&self, mut random: Random) {
        // ORDERING: Relaxed; a flag that ends the loops.
        while !self.over.load(Ordering::Relaxed) {
            let (life, counter) = (self.at(random.below(SETS)), random.below(COUNTERS));
            let mut least = life.added[counter].load(Ordering::Acquire);
            for _ in 0..10 {
                let Ok(sum) = self.table.sum(life.set, counter) else { break };
                assert!(sum >= least, "a sum of {least} or more is {sum}");
                least = sum;
            }
        }
    }
}

fn additions_are_conserved(source: SlotSource) {
    let slots = source.slots();
    let seed = std::env::var("MEMGROUP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(17);
    println!("seed {seed}, {slots} slots by {}", source.name());
    let config = ArenaConfig::new(slots).page(PageSize::of_system()).float_bytes(0);
    let table = Counters::with_config(source, COUNTERS, config).expect("the setting is right");
    let first: Vec<_> = (0..SETS).map(|_| Life::begin(table)).collect();
    for life in first.iter().enumerate().filter(|(place, _)| place % 5 > 0).map(|(_, life)| life) {
        life.end(table);
    }
    let now = first.into_iter().map(Mutex::new).collect();
    let lives = Lives { table, slots, now, past: Mutex::new(Vec::new()), over: AtomicBool::new(false) };
    let (mut moved, mut made, mut refused) = (0, 0, 0);
    std::thread::scope(|scope| {
        let lives = &lives;
        let adders: Vec<_> =
            (0..ADDERS as u64).map(|adder| scope.spawn(move || lives.add(Random(seed + adder)))).collect();
        scope.spawn(move || lives.come_and_go(Random(seed + 100)));
        scope.spawn(move || lives.look(Random(seed + 200)));
        let mover = scope.spawn(move || {
            let mut moved = 0;
            // ORDERING: Relaxed; a flag that ends the loops.
            while !lives.over.load(Ordering::Relaxed) {
                moved += table.maintain(8, Form::Expedited).moved;
            }
            moved
        });
        let joined: Vec<_> = adders.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        // ORDERING: Relaxed; a flag that ends the loops.
        lives.over.store(true, Ordering::Relaxed);
        for joined in joined {
            let (of_one_made, of_one_refused) = joined.expect("no thread panicked");
            (made, refused) = (made + of_one_made, refused + of_one_refused);
        }
        moved = mover.join().expect("no thread panicked");
    });
    println!("{made} additions made, {refused} refused, {moved} moves");
    assert!(made > 0 && refused > 0 && moved > 0, "all that is tested has happened");
    let past = lives.past.into_inner().unwrap_or_else(PoisonError::into_inner);
    let now = lives.now.into_iter().map(|life| life.into_inner().unwrap_or_else(PoisonError::into_inner));
    let all: Vec<_> = past.into_iter().chain(now).collect();
    for life in &all {
        life.check(table);
    }
    for life in &all {
        // Those that were removed already are refused.
        let _ = table.remove(life.set);
    }
    while table.maintain(usize::MAX, Form::Expedited).moved > 0 {}
    let stats = table.stats();
    assert_eq!((stats.live_bytes, stats.leaving_bytes, stats.empty_bytes), (0, 0, 0), "{stats:?}");
}

fn virtual_slots(slots: usize) -> SlotSource {
    SlotSource::virtual_slots(slots).expect("some slots")
}

/// Here the quick way is taken, where the slot is known without a call.
#[test]
fn additions_on_the_machines_slots_are_conserved_while_sets_move_come_and_go() {
    additions_are_conserved(SlotSource::detect());
}

#[test]
fn additions_on_2_slots_are_conserved_while_sets_move_come_and_go() {
    additions_are_conserved(virtual_slots(2));
}

#[test]
fn additions_on_8_slots_are_conserved_while_sets_move_come_and_go() {
    additions_are_conserved(virtual_slots(8));
}

#[test]
fn additions_on_128_slots_are_conserved_while_sets_move_come_and_go() {
    additions_are_conserved(virtual_slots(128));
}

#[test]
fn additions_on_512_slots_are_conserved_while_sets_move_come_and_go() {
    additions_are_conserved(virtual_slots(512));
}
