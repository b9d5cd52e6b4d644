//! Tuning: settings of a [`Config`] that tests and measurements change, and programs have no
//! reason to. They aren't part of the documented interface, and may go in any version.

use core::time::Duration;

pub use memgroup_percpu::PageSize;

use crate::state::config::Config;

/// The settings, as further methods of [`Config`].
///
/// ```
/// use memgroup::Config;
/// use memgroup::tuning::Tuning;
///
/// let one_tree = Config::new().separate_trees(false);
/// # assert_ne!(one_tree, Config::new());
/// ```
#[doc(hidden)]
pub trait Tuning: Sized {
    /// Sets whether each subsystem's statistics have a tree of their own, so that a reader of one
    /// pays for no other. One tree for all, as Linux had before 6.16, is the control of the
    /// measurements.
    #[must_use]
    fn separate_trees(self, separate: bool) -> Self;

    /// Sets the granule in which per-CPU memory is given back. It is the system's
    /// page unless set.
    #[must_use]
    fn page_size(self, page_size: PageSize) -> Self;

    /// Sets how many bytes of per-CPU memory without a live byte may stay for later groups, over
    /// all slots, and after which time unneeded parts of them go back too. The defaults are 1 MiB
    /// and 10 s.
    #[must_use]
    fn float(self, bytes: u64, decay: Duration) -> Self;

    /// Sets whether records move while they are in use, so that pages become free that a few
    /// groups would pin.
    #[must_use]
    fn relocate(self, relocate: bool) -> Self;
}

impl Tuning for Config {
    fn separate_trees(self, separate: bool) -> Config {
        Config { separate_trees: separate, ..self }
    }

    fn page_size(self, page_size: PageSize) -> Config {
        Config { page_size, ..self }
    }

    fn float(self, bytes: u64, decay: Duration) -> Config {
        Config { float_bytes: bytes, decay, ..self }
    }

    fn relocate(self, relocate: bool) -> Config {
        Config { relocate, ..self }
    }
}
