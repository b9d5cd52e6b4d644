//! Where per-slot objects get their memory: chunks shared by all objects of one slot count.
//!
//!   chunk of 3 slots:  │ unit 0                 │ unit 1                 │ unit 2                 │
//!                      │ A B B C . . .          │ A B B C . . .          │ A B B C . . .          │
//!                      ◀──── STRIDE_BYTES ─────▶
//!
//! An object is one run of granules, at the same place in every unit. `A`, `B` and `C` lie side by side on each slot,
//! while the copies of `A` are a stride apart.
//!
//! # The stride
//!
//! 64 KiB would put all copies of an object into one set of the L1 and L2 caches: with 128 slots and 8 ways, whoever
//! walks the copies (a drain, a flush) evicts what it read a moment ago. Measured on Zen 4, a walk that takes the words
//! of 128 slots by swap costs 2.59 us at a stride of 64 KiB and 0.31 us at 64 KiB + 128 B when they are its own, 1.02 us
//! when another core wrote them last; with 512 slots 10.9 us against 1.8 us. So the stride is 64 KiB and a pair of lines.
//! Units do not begin on pages: neighbours share the page at their border.
//!
//! - I1. Every granule that is free is zero in every unit.
//! - I2. A stride is a multiple of 128 bytes and a chunk begins at one, so an offset has the same alignment, up to 128,
//!   in every unit, and no line belongs to two units.
//! - I3. A class keeps at most one chunk that holds no object.
//! - E1. Dropping an object → making one in the same place: clearing happens before the unlock, use after the lock.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use memgroup_sync::Mutex;

use crate::raw::Mapping;
use crate::spans::Spans;

/// From one slot's copy of an object to the next slot's; all of it is used.
pub(crate) const STRIDE_BYTES: usize = 64 * 1024 + ALIGN_MAX;
/// The most that an object can be aligned to: two lines, since they are fetched in pairs.
pub(crate) const ALIGN_MAX: usize = 128;
/// Objects begin and end at multiples of this.
pub(crate) const GRANULE_BYTES: usize = 8;

const GRANULES: usize = STRIDE_BYTES / GRANULE_BYTES;

const _: () = assert!(!STRIDE_BYTES.is_power_of_two() && STRIDE_BYTES.is_multiple_of(ALIGN_MAX));

memgroup_sync::global! {
    static POOL: Mutex<Pool> = Mutex::new(Pool { classes: BTreeMap::new() });
}

/// All chunks of the process, by slot count, then by address.
struct Pool {
    classes: BTreeMap<u32, BTreeMap<usize, Chunk>>,
}

struct Chunk {
    memory: Mapping,
    spans: Spans,
}

/// The size and alignment of one copy, in granules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    count: usize,
    align: usize,
}

impl Shape {
    /// The shape of a `T`. A `T` that fits no unit does not compile.
    pub(crate) const fn of<T>() -> Self {
        const {
            assert!(size_of::<T>() > 0, "a per-slot object has at least one byte");
            assert!(size_of::<T>() <= 64 * 1024, "a per-slot object has at most 64 KiB");
            assert!(align_of::<T>() <= ALIGN_MAX, "a per-slot object is aligned to at most 128 bytes");
        }
        Self { count: size_of::<T>().div_ceil(GRANULE_BYTES), align: align_of::<T>().div_ceil(GRANULE_BYTES) }
    }
}

/// Takes memory for an object of `slots` copies and returns unit 0's copy; all copies are zero (I1).
/// `None` if a new chunk is needed and the system refuses it.
pub(crate) fn take(slots: u32, shape: Shape) -> Option<NonNull<u8>> {
    let mut pool = POOL.lock();
    let class = pool.classes.entry(slots).or_default();
    for chunk in class.values_mut() {
        if let Some(start) = chunk.spans.take(shape.count, shape.align) {
            return Some(chunk.memory.at(start * GRANULE_BYTES));
        }
    }
    let memory = Mapping::new_zeroed(slots as usize * STRIDE_BYTES)?;
    let mut chunk = Chunk { memory, spans: Spans::new(GRANULES) };
    let start = chunk.spans.take(shape.count, shape.align)?;
    let copy = chunk.memory.at(start * GRANULE_BYTES);
    class.insert(chunk.memory.address(), chunk);
    Some(copy)
}

