//! Chunks of cells in a model: kept for the execution, and never erased.

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
