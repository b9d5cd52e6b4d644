//! The wish to end early: Ctrl-C, or the end of a parent process.
//!
//! - I1. Once asked for, a stop is never taken back.
//! - E1. `request` (signal's thread) → `requested` (any thread): the flag alone is handed over, no other memory.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::watch;

/// Exit code of a run that Ctrl-C ended, as shells have it: 128 + SIGINT.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;

/// A flag that says whether to end early; clones are the same flag.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    flag: Arc<AtomicBool>,
}

impl Stop {
    /// Asks for the end. Answers whether this was the first time.
    pub(crate) fn request(&self) -> bool {
        // ORDERING: Relaxed; nothing but the flag itself is handed over (E1), and who is first is decided by the
        // swap being one RMW.
        !self.flag.swap(true, Ordering::Relaxed)
    }

    /// Whether the end was asked for.
    pub(crate) fn requested(&self) -> bool {
        // ORDERING: Relaxed; nothing but the flag is read through it (E1), and a reader that is late is asked again.
        self.flag.load(Ordering::Relaxed)
    }

    /// The first Ctrl-C asks for the end, the second ends the process on the spot.
    ///
    /// # Errors
    /// When the system refuses the signal handler.
    pub(crate) fn on_ctrl_c(&self) -> Result<(), ctrlc::Error> {
        let stop = self.clone();
        ctrlc::set_handler(move || {
            if !stop.request() {
                watch::restore();
                std::process::exit(i32::from(EXIT_INTERRUPTED));
            }
        })
    }

    /// The end of standard input asks for the end: that is how a parent process tells, and a parent that was
    /// killed tells it too.
    pub(crate) fn on_end_of_input(&self) {
        let stop = self.clone();
        thread::spawn(move || {
            let mut input = std::io::stdin().lock();
            let mut ignored = [0; 64];
            while matches!(input.read(&mut ignored), Ok(1..)) {}
            stop.request();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::Stop;

    #[test]
    fn a_request_is_seen_through_every_clone_and_only_the_first_is_first() {
        let stop = Stop::default();
        let clone = stop.clone();
        assert!(!clone.requested());
        assert!(stop.request());
        assert!(clone.requested());
        assert!(!clone.request());
    }
}
