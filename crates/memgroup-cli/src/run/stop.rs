//! The wish to end early: Ctrl-C, the key q, or the end of a parent process.
//!
//! - I1. Once asked for, a stop is never taken back, and how it was asked for first stays.
//! - E1. `request` (signal's thread) → `requested` (any thread): the word alone is handed over, no other memory.

use std::fmt;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

use super::watch;

/// Exit code of a run that was ended early, as shells have it: 128 + SIGINT.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;

/// How a stop was asked for, as reports call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// Also by whoever started this process, who was asked so.
    CtrlC = 1,
    /// At the keyboard, while groups are watched.
    Q = 2,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            By::CtrlC => "Ctrl-C",
            By::Q => "q",
        })
    }
}

/// Whether to end early, and by what; clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    /// 0: not asked for.
    by: Arc<AtomicU8>,
}

impl Stop {
    /// Asks for the end, as Ctrl-C does. Answers whether this was the first time.
    pub(crate) fn request(&self) -> bool {
        self.request_by(By::CtrlC)
    }

    /// Asks for the end. Answers whether this was the first time.
    pub(crate) fn request_by(&self, by: By) -> bool {
        // ORDERING: Relaxed; nothing but the word itself is handed over (E1), and who is first is decided by the
        // exchange being one RMW.
        self.by.compare_exchange(0, by as u8, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Whether the end was asked for.
    pub(crate) fn requested(&self) -> bool {
        self.by().is_some()
    }

    /// How the end was asked for first; none if it was not.
    pub(crate) fn by(&self) -> Option<By> {
        // ORDERING: Relaxed; nothing but the word is read through it (E1), and a reader that is late is asked again.
        let by = self.by.load(Ordering::Relaxed);
        [By::CtrlC, By::Q].into_iter().find(|&known| known as u8 == by)
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
    use super::{By, Stop};

    #[test]
    fn a_request_is_seen_through_every_clone_and_only_the_first_is_first() {
        let stop = Stop::default();
        let clone = stop.clone();
        assert!(!clone.requested());
        assert!(stop.request());
        assert!(clone.requested());
        assert!(!clone.request());
    }

    #[test]
    fn how_the_end_was_asked_for_first_stays() {
        let stop = Stop::default();
        assert_eq!(stop.by(), None);
        assert!(stop.request_by(By::Q));
        assert!(!stop.request());
        assert_eq!(stop.by().map(|by| by.to_string()).as_deref(), Some("q"));
        let other = Stop::default();
        assert!(other.request());
        assert!(!other.request_by(By::Q));
        assert_eq!(other.by().map(|by| by.to_string()).as_deref(), Some("Ctrl-C"));
    }
}
