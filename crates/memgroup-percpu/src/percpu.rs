//! The handle to one object with a copy on each slot.
//!
//! - I1. A handle owns one block of `arena`, from its birth to its drop. For each slot of the arena `base + slot * stride` is
//!   an aligned `T` within the chunk's mapping, and no other handle refers to it.
//! - I2. A chunk is mapped while a block in it is taken. The arena unmaps only empty chunks, and an arena with objects lives
//!   for ever (`&'static`).
//! - I3. No code forms a `&mut T`; a `T` changes through its atomics.
//! - I4. A `&T` of a slot is handed out only after the slot was admitted, so the arena clears the bytes written through it.
//!
//! loom's atomics are not bytes: under loom the copies are one boxed slice.

#![allow(unsafe_code)]

use core::fmt;
#[cfg(not(memgroup_loom))]
use core::{marker::PhantomData, ptr::NonNull};

use crate::arena::alloc::Arena;
#[cfg(not(memgroup_loom))]
use crate::arena::block::{NO_OWNER, Shape, Wait};
use crate::arena::out_of_memory::OutOfMemory;
use crate::arena::slot_set::SLOTS_MAX;
use crate::value::PerCpuValue;

/// One object with a copy for each slot, all zero at birth.
///
/// Copies of different slots never share a cache line, nor a pair of lines that are fetched together. Copies of
/// different objects on the *same* slot lie densely: the words of eight groups fill one line of that slot. The memory of a
/// slot that never ran is never backed by a page: [`get`](Self::get) *admits* its slot, and the arena leaves all others
/// alone.
///
/// The handle is two words. [`get`](Self::get) finds the slot in the arena's set, one load, and computes an address.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_percpu::{PerCpu, SlotSource};
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// let source = SlotSource::detect();
/// let hits = PerCpu::<AtomicU64>::new(source.slots());
/// hits.get(source.current()).fetch_add(1, Ordering::Relaxed);
/// assert_eq!(hits.iter().map(|copy| copy.load(Ordering::Relaxed)).sum::<u64>(), 1);
/// # }
/// ```
pub struct PerCpu<T: PerCpuValue> {
    /// Slot 0's copy.
    #[cfg(not(memgroup_loom))]
    base: NonNull<T>,
    #[cfg(not(memgroup_loom))]
    owns: PhantomData<T>,
    #[cfg(memgroup_loom)]
    copies: Box<[T]>,
    arena: &'static Arena,
}

// SAFETY: the handle is the only owner of its copies (I1), and a `T` may be sent (`PerCpuValue: Send`).
unsafe impl<T: PerCpuValue> Send for PerCpu<T> {}
// SAFETY: a shared handle gives out `&T` only, and a `T` may be shared (`PerCpuValue: Sync`).
unsafe impl<T: PerCpuValue> Sync for PerCpu<T> {}

impl<T: PerCpuValue> PerCpu<T> {
    #[cfg(not(memgroup_loom))]
    const SHAPE: Shape = Shape::of::<T>();

    /// Makes an object with `slots` copies, each zero.
    ///
    /// Takes the lock of the process's arena for this slot count ([`Arena::shared`]), and makes a system call where no memory
    /// is left over from before. A `T` larger than 64 KiB, or aligned to more than 128 bytes, does not compile.
    ///
    /// # Panics
    ///
    /// If `slots` is 0 or more than 8192. Where the system refuses memory, the process ends as for a `Box`;
    /// [`try_new`](Self::try_new) returns instead.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self::try_new(slots)
            .unwrap_or_else(|_| std::alloc::handle_alloc_error(core::alloc::Layout::new::<T>()))
    }

    /// As [`new`](Self::new), with an error where the system refuses memory.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] if the system refuses address space or memory for another chunk of `slots` units.
    ///
    /// # Panics
    ///
    /// If `slots` is 0 or more than 8192.
    pub fn try_new(slots: usize) -> Result<Self, OutOfMemory> {
        match Arena::shared(slots) {
            Ok(arena) => Self::try_new_in(arena),
            Err(_) => panic!("a per-slot object needs from 1 to {SLOTS_MAX} slots, not {slots}"),
        }
    }

    /// As [`try_new`](Self::try_new), in an arena of the caller's, which lives as long as the process.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] as above.
    #[cfg(not(memgroup_loom))]
    pub fn try_new_in(arena: &'static Arena) -> Result<Self, OutOfMemory> {
        let base = arena.alloc(Self::SHAPE, NO_OWNER, Wait::May)?.address().cast();
        Ok(Self { base, owns: PhantomData, arena })
    }

    /// Never fails; the signature is the other build's.
    #[cfg(memgroup_loom)]
    pub fn try_new_in(arena: &'static Arena) -> Result<Self, OutOfMemory> {
        Ok(Self { copies: (0..arena.slots()).map(|_| T::zero()).collect(), arena })
    }

    /// The copy of `slot`.
    ///
    /// # Panics
    ///
    /// If `slot` is not below [`slots`](Self::slots).
    #[cfg(not(memgroup_loom))]
    #[inline]
    #[must_use]
    pub fn get(&self, slot: usize) -> &T {
        // A slot that does not exist is not admitted, so one test answers both.
        if !self.arena.is_admitted(slot) {
            self.admit(slot);
        }
        // SAFETY: the slot was admitted, so it is one of the arena's, and the address within the mapping (I1).
        let copy = unsafe { self.base.byte_add(slot * self.arena.stride_bytes()) };
        // SAFETY: a `T` is there, aligned, and valid from birth because zero bytes are (`PerCpuValue`). It stays for as
        // long as `self` is borrowed (I1, I2). No `&mut` to it exists (I3).
        unsafe { copy.as_ref() }
    }

    /// Admits no slot: a boxed copy costs the same whether its slot runs or not, and models are spared the word.
    #[cfg(memgroup_loom)]
    pub fn get(&self, slot: usize) -> &T {
        self.copies.get(slot).unwrap_or_else(|| slot_out_of_range(slot, self.slots()))
    }

    #[cfg(not(memgroup_loom))]
    #[cold]
    #[inline(never)]
    fn admit(&self, slot: usize) {
        if slot >= self.slots() {
            slot_out_of_range(slot, self.slots());
        }
        self.arena.admit(slot);
    }

    /// Asks the processor for the line of the copy of `slot`, to write it, and returns at once. A thread that is about to
    /// change copies that other CPUs wrote last asks for the next ones ahead. It is a hint: it changes no value, and does
    /// nothing for a slot that was not admitted.
    #[inline]
    pub fn prefetch_write(&self, slot: usize) {
        #[cfg(not(memgroup_loom))]
        if self.arena.is_admitted(slot) {
            // SAFETY: the slot was admitted, so the address lies within the chunk's mapping (I1).
            let copy = unsafe { self.base.byte_add(slot * self.arena.stride_bytes()) };
            crate::prefetch::prefetch_write(copy.as_ptr().cast());
        }
        #[cfg(memgroup_loom)]
        let _ = slot;
    }

    /// All copies, in the order of their slots. It admits every slot, because the caller may write through the references. A
    /// caller that only reads takes [`admitted`](Self::admitted).
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &T> + DoubleEndedIterator {
        (0..self.slots()).map(|slot| self.get(slot))
    }

    /// The copies of the slots that were admitted so far, with their slots. All others are zero.
    pub fn admitted(&self) -> impl Iterator<Item = (usize, &T)> {
        (0..self.slots())
            .filter(|&slot| cfg!(memgroup_loom) || self.arena.is_admitted(slot))
            .map(|slot| (slot, self.get(slot)))
    }

    /// The arena that it lies in.
    #[must_use]
    pub fn arena(&self) -> &'static Arena {
        self.arena
    }

    /// How many copies there are.
    #[inline]
    #[must_use]
    pub fn slots(&self) -> usize {
        self.arena.slots()
    }
}

