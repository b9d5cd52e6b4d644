//! Chunk: cells with addresses that stay good for ever, and pages that go back to the system.
//!
//! ```text
//!   ChunkPool ── take ──▶ Chunk ── cells ──▶ &'static [T; N]    good for ever
//!      ▲                    │ retire
//!      │                    ▼
//!      │               RetiredChunk
//!      └ grace period ──────┘ drop, a grace period later: all cells are zero, the pages go back to the system
//! ```
//!
//! A reference to a cell may outlive its chunk. Its holder then finds zeros, and later another owner's values, but never memory that
//! is not a `T`. So a reader needs no reference count, and the owner needs no proof that the last reader is gone. The kernel calls
//! such memory type-safe (`SLAB_TYPESAFE_BY_RCU`).
//!
//! - I1. The address space of a chunk is never unmapped, and is only ever used for chunks of the same pool.
//! - I2. Every cell is zero when [`ChunkPool::take`] returns it, unless a thread that is late wrote to it.
//! - I3. Cells are erased after a grace period that began after their retirement, and taken again after another one. So within one
//!   section a reader finds the values of one owner or zeros. A section that began before the retirement finds no zeros.

#![allow(unsafe_code)]

use core::fmt;
use core::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Erasable;
use crate::grace::{self, Epoch, Limbo};

/// The chunks of one type that have no owner: the addresses for the next ones.
///
/// A pool is a static, so that its chunks can find it.
pub struct ChunkPool<T: Erasable, const N: usize> {
    dropped: Mutex<Option<Limbo<&'static [T; N]>>>,
    free: Mutex<Vec<&'static [T; N]>>,
}

/// `N` cells of one owner. Their addresses stay good for ever. Dropped without [`retire`](Self::retire) it leaks its memory.
///
/// ```
/// use memgroup_sync::atomic::{AtomicU64, Ordering};
/// use memgroup_sync::{ChunkPool, erasable};
///
/// erasable! {
///     struct Count { of: AtomicU64 }
/// }
/// static COUNTS: ChunkPool<Count, 100> = ChunkPool::new();
///
/// let chunk = COUNTS.take().expect("memory for 100 counts");
/// let count = &chunk.cells()[7];
/// count.of.fetch_add(1, Ordering::Relaxed);
/// let retired = chunk.retire();
/// memgroup_sync::grace::synchronize(memgroup_sync::grace::Form::Quiet);
/// drop(retired);
/// assert_eq!(count.of.load(Ordering::Relaxed), 0, "still a count, and zero");
/// ```
pub struct Chunk<T: Erasable, const N: usize> {
    cells: &'static [T; N],
    pool: &'static ChunkPool<T, N>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Erasable, const N: usize> ChunkPool<T, N> {
    /// A pool without chunks.
    pub const fn new() -> Self {
        const {
            assert!(N > 0 && size_of::<T>() > 0, "a chunk has cells, and a cell has bytes");
            assert!(align_of::<T>() <= 4096, "a chunk begins at a page");
        }
        ChunkPool { dropped: Mutex::new(None), free: Mutex::new(Vec::new()) }
    }

    /// A chunk of cells that are all zero; `None` if the system refuses memory.
    pub fn take(&'static self) -> Option<Chunk<T, N>> {
        let mut free = lock(&self.free);
        if free.is_empty()
            && let Some(dropped) = lock(&self.dropped).as_mut()
        {
            dropped.reclaim(|cells| free.push(cells));
        }
        #[cfg(any(test, feature = "inject"))]
        if inject::strikes() {
            return None;
        }
        let cells = free.pop().or_else(map)?;
        Some(Chunk { cells, pool: self })
    }
}

impl<T: Erasable, const N: usize> Default for ChunkPool<T, N> {
    fn default() -> Self {
        ChunkPool::new()
    }
}

impl<T: Erasable, const N: usize> Chunk<T, N> {
    /// The cells.
    pub fn cells(&self) -> &'static [T; N] {
        self.cells
    }
}

impl<T: Erasable, const N: usize> Chunk<T, N> {
    /// Whether `part` lies in one of the cells.
    pub fn owns<U>(&self, part: &U) -> bool {
        let (range, at) = (self.cells.as_ptr_range(), core::ptr::from_ref(part).addr());
        range.start.addr() <= at && at < range.end.addr()
    }

    /// Begins the end of the cells. The caller uses them no more.
    pub fn retire(self) -> RetiredChunk<T, N> {
        // SAFETY: this was the only owner, and is no more.
        unsafe { self.cells.retire() };
        RetiredChunk { chunk: self, epoch: grace::tag() }
    }
}

/// A chunk with cells that are to be erased.
///
/// Drop it after a grace period: its cells are zero from then on, and their pages the system's. Dropped earlier it leaks its memory.
#[derive(Debug)]
pub struct RetiredChunk<T: Erasable, const N: usize> {
    chunk: Chunk<T, N>,
    epoch: Epoch,
}

impl<T: Erasable, const N: usize> RetiredChunk<T, N> {
    /// The cells.
    pub fn cells(&self) -> &'static [T; N] {
        self.chunk.cells
    }
}

