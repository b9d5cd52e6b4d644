//! Chunk: cells with addresses that stay good for ever, and pages that go back to the system.
//!
//! ```text
//!   ChunkPool ── take ──▶ Chunk ── cells ──▶ &'static [T]    good for ever
//!      ▲                    │ retire
//!      │                    ▼
//!      │               RetiredChunk
//!      └ grace period ──────┘ drop, a grace period later: all cells are zero, the pages go back to the system
//! ```
//!
//! A reference to a cell may outlive its chunk. Its holder then finds zeros, and later another
//! owner's values, but never memory that is not a `T`. So a reader needs no reference count, and
//! the owner needs no proof that the last reader is gone. The kernel calls such memory type-safe
//! (`SLAB_TYPESAFE_BY_RCU`).
//!
//! - I1. The address space of a chunk is never unmapped, and is only ever used for chunks of the
//!   same pool.
//! - I2. Every cell is zero when [`ChunkPool::take`] returns it, unless a thread that is late
//!   wrote to it.
//! - I3. Cells are erased after a grace period that began after their retirement, and taken again
//!   after another one. So within one section a reader finds the values of one owner or zeros. A
//!   section that began before the retirement finds no zeros.

#![allow(unsafe_code)]

use core::fmt;
use core::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Erasable;
use crate::grace::{self, Epoch, Limbo};

/// The bits of a cell's address. Memory beyond is not used, so that a word has room for an address
/// and for more.
pub const ADDRESS_BITS: u32 = 48;

/// The chunks of one type that have no owner: the addresses for the next ones.
///
/// A pool lives for ever, so that its chunks can find it.
pub struct ChunkPool<T: Erasable> {
    cells: usize,
    dropped: Mutex<Option<Limbo<&'static [T]>>>,
    free: Mutex<Vec<&'static [T]>>,
}

/// The cells of one owner. Their addresses stay good for ever. Dropped without
/// [`retire`](Self::retire) it leaks its memory.
///
/// ```
/// use memgroup_sync::atomic::{AtomicU64, Ordering};
/// use memgroup_sync::{ChunkPool, erasable};
///
/// erasable! {
///     struct Count { of: AtomicU64 }
/// }
/// static COUNTS: ChunkPool<Count> = ChunkPool::new(100);
///
/// let chunk = COUNTS.take().expect("memory for 100 counts");
/// let count = &chunk.cells()[7];
/// count.of.fetch_add(1, Ordering::Relaxed);
/// let retired = chunk.retire();
/// memgroup_sync::grace::synchronize(memgroup_sync::grace::Form::Quiet);
/// drop(retired);
/// assert_eq!(count.of.load(Ordering::Relaxed), 0, "still a count, and zero");
/// ```
pub struct Chunk<T: Erasable> {
    cells: &'static [T],
    pool: &'static ChunkPool<T>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Erasable> ChunkPool<T> {
    /// A pool of chunks with so many cells each, without a chunk as yet.
    ///
    /// # Panics
    /// If a chunk has no cells, or more bytes than an address can count.
    pub const fn new(cells: usize) -> Self {
        const {
            assert!(size_of::<T>() > 0, "a cell has bytes");
            assert!(align_of::<T>() <= 4096, "a chunk begins at a page");
        }
        assert!(cells > 0, "a chunk has cells");
        assert!(cells < isize::MAX as usize / 2 / size_of::<T>(), "an address counts the bytes of a chunk");
        ChunkPool { cells, dropped: Mutex::new(None), free: Mutex::new(Vec::new()) }
    }

    /// Bytes of the cells of one chunk.
    pub const fn chunk_bytes(&self) -> usize {
        self.cells * size_of::<T>()
    }

    /// A chunk of cells that are all zero; `None` if the system refuses memory.
    pub fn take(&'static self) -> Option<Chunk<T>> {
        let mut free = lock(&self.free);
        // Addresses that were used before come first: the system has page tables for them.
        if let Some(dropped) = lock(&self.dropped).as_mut() {
            dropped.reclaim(|cells| free.push(cells));
        }
        #[cfg(any(test, feature = "inject"))]
        if inject::strikes() {
            return None;
        }
        if free.is_empty() {
            map(self.cells, &mut free);
        }
        Some(Chunk { cells: free.pop()?, pool: self })
    }
}

