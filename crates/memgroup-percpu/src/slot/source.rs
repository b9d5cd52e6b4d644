//! The source of the current slot.
//!
//!   current():  kind == rseq? ── load fs:[offset] ──┐
//!               else the kind's own way (cold half) ─┴─▶ raw < slots? ── raw
//!                                                        else raw mod slots (cold)
//!
//! - I1. `current() < slots()`, whatever the raw source says.
//! - I2. `slots` is at least 1.
//! - B1. The answer may be stale when it is used: the thread may have moved to another CPU since.
//!   Two threads may use one slot at the same time.

#![allow(unsafe_code)]

use core::fmt;
use core::num::NonZeroI32;
// A plain atomic in both builds: it is written before other threads get to its cell, so a model
// has nothing to explore in it.
use core::sync::atomic::{AtomicI32, Ordering};

use memgroup_sync::Erasable;

use crate::slot::error::{COUNT_MAX, SLOTS_MAX, SlotError};
use crate::slot::{cpus, number, rseq};

/// The source of the calling thread's current slot: a small value, chosen once and copied to each
/// place of use.
///
/// | source | which slot | ns |
/// |---|---|---|
/// | [`mm_cid`](Self::mm_cid) | rseq's concurrency id, which follows the number of *running threads*: few slots are ever touched | 0.3-0.4 |
/// | [`cpu_id`](Self::cpu_id) | rseq's CPU number | 0.4-0.5 |
/// | [`getcpu`](Self::getcpu) | the CPU number by `sched_getcpu` | 2.4-4 |
/// | [`thread_hash`](Self::thread_hash) | a number of the thread's own, spread over n slots | 3 |
/// | [`virtual_slots`](Self::virtual_slots) | the one given to [`pin_virtual`](../memgroup_percpu/fn.pin_virtual.html), else the thread's number modulo n | 3 |
///
/// # Effects of a wrong slot
///
/// Nothing but speed. An answer is a hint. It can be stale when it is used, because the thread was
/// moved. Two threads can be on one slot at once, and a broken kernel could give every thread the
/// same. Users of a slot change its copy by atomic read-modify-writes only, so no update is lost
/// and none is counted twice. A wrong slot costs a cache line that travels, or one more slot that
/// is touched. The answer is always below [`slots`](Self::slots), so it never leads out of the
/// memory.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_percpu::SlotSource;
///
/// let source = SlotSource::detect();
/// assert!(source.current() < source.slots());
///
/// let sixteen: SlotSource = "virtual:16".parse()?;
/// assert_eq!((sixteen.name(), sixteen.slots()), ("virtual", 16));
/// # }
/// # Ok::<(), memgroup_percpu::SlotError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SlotSource {
    /// The slot's field in the rseq area, for the kinds that read it there. It is apart from
    /// `kind`, so that `current` tests and loads two plain fields.
    field: Option<rseq::Field>,
    slots: u32,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    MmCid,
    CpuId,
    Getcpu,
    Hash,
    Virtual,
}

const _: () =
    assert!(size_of::<SlotSource>() <= 16, "a slot source is copied into every hierarchy and hot structure");

impl SlotSource {
    /// The kernel's concurrency id of this thread (`mm_cid` of its rseq area). Ids are dense, and
    /// threads that run at the same time have different ones. It has as many slots as there are
    /// possible CPUs.
    ///
    /// Checks that the area is there and registered; [`detect`](Self::detect) tests more.
    ///
    /// # Errors
    ///
    /// [`SlotError::Unavailable`] unless x86_64, Linux 6.3 or newer and glibc 2.35 or newer, with
    /// rseq not turned off.
    pub fn mm_cid() -> Result<Self, SlotError> {
        Ok(Self { field: Some(rseq::mm_cid()?), ..Self::of_cpus(Kind::MmCid) })
    }

    /// The CPU this thread runs on, from its rseq area. It has as many slots as there are possible
    /// CPUs.
    ///
    /// Checks that the area is there and registered; [`detect`](Self::detect) tests more.
    ///
    /// # Errors
    ///
    /// [`SlotError::Unavailable`] unless x86_64 Linux with glibc 2.35 or newer and rseq not turned
    /// off.
    pub fn cpu_id() -> Result<Self, SlotError> {
        Ok(Self { field: Some(rseq::cpu_id()?), ..Self::of_cpus(Kind::CpuId) })
    }

    /// The CPU this thread runs on, by `sched_getcpu`. It has as many slots as there are possible
    /// CPUs.
    ///
    /// # Errors
    ///
    /// [`SlotError::Unavailable`] unless Linux, with a C library that can tell the CPU.
    pub fn getcpu() -> Result<Self, SlotError> {
        if cpus::getcpu_library() > i32::MAX as u32 {
            let reason =
                "sched_getcpu reports an error, or is not called here: other systems than Linux, Miri, loom";
            return Err(SlotError::unavailable("getcpu", reason));
        }
        Ok(Self::of_cpus(Kind::Getcpu))
    }

