//! Ctrl-C while something of the system must be removed first.
//!
//! A watch notes SIGINT, SIGTERM and SIGHUP, so that they do not end the process; a signal that the process ignores stays ignored. The
//! caller asks now and then for a signal, removes its things, ends the watch, and then sends itself the signal again.
//!
//! - I1. There is at most one watch at a time; it ends with the handlers that were there before it.
//! - I2. The handler does nothing but store a number.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::os::system;
use super::prelude::*;

const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
const NONE: i32 = 0;

static CAUGHT: AtomicI32 = AtomicI32::new(NONE);
static ONE_WATCH: Mutex<()> = Mutex::new(());

/// Holds the three signals back.
pub(crate) struct Watch {
    before: Vec<(i32, libc::sigaction)>,
    _alone: MutexGuard<'static, ()>,
}

impl Watch {
    /// Begins to watch; waits for another watch to end (I1).
    pub(crate) fn begin() -> Result<Watch> {
        let alone = lock(&ONE_WATCH);
        // ORDERING: Relaxed; the signals are not watched yet, and only the number itself is handed over.
        CAUGHT.store(NONE, Ordering::Relaxed);
        let mut watch = Watch { before: Vec::new(), _alone: alone };
        for signal in SIGNALS {
            // SAFETY: a sigaction is integers and a set of bits, for which all-zero bytes are a value.
            let mut wanted: libc::sigaction = unsafe { std::mem::zeroed() };
            wanted.sa_sigaction = note as extern "C" fn(i32) as libc::sighandler_t;
            // SAFETY: `note` is safe in a signal (I2), and `before` was there before.
            let before = unsafe { exchange(signal, &wanted) }?;
            if before.sa_sigaction == libc::SIG_IGN {
                // SAFETY: as above.
                unsafe { exchange(signal, &before) }?;
            } else {
                watch.before.push((signal, before));
            }
        }
        Ok(watch)
    }

    /// The signal that came last, if one came.
    pub(crate) fn caught(&self) -> Option<i32> {
        // ORDERING: Relaxed; only the number itself is handed over, and a caller that reads it late asks again.
        Some(CAUGHT.load(Ordering::Relaxed)).filter(|&signal| signal != NONE)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for (signal, before) in self.before.drain(..) {
            // The signal was accepted a moment ago; nothing is left to do if it is not now.
            // SAFETY: the action was there before.
            let _ = unsafe { exchange(signal, &before) };
        }
    }
}

/// Sends a signal to this process, with the handlers that are there now; returns where one survives it.
pub(crate) fn send_to_self(signal: i32) {
    // SAFETY: raise takes a number and touches no memory of ours.
    unsafe { libc::raise(signal) };
}

extern "C" fn note(signal: i32) {
    // ORDERING: Relaxed; as in `caught`.
    CAUGHT.store(signal, Ordering::Relaxed);
}

/// Sets the action for a signal, and returns the one before.
///
/// # Safety
/// The handler in `wanted` must be safe in a signal.
pub(crate) unsafe fn exchange(signal: i32, wanted: &libc::sigaction) -> Result<libc::sigaction> {
    // SAFETY: a sigaction is integers and an optional function, for which all-zero bytes are a value.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both structs are live; the caller vouches for the handler.
    match unsafe { libc::sigaction(signal, wanted, &mut before) } {
        0 => Ok(before),
        _ => Err(system(&format!("handle the signal {signal}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_a_signal_that_does_not_end_the_process() {
        let watch = Watch::begin().unwrap();
        assert_eq!(watch.caught(), None);
        // Under nohup the hang-up is ignored, and stays so; never all of them are.
        assert!(!watch.before.is_empty(), "a signal is watched");
        for &(signal, _) in &watch.before {
            send_to_self(signal);
            assert_eq!(watch.caught(), Some(signal));
        }
        drop(watch);
        assert_eq!(Watch::begin().unwrap().caught(), None, "a watch begins with nothing seen");
    }
}
