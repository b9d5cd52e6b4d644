//! The per-slot memory of records.
//!
//! Each file imports only files above it:
//!
//! ```text
//!   page, slot_set                sizes, admitted slots
//!   os                            requests to the system
//!   config, out_of_memory, decay  settings, errors, the float
//!   lists                         an index
//!   chunk, chunks                 one chunk of equal blocks; all of them
//!   evacuate                      moving blocks together
//!   alloc, depopulate             the arena; giving pages back
//! ```

pub(crate) mod alloc;
#[cfg(test)]
#[path = "arena/tests/check.rs"]
mod check;
pub(crate) mod chunk;
mod chunks;
pub(crate) mod config;
mod decay;
pub(crate) mod depopulate;
pub(crate) mod evacuate;
mod lists;
pub(crate) mod os;
pub(crate) mod out_of_memory;
pub(crate) mod page;
pub(crate) mod slot_set;
#[cfg(all(test, not(memgroup_loom)))]
pub(crate) mod tests;