/// Gives back what [`take`] returned for the same slots and shape; its copies are zero again (I1).
pub(crate) fn give_back(slots: u32, copy: NonNull<u8>, shape: Shape) {
    // Unmapped after the lock is released.
    let _emptied = {
        let mut pool = POOL.lock();
        let Some(class) = pool.classes.get_mut(&slots) else {
            unreachable!("an object of {slots} slots is given back, and no chunk has that many")
        };
        give_back_to(class, copy.addr().get(), shape)
    };
}

/// Returns the chunk to unmap, if one became empty and another is kept (I3).
fn give_back_to(class: &mut BTreeMap<usize, Chunk>, address: usize, shape: Shape) -> Option<Chunk> {
    let Some((&base, chunk)) = class.range_mut(..=address).next_back() else {
        unreachable!("an object at {address:#x} is given back, and every chunk lies above")
    };
    chunk.spans.give_back((address - base) / GRANULE_BYTES, shape.count);
    if !chunk.spans.is_empty() {
        return None;
    }
    let other_empty = class.iter().any(|(&other, chunk)| other != base && chunk.spans.is_empty());
    if other_empty { class.remove(&base) } else { None }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::PerCpu;
    use memgroup_sync::atomic::AtomicU64;

    // Each test has a slot count that no other test uses, and so chunks of its own.

    fn chunks(slots: u32) -> usize {
        POOL.lock().classes.get(&slots).map_or(0, BTreeMap::len)
    }

    #[test]
    fn a_full_chunk_is_followed_by_another_and_empty_ones_go_but_one() {
        type Quarter = PerCpu<[AtomicU64; 2048]>;
        assert_eq!(chunks(37), 0);
        let mut objects: Vec<Quarter> = (0..12).map(|_| PerCpu::new(37)).collect();
        assert_eq!(chunks(37), 3, "4 quarters fill a chunk");
        objects.drain(4..8);
        assert_eq!(chunks(37), 3, "one empty chunk is kept");
        objects.drain(0..4);
        assert_eq!(chunks(37), 2, "the second empty chunk goes");
        objects.extend((0..4).map(|_| PerCpu::new(37)));
        assert_eq!(chunks(37), 2, "the kept one is used again");
        objects.clear();
        assert_eq!(chunks(37), 1);
    }

    #[test]
    fn a_hole_is_filled_before_new_ground_is_taken() {
        let objects: Vec<_> = (0..100).map(|_| PerCpu::<AtomicU64>::new(41)).collect();
        let place = |object: &PerCpu<AtomicU64>| core::ptr::from_ref(object.get(0)).addr();
        let freed: Vec<_> = objects.iter().step_by(3).map(place).collect();
        let kept: Vec<_> = objects.into_iter().enumerate().filter(|(turn, _)| turn % 3 != 0).collect();
        let again: Vec<_> = freed.iter().map(|_| PerCpu::<AtomicU64>::new(41)).collect();
        assert_eq!(again.iter().map(place).collect::<Vec<_>>(), freed);
        assert_eq!(kept.len() + again.len(), 100);
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn slots_that_were_never_touched_have_no_pages() {
        use memgroup_sync::atomic::Ordering;

        let object = PerCpu::<AtomicU64>::new(43);
        let start = core::ptr::from_ref(object.get(0)).addr();
        let resident = || {
            let mut pages = vec![0_u8; (43 * STRIDE_BYTES).div_ceil(4096)];
            let bytes = 43 * STRIDE_BYTES;
            // SAFETY: mincore writes a byte a page into `pages`, which is long enough, and reads nothing of the range.
            let answer =
                unsafe { libc::mincore(core::ptr::without_provenance_mut(start), bytes, pages.as_mut_ptr()) };
            assert_eq!(answer, 0, "the object begins its chunk, so the range is the chunk's");
            pages.iter().filter(|&page| page & 1 != 0).count()
        };
        assert_eq!(resident(), 0);
        object.get(3).store(1, Ordering::Relaxed);
        object.get(40).store(1, Ordering::Relaxed);
        assert_eq!(resident(), 2);
    }
}
