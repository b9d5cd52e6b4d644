//! Threads add and mark while others collect. Nothing is lost, and nothing is counted twice. A
//! thread that adds and then collects finds all that it ever added. The seed is printed.
//!
//! Windows of a few instructions are opened by
//!
//! ```text
//! RUSTFLAGS="--cfg memgroup_yields" cargo test --release -p memgroup-percpu --test marks
//! ```

#![cfg(not(memgroup_loom))]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use memgroup_percpu::{Marks, Piece, Scratch, SlotSource, additive, pin_virtual};

const ADDS: usize = if cfg!(miri) { 500 } else { 200_000 };
/// Each adder counts in bits of its own of the shared counters, so that it can tell its additions
/// from others'.
const ADDERS: usize = 3;
const LANE_BITS: u32 = 20;
/// Neighbours in a word, in a chunk, and two chunks of one class.
const NUMBERS: [u32; 12] = [0, 1, 2, 63, 64, 65, 4095, 4096, 4097, 44 * 4096, 44 * 4096 + 1, 45 * 4096];

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % end
    }
}

struct Stats {
    source: SlotSource,
    marks: &'static Marks,
    /// By index of the number, and row.
    counters: Vec<Vec<AtomicU64>>,
    /// The collected sums, by index of the number, and adder; written under the collectors' lock.
    totals: Vec<[AtomicU64; ADDERS]>,
    collectors: Mutex<Scratch>,
    /// The additions are made.
    over: AtomicBool,
}

/// The observations of one adder.
#[derive(Default)]
struct Seen {
    relied: usize,
    marked: usize,
    clean: usize,
    settled: usize,
    collected: usize,
}

fn index_of(number: u32) -> usize {
    NUMBERS.iter().position(|&other| other == number).expect("only these numbers are marked")
}

impl Stats {
    fn new(source: SlotSource) -> Stats {
        let rows = source.slots() + 1;
        let marks: &'static Marks = Box::leak(Box::new(Marks::new(rows, 46 * 4096)));
        NUMBERS.iter().for_each(|&number| marks.provide(number));
        Stats {
            source,
            marks,
            counters: NUMBERS.map(|_| (0..rows).map(|_| AtomicU64::new(0)).collect()).into(),
            totals: NUMBERS.map(|_| Default::default()).into(),
            collectors: Mutex::new(Scratch::new(rows)),
            over: AtomicBool::new(false),
        }
    }

    fn deliver(&self, number: u32, rows: impl Iterator<Item = usize>) {
        let index = index_of(number);
        for row in rows {
            let taken = additive::take(&self.counters[index][row]) as u64;
            for (adder, total) in self.totals[index].iter().enumerate() {
                let of_adder = taken >> (adder as u32 * LANE_BITS) & ((1 << LANE_BITS) - 1);
                // ORDERING: Relaxed; under the lock, and published by the end of the collection.
                total.store(total.load(Ordering::Relaxed) + of_adder, Ordering::Relaxed);
            }
        }
    }

    fn collect(&self, wanted: impl FnMut(u32) -> bool) {
        let mut scratch = self.collectors.lock().unwrap_or_else(PoisonError::into_inner);
        self.marks.collect(&mut scratch, wanted, |number, rows| self.deliver(number, rows), || ());
    }

    /// Collects all in pieces of so many marks, and frees the lock between two pieces.
    fn collect_in_pieces(&self, marks_max: usize) {
        let mut next = Some(0);
        while let Some(from) = next {
            let mut scratch = self.collectors.lock().unwrap_or_else(PoisonError::into_inner);
            let deliver = |number, rows: memgroup_percpu::Rows<'_>| self.deliver(number, rows);
            let piece = Piece { from, marks_max };
            next = self.marks.collect_piece(&mut scratch, piece, |_| true, deliver, || ());
        }
    }

    fn collect_one(&self, number: u32) {
        let mut scratch = self.collectors.lock().unwrap_or_else(PoisonError::into_inner);
        self.marks.collect_one(&mut scratch, number, |rows| self.deliver(number, rows), || ());
    }

    /// Panics unless all additions of this adder were collected.
    fn check(&self, index: usize, adder: usize, added: u64, why: &str) {
        // ORDERING: Relaxed; the caller has collected, or found that a collection is over.
        let total = self.totals[index][adder].load(Ordering::Relaxed);
        assert_eq!(total, added, "adder {adder} of number {}, {why}", NUMBERS[index]);
    }

