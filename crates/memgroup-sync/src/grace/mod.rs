// The first definition of a link counts: here items of the module, on other sites files.
#![doc = include_str!("links.md")]
#![doc = include_str!("../../docs/grace.md")]

// Each file imports only files before it in this order: epoch, evidence, membarrier, report,
// barrier, limbo, reader, scan, registry, section, stall, wait, published.

pub(crate) mod barrier;
pub(crate) mod epoch;
mod evidence;
mod limbo;
#[cfg(all(test, target_os = "linux", not(any(miri, memgroup_loom))))]
pub(crate) mod litmus;
#[cfg(all(test, memgroup_loom))]
mod loom;
mod membarrier;
mod published;
mod reader;
pub(crate) mod registry;
mod report;
mod scan;
pub(crate) mod section;
pub(crate) mod stall;
mod wait;

pub use barrier::report;
pub use epoch::{Epoch, tag};
pub(crate) use evidence::Evidence;
pub use limbo::Limbo;
pub use membarrier::GraceError;
pub use published::{DeferredFree, Lent, Published, Withdrawn};
pub use report::{GraceReport, VARIABLE};
pub use section::{BriefSection, Section, enter, enter_briefly, inside};
pub use stall::{Stalled, Staller, stallers};
pub use wait::{Pending, begin, synchronize, synchronize_until};

/// The barrier of a grace period, and so the thread that pays for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// No running thread is interrupted; the caller waits 8 to 24 ms. If that barrier fails one
    /// day, the expedited one is made instead.
    Quiet,
    /// Running threads may be interrupted for some microseconds; the caller waits as long.
    Expedited,
}
