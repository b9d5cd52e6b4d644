//! Charges that wait as futures: polls, ends, cancellation, reclaimers.

mod ends;
pub(crate) mod executor;
mod polls;
mod reclaimers;
pub(crate) mod running;
mod storm;

use memgroup::Group;

use running::Running;

const PAGE: u64 = 4096;

impl Running {
    /// A group below the root with room for so many pages.
    fn group(&self, name: &str, pages: u64) -> Group {
        let group = self.hierarchy.root().create(name).unwrap();
        group.set_max(pages * PAGE).unwrap();
        group
    }
}

/// Until `is_so`.
fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        std::thread::yield_now();
    }
}
