//! Rows that a query returns. They are charged for as long as they exist.
//!
//! - I1. Each buffer counts once, although batches share buffers; a sort, for example, returns
//!   slices of one. No other buffer can have its address, because the rows keep it alive.
//! - I2. The charge is that of a consumer of the query's pool. So errors name it, and the pool
//!   makes room for it as for any consumer that cannot spill.

use std::collections::HashSet;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayData};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};

use crate::pool::GroupPool;

/// The name of the consumer.
const NAME: &str = "ReturnedRows";

/// Bytes of a buffer besides its content: the owner, and its part of an array.
const BUFFER: usize = 128;

/// Rows that a query returned, as a slice of batches. Their memory is charged to the query's group
/// until this is dropped, also after the query's end.
///
/// A clone of a batch is not charged, so whoever keeps one longer than these rows should charge it.
/// Buffers that the rows share with a table in memory count as well, because the rows keep them
/// alive.
pub struct Rows {
    batches: Vec<RecordBatch>,
    /// The addresses of the buffers that count already.
    seen: HashSet<usize>,
    reservation: MemoryReservation,
}

impl Rows {
    /// No rows, of a query with this pool.
    pub(crate) fn of(pool: &Arc<GroupPool>) -> Rows {
        let pool = Arc::clone(pool) as Arc<dyn MemoryPool>;
        Rows {
            batches: Vec::new(),
            seen: HashSet::new(),
            reservation: MemoryConsumer::new(NAME).register(&pool),
        }
    }

    /// Adds a batch if there is room for it.
    pub(crate) fn push(&mut self, batch: RecordBatch) -> std::result::Result<(), NoRoom> {
        let data = batch.columns().iter().map(|column| column.to_data());
        let bytes = data.map(|data| self.new_bytes(&data)).sum();
        match self.reservation.try_grow(bytes) {
            Ok(()) => {
                self.batches.push(batch);
                Ok(())
            }
            Err(error) => Err(NoRoom { error, needed: self.reservation.size().saturating_add(bytes) }),
        }
    }

    /// Bytes of the buffers of an array that do not count yet.
    fn new_bytes(&mut self, data: &ArrayData) -> usize {
        let buffers = data.buffers().iter().chain(data.nulls().map(|nulls| nulls.buffer()));
        let new = buffers.filter(|buffer| self.seen.insert(buffer.data_ptr().addr().get()));
        let own: usize = new.map(|buffer| buffer.capacity().saturating_add(BUFFER)).sum();
        data.child_data().iter().map(|child| self.new_bytes(child)).sum::<usize>().saturating_add(own)
    }

    /// Bytes that are charged for the rows.
    pub fn bytes(&self) -> usize {
        self.reservation.size()
    }

    /// Returns the batches without their charge. The caller should charge them elsewhere or drop
    /// them soon.
    pub fn into_uncharged(self) -> Vec<RecordBatch> {
        self.batches
    }
}

impl Deref for Rows {
    type Target = [RecordBatch];

    fn deref(&self) -> &[RecordBatch] {
        &self.batches
    }
}

impl PartialEq for Rows {
    /// Returns whether both have the same batches.
    fn eq(&self, other: &Rows) -> bool {
        self.batches == other.batches
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("batches", &self.batches).field("bytes", &self.bytes()).finish()
    }
}

/// A batch for which there is no room.
pub(crate) struct NoRoom {
    pub(crate) error: datafusion::common::DataFusionError,
    /// Bytes of the rows with that batch.
    needed: usize,
}

impl NoRoom {
    /// Returns whether even a query that holds nothing but the rows has no room for them, as long
    /// as other groups keep theirs.
    pub(crate) fn is_final(&self, pool: &GroupPool) -> bool {
        matches!(pool.memory_limit(), MemoryLimit::Finite(most) if self.needed > most)
    }
}
