//! Watchdog of a test: ends the process when an operation makes no progress for a minute, and names
//! the operation.
//!
//! A test that waits for something that never happens cannot fail by itself. Time in which the
//! process wants to run and gets no processor doesn't count, because a test on a busy machine is
//! only slow.

use std::fs;
use std::io::Write as _;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How many checks without progress mean that an operation is stuck, and the time between two of
/// them.
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
        // Read here: the next time is a second later. A test that counts its open descriptors right
        // after this finds none of the watchdog's.
        let mut processors = Processors::now();
        let thread = std::thread::spawn(move || {
            if is_stuck(&end, PAUSE, progress, || processors.share()) {
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
/// A check counts as the `share` of its time in which the process could run.
fn is_stuck(
    end: &Receiver<()>,
    pause: Duration,
    progress: impl Fn() -> u64,
    mut share: impl FnMut() -> f64,
) -> bool {
    let (mut last, mut looks) = (progress(), 0.0);
    while looks < f64::from(LOOKS) {
        if end.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return false;
        }
        let now = progress();
        let share = share();
        looks = if now == last { looks + share } else { 0.0 };
        last = now;
    }
    true
}

/// How long all threads of this process have run and have waited for a processor, in seconds.
struct Processors {
    at: Instant,
    ran: f64,
    waited: f64,
}

impl Processors {
    /// Reads both times. They are zero if the system doesn't report them.
    fn now() -> Processors {
        let mut now = Processors { at: Instant::now(), ran: 0.0, waited: 0.0 };
        for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let mut times = text.split_whitespace().map(|nanos| nanos.parse().unwrap_or(0.0) / 1e9);
            now.ran += times.next().unwrap_or(0.0);
            now.waited += times.next().unwrap_or(0.0);
        }
        now
    }

    /// Returns the share of the time since the last call in which the process could run.
    fn share(&mut self) -> f64 {
        let before = std::mem::replace(self, Processors::now());
        let passed = (self.at - before.at).as_secs_f64();
        // Threads that have ended since took their times with them.
        share((self.ran - before.ran).max(0.0), (self.waited - before.waited).max(0.0), passed)
    }
}

/// Returns the same for threads that `ran` and `waited` for so many seconds, while so many
/// `passed`.
fn share(ran: f64, waited: f64, passed: f64) -> f64 {
    1.0 - waited / passed.max(ran + waited)
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
        assert!(is_stuck(&end, SHORT, progress, || 1.0));
        assert_eq!(looks.get(), 200 + u64::from(LOOKS));
    }

    #[test]
    fn is_not_stuck_when_it_is_dropped() {
        let (watched, end) = channel();
        drop(watched);
        assert!(!is_stuck(&end, SHORT, || 0, || 1.0));
        drop(Watchdog::over("nothing"));
    }

    #[test]
    fn time_without_a_processor_does_not_count() {
        let (_watched, end) = channel();
        let looks = Cell::new(0);
        let progress = || {
            looks.set(looks.get() + 1);
            0
        };
        assert!(is_stuck(&end, SHORT, progress, || 0.25));
        assert_eq!(looks.get(), 1 + 4 * LOOKS);
        assert_eq!(share(0.0, 0.0, 1.0), 1.0, "all threads sleep");
        assert_eq!(share(2.0, 0.0, 1.0), 1.0, "two of them run");
        assert_eq!(share(0.25, 0.75, 1.0), 0.25, "one wants to run, beside other programs");
        assert_eq!(share(2.0, 6.0, 1.0), 0.25, "eight of them take turns on two processors");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn sees_that_this_process_runs() {
        let (mut processors, began) = (Processors::now(), Processors::now());
        while Processors::now().ran == began.ran {
            std::hint::spin_loop();
        }
        let share = processors.share();
        assert!((0.0..=1.0).contains(&share), "{share}");
    }
}