    /// A fixed slot for each thread, out of `slots`: threads are numbered as they come and spread
    /// by a multiplicative hash. Works everywhere.
    ///
    /// # Errors
    ///
    /// [`SlotError::Count`] unless `slots` is within 1..=4096.
    pub fn thread_hash(slots: usize) -> Result<Self, SlotError> {
        Self::counted(Kind::Hash, slots)
    }

    /// `slots` slots that have nothing to do with the machine, for tests and experiments. A thread
    /// uses the slot that it pinned with [`pin_virtual`](../memgroup_percpu/fn.pin_virtual.html),
    /// else its number modulo `slots`.
    ///
    /// # Errors
    ///
    /// [`SlotError::Count`] unless `slots` is within 1..=4096.
    pub fn virtual_slots(slots: usize) -> Result<Self, SlotError> {
        Self::counted(Kind::Virtual, slots)
    }

    /// A thread hash over as many slots as there are possible CPUs: the source that nothing can
    /// take away.
    pub(crate) fn hash_of_cpus() -> Self {
        Self::of_cpus(Kind::Hash)
    }

    fn of_cpus(kind: Kind) -> Self {
        let slots = cpus::possible().min(SLOTS_MAX);
        Self { field: None, slots: slots as u32, kind }
    }

    fn counted(kind: Kind, slots: usize) -> Result<Self, SlotError> {
        if !(1..=COUNT_MAX).contains(&slots) {
            return Err(SlotError::Count { kind: kind.name(), asked: slots.to_string() });
        }
        Ok(Self { field: None, slots: slots as u32, kind })
    }

    /// The slot to use now, always below [`slots`](Self::slots). A hint, see [effects of a wrong
    /// slot](Self#effects-of-a-wrong-slot). It never allocates, makes no system call except where
    /// `sched_getcpu` does, and orders nothing. It takes a reference, because a copy of the source
    /// would cost as much as the answer.
    #[inline]
    pub fn current(&self) -> usize {
        let raw = self.raw();
        if raw < self.slots { raw as usize } else { self.wrap(raw) }
    }

    /// Its field in the rseq area, for cells that may be erased.
    pub fn fast(&self) -> FastSlot {
        FastSlot(AtomicI32::new(self.field.map_or(0, |field| field.offset.get())))
    }

    /// The raw value, before it is brought into range.
    #[inline(always)]
    pub(crate) fn raw(&self) -> u32 {
        match self.field {
            Some(field) => field.read(),
            None => outside_rseq(self.kind, self.slots),
        }
    }

    #[cold]
    #[inline(never)]
    fn wrap(self, raw: u32) -> usize {
        (raw % self.slots) as usize
    }

    /// How many slots there are: one more than the largest that [`current`](Self::current) can
    /// give.
    #[inline]
    pub fn slots(self) -> usize {
        self.slots as usize
    }

    /// `mm_cid`, `cpu_id`, `getcpu`, `hash` or `virtual`.
    pub fn name(self) -> &'static str {
        self.kind.name()
    }
}

/// The field of a slot source in the rseq area, if it has one: half of [`SlotSource::current`], in
/// four bytes of a cell that may be [erased](Erasable).
///
/// It holds the field's offset from the thread pointer, or 0.
pub struct FastSlot(AtomicI32);

// SAFETY: one atomic, for which zero is a value: it stands for no field.
unsafe impl Erasable for FastSlot {
    fn zero() -> Self {
        FastSlot(AtomicI32::new(0))
    }

    unsafe fn erase(&self) {
        // ORDERING: Relaxed; the owner of the cells orders their next use.
        self.0.store(0, Ordering::Relaxed);
    }
}

impl FastSlot {
    /// Takes over the field of `source`, before other threads get to the cell.
    pub fn set(&self, source: &SlotSource) {
        // ORDERING: Relaxed; published with the cell.
        self.0.store(source.fast().0.into_inner(), Ordering::Relaxed);
    }

    /// Returns the number in the rseq area, if that is the source: without a function call, and
    /// *not* brought into range. A fast path compares it with its own bound, and calls
    /// [`SlotSource::current`] where this returns `None`.
    #[inline(always)]
    pub(crate) fn value(&self) -> Option<usize> {
        // ORDERING: Relaxed; published with the cell.
        let offset = NonZeroI32::new(self.0.load(Ordering::Relaxed))?;
        Some(rseq::Field { offset }.read() as usize)
    }
}

