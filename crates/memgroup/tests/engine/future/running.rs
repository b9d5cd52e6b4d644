//! A hierarchy with a reclaimer.

use std::thread::JoinHandle;

use memgroup::{Config, Hierarchy, ReclaimerStop};

/// A hierarchy with a reclaimer that runs until this is dropped.
pub(crate) struct Running {
    pub(crate) hierarchy: Hierarchy,
    pub(crate) stop: ReclaimerStop,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn new(config: Config) -> Running {
        let hierarchy = Hierarchy::new(config).unwrap();
        let reclaimer = hierarchy.reclaimer();
        let stop = reclaimer.stop_handle();
        let thread = Some(std::thread::spawn(|| reclaimer.run()));
        Running { hierarchy, stop, thread }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the reclaimer panicked");
    }
}