    fn add(&self, adder: usize, mut random: Random) -> (Seen, [u64; NUMBERS.len()]) {
        let (mut seen, mut added) = (Seen::default(), [0; NUMBERS.len()]);
        for _ in 0..ADDS {
            // Half of all goes to two rows, where adders meet.
            let slots = if random.below(2) == 0 { 2 } else { self.source.slots() };
            let _pinned = pin_virtual(random.below(slots));
            let (row, index) = (self.source.current(), random.below(NUMBERS.len()));
            let mark = self.marks.of(NUMBERS[index]);
            let counter = &self.counters[index][row];
            let word = mark.word(row).expect("there is such a row");
            assert!(additive::add(counter, 1 << (adder as u32 * LANE_BITS)), "the counter lives");
            if mark.is_set_in(word) {
                seen.relied += 1;
            } else {
                mark.set(row);
                seen.marked += 1;
            }
            added[index] += 1;
            match random.below(48) {
                0 => self.collect(|_| true),
                1 => self.collect_one(NUMBERS[index]),
                2 => self.collect(|number| number == NUMBERS[index]),
                3 => self.collect_in_pieces(1 + random.below(8)),
                _ => {
                    self.check_settled(adder, random.below(NUMBERS.len()), &added, &mut seen);
                    continue;
                }
            }
            seen.collected += 1;
            self.check(index, adder, added[index], "which has just collected it");
            self.check_settled(adder, index, &added, &mut seen);
        }
        (seen, added)
    }

    /// Panics where a number is settled, or all is clean, and an addition was not collected.
    fn check_settled(&self, adder: usize, index: usize, added: &[u64], seen: &mut Seen) {
        if self.marks.of(NUMBERS[index]).is_clean() {
            seen.settled += 1;
            self.check(index, adder, added[index], "which looks settled");
        }
        if self.marks.is_clean() {
            seen.clean += 1;
            (0..NUMBERS.len()).for_each(|all| self.check(all, adder, added[all], "when all looks clean"));
        }
    }

    /// Collects all the time, now these and then those.
    fn collect_on(&self, mut random: Random) -> usize {
        let mut turns = 0;
        // ORDERING: Relaxed; a flag that ends the loop.
        while !self.over.load(Ordering::Relaxed) {
            let some = random.below(8);
            if random.below(4) == 0 {
                self.collect_in_pieces(1 + some);
            } else {
                self.collect(|_| some == 0 || random.below(some) == 0);
            }
            std::thread::yield_now();
            turns += 1;
        }
        turns
    }
}

fn additions_are_collected(slots: usize) {
    let source = SlotSource::virtual_slots(slots).expect("some slots");
    let seed: u64 = std::env::var("MEMGROUP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(17);
    println!("seed {seed}, {slots} slots");
    let stats = Stats::new(source);
    let random = |of: u64| Random(seed.wrapping_mul(1000) + of);
    let (mut all, mut turns) = (Vec::new(), 0);
    std::thread::scope(|scope| {
        let stats = &stats;
        let adders: Vec<_> =
            (0..ADDERS).map(|adder| scope.spawn(move || stats.add(adder, random(adder as u64)))).collect();
        let collector = scope.spawn(move || stats.collect_on(random(ADDERS as u64)));
        let joined: Vec<_> = adders.into_iter().map(|adder| adder.join()).collect();
        // ORDERING: Relaxed; a flag that ends the loop.
        stats.over.store(true, Ordering::Relaxed);
        turns = collector.join().expect("no thread panicked");
        all = joined.into_iter().map(|adder| adder.expect("no thread panicked")).collect();
    });
    stats.collect(|_| true);
    for (adder, (seen, added)) in all.iter().enumerate() {
        let Seen { relied, marked, clean, settled, collected } = seen;
        println!(
            "adder {adder}: {relied} marks found, {marked} set, {settled} found settled, {clean} times clean, \
             {collected} collections; {turns} by the collector"
        );
        assert!(*relied > 0 && *marked > 0 && *collected > 0, "all that is tested has happened");
        (0..NUMBERS.len()).for_each(|index| stats.check(index, adder, added[index], "in the end"));
    }
    let looks = all.iter().fold((0, 0), |sum, (seen, _)| (sum.0 + seen.settled, sum.1 + seen.clean));
    assert!(looks.0 > 0 && looks.1 > 0, "all that is tested has happened, not {looks:?}");
    // ORDERING: Relaxed; all threads are joined.
    assert!(stats.counters.iter().flatten().all(|word| word.load(Ordering::Relaxed) == 0), "all is taken");
    stats.collect(|_| panic!("a number is still marked"));
    assert!(stats.marks.is_clean());
}

#[test]
fn collects_additions_on_2_slots() {
    additions_are_collected(2);
}

#[test]
fn collects_additions_on_8_slots() {
    additions_are_collected(8);
}

#[test]
fn collects_additions_on_128_slots() {
    additions_are_collected(128);
}

#[test]
fn collects_additions_on_512_slots() {
    additions_are_collected(512);
}
