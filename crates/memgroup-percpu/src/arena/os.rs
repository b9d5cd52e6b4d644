//! Requests to the system: address space, memory behind it, and which pages have some. No other
//! file makes them.
//!
//! - I1. A region is one mapping from birth to drop; it begins on a page of the size it was made
//!   for.
//! - I2. Memory that was never written, or was discarded since, reads as zero.
//! - I3. Words of a region are only ever accessed as atomics, so two accesses at once are never a
//!   data race.
//!
//! | | Linux | elsewhere and under Miri | under loom |
//! |---|---|---|---|
//! | a region | anonymous mapping, no reserve, no huge pages | zeroed allocation | words of loom's, made when asked for |
//! | `discard` | `MADV_DONTNEED` | zeros are stored | zeros, which must not race with an access |
//! | `resident_bytes` | `mincore` | all of it | nothing |

#![allow(unsafe_code)]

#[cfg(any(test, feature = "inject"))]
pub mod inject;
#[cfg(all(target_os = "linux", not(miri), not(memgroup_loom)))]
mod linux;
#[cfg(memgroup_loom)]
mod model;
#[cfg(all(not(all(target_os = "linux", not(miri))), not(memgroup_loom)))]
mod portable;

#[cfg(not(memgroup_loom))]
mod place;

#[cfg(all(target_os = "linux", not(miri), not(memgroup_loom)))]
pub(crate) use linux::{Region, page_bytes};
#[cfg(memgroup_loom)]
pub(crate) use model::{Place, Region, page_bytes};
#[cfg(not(memgroup_loom))]
pub(crate) use place::Place;
#[cfg(all(not(all(target_os = "linux", not(miri))), not(memgroup_loom)))]
pub(crate) use portable::{Region, page_bytes};

/// A request to the system that can be made to fail, in tests and with the feature `inject`, which
/// alone exports it.
#[cfg_attr(not(any(test, feature = "inject")), allow(unreachable_pub))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Address space for a chunk (`mmap`).
    Map,
    /// Pages given back (`madvise` with `MADV_DONTNEED`).
    Discard,
    /// Which pages are backed (`mincore`).
    Resident,
}

/// The system refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

/// Returns whether the request may be made: always, unless a test made it fail.
#[inline]
fn permitted(_call: Call) -> Result<(), Refused> {
    #[cfg(any(test, feature = "inject"))]
    if inject::strikes(_call) {
        return Err(Refused);
    }
    Ok(())
}
