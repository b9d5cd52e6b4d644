//! Errors: no address space, and settings that no arena can have.

use core::fmt;

use crate::arena::page::{BLOCK_BYTES_MAX, PageSize};
use crate::arena::slot_set::SLOTS_MAX;

/// The system refuses address space for per-slot memory. Printed, it completes the phrase
/// "failed to ...".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    pub(crate) bytes: usize,
    pub(crate) slots: usize,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, slots } = self;
        write!(
            f,
            "map {bytes} bytes of address space for per-slot memory of {slots} slots: the system refused it; \
             raise RLIMIT_AS or vm.max_map_count, or use fewer slots"
        )
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
    Record {
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
            Self::Record { bytes } => write!(
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
