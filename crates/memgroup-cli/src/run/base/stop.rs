//! Early end of a run: by Ctrl-C, or by the end of a parent process.
//!
//! - I1. A request is never withdrawn.

use std::sync::{Arc, OnceLock};
use std::thread;

/// Exit code of a run that ended early, as in shells: 128 + SIGINT.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;

/// Request to end early. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    request: Arc<OnceLock<()>>,
}

impl Stop {
    /// Requests the end. Returns whether this is the first request.
    pub(crate) fn request(&self) -> bool {
        self.request.set(()).is_ok()
    }

    /// Returns whether the end was requested.
    pub(crate) fn requested(&self) -> bool {
        self.request.get().is_some()
    }

    /// Lets the first Ctrl-C request the end. The second ends the process at once.
    ///
    /// # Errors
    /// The system refused the signal handler.
    pub(crate) fn on_ctrl_c(&self) -> Result<(), ctrlc::Error> {
        let stop = self.clone();
        ctrlc::set_handler(move || {
            if !stop.request() {
                std::process::exit(i32::from(EXIT_INTERRUPTED));
            }
        })
    }

    /// Lets the end of standard input request the end. The parent process closes it, even when it's
    /// killed.
    pub(crate) fn on_end_of_input(&self) {
        let stop = self.clone();
        thread::spawn(move || {
            let _ended = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            stop.request();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::Stop;

    #[test]
    fn shows_a_request_through_every_clone() {
        let stop = Stop::default();
        let clone = stop.clone();
        assert!(!clone.requested());
        assert!(stop.request());
        assert!(clone.requested());
        assert!(!clone.request());
    }
}