#[cfg(not(memgroup_loom))]
impl<T: PerCpuValue> Drop for PerCpu<T> {
    fn drop(&mut self) {
        self.arena.free_at(self.base.addr().get(), Self::SHAPE);
    }
}

impl<T: PerCpuValue + fmt::Debug> fmt::Debug for PerCpu<T> {
    /// The copies of the admitted slots, by slot. It admits none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.admitted()).finish()
    }
}

#[cold]
#[inline(never)]
fn slot_out_of_range(slot: usize, slots: usize) -> ! {
    panic!("slot {slot} of a per-slot object with {slots} slots")
}

#[cfg(all(test, memgroup_loom))]
mod loom_models {
    use crate::{PerCpu, SlotSource, pin_virtual};
    use memgroup_sync::atomic::{AtomicU64, Ordering};
    use memgroup_sync::thread;
    use std::sync::Arc;

    /// Two threads on `slots` slots run `add` twice each; returns the sum of the copies.
    fn sum_after(slots: usize, add: fn(&AtomicU64)) -> u64 {
        let object = Arc::new(PerCpu::<AtomicU64>::new(slots));
        let source = SlotSource::virtual_slots(slots).unwrap();
        let threads = [0, 1].map(|slot| {
            let object = Arc::clone(&object);
            thread::spawn(move || {
                let _pinned = pin_virtual(slot);
                assert_eq!(source.current(), slot % slots, "a pin belongs to the model's thread");
                add(object.get(source.current()));
                add(object.get(source.current()));
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // ORDERING: Relaxed; after the joins.
        object.iter().map(|copy| copy.load(Ordering::Relaxed)).sum()
    }

    fn add_by_rmw(copy: &AtomicU64) {
        // ORDERING: Relaxed; a read-modify-write loses nothing in any order.
        copy.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn loom_adds_on_own_and_on_shared_slots_are_conserved() {
        memgroup_sync::model(|| assert_eq!(sum_after(2, add_by_rmw), 4));
        memgroup_sync::model(|| assert_eq!(sum_after(1, add_by_rmw), 4));
    }

    /// The mutation: a load and a store instead of a read-modify-write, which is wrong as soon as a slot is shared.
    #[test]
    #[should_panic(expected = "4 adds are counted")]
    fn loom_finds_the_add_that_is_lost_without_a_read_modify_write() {
        memgroup_sync::model(|| {
            // ORDERING: Relaxed; no order makes a load and a store one step.
            let sum = sum_after(1, |copy| copy.store(copy.load(Ordering::Relaxed) + 1, Ordering::Relaxed));
            assert!(sum == 4, "4 adds are counted, not {sum}");
        });
    }

    #[test]
    fn loom_numbers_threads_anew_in_each_execution() {
        memgroup_sync::model(|| {
            let source = SlotSource::virtual_slots(3).unwrap();
            let mine = source.current();
            let other = thread::spawn(move || source.current()).join().unwrap();
            assert_eq!((mine, other), (0, 1));
        });
    }
}

#[cfg(all(test, not(memgroup_loom)))]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::SlotSource;
    use memgroup_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
    use proptest::prelude::{Strategy, any, prop_oneof, proptest};

    const LINE_BYTES: usize = 64;

    fn address<T>(copy: &T) -> usize {
        core::ptr::from_ref(copy).addr()
    }

    #[test]
    fn copies_are_a_stride_apart_that_is_no_power_of_two() {
        let object = PerCpu::<AtomicU64>::new(128);
        for slot in 1..128 {
            assert_eq!(
                address(object.get(slot)) - address(object.get(slot - 1)),
                object.arena().stride_bytes()
            );
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
}
