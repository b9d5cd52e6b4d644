//! Early end of a run: by Ctrl-C, by the key q, or by the end of a parent process.
//!
//! - I1. A request is never withdrawn, and the first cause stays.

use std::sync::{Arc, OnceLock};
use std::thread;

/// Exit code of a run that ended early, as in shells: 128 + SIGINT.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;

/// Causes of an early end, as reports print them: Ctrl-C, here or in the parent process; the key q, while groups are watched.
pub(crate) const CTRL_C: &str = "Ctrl-C";
pub(crate) const KEY_Q: &str = "q";

/// Request to end early. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    cause: Arc<OnceLock<&'static str>>,
}

impl Stop {
    /// Requests the end because of `cause`. Returns whether this is the first request.
    pub(crate) fn request(&self, cause: &'static str) -> bool {
        self.cause.set(cause).is_ok()
    }

    /// Whether the end was requested.
    pub(crate) fn requested(&self) -> bool {
        self.cause.get().is_some()
    }

    /// Cause of the first request.
    pub(crate) fn cause(&self) -> Option<&'static str> {
        self.cause.get().copied()
    }

    /// Lets the first Ctrl-C request the end. The second calls `before_exit` and ends the process at once.
    ///
    /// # Errors
    /// The system refused the signal handler.
    pub(crate) fn on_ctrl_c(&self, before_exit: fn()) -> Result<(), ctrlc::Error> {
        let stop = self.clone();
        ctrlc::set_handler(move || {
            if !stop.request(CTRL_C) {
                before_exit();
                std::process::exit(i32::from(EXIT_INTERRUPTED));
            }
        })
    }

    /// Lets the end of standard input request the end: the parent process closes it, also when it is killed.
    pub(crate) fn on_end_of_input(&self) {
        let stop = self.clone();
        thread::spawn(move || {
            let _ended = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            stop.request(CTRL_C);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{CTRL_C, KEY_Q, Stop};

    #[test]
    fn shows_a_request_through_every_clone() {
        let stop = Stop::default();
        let clone = stop.clone();
        assert!(!clone.requested());
        assert!(stop.request(CTRL_C));
        assert!(clone.requested());
        assert!(!clone.request(CTRL_C));
    }

    #[test]
    fn keeps_the_first_cause() {
        let stop = Stop::default();
        assert_eq!(stop.cause(), None);
        assert!(stop.request(KEY_Q));
        assert!(!stop.request(CTRL_C));
        assert_eq!(stop.cause(), Some("q"));
        let other = Stop::default();
        assert!(other.request(CTRL_C));
        assert!(!other.request(KEY_Q));
        assert_eq!(other.cause(), Some("Ctrl-C"));
    }
}
