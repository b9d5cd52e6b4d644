//! Tests of objects with a copy for each slot.

use memgroup_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use proptest::prelude::{Strategy, any, prop_oneof, proptest};

use super::*;
use crate::SlotSource;

const LINE_BYTES: usize = 64;

fn address<T>(copy: &T) -> usize {
    core::ptr::from_ref(copy).addr()
}

#[test]
fn copies_are_a_stride_apart_that_is_no_power_of_two() {
    let object = PerCpu::<AtomicU64>::new(128);
    for slot in 1..128 {
        assert_eq!(address(object.get(slot)) - address(object.get(slot - 1)), object.arena.stride_bytes());
    }
    let sets: std::collections::BTreeSet<_> =
        object.iter().map(|copy| address(copy) / LINE_BYTES % 64).collect();
    assert_eq!(sets.len(), 32, "128 copies spread over 32 of 64 sets of a level-1 cache, 4 in each");
}

#[test]
fn small_objects_share_lines_only_within_a_slot() {
    // No other test has objects of 47 slots, so these fill chunks of their own.
    let objects: Vec<_> = (0..1000).map(|_| PerCpu::<AtomicU64>::new(47)).collect();
    let lines = |slot: usize| -> std::collections::BTreeSet<usize> {
        objects.iter().map(|object| address(object.get(slot)) / (2 * LINE_BYTES)).collect()
    };
    let by_slot = [lines(0), lines(1), lines(46)];
    for (slot, lines) in by_slot.iter().enumerate() {
        assert_eq!(lines.len(), 63, "1000 words fill 62.5 pairs of lines");
        for other in &by_slot[slot + 1..] {
            assert!(lines.is_disjoint(other));
        }
    }
}

/// A word on lines of its own, to see that alignment holds on every slot.
#[repr(align(128))]
struct Alone(AtomicU64, [AtomicU64; 15]);

// SAFETY: sixteen words without padding between or behind them; zero bytes are zero words; nothing to drop.
unsafe impl PerCpuValue for Alone {
    fn zero() -> Self {
        Self(AtomicU64::zero(), <[AtomicU64; 15]>::zero())
    }
}

#[test]
fn alignment_holds_on_every_slot() {
    let _shifts_what_follows = PerCpu::<AtomicBool>::new(17);
    let alone = PerCpu::<Alone>::new(17);
    let half = PerCpu::<AtomicU32>::new(17);
    let words = PerCpu::<[AtomicUsize; 3]>::new(17);
    for slot in 0..17 {
        assert_eq!(address(alone.get(slot)) % 128, 0);
        assert_eq!(address(half.get(slot)) % 4, 0);
        assert_eq!(address(words.get(slot)) % 8, 0);
        // ORDERING: Relaxed; a copy of this thread, or after the joins.
        alone.get(slot).0.store(1, Ordering::Relaxed);
        alone.get(slot).1[14].store(2, Ordering::Relaxed);
    }
    // ORDERING: Relaxed; a copy of this thread, or after the joins.
    assert!(half.iter().all(|copy| copy.load(Ordering::Relaxed) == 0));
}

#[test]
fn the_largest_object_and_the_most_slots_work() {
    let largest = PerCpu::<[AtomicU64; 8192]>::new(2);
    // ORDERING: Relaxed; a copy of this thread, or after the joins.
    largest.get(1)[8191].store(1, Ordering::Relaxed);
    assert_eq!(largest.get(0)[8191].load(Ordering::Relaxed), 0);
    let widest = PerCpu::<AtomicU64>::new(SLOTS_MAX);
    // ORDERING: Relaxed; a copy of this thread, or after the joins.
    widest.get(SLOTS_MAX - 1).store(1, Ordering::Relaxed);
    assert_eq!(widest.iter().filter(|copy| copy.load(Ordering::Relaxed) == 1).count(), 1);
}

#[test]
#[should_panic(expected = "slot 4 of a per-slot object with 4 slots")]
fn a_slot_out_of_range_panics_and_says_so() {
    let object = PerCpu::<AtomicU64>::new(4);
    let _ = object.get(4);
}

#[test]
#[should_panic(expected = "from 1 to 8192 slots, not 0")]
fn panics_with_the_bounds_when_there_are_no_slots() {
    let _ = PerCpu::<AtomicU64>::new(0);
}

#[test]
fn memory_that_was_used_before_is_zero_again() {
    // No other test has objects of 19 slots, so the second lies where the first lay.
    let first = PerCpu::<[AtomicU64; 5]>::new(19);
    let place = address(first.get(0));
    for copy in first.iter() {
        // ORDERING: Relaxed; a copy of this thread, or after the joins.
        copy.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    }
    drop(first);
    let second = PerCpu::<[AtomicU64; 5]>::new(19);
    assert_eq!(address(second.get(0)), place);
    // ORDERING: Relaxed; a copy of this thread, or after the joins.
    assert!(second.iter().flatten().all(|word| word.load(Ordering::Relaxed) == 0));
}