impl<T: Erasable> Chunk<T> {
    /// The cells.
    pub fn cells(&self) -> &'static [T] {
        self.cells
    }
}

impl<T: Erasable> Chunk<T> {
    /// Returns whether `part` lies in one of the cells.
    pub fn owns<U>(&self, part: &U) -> bool {
        let (range, at) = (self.cells.as_ptr_range(), core::ptr::from_ref(part).addr());
        range.start.addr() <= at && at < range.end.addr()
    }

    /// Begins the end of the cells. The caller uses them no more.
    pub fn retire(self) -> RetiredChunk<T> {
        // SAFETY: this was the only owner, and is no more.
        self.cells.iter().for_each(|cell| unsafe { cell.retire() });
        RetiredChunk { chunk: self, epoch: grace::tag() }
    }
}

/// A chunk with cells that are to be erased.
///
/// Drop it after a grace period: its cells are zero from then on, and their pages the system's.
/// Dropped earlier it leaks its memory.
#[derive(Debug)]
pub struct RetiredChunk<T: Erasable> {
    chunk: Chunk<T>,
    epoch: Epoch,
}

impl<T: Erasable> RetiredChunk<T> {
    /// The cells.
    pub fn cells(&self) -> &'static [T] {
        self.chunk.cells
    }
}

impl<T: Erasable> Drop for RetiredChunk<T> {
    fn drop(&mut self) {
        if !self.epoch.is_over() {
            return;
        }
        let Chunk { cells, pool } = self.chunk;
        if !return_pages(cells) {
            // SAFETY: retired, and a grace period has passed.
            cells.iter().for_each(|cell| unsafe { cell.erase() });
        }
        let mut dropped = lock(&pool.dropped);
        let limbo = dropped.get_or_insert_with(|| Limbo::new(usize::MAX));
        let refused = limbo.retire(cells, size_of_val(cells));
        assert!(refused.is_ok(), "the limbo of chunks has no bound");
    }
}

impl<T: Erasable> fmt::Debug for Chunk<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk").field("at", &self.cells.as_ptr()).field("cells", &self.cells.len()).finish()
    }
}

/// Returns whether all addresses of so many bytes from `base` have [`ADDRESS_BITS`].
fn is_near(base: NonNull<u8>, bytes: usize) -> bool {
    (base.addr().get() as u64).checked_add(bytes as u64).is_some_and(|end| end >> ADDRESS_BITS == 0)
}

/// Bytes of the address space that is mapped at a time, at least: the kernel has few mappings
/// then.
#[cfg(all(target_os = "linux", not(miri)))]
const MAPPED_LEAST: usize = 1 << 20;

/// Adds chunks in fresh memory, which is zero. It is backed by pages as it is touched. Adds none
/// if the system refuses.
#[cfg(all(target_os = "linux", not(miri)))]
fn map<T: Erasable>(cells: usize, into: &mut Vec<&'static [T]>) {
    // SAFETY: a question without pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let each = (cells * size_of::<T>()).next_multiple_of(page);
    let chunks = (MAPPED_LEAST / each).max(1);
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new private mapping, at an address that the system chooses.
    let address = unsafe {
        libc::mmap(core::ptr::null_mut(), chunks * each, protection, flags | libc::MAP_NORESERVE, -1, 0)
    };
    let Some(base) = NonNull::new(address).filter(|_| address != libc::MAP_FAILED) else { return };
    if !is_near(base.cast(), chunks * each) {
        // SAFETY: mapped just now, and known to nothing else.
        unsafe { libc::munmap(address, chunks * each) };
        return;
    }
    // A huge page would back many cells for the first byte of one. The advice may be refused: it
    // only saves. SAFETY: the range was mapped just now.
    unsafe { libc::madvise(address, chunks * each, libc::MADV_NOHUGEPAGE) };
    into.extend((0..chunks).rev().map(|number| {
        // SAFETY: within the mapping.
        let first = unsafe { base.byte_add(number * each) };
        // SAFETY: the chunk begins at a page of the mapping, which has room for it, and is never
        // unmapped (I1). It is zero, a value of `T`.
        unsafe { NonNull::slice_from_raw_parts(first.cast(), cells).as_ref() }
    }));
}

