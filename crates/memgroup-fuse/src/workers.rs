//! Workers: threads for writes that call shrinkers, so that a slow cache holds up its own writers only.
//!
//! A thread is started for a write when fewer than [`WORKERS_MOST`] run, and ends when no write waits. A panic of a shrinker does not leave it: the
//! engine contains it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use fuser::{Errno, ReplyWrite};
use memgroup::Group;

use crate::error;

/// The most threads.
const WORKERS_MOST: usize = 4;

/// The most writes that wait for a thread. One more is answered at once that nothing could be freed.
const WAITING_MOST: usize = 64;

/// A write to `memory.reclaim`.
pub(crate) struct Job {
    pub(crate) group: Group,
    pub(crate) text: String,
    pub(crate) bytes: u32,
    pub(crate) reply: ReplyWrite,
}

impl Job {
    fn run(self) {
        match self.group.write_file("memory.reclaim", &self.text) {
            Ok(()) => self.reply.written(self.bytes),
            Err(error) => self.reply.error(error::of_file(&error.problem)),
        }
    }
}

#[derive(Default)]
struct State {
    running: usize,
    waiting: VecDeque<Job>,
}

/// The workers of one mount. Dropping it drops the writes that wait; those that run end by themselves.
#[derive(Default)]
pub(crate) struct Workers(Arc<Mutex<State>>);

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next write for a thread. Without one, the thread counts no more and ends.
fn next(state: &Mutex<State>) -> Option<Job> {
    let mut state = lock(state);
    let job = state.waiting.pop_front();
    if job.is_none() {
        state.running -= 1;
    }
    job
}

impl Workers {
    /// Has a thread do the write and answer it.
    pub(crate) fn add(&self, job: Job) {
        let mut state = lock(&self.0);
        if state.waiting.len() >= WAITING_MOST {
            drop(state);
            return job.reply.error(Errno::EAGAIN);
        }
        state.waiting.push_back(job);
        if state.running >= WORKERS_MOST {
            return;
        }
        state.running += 1;
        drop(state);
        let shared = Arc::clone(&self.0);
        let work = move || {
            while let Some(job) = next(&shared) {
                job.run();
            }
        };
        if thread::Builder::new().name("memgroup-reclaim".to_owned()).spawn(work).is_err() {
            self.refuse_all();
        }
    }

    /// The system has no thread for one more worker: the writes that wait are answered, unless threads run that will do them.
    fn refuse_all(&self) {
        let mut state = lock(&self.0);
        state.running -= 1;
        let refused = if state.running == 0 { std::mem::take(&mut state.waiting) } else { VecDeque::new() };
        drop(state);
        refused.into_iter().for_each(|job| job.reply.error(Errno::EAGAIN));
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let waiting = std::mem::take(&mut lock(&self.0).waiting);
        drop(waiting);
    }
}
