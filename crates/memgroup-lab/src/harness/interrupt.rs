//! Ctrl-C while something of the system has to be put away first.
//!
//! A watch notes SIGINT, SIGTERM and SIGHUP instead of dying of them; one that the process ignores stays ignored. Whoever watches asks now and then, puts away what it
//! made, ends the watch, and then [`Interruption::die`]s of the signal as the process would have in the first place.
//!
//! - I1. There is at most one watch at a time; it ends with the handlers that were there before it.
//! - I2. The handler does nothing but store a number.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::os::system;
use crate::Error;

const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
const NONE: i32 = 0;

static CAUGHT: AtomicI32 = AtomicI32::new(NONE);
static ONE_WATCH: Mutex<()> = Mutex::new(());

/// Holds the three signals back.
pub(crate) struct Watch {
    before: Vec<(i32, libc::sigaction)>,
    _alone: MutexGuard<'static, ()>,
}

/// A signal that came while a watch held it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interruption {
    signal: i32,
}

impl Watch {
    /// Begins to watch; waits for another watch to end (I1).
    pub(crate) fn begin() -> Result<Watch, Error> {
        let alone = ONE_WATCH.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // ORDERING: Relaxed; the signals are not watched yet, and only the number itself is handed over.
        CAUGHT.store(NONE, Ordering::Relaxed);
        let mut watch = Watch { before: Vec::new(), _alone: alone };
        for signal in SIGNALS {
            // SAFETY: a sigaction is integers and a set of bits, for which all-zero bytes are a value.
            let mut wanted: libc::sigaction = unsafe { std::mem::zeroed() };
            wanted.sa_sigaction = note as extern "C" fn(i32) as libc::sighandler_t;
            let before = exchange(signal, &wanted)?;
            if before.sa_sigaction == libc::SIG_IGN {
                exchange(signal, &before)?;
            } else {
                watch.before.push((signal, before));
            }
        }
        Ok(watch)
    }

    /// The signal that came last, if one came.
    pub(crate) fn interruption(&self) -> Option<Interruption> {
        // ORDERING: Relaxed; only the number itself is handed over, and whoever reads it late is asked again.
        match CAUGHT.load(Ordering::Relaxed) {
            NONE => None,
            signal => Some(Interruption { signal }),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for (signal, before) in self.before.drain(..) {
            // The signal was accepted a moment ago; nothing is left to do if it is not now.
            let _ = exchange(signal, &before);
        }
    }
}

impl Interruption {
    /// Sends the signal again, to the handlers that are there now; returns where one survives it.
    pub(crate) fn die(self) {
        // SAFETY: raise takes a number and touches no memory of ours.
        unsafe { libc::raise(self.signal) };
    }
}

extern "C" fn note(signal: i32) {
    // ORDERING: Relaxed; as in `interruption`.
    CAUGHT.store(signal, Ordering::Relaxed);
}

fn exchange(signal: i32, wanted: &libc::sigaction) -> Result<libc::sigaction, Error> {
    // SAFETY: as in `begin`.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both structs are live; the handler in `wanted` is one that was there or `note`, which is safe in a
    // signal (I2).
    match unsafe { libc::sigaction(signal, wanted, &mut before) } {
        0 => Ok(before),
        _ => Err(system(&format!("watch for the signal {signal}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_noted_and_does_not_end_the_process() {
        let watch = Watch::begin().unwrap();
        assert_eq!(watch.interruption(), None);
        // Under nohup the hang-up is ignored, and stays so; never all of them are.
        assert!(!watch.before.is_empty(), "a signal is watched");
        for &(signal, _) in &watch.before {
            Interruption { signal }.die();
            assert_eq!(watch.interruption(), Some(Interruption { signal }));
        }
        drop(watch);
        assert_eq!(Watch::begin().unwrap().interruption(), None, "a watch begins with nothing seen");
    }
}
