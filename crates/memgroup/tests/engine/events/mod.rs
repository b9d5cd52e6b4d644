//! Events: counts and wake-ups.

use std::sync::mpsc;
use std::time::Duration;

use super::future::{executor, running};

mod counts;
mod storm;
mod tasks;
mod waits;

/// Runs a test that can only fail by never ending.
fn within_a_minute(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        done.send(()).unwrap();
    });
    if let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(Duration::from_secs(60)) {
        panic!("not over after a minute");
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
