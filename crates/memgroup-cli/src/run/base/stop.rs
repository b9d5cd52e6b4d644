//! Early end of a run: by Ctrl-C, by the key q, or by the end of a parent process.
//!
//! - I1. A request is never withdrawn, and the first cause stays.

use std::fmt;
use std::io::Read;
use std::sync::{Arc, OnceLock};
use std::thread;

/// Exit code of a run that ended early, as in shells: 128 + SIGINT.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;

/// Cause of an early end, as reports print it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// Ctrl-C, here or in the parent process.
    CtrlC,
    /// The key q, while groups are watched.
    Q,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            By::CtrlC => "Ctrl-C",
            By::Q => "q",
        })
    }
}

/// Request to end early. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    by: Arc<OnceLock<By>>,
}

impl Stop {
    /// Requests the end, as Ctrl-C does. Returns whether this is the first request.
    pub(crate) fn request(&self) -> bool {
        self.request_by(By::CtrlC)
    }

    /// Requests the end. Returns whether this is the first request.
    pub(crate) fn request_by(&self, by: By) -> bool {
        self.by.set(by).is_ok()
    }

    /// Whether the end was requested.
    pub(crate) fn requested(&self) -> bool {
        self.by().is_some()
    }

    /// Cause of the first request.
    pub(crate) fn by(&self) -> Option<By> {
        self.by.get().copied()
    }

    /// Lets the first Ctrl-C request the end. The second calls `before_exit` and ends the process at once.
    ///
    /// # Errors
    /// The system refused the signal handler.
    pub(crate) fn on_ctrl_c(&self, before_exit: fn()) -> Result<(), ctrlc::Error> {
        let stop = self.clone();
        ctrlc::set_handler(move || {
            if !stop.request() {
                before_exit();
                std::process::exit(i32::from(EXIT_INTERRUPTED));
            }
        })
    }

    /// Lets the end of standard input request the end: the parent process closes it, also when it is killed.
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
    fn shows_a_request_through_every_clone() {
        let stop = Stop::default();
        let clone = stop.clone();
        assert!(!clone.requested());
        assert!(stop.request());
        assert!(clone.requested());
        assert!(!clone.request());
    }

    #[test]
    fn keeps_the_first_cause() {
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
