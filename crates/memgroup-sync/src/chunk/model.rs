//! Chunks of cells in a model: kept for the execution.

#![allow(unsafe_code)]

use crate::Erasable;

/// The bits of a cell's address.
pub const ADDRESS_BITS: u32 = 48;

/// Makes chunks. A model has no memory to give back.
pub struct ChunkPool<T: Erasable> {
    cells: usize,
    of: core::marker::PhantomData<fn() -> T>,
}

/// Cells, which last for the execution.
pub struct Chunk<T: Erasable>(&'static [T]);

impl<T: Erasable> ChunkPool<T> {
    /// A pool of chunks with so many cells each.
    pub const fn new(cells: usize) -> Self {
        ChunkPool { cells, of: core::marker::PhantomData }
    }

    /// Bytes of the cells of one chunk.
    pub const fn chunk_bytes(&self) -> usize {
        self.cells * size_of::<T>()
    }

    /// Cells that are all zero.
    pub fn take(&'static self) -> Option<Chunk<T>> {
        let cells: &'static Vec<T> = crate::keep(Box::new((0..self.cells).map(|_| T::zero()).collect()));
        Some(Chunk(cells))
    }
}

impl<T: Erasable> Chunk<T> {
    /// The cells.
    pub fn cells(&self) -> &'static [T] {
        self.0
    }
}

/// Cells that stay for the execution, and are zero once this is dropped.
pub struct RetiredChunk<T: Erasable>(&'static [T]);

impl<T: Erasable> Chunk<T> {
    /// Returns whether `part` lies in one of the cells.
    pub fn owns<U>(&self, part: &U) -> bool {
        let (range, at) = (self.0.as_ptr_range(), core::ptr::from_ref(part).addr());
        range.start.addr() <= at && at < range.end.addr()
    }

    /// Retires the cells.
    pub fn retire(self) -> RetiredChunk<T> {
        // SAFETY: this was the only owner, and is no more.
        self.0.iter().for_each(|cell| unsafe { cell.retire() });
        RetiredChunk(self.0)
    }
}

impl<T: Erasable> RetiredChunk<T> {
    /// The cells.
    pub fn cells(&self) -> &'static [T] {
        self.0
    }

    /// Erases the cells, and takes them for the next owner. The model waits for a grace period
    /// before and after that, as `ChunkPool::take` does outside of models.
    pub fn erase_and_take(self) -> Chunk<T> {
        let cells = self.0;
        drop(self);
        Chunk(cells)
    }
}

impl<T: Erasable> Drop for RetiredChunk<T> {
    fn drop(&mut self) {
        if !crate::keep::is_over() && !crate::keep::model_failed() {
            // SAFETY: a model shows whether it is sound: its memory stays.
            self.0.iter().for_each(|cell| unsafe { cell.erase() });
        }
    }
}
