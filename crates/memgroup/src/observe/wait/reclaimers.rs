//! Reclaimers: the threads that make room for tasks and call their wakers, and how they are woken.
//!
//! - I1. The lock is the last in the order of locks. Under it a thread is unparked at most.
//! - I2. A notice is for one reclaimer that sleeps. One that ends passes its own notice on.
//! - E1. sleep ↔ notice: a reclaimer says that it sleeps, then looks for work, and parks only if
//!   no notice has come since. Work is put down under the locks that the look takes, and the
//!   notice follows. So the look finds the work, or the notice finds the sleeper. Loom:
//!   `a_reclaimer_wakes_the_task`.

use std::time::{Duration, Instant};

use memgroup_sync::Mutex;
use memgroup_sync::thread::{self, Thread};

use crate::base::mutation::{self, Mutation};

/// Longer than any wait.
const FAR: Duration = Duration::from_secs(365 * 86_400);

struct Registered {
    number: u64,
    /// Its thread, since it first slept.
    thread: Option<Thread>,
    /// It sleeps, or is about to, and was not notified.
    is_asleep: bool,
}

impl Registered {
    fn wake(&mut self) {
        self.is_asleep = false;
        self.thread.iter().for_each(Thread::unpark);
    }
}

/// The reclaimers of a hierarchy, and the number of the next one.
pub(crate) struct Reclaimers(Mutex<(Vec<Registered>, u64)>);

impl Reclaimers {
    pub(crate) fn new() -> Reclaimers {
        Reclaimers(Mutex::new((Vec::new(), 0)))
    }

    /// Adds a reclaimer, and returns its number.
    pub(crate) fn add(&self) -> u64 {
        let (list, next) = &mut *self.0.lock();
        list.push(Registered { number: *next, thread: None, is_asleep: false });
        *next += 1;
        *next - 1
    }

    /// Ends a reclaimer. Returns whether it was the last one.
    pub(crate) fn remove(&self, number: u64) -> bool {
        let (list, _) = &mut *self.0.lock();
        let Some(index) = list.iter().position(|one| one.number == number) else { return false };
        list.swap_remove(index).wake();
        // It may have been notified of something.
        wake_one(list);
        list.is_empty()
    }

    /// Ends all, when the hierarchy goes.
    pub(crate) fn end_all(&self) {
        self.0.lock().0.drain(..).for_each(|mut one| one.wake());
    }

    pub(crate) fn is_any(&self) -> bool {
        !self.0.lock().0.is_empty()
    }

    /// Notifies a reclaimer that sleeps, if one does. The others look for work before they sleep.
    pub(crate) fn wake_one(&self) {
        wake_one(&mut self.0.lock().0);
    }

    /// Returns the next piece of work that `look` finds, or `None` when the reclaimer was ended.
    /// It sleeps until there is some; `look` returns until when at most.
    pub(crate) fn next<W>(
        &self,
        number: u64,
        mut look: impl FnMut() -> Result<W, Option<Instant>>,
    ) -> Option<W> {
        loop {
            self.set_asleep(number, false)?;
            if let Ok(work) = look() {
                return Some(work);
            }
            self.set_asleep(number, true)?;
            let is_blind = mutation::active(Mutation::ReclaimerSleepsWithoutALook);
            match if is_blind { Err(None) } else { look() } {
                Ok(work) => {
                    // Foreign code may follow: a notice would be late.
                    _ = self.set_asleep(number, false);
                    return Some(work);
                }
                Err(until) => self.park(number, until),
            }
        }
    }

    /// Returns `None` if the reclaimer was ended.
    fn set_asleep(&self, number: u64, is_asleep: bool) -> Option<()> {
        let (list, _) = &mut *self.0.lock();
        let own = list.iter_mut().find(|one| one.number == number)?;
        own.thread.get_or_insert_with(thread::current);
        own.is_asleep = is_asleep;
        Some(())
    }

    fn park(&self, number: u64, until: Option<Instant>) {
        let left = until.map_or(FAR, |until| until.saturating_duration_since(Instant::now()));
        // After the last wait for a lock, which may have taken an unpark away.
        let is_asleep = self.0.lock().0.iter().any(|one| one.number == number && one.is_asleep);
        if is_asleep {
            thread::park_timeout(left);
        }
    }

    /// Marks all as asleep, or tells which of them sleep.
    #[cfg(all(test, not(memgroup_loom)))]
    pub(crate) fn with_asleep<T>(&self, act: impl FnMut((u64, &mut bool)) -> T) -> Vec<T> {
        let (list, _) = &mut *self.0.lock();
        list.iter_mut().map(|one| (one.number, &mut one.is_asleep)).map(act).collect()
    }
}

fn wake_one(list: &mut [Registered]) {
    list.iter_mut().find(|one| one.is_asleep).into_iter().for_each(Registered::wake);
}
