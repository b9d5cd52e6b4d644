//! Watch: a watchdog for tests that could hang.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memgroup::Hierarchy;

/// Panics with the list of waits when nothing has moved for a minute.
pub(crate) struct Watch {
    pub(crate) moves: AtomicU64,
    done: AtomicBool,
}

impl Watch {
    pub(crate) fn new() -> Watch {
        Watch { moves: AtomicU64::new(0), done: AtomicBool::new(false) }
    }

    pub(crate) fn moved(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.done.store(true, Ordering::Release);
    }

    pub(crate) fn guard(&self, hierarchy: &Hierarchy) {
        let (mut last, mut since) = (u64::MAX, Instant::now());
        while !self.done.load(Ordering::Acquire) {
            let moves = self.moves.load(Ordering::Relaxed);
            if moves != last {
                (last, since) = (moves, Instant::now());
            }
            if since.elapsed() > Duration::from_secs(60) {
                hierarchy.waits().iter().for_each(|wait| eprintln!("{wait}"));
                eprintln!("nothing has moved for a minute, after {moves} moves");
                std::process::abort();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
