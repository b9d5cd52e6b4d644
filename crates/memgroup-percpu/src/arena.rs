//! The allocator of per-slot memory.
//!
//! Each file imports only files above it:
//!
//! ```text
//!   page, slot_set                sizes, admitted slots
//!   os                            requests to the system
//!   config, out_of_memory, decay  settings, errors, the float
//!   block, owners, cursor         a block, the owner that may move it, the progress of a depopulation
//!   lists, hints                  indexes
//!   chunk, chunks                 one chunk; all of them
//!   alloc, evacuate               the arena; moving blocks
//!   depopulate, shared            giving pages back; the process's arenas
//! ```

pub(crate) mod alloc;
pub(crate) mod block;
#[cfg(test)]
#[path = "arena/tests/check.rs"]
mod check;
mod chunk;
mod chunks;
pub(crate) mod config;
mod cursor;
mod decay;
pub(crate) mod depopulate;
pub(crate) mod evacuate;
mod hints;
mod lists;
pub(crate) mod os;
pub(crate) mod out_of_memory;
mod owners;
pub(crate) mod page;
mod shared;
pub(crate) mod slot_set;
#[cfg(all(test, not(memgroup_loom)))]
pub(crate) mod tests;