#[test]
fn adding_through_the_current_slot_loses_nothing() {
    const THREADS: u64 = 8;
    const ADDS: u64 = if cfg!(miri) { 50 } else { 100_000 };
    let mut sources = vec![SlotSource::detect()];
    sources.extend(
        ["cpu_id", "getcpu", "hash:3", "virtual:2", "virtual:128"]
            .map(str::parse::<SlotSource>)
            .into_iter()
            .flatten(),
    );
    for source in sources {
        let object = PerCpu::<[AtomicU64; 2]>::new(source.slots());
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..ADDS {
                        // ORDERING: Relaxed; a copy of this thread, or after the joins.
                        object.get(source.current())[1].fetch_add(3, Ordering::Relaxed);
                    }
                });
            }
        });
        // ORDERING: Relaxed; a copy of this thread, or after the joins.
        let sum: u64 = object.iter().map(|copy| copy[1].load(Ordering::Relaxed)).sum();
        assert_eq!(sum, 3 * THREADS * ADDS, "{source:?}");
        assert!(object.iter().all(|copy| copy[0].load(Ordering::Relaxed) == 0));
    }
}

#[test]
fn objects_made_and_dropped_on_many_threads_stay_apart() {
    const ROUNDS: u64 = if cfg!(miri) { 20 } else { 2_000 };
    std::thread::scope(|scope| {
        for thread in 1..=4_u64 {
            scope.spawn(move || {
                let mut held: Vec<(PerCpu<[AtomicU64; 3]>, u64)> = Vec::new();
                for round in 0..ROUNDS {
                    let mark = thread << 32 | round;
                    let object = PerCpu::<[AtomicU64; 3]>::new(23);
                    for word in object.iter().flatten() {
                        // ORDERING: Relaxed; a copy of this thread, or after the joins.
                        assert_eq!(word.swap(mark, Ordering::Relaxed), 0, "zero at birth");
                    }
                    held.push((object, mark));
                    if held.len() > 40 {
                        let (object, mark) = held.swap_remove((round * 7 % 40) as usize);
                        // ORDERING: Relaxed; a copy of this thread, or after the joins.
                        assert!(object.iter().flatten().all(|word| word.load(Ordering::Relaxed) == mark));
                    }
                }
            });
        }
    });
}

/// An object of any shape the randomised test makes.
enum Any {
    Flag(PerCpu<AtomicBool>),
    Half(PerCpu<AtomicU32>),
    Word(PerCpu<AtomicU64>),
    Record(PerCpu<[AtomicU64; 13]>),
    Aligned(PerCpu<Alone>),
    Quarter(PerCpu<[AtomicU64; 2000]>),
}

impl Any {
    fn make(shape: u8, slots: usize) -> Self {
        match shape % 6 {
            0 => Self::Flag(PerCpu::new(slots)),
            1 => Self::Half(PerCpu::new(slots)),
            2 => Self::Word(PerCpu::new(slots)),
            3 => Self::Record(PerCpu::new(slots)),
            4 => Self::Aligned(PerCpu::new(slots)),
            _ => Self::Quarter(PerCpu::new(slots)),
        }
    }

    /// First and last byte of each copy.
    fn ranges(&self) -> Vec<(usize, usize)> {
        fn of<T: PerCpuValue>(object: &PerCpu<T>) -> Vec<(usize, usize)> {
            object.iter().map(|copy| (address(copy), address(copy) + size_of::<T>() - 1)).collect()
        }
        match self {
            Self::Flag(object) => of(object),
            Self::Half(object) => of(object),
            Self::Word(object) => of(object),
            Self::Record(object) => of(object),
            Self::Aligned(object) => of(object),
            Self::Quarter(object) => of(object),
        }
    }
}

proptest! {
    #[test]
    fn live_objects_never_overlap(
        steps in proptest::collection::vec(
            prop_oneof![
                3 => (any::<u8>(), prop_oneof![1_usize..4, 29_usize..31]).prop_map(Ok),
                2 => any::<usize>().prop_map(Err),
            ],
            1..60,
        ),
    ) {
        let mut objects: Vec<Any> = Vec::new();
        for step in steps {
            match step {
                Ok((shape, slots)) => objects.push(Any::make(shape, slots)),
                Err(which) if !objects.is_empty() => drop(objects.swap_remove(which % objects.len())),
                Err(_) => {}
            }
        }
        let mut ranges: Vec<_> = objects.iter().flat_map(Any::ranges).collect();
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            assert!(pair[0].1 < pair[1].0, "{:#x?} and {:#x?} overlap", pair[0], pair[1]);
        }
    }
}

#[test]
fn a_handle_is_two_words_and_can_go_to_other_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<PerCpu<[AtomicU64; 4]>>();
    assert_eq!(size_of::<PerCpu<AtomicU64>>(), 2 * size_of::<usize>());
}