/// Gives the pages of the cells back to the system: they are zero from now on. Whether it did.
#[cfg(all(target_os = "linux", not(miri)))]
fn return_pages<T: Erasable>(cells: &'static [T]) -> bool {
    let address = cells.as_ptr().cast_mut().cast();
    // SAFETY: the range begins at a page, and no other chunk is in its pages (`map`). Its cells
    // were retired, and a grace period has passed: they may turn to zero.
    unsafe { libc::madvise(address, size_of_val(cells), libc::MADV_DONTNEED) == 0 }
}

/// Adds a chunk in fresh memory, which is zero. Adds none if the system refuses.
#[cfg(any(not(target_os = "linux"), miri))]
fn map<T: Erasable>(cells: usize, into: &mut Vec<&'static [T]>) {
    let Ok(layout) = std::alloc::Layout::array::<T>(cells) else { return };
    // SAFETY: the layout has a size: `ChunkPool::new` asserts it.
    let Some(first) = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }) else { return };
    if !is_near(first, layout.size()) {
        // SAFETY: allocated just now with this layout, and known to nothing else.
        return unsafe { std::alloc::dealloc(first.as_ptr(), layout) };
    }
    // SAFETY: memory of this layout that is never freed (I1), and is zero, a value of `T`.
    into.push(unsafe { NonNull::slice_from_raw_parts(first.cast(), cells).as_ref() });
}

/// Returns whether pages went back: not on this system. The cells keep their memory for the pool's
/// next chunks.
#[cfg(any(not(target_os = "linux"), miri))]
fn return_pages<T: Erasable>(_cells: &'static [T]) -> bool {
    false
}

/// Chunks that are refused on purpose, in tests and with the feature `inject`, which alone exports
/// it.
#[cfg(any(test, feature = "inject"))]
pub mod inject {
    use std::cell::Cell;
    use std::marker::PhantomData;
    use std::ops::RangeInclusive;

    std::thread_local! {
        // The first and the last chunk that is refused, counted from 1, and how many were asked
        // for.
        static PLANNED: Cell<Option<(u64, u64, u64)>> = const { Cell::new(None) };
    }

    /// While it lives, no [`ChunkPool`](super::ChunkPool) has a chunk for this thread, or not each
    /// time.
    #[derive(Debug)]
    #[must_use = "chunks are refused only while the guard lives"]
    pub struct Guard(PhantomData<*const ()>);

    /// Refuses every chunk on this thread until the guard is dropped.
    pub fn refuse_chunks() -> Guard {
        refuse_chunks_at(1..=u64::MAX)
    }

    /// Refuses the chunks on this thread whose number is in the range, until the guard is dropped.
    /// The next chunk has the number 1.
    pub fn refuse_chunks_at(numbers: RangeInclusive<u64>) -> Guard {
        let (first, last) = numbers.into_inner();
        PLANNED.set(Some((first, last, 0)));
        Guard(PhantomData)
    }

