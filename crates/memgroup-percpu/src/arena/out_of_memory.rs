//! Errors: no memory for an object, and settings that no arena can have.

use core::fmt;

use crate::arena::block::BLOCK_BYTES_MAX;
use crate::arena::page::PageSize;
use crate::arena::slot_set::SLOTS_MAX;

/// The thing that was missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// Address space for another chunk.
    Chunk,
    /// Memory behind the pages of an object.
    Pages,
    /// Room in the mapped chunks, for a caller that may not wait.
    Room,
}

/// There is no memory for a per-slot object. Printed, it completes the phrase "failed to ...".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    pub(crate) lack: Lack,
    pub(crate) bytes: usize,
    pub(crate) slots: usize,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, slots, .. } = self;
        match self.lack {
            Lack::Chunk => write!(
                f,
                "map {bytes} bytes of address space for per-slot objects of {slots} slots: the system refused it; \
                 raise RLIMIT_AS or vm.max_map_count, or use fewer slots"
            ),
            Lack::Pages => write!(
                f,
                "back a per-slot object with {bytes} bytes on each of up to {slots} slots: the system refused the \
                 pages; free memory, or use a smaller page size"
            ),
            Lack::Room => write!(
                f,
                "place a per-slot object of {bytes} bytes on {slots} slots without waiting: the arena is locked or its \
                 chunks are full; call Records::provide where waiting is allowed"
            ),
        }
    }
}

impl core::error::Error for OutOfMemory {}

/// Settings that no arena can have. Printed, it completes the phrase "failed to ...".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArenaError {
    /// A number of slots that is not within 1..=8192.
    Slots {
        /// The number asked for.
        slots: usize,
    },
    /// A record that is empty or larger than a block.
    Object {
        /// Its bytes on one slot.
        bytes: usize,
    },
    /// A page smaller than the system's.
    Page {
        /// The size asked for.
        page: PageSize,
        /// The system's page, in bytes.
        system_bytes: usize,
    },
}

impl fmt::Display for ArenaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Slots { slots } => {
                write!(f, "make an arena of {slots} slots: expected a number from 1 to {SLOTS_MAX}")
            }
            Self::Object { bytes } => write!(
                f,
                "make an arena for records of {bytes} bytes on each slot: expected from 8 to {BLOCK_BYTES_MAX}"
            ),
            Self::Page { page, system_bytes } => write!(
                f,
                "make an arena with pages of {} bytes: the system's page has {system_bytes}, and an arena's has at \
                 least as many",
                page.bytes()
            ),
        }
    }
}

impl core::error::Error for ArenaError {}
