//! Charges that wait as futures: polls, ends, cancellation, reclaimers.
#![cfg(not(memgroup_loom))]

mod ends;
mod executor;
mod polls;
#[path = "../random/mod.rs"]
mod random;
mod reclaimers;
mod storm;

use std::thread::JoinHandle;

use memgroup::{Config, Group, Hierarchy, ReclaimerStop};

const PAGE: u64 = 4096;

/// A hierarchy with a reclaimer that runs until this is dropped.
struct Running {
    hierarchy: Hierarchy,
    stop: ReclaimerStop,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn new(config: Config) -> Running {
        let hierarchy = Hierarchy::new(config).unwrap();
        let reclaimer = hierarchy.reclaimer();
        let stop = reclaimer.stop_handle();
        let thread = Some(std::thread::spawn(|| reclaimer.run()));
        Running { hierarchy, stop, thread }
    }

    /// A group below the root with room for so many pages.
    fn group(&self, name: &str, pages: u64) -> Group {
        let group = self.hierarchy.root().create(name).unwrap();
        group.set_max(pages * PAGE).unwrap();
        group
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the reclaimer panicked");
    }
}

/// Until `is_so`.
fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        std::thread::yield_now();
    }
}