impl<T: Erasable, const N: usize> Drop for RetiredChunk<T, N> {
    fn drop(&mut self) {
        if !self.epoch.is_over() {
            return;
        }
        let Chunk { cells, pool } = self.chunk;
        if !return_pages(cells) {
            // SAFETY: retired, and a grace period has passed.
            unsafe { cells.erase() };
        }
        let mut dropped = lock(&pool.dropped);
        let limbo = dropped.get_or_insert_with(|| Limbo::new(usize::MAX));
        let refused = limbo.retire(cells, size_of::<[T; N]>());
        assert!(refused.is_ok(), "the limbo of chunks has no bound");
    }
}

impl<T: Erasable, const N: usize> fmt::Debug for Chunk<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk").field("at", &self.cells.as_ptr()).field("cells", &N).finish()
    }
}

/// Cells in fresh memory, which is zero.
#[cfg(all(target_os = "linux", not(miri)))]
fn map<T: Erasable, const N: usize>() -> Option<&'static [T; N]> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new private mapping, at an address that the system chooses.
    let address = unsafe {
        libc::mmap(core::ptr::null_mut(), size_of::<[T; N]>(), protection, flags | libc::MAP_NORESERVE, -1, 0)
    };
    let cells = NonNull::new(address).filter(|_| address != libc::MAP_FAILED)?;
    // SAFETY: the mapping begins at a page, is as long as the cells, and is never unmapped (I1). It is zero, a value of `T`.
    Some(unsafe { cells.cast().as_ref() })
}

/// Gives the pages of the cells back to the system: they are zero from now on. Whether it did.
#[cfg(all(target_os = "linux", not(miri)))]
fn return_pages<T: Erasable, const N: usize>(cells: &'static [T; N]) -> bool {
    let address = cells.as_ptr().cast_mut().cast();
    // SAFETY: the range is a mapping of its own (`map`). Its cells were retired, and a grace period has passed: they may turn to zero.
    unsafe { libc::madvise(address, size_of::<[T; N]>(), libc::MADV_DONTNEED) == 0 }
}

/// Cells in fresh memory, which is zero.
#[cfg(any(not(target_os = "linux"), miri))]
fn map<T: Erasable, const N: usize>() -> Option<&'static [T; N]> {
    let layout = std::alloc::Layout::new::<[T; N]>();
    // SAFETY: the layout has a size: `ChunkPool::new` asserts it.
    let cells = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
    // SAFETY: memory of this layout that is never freed (I1), and is zero, a value of `T`.
    Some(unsafe { cells.cast().as_ref() })
}

/// Whether pages went back: not on this system. The cells keep their memory for the pool's next chunks.
#[cfg(any(not(target_os = "linux"), miri))]
fn return_pages<T: Erasable, const N: usize>(_cells: &'static [T; N]) -> bool {
    false
}

/// Chunks that are refused on purpose, in tests and with the feature `inject`, which alone exports it.
#[cfg(any(test, feature = "inject"))]
pub mod inject {
    use std::cell::Cell;
    use std::marker::PhantomData;

    std::thread_local! {
        static IS_ON: Cell<bool> = const { Cell::new(false) };
    }

    /// While it lives, no [`ChunkPool`](super::ChunkPool) has a chunk for this thread.
    #[derive(Debug)]
    #[must_use = "chunks are refused only while the guard lives"]
    pub struct Guard(PhantomData<*const ()>);

    /// Refuses every chunk on this thread until the guard is dropped.
    pub fn refuse_chunks() -> Guard {
        IS_ON.set(true);
        Guard(PhantomData)
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            IS_ON.set(false);
        }
    }

    pub(super) fn strikes() -> bool {
        IS_ON.get()
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
    fn write(cells: &[Cell; 64], value: u64) {
        // ORDERING: as above.
        cells.iter().for_each(|cell| {
            cell.b.iter().chain([&cell.a]).for_each(|word| word.store(value, Ordering::Relaxed))
        });
    }

    fn end(chunk: Chunk<Cell, 64>) {
        let retired = chunk.retire();
        grace::synchronize(Form::Quiet);
        drop(retired);
    }

    fn is_zero(cells: &[Cell; 64]) -> bool {
        // ORDERING: as above.
        cells.iter().all(|cell| cell.b.iter().chain([&cell.a]).all(|word| word.load(Ordering::Relaxed) == 0))
    }

    #[test]
    fn cells_are_zero_when_they_are_taken_and_after_they_were_dropped() {
        static POOL: ChunkPool<Cell, 64> = ChunkPool::new();
        let chunk = POOL.take().unwrap();
        let cells = chunk.cells();
        assert!(is_zero(cells));
        write(cells, 7);
        end(chunk);
        assert!(is_zero(cells), "a reader that is late finds zeros");
        write(cells, 7);
        // SAFETY: retired, and a grace period has passed.
        unsafe { cells.erase() };
        assert!(is_zero(cells));
    }

    #[test]
    fn refuses_a_chunk_where_there_is_no_memory() {
        static POOL: ChunkPool<Cell, 64> = ChunkPool::new();
        let guard = inject::refuse_chunks();
        assert!(POOL.take().is_none());
        drop(guard);
        assert!(POOL.take().is_some());
    }

    #[test]
    fn leaks_cells_that_are_dropped_without_a_grace_period() {
        static POOL: ChunkPool<Cell, 64> = ChunkPool::new();
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
        static POOL: ChunkPool<Cell, 64> = ChunkPool::new();
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
        static POOL: ChunkPool<Cell, 64> = ChunkPool::new();
        let resident = |cells: &[Cell; 64]| {
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