/// The raw value of a source that is not in the rseq area. It is not inlined, so that the other
/// half, which is inlined everywhere, is one branch and two loads.
#[inline(never)]
fn outside_rseq(kind: Kind, slots: u32) -> u32 {
    match kind {
        Kind::Virtual => match number::pinned() {
            // Compared first: a division costs more than the rest.
            Some(slot) if slot < slots as usize => slot as u32,
            Some(slot) => (slot % slots as usize) as u32,
            None => number::current(),
        },
        Kind::Hash => spread(number::current(), slots),
        Kind::Getcpu | Kind::MmCid | Kind::CpuId => cpus::getcpu_library(),
    }
}

/// Fibonacci hashing: numbers given out in turn fall on slots that are far apart. So do every
/// second or every eighth of them. A plain remainder would put those on a fraction of the slots.
#[inline]
fn spread(number: u32, slots: u32) -> u32 {
    let mixed = number.wrapping_mul(0x9E37_79B9);
    ((u64::from(mixed) * u64::from(slots)) >> 32) as u32
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::MmCid => rseq::MM_CID,
            Self::CpuId => rseq::CPU_ID,
            Self::Getcpu => "getcpu",
            Self::Hash => "hash",
            Self::Virtual => "virtual",
        }
    }
}

impl fmt::Debug for SlotSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotSource").field("name", &self.name()).field("slots", &self.slots).finish()
    }
}

#[cfg(all(test, not(memgroup_loom)))]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::{any, proptest};

    use super::*;
    use crate::pin_virtual;

    pub(crate) fn all_that_work_here() -> Vec<SlotSource> {
        let specs =
            ["mm_cid", "cpu_id", "getcpu", "hash", "hash:3", "virtual:1", "virtual:128", "virtual:4096"];
        specs.iter().filter_map(|spec| spec.parse().ok()).collect()
    }

    #[test]
    fn every_source_stays_below_its_slots_on_many_threads() {
        for source in all_that_work_here() {
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        for _ in 0..10_000 {
                            assert!(source.current() < source.slots(), "{source:?}");
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn a_raw_value_out_of_range_is_brought_into_it() {
        for source in all_that_work_here() {
            let narrow = SlotSource { slots: 1, ..source };
            assert_eq!(narrow.current(), 0, "{source:?}");
        }
        let source = SlotSource::virtual_slots(5).unwrap();
        assert_eq!(source.wrap(u32::MAX), u32::MAX as usize % 5);
        let _pinned = pin_virtual(usize::MAX);
        assert_eq!(source.current(), usize::MAX % 5);
    }

    #[test]
    fn threads_pinned_to_virtual_slots_are_on_those_slots() {
        let source = SlotSource::virtual_slots(8).unwrap();
        let seen: BTreeSet<_> = std::thread::scope(|scope| {
            let threads = (0..8).map(|slot| {
                scope.spawn(move || {
                    let _pinned = pin_virtual(slot);
                    assert_eq!(source.current(), slot);
                    source.current()
                })
            });
            threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(seen, (0..8).collect());
    }

    #[test]
    fn restores_the_pin_before_it() {
        let source = SlotSource::virtual_slots(100).unwrap();
        let unpinned = source.current();
        {
            let _outer = pin_virtual(unpinned + 1);
            {
                let _inner = pin_virtual(unpinned + 2);
                assert_eq!(source.current(), (unpinned + 2) % 100);
            }
            assert_eq!(source.current(), (unpinned + 1) % 100);
        }
        assert_eq!(source.current(), unpinned);
    }

    #[test]
    fn a_pin_moves_virtual_sources_only() {
        let hash = SlotSource::thread_hash(64).unwrap();
        let before = hash.current();
        let _pinned = pin_virtual(before + 1);
        assert_eq!(hash.current(), before);
    }

    #[test]
    fn unpinned_threads_take_virtual_slots_in_turn() {
        let source = SlotSource::virtual_slots(4096).unwrap();
        let mine = source.current();
        let other = std::thread::spawn(move || source.current()).join().unwrap();
        assert_ne!(mine, other);
        assert_eq!(source.current(), mine, "a thread keeps its number");
    }

    #[test]
    fn every_eighth_thread_number_spreads_over_the_slots_too() {
        for slots in [2, 8, 64, 128, 512] {
            for step in [1, 2, 8] {
                let used: BTreeSet<_> = (0..2 * slots).map(|turn| spread(turn * step, slots)).collect();
                let share = used.len() as f64 / f64::from(slots);
                // A remainder would reach 1/step.
                assert!(share > 0.6, "{share} of {slots} slots by every {step}th thread");
            }
        }
    }

    proptest! {
        #[test]
        fn a_thread_s_hash_is_always_below_the_slots(number in any::<u32>(), slots in 1_u32..=8192) {
            assert!(spread(number, slots) < slots);
        }
    }
}
