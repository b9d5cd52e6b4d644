//! Watchdog of a test: ends the process when an operation makes no progress for a minute, and names
//! the operation.
//!
//! A test that waits for something that never happens cannot fail by itself.

use std::io::Write as _;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How many checks without progress mean that an operation is stuck, and the time between two of
/// them. They add up to far more than a busy machine takes.
const LOOKS: u32 = 60;
const PAUSE: Duration = Duration::from_secs(1);

/// Watches an operation until it is dropped.
#[must_use = "dropped, it watches no longer"]
pub struct Watchdog {
    watched: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches an operation whose only progress is its end.
    pub fn over(operation: &'static str) -> Watchdog {
        Watchdog::new(|| 0, move || format!("{operation}\n"))
    }

    /// Watches an operation. The process ends with the `report` when the number `progress` stays
    /// the same for a minute.
    pub fn new(
        progress: impl Fn() -> u64 + Send + 'static,
        report: impl Fn() -> String + Send + 'static,
    ) -> Watchdog {
        let (watched, end) = channel();
        let test = std::thread::current().name().unwrap_or("a thread without a name").to_owned();
        let thread = std::thread::spawn(move || {
            if is_stuck(&end, PAUSE, progress) {
                // Written directly, because the test harness captures `eprintln!`.
                let text = format!("{test}: no progress for a minute in: {}", report());
                _ = std::io::stderr().write_all(text.as_bytes());
                std::process::abort();
            }
        });
        Watchdog { watched: Some(watched), thread: Some(thread) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.watched.take());
        _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Returns `true` after that many checks without progress, and `false` when the sender is dropped.
fn is_stuck(end: &Receiver<()>, pause: Duration, progress: impl Fn() -> u64) -> bool {
    let (mut last, mut looks) = (progress(), 0);
    while looks < LOOKS {
        if end.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return false;
        }
        let now = progress();
        looks = if now == last { looks + 1 } else { 0 };
        last = now;
    }
    true
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const SHORT: Duration = Duration::from_micros(10);

    #[test]
    fn is_stuck_when_progress_ends() {
        let (_watched, end) = channel();
        let looks = Cell::new(0);
        let progress = || {
            looks.set(looks.get() + 1);
            looks.get().min(200)
        };
        assert!(is_stuck(&end, SHORT, progress));
        assert_eq!(looks.get(), 200 + u64::from(LOOKS));
    }

    #[test]
    fn is_not_stuck_when_it_is_dropped() {
        let (watched, end) = channel();
        drop(watched);
        assert!(!is_stuck(&end, SHORT, || 0));
        drop(Watchdog::over("nothing"));
    }
}