    impl Guard {
        /// The chunks that were asked for so far, refused or not.
        pub fn requests(&self) -> u64 {
            PLANNED.get().map_or(0, |(.., seen)| seen)
        }
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            PLANNED.set(None);
        }
    }

    pub(super) fn strikes() -> bool {
        let Some((first, last, seen)) = PLANNED.get() else { return false };
        PLANNED.set(Some((first, last, seen + 1)));
        (first..=last).contains(&(seen + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic::{AtomicU64, Ordering};
    use crate::grace::Form;

    crate::erasable! {
        struct Cell {
            a: AtomicU64,
            b: [AtomicU64; 63],
        }
    }

    // ORDERING: Relaxed in all tests; one thread.
    fn write(cells: &[Cell], value: u64) {
        // ORDERING: as above.
        cells.iter().for_each(|cell| {
            cell.b.iter().chain([&cell.a]).for_each(|word| word.store(value, Ordering::Relaxed))
        });
    }

    fn end(chunk: Chunk<Cell>) {
        let retired = chunk.retire();
        grace::synchronize(Form::Quiet);
        drop(retired);
    }

    fn is_zero(cells: &[Cell]) -> bool {
        // ORDERING: as above.
        cells.iter().all(|cell| cell.b.iter().chain([&cell.a]).all(|word| word.load(Ordering::Relaxed) == 0))
    }

    #[test]
    fn cells_are_zero_when_they_are_taken_and_after_they_were_dropped() {
        static POOL: ChunkPool<Cell> = ChunkPool::new(64);
        let chunk = POOL.take().unwrap();
        let cells = chunk.cells();
        assert!(is_zero(cells));
        write(cells, 7);
        end(chunk);
        assert!(is_zero(cells), "a reader that is late finds zeros");
        write(cells, 7);
        // SAFETY: retired, and a grace period has passed.
        cells.iter().for_each(|cell| unsafe { cell.erase() });
        assert!(is_zero(cells));
    }

    #[test]
    fn refuses_a_chunk_where_there_is_no_memory() {
        static POOL: ChunkPool<Cell> = ChunkPool::new(64);
        let guard = inject::refuse_chunks();
        assert!(POOL.take().is_none());
        drop(guard);
        assert!(POOL.take().is_some());
        let guard = inject::refuse_chunks_at(2..=2);
        assert_eq!([(); 3].map(|()| POOL.take().is_some()), [true, false, true]);
        assert_eq!(guard.requests(), 3);
    }

    #[test]
    fn leaks_cells_that_are_dropped_without_a_grace_period() {
        static POOL: ChunkPool<Cell> = ChunkPool::new(64);
        let chunk = POOL.take().unwrap();
        let cells = chunk.cells();
        write(cells, 7);
        let _section = grace::enter();
        drop(chunk.retire());
        // ORDERING: as above.
        assert_eq!(cells[3].a.load(Ordering::Relaxed), 7, "a section may rely on the values");
    }

    #[test]
    fn addresses_wait_for_a_grace_period() {
        static POOL: ChunkPool<Cell> = ChunkPool::new(64);
        let first = POOL.take().unwrap();
        let cells = first.cells();
        let retired = first.retire();
        grace::synchronize(Form::Quiet);
        {
            let _section = grace::enter();
            drop(retired);
            let second = POOL.take().unwrap();
            assert!(!core::ptr::eq(second.cells(), cells), "a section that began before may read them");
        }
        grace::synchronize(Form::Quiet);
        let taken: Vec<_> = (0..2).map(|_| POOL.take().unwrap()).collect();
        assert!(
            taken.iter().any(|chunk| core::ptr::eq(chunk.cells(), cells)),
            "the address space is used again"
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore = "it reads /proc")]
    fn pages_go_back_to_the_system() {
        static POOL: ChunkPool<Cell> = ChunkPool::new(64);
        let resident = |cells: &[Cell]| {
            let mut states = [0u8; 64];
            let bytes = size_of_val(cells);
            // SAFETY: the range is mapped, and there is a byte for each of its pages.
            let done = unsafe { libc::mincore(cells.as_ptr().cast_mut().cast(), bytes, states.as_mut_ptr()) };
            assert_eq!(done, 0);
            states.iter().filter(|&&state| state & 1 == 1).count()
        };
        let chunk = POOL.take().unwrap();
        let cells = chunk.cells();
        write(cells, 1);
        assert_eq!(resident(cells), size_of_val(cells) / 4096);
        end(chunk);
        assert_eq!(resident(cells), 0);
    }
}
