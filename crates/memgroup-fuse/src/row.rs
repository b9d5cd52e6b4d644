//! Row: programs such as `cat` send several requests in a row. After an answer, the thread polls
//! for the next request for a while, because the system would take longer to wake it.
//!
//! - R1. As many polls may find nothing as find a request. More are allowed only in a hundredth of
//!   the time, so a client that never sends a request in time makes the thread waste no more than
//!   that.
//! - R2. The thread does not poll while other threads want its CPU. It must sleep then, so that a
//!   reader on that CPU can run, and the system wakes it soon.

use std::hint;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A microsecond; times are in nanoseconds.
const US: i64 = 1000;

/// How long the thread polls. A reader wakes and sends its next request in less time.
const LOOK: i64 = 50 * US;

/// The longest time between two answers in a row. The thread may have slept in between.
const APART: i64 = 100 * US;

/// The most credit.
const CREDIT_MOST: i64 = 200 * US;

/// The credit for a poll that found a request. It pays for one that finds none.
const FOUND: i64 = LOOK;

/// One part in this many of all time becomes credit.
const CREDIT_PART: i64 = 100;

/// The credit after the thread has lost its CPU. It does not poll for 0.1 s then.
const LOST: i64 = -1000 * US;

/// The time that polls may still waste (R1).
#[derive(Debug)]
struct Credit(i64);

impl Credit {
    /// Returns whether to poll `since` nanoseconds after the last answer.
    fn allows(&mut self, since: i64) -> bool {
        self.0 = self.0.saturating_add(since / CREDIT_PART).min(CREDIT_MOST);
        since <= APART && self.0 >= LOOK
    }

    fn looked(&mut self, took: i64, has_found: bool) {
        self.0 = match has_found {
            // R2.
            _ if took > 2 * LOOK => LOST,
            true => (self.0 + FOUND).min(CREDIT_MOST),
            false => self.0 - took,
        };
    }
}

/// The requests of one connection to the kernel.
#[derive(Debug)]
pub(crate) struct Row {
    connection: OwnedFd,
    last: Mutex<(Instant, Credit)>,
}

impl Row {
    pub(crate) fn new(connection: OwnedFd) -> Row {
        Row { connection, last: Mutex::new((Instant::now(), Credit(CREDIT_MOST))) }
    }

    /// Notes an answer. If it was one in a row, polls for the next request without sleeping.
    fn answered(&self) {
        let now = Instant::now();
        let mut last = self.last.lock();
        let (before, credit) = &mut *last;
        let since = now - std::mem::replace(before, now);
        if credit.allows(nanos(since)) {
            let has_found = self.look(now);
            credit.looked(nanos(now.elapsed()), has_found);
        }
    }

    fn look(&self, began: Instant) -> bool {
        let mut next = [PollFd::new(&self.connection, PollFlags::IN)];
        // An error also ends the loop. The thread gets it again when it reads.
        while matches!(poll(&mut next, Some(&Timespec::default())), Ok(0)) {
            if nanos(began.elapsed()) >= LOOK {
                return false;
            }
            hint::spin_loop();
        }
        true
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// An answer, which is noted when this is dropped.
pub(crate) struct Answer<'r>(pub(crate) &'r Row);

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        self.0.answered();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write as _};
    use std::time::Instant;

    use super::{CREDIT_MOST, Credit, LOOK, Row, US};

    const SECOND: i64 = 1_000_000 * US;

    #[test]
    fn a_look_ends_without_a_request() {
        let _watched = xtask::Watchdog::over("a look at an empty pipe");
        let (requests, mut client) = io::pipe().expect("a pipe");
        let row = Row::new(requests.into());
        assert!(!row.look(Instant::now()));
        client.write_all(b"request").expect("a request");
        assert!(row.look(Instant::now()));
    }

    /// The looks that find nothing, in a second in which each request follows the last answer after
    /// `gap`.
    fn looks(gap: i64) -> i64 {
        let (mut credit, mut looks) = (Credit(CREDIT_MOST), 0);
        for _ in 0..SECOND / gap {
            if credit.allows(gap) {
                credit.looked(LOOK, false);
                looks += 1;
            }
        }
        looks
    }

    #[test]
    fn looks_that_find_nothing_take_a_hundredth_of_the_time() {
        for gap in [51, 60, 99, 100] {
            let wasted = looks(gap * US) * LOOK;
            assert!(wasted <= SECOND / 100 + CREDIT_MOST, "gap {gap} us: {wasted} ns");
            assert!(wasted >= SECOND / 200, "it tries again: gap {gap} us: {wasted} ns");
        }
        assert_eq!(looks(101 * US), 0, "no row");
    }

    #[test]
    fn looks_after_each_answer_of_short_rows() {
        let mut credit = Credit(CREDIT_MOST);
        for _ in 0..1000 {
            assert!(!credit.allows(1000 * US), "the first one");
            for _ in 0..4 {
                assert!(credit.allows(20 * US));
                credit.looked(20 * US, true);
            }
            assert!(credit.allows(20 * US), "the last one");
            credit.looked(LOOK, false);
        }
    }

    #[test]
    fn does_not_look_for_a_while_after_it_has_lost_its_cpu() {
        let mut credit = Credit(CREDIT_MOST);
        assert!(credit.allows(20 * US));
        credit.looked(4000 * US, true);
        let mut waited = 0;
        while !credit.allows(10 * US) {
            waited += 10;
        }
        assert!((100_000..110_000).contains(&waited), "{waited} us");
    }
}
