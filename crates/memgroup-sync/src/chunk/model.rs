//! Chunks of cells in a model: kept for the execution.

#![allow(unsafe_code)]

use crate::Erasable;

/// Makes chunks. A model has no memory to give back.
pub struct ChunkPool<T: Erasable, const N: usize>(core::marker::PhantomData<fn() -> T>);

/// `N` cells, which last for the execution.
pub struct Chunk<T: Erasable, const N: usize>(&'static [T; N]);

impl<T: Erasable, const N: usize> ChunkPool<T, N> {
    /// A pool.
    pub const fn new() -> Self {
        ChunkPool(core::marker::PhantomData)
    }

    /// Cells that are all zero.
    pub fn take(&'static self) -> Option<Chunk<T, N>> {
        Some(Chunk(crate::keep(Box::new(Erasable::zero()))))
    }
}

impl<T: Erasable, const N: usize> Chunk<T, N> {
    /// The cells.
    pub fn cells(&self) -> &'static [T; N] {
        self.0
    }
}

impl<T: Erasable, const N: usize> Default for ChunkPool<T, N> {
    fn default() -> Self {
        ChunkPool::new()
    }
}

/// Cells that stay for the execution, and are zero once this is dropped.
pub struct RetiredChunk<T: Erasable, const N: usize>(&'static [T; N]);

impl<T: Erasable, const N: usize> Chunk<T, N> {
    /// Whether `part` lies in one of the cells.
    pub fn owns<U>(&self, part: &U) -> bool {
        let (range, at) = (self.0.as_ptr_range(), core::ptr::from_ref(part).addr());
        range.start.addr() <= at && at < range.end.addr()
    }

    /// Retires the cells.
    pub fn retire(self) -> RetiredChunk<T, N> {
        // SAFETY: this was the only owner, and is no more.
        unsafe { self.0.retire() };
        RetiredChunk(self.0)
    }
}

impl<T: Erasable, const N: usize> RetiredChunk<T, N> {
    /// The cells.
    pub fn cells(&self) -> &'static [T; N] {
        self.0
    }
}

impl<T: Erasable, const N: usize> Drop for RetiredChunk<T, N> {
    fn drop(&mut self) {
        if !crate::keep::is_over() && !crate::keep::model_failed() {
            // SAFETY: a model shows whether it is sound: its memory stays.
            unsafe { self.0.erase() };
        }
    }
}
