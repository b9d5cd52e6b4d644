//! Workers: threads for requests that call code of the program, so that a slow cache or a slow callback holds up its own requests only.
//!
//! | pool | calls | bound reached |
//! |---|---|---|
//! | [`RECLAIMS`] | shrinkers | `EAGAIN` |
//! | [`REMOVALS`] | callbacks of the group's end | `EBUSY` |
//!
//! A thread is started for a job when fewer than the pool's bound run, and ends when no job waits. A panic of a shrinker or a callback does not leave it:
//! the engine contains it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use fuser::{Errno, ReplyWrite};
use memgroup::Group;

use crate::error;
use crate::owners::Owners;
use crate::watch::Shared;

/// The bounds of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The name of its threads.
    pub(crate) name: &'static str,
    /// The most threads.
    pub(crate) running: usize,
    /// The most jobs that wait for a thread. One more is refused.
    pub(crate) waiting: usize,
}

pub(crate) const RECLAIMS: Bounds = Bounds { name: "memgroup-reclaim", running: 4, waiting: 64 };

/// The kernel locks the parent until a removal is answered. So none waits for the callbacks of another one.
pub(crate) const REMOVALS: Bounds = Bounds { name: "memgroup-remove", running: 16, waiting: 0 };

/// A request that a thread answers.
pub(crate) trait Job: Send + 'static {
    fn run(self);

    /// Answers that the bound of the pool is reached.
    fn refuse(self);
}

/// A write to `memory.reclaim`.
pub(crate) struct Reclaim {
    pub(crate) group: Group,
    pub(crate) text: String,
    pub(crate) bytes: u32,
    pub(crate) reply: ReplyWrite,
}

impl Job for Reclaim {
    fn run(self) {
        match self.group.write_file("memory.reclaim", &self.text) {
            Ok(()) => self.reply.written(self.bytes),
            Err(error) => self.reply.error(error::of_file(&error.problem)),
        }
    }

    fn refuse(self) {
        self.reply.error(Errno::EAGAIN);
    }
}

/// A removal of a group. The watch has its reply, and answers before if callbacks are slow.
pub(crate) struct Removal {
    pub(crate) group: Group,
    pub(crate) owners: Arc<Owners>,
    pub(crate) watch: Arc<Shared>,
}

impl Job for Removal {
    fn run(self) {
        let (id, removed) = (self.group.id(), self.group.remove());
        // Before the answer, so that its sender finds no dying group that only this handle keeps.
        drop(self.group);
        if removed.is_ok() {
            self.owners.removed(id);
            self.watch.removed(id);
        }
        self.watch.answer(id, removed.map_err(|error| error::of_group(&error)));
    }

    fn refuse(self) {
        self.watch.answer(self.group.id(), Err(Errno::EBUSY));
    }
}

struct State<J> {
    running: usize,
    waiting: VecDeque<J>,
}

/// The workers of one pool. Dropping it drops the jobs that wait; those that run end by themselves.
pub(crate) struct Workers<J> {
    bounds: Bounds,
    state: Arc<Mutex<State<J>>>,
}

fn lock<J>(state: &Mutex<State<J>>) -> MutexGuard<'_, State<J>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next job for a thread. Without one, the thread counts no more and ends.
fn next<J>(state: &Mutex<State<J>>) -> Option<J> {
    let mut state = lock(state);
    let job = state.waiting.pop_front();
    if job.is_none() {
        state.running -= 1;
    }
    job
}

impl<J: Job> Workers<J> {
    pub(crate) fn new(bounds: Bounds) -> Workers<J> {
        let state = State { running: 0, waiting: VecDeque::new() };
        Workers { bounds, state: Arc::new(state.into()) }
    }

    /// Has a thread do the job and answer it. Only the thread that serves the mount calls it.
    pub(crate) fn add(&self, job: J) {
        let mut state = lock(&self.state);
        if state.running >= self.bounds.running {
            if state.waiting.len() < self.bounds.waiting {
                state.waiting.push_back(job);
            } else {
                drop(state);
                job.refuse();
            }
            return;
        }
        state.running += 1;
        state.waiting.push_back(job);
        drop(state);
        let shared = Arc::clone(&self.state);
        let work = move || {
            while let Some(job) = next(&shared) {
                job.run();
            }
        };
        if thread::Builder::new().name(self.bounds.name.to_owned()).spawn(work).is_err() {
            // The system has no thread for one more worker. Another one may have taken the job meanwhile.
            let mut state = lock(&self.state);
            state.running -= 1;
            let refused = state.waiting.pop_back();
            drop(state);
            if let Some(job) = refused {
                job.refuse();
            }
        }
    }
}

impl<J> Drop for Workers<J> {
    fn drop(&mut self) {
        let waiting = std::mem::take(&mut lock(&self.state).waiting);
        drop(waiting);
    }
}
