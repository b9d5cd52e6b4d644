#![doc = include_str!("../../docs/grace.md")]

pub(crate) mod barrier;
pub(crate) mod epoch;
mod limbo;
#[cfg(all(test, target_os = "linux", not(any(miri, memgroup_loom))))]
pub(crate) mod litmus;
mod look;
#[cfg(all(test, memgroup_loom))]
mod loom;
mod membarrier;
mod published;
mod reader;
pub(crate) mod registry;
mod report;
pub(crate) mod section;
pub(crate) mod stall;
mod wait;

pub(crate) use look::Evidence;

pub use barrier::{VARIABLE, report};
pub use epoch::{Epoch, tag};
pub use limbo::Limbo;
pub use published::{Attic, Published, Withdrawn};
pub use report::{GraceError, GraceReport};
pub use section::{BriefSection, Section, enter, enter_briefly, inside};
pub use stall::{Stalled, Staller, stallers};
pub use wait::{synchronize, synchronize_until};

/// At whose expense a grace period is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// No running thread is interrupted; the caller waits 8 to 24 ms. Should that barrier fail one day, the expedited one is
    /// made instead.
    Quiet,
    /// Running threads may be interrupted for some microseconds; the caller waits as long.
    Expedited,
}
