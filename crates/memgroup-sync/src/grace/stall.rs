//! Reports of the threads that hold a grace period up, and for how long.
//!
//! A section does not read a clock. The writers that wait for it note its beginning. An epoch that
//! the clock has left is in a word for one section only, so as long as it is there it is the same
//! section.
//!
//! - B1. The time is a lower bound: it counts from when a writer first had to wait for the
//!   section, or from the first call of [`stallers`] during it.

use core::fmt;
use std::time::Duration;

use super::epoch::{self, ACTIVE, Epoch};
use super::reader::Reader;
use super::registry;
use crate::atomic::Ordering;
use crate::{Mutex, ticks};

crate::global! {
    static NOTES: Mutex<()> = Mutex::new(());
}

/// A thread in a section that a writer waits for, or may wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Staller {
    /// The system's number of the thread that began the section; it may have ended since, if the
    /// section was forgotten.
    pub thread_id: u32,
    /// A lower bound of the time that it has been in the section.
    pub held: Duration,
    /// Whether the writer waits for the thread although it sees no section there: the barrier is
    /// lost, and the thread may be in one until it enters a section again or ends.
    pub is_unproven: bool,
}

impl Staller {
    /// The name of the thread, read now; `None` if it has ended, or the system does not report it.
    pub fn thread_name(&self) -> Option<String> {
        thread_name(self.thread_id)
    }
}

/// The name of the thread with this number of the system, read now.
pub(crate) fn thread_name(thread_id: u32) -> Option<String> {
    let comm = std::fs::read_to_string(format!("/proc/self/task/{thread_id}/comm")).ok()?;
    Some(comm.trim_end().to_owned())
}

/// Prints a thread by its number and name.
pub(crate) fn write_thread(f: &mut fmt::Formatter<'_>, thread_id: u32) -> fmt::Result {
    write!(f, "thread {thread_id}")?;
    thread_name(thread_id).map_or(Ok(()), |name| write!(f, " ({name})"))
}

/// Prints items after a colon, with commas between them; nothing if there are none.
pub(crate) fn write_list(f: &mut fmt::Formatter<'_>, items: &[impl fmt::Display]) -> fmt::Result {
    let separators = core::iter::once(": ").chain(core::iter::repeat(", "));
    separators.zip(items).try_for_each(|(separator, item)| write!(f, "{separator}{item}"))
}

impl fmt::Display for Staller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_thread(f, self.thread_id)?;
        if self.is_unproven {
            return f.write_str(" has not entered a section since the barrier was lost");
        }
        write!(f, " in a section for {:?} or more", self.held)
    }
}

/// A grace period did not end in time. Printed, it names the threads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stalled {
    /// The time that the caller waited.
    pub waited: Duration,
    /// The threads in sections when the wait was given up. Empty if the last one left just then,
    /// or if the time went to the barrier of another caller.
    pub stallers: Vec<Staller>,
}

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "end a grace period within {:?}", self.waited)?;
        write_list(f, &self.stallers)
    }
}

impl std::error::Error for Stalled {}

/// The threads known to have been in one section for longer than `longer_than`, the longest first.
///
/// A section is known from the first call during it, or from when a writer had to wait for it.
pub fn stallers(longer_than: Duration) -> Vec<Staller> {
    // The clock moves, so that sections begun after this call are told from those before it.
    let mut found = stallers_before(epoch::tag());
    found.retain(|staller| !staller.is_unproven && staller.held >= longer_than);
    found
}

pub(super) fn stallers_before(target: Epoch) -> Vec<Staller> {
    let lost = epoch::barrier_lost();
    let mut found: Vec<_> = registry::readers().filter_map(|reader| staller(reader, target, lost)).collect();
    found.sort_by_key(|staller| core::cmp::Reverse(staller.held));
    found
}

fn staller(reader: &Reader, target: Epoch, lost: Option<Epoch>) -> Option<Staller> {
    let word = reader.oldest();
    // ORDERING: Relaxed; a number for reports.
    let thread_id = reader.owner.load(Ordering::Relaxed);
    // ORDERING: Relaxed; as above, the scan decides.
    let proven = |since: Epoch| reader.swapped.load(Ordering::Relaxed) >= since.0;
    let is_unproven = word == 0 && thread_id != 0 && lost.is_some_and(|since| !proven(since));
    let in_section = word != 0 && word < target.0;
    (is_unproven || in_section).then(|| Staller { thread_id, held: note(reader, word), is_unproven })
}

/// Notes that a writer waits for the section with this word; returns the time since the first
/// note.
pub(super) fn note(reader: &Reader, word: u64) -> Duration {
    let now = ticks::monotonic();
    // No section's word is ACTIVE alone; it stands for the wait for a proof.
    let word = word.max(ACTIVE);
    let _noting = NOTES.lock();
    // ORDERING: Relaxed; notes are read and written under the lock.
    if reader.noted_word.load(Ordering::Relaxed) != word {
        // ORDERING: Relaxed, as above.
        reader.noted_word.store(word, Ordering::Relaxed);
        // ORDERING: Relaxed, as above.
        reader.noted_at.store(now, Ordering::Relaxed);
    }
    // ORDERING: Relaxed, as above.
    Duration::from_nanos(now.saturating_sub(reader.noted_at.load(Ordering::Relaxed)))
}
