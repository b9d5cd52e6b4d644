//! Row: programs send several requests in a row, such as those of `cat`. After an answer the thread looks for the next request for a while, because
//! the system needs longer to wake it.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// For how long the thread looks. Within less, a reader wakes and sends its next request.
const LOOKS_FOR: Duration = Duration::from_micros(50);

/// The longest time between two answers in a row. The thread may have slept meanwhile.
const APART: Duration = Duration::from_micros(100);

/// The requests of one connection to the kernel. A pause ends a row, so a program that asks once in a while costs no look.
#[derive(Debug)]
pub(crate) struct Row {
    connection: OwnedFd,
    answered: Mutex<Option<Instant>>,
}

impl Row {
    pub(crate) fn new(connection: OwnedFd) -> Row {
        Row { connection, answered: Mutex::new(None) }
    }

    /// Notes an answer. If it was one in a row, waits for the next request without sleep, and gives the CPU to threads that want it meanwhile.
    fn answered(&self) {
        let now = Instant::now();
        let before = self.answered.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        if before.is_none_or(|before| now - before > APART) {
            return;
        }
        let mut next = [PollFd::new(&self.connection, PollFlags::IN)];
        // An error ends it, too: the thread then meets it when it reads.
        while matches!(poll(&mut next, Some(&Timespec::default())), Ok(0)) && now.elapsed() < LOOKS_FOR {
            thread::yield_now();
        }
    }
}

/// An answer, which is noted when this is dropped.
pub(crate) struct Answer<'r>(pub(crate) &'r Row);

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        self.0.answered();
    }
}
