//! Rest: all actors meet, the last to arrive runs the check while the others wait, and all go on.
//! If one has failed, none goes on.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Condvar, Mutex};

use crate::ledger::lock;

#[derive(Default)]
struct Meeting {
    here: usize,
    number: u64,
    is_given_up: bool,
}

pub(crate) struct Rest {
    actors: usize,
    meeting: Mutex<Meeting>,
    moved: Condvar,
}

impl Rest {
    pub(crate) fn new(actors: usize) -> Rest {
        Rest { actors, meeting: Mutex::default(), moved: Condvar::new() }
    }

    /// Waits for all actors; the last to arrive runs `look` first. Returns whether to go on.
    pub(crate) fn all(&self, look: impl FnOnce()) -> bool {
        let mut meeting = lock(&self.meeting);
        let number = meeting.number;
        meeting.here += 1;
        if meeting.here == self.actors {
            let outcome = catch_unwind(AssertUnwindSafe(look));
            (meeting.here, meeting.number) = (0, number + 1);
            meeting.is_given_up |= outcome.is_err();
            self.moved.notify_all();
            if let Err(panic) = outcome {
                drop(meeting);
                resume_unwind(panic);
            }
        }
        while meeting.number == number && !meeting.is_given_up {
            meeting = self.moved.wait(meeting).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        !meeting.is_given_up
    }

    /// Ends the meeting for all actors, because one has failed and will not arrive.
    pub(crate) fn give_up(&self) {
        lock(&self.meeting).is_given_up = true;
        self.moved.notify_all();
    }
}
