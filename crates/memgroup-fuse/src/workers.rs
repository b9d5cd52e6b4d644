//! Workers: threads for requests that call code of the program, so that a slow cache or a slow callback holds up its own requests only.
//!
//! | pool | calls | bound reached |
//! |---|---|---|
//! | [`RECLAIMS`] | shrinkers | `EAGAIN` |
//! | [`REMOVALS`] | callbacks of the group's end | `EBUSY` |
//!
//! A thread works for one user. It is started for a job when fewer than the pool's bound run for that user, and ends when no job of the user waits. A
//! panic of a shrinker or a callback does not leave it: the engine contains it.
//!
//! - I1. Jobs wait only while a thread of their user runs. So slow jobs of one user hold up no job of another.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use fuser::{Errno, ReplyWrite};
use memgroup::Group;

use crate::error;
use crate::owners::Owners;
use crate::watch::Shared;

/// The bounds of a pool, for each user.
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

/// The most threads of a pool for all users. Beyond that a user without a thread is refused.
const RUNNING_MOST: usize = 64;

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
    /// The users for which threads run.
    users: HashMap<u32, Queue<J>>,
}

/// The jobs of one user.
struct Queue<J> {
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

impl<J> State<J> {
    /// A thread of the user has ended, or was not started.
    fn end(&mut self, user: u32) {
        self.running -= 1;
        if let Some(queue) = self.users.get_mut(&user) {
            queue.running -= 1;
            if queue.running == 0 {
                self.users.remove(&user);
            }
        }
    }
}

/// The next job for a thread of the user. Without one, the thread counts no more and ends.
fn next<J>(state: &Mutex<State<J>>, user: u32) -> Option<J> {
    let mut state = lock(state);
    let job = state.users.get_mut(&user).and_then(|queue| queue.waiting.pop_front());
    if job.is_none() {
        state.end(user);
    }
    job
}

impl<J: Job> Workers<J> {
    pub(crate) fn new(bounds: Bounds) -> Workers<J> {
        let state = State { running: 0, users: HashMap::new() };
        Workers { bounds, state: Arc::new(state.into()) }
    }

    /// Has a thread do the user's job and answer it. Only the thread that serves the mount calls it.
    pub(crate) fn add(&self, user: u32, job: J) {
        let mut state = lock(&self.state);
        let (running, waiting) =
            state.users.get(&user).map_or((0, 0), |queue| (queue.running, queue.waiting.len()));
        let starts = running < self.bounds.running && state.running < RUNNING_MOST;
        if !starts && (running == 0 || waiting >= self.bounds.waiting) {
            drop(state);
            return job.refuse();
        }
        let queue = state.users.entry(user).or_insert_with(|| Queue { running: 0, waiting: VecDeque::new() });
        if !starts {
            return queue.waiting.push_back(job);
        }
        queue.running += 1;
        state.running += 1;
        drop(state);
        self.start(user, job);
    }

    fn start(&self, user: u32, job: J) {
        let (shared, (give, first)) = (Arc::clone(&self.state), channel::<J>());
        let work = move || {
            let mut job = first.recv().ok();
            while let Some(one) = job {
                one.run();
                job = next(&shared, user);
            }
        };
        match thread::Builder::new().name(self.bounds.name.to_owned()).spawn(work) {
            // The thread receives it.
            Ok(_) => _ = give.send(job),
            // The system has no thread for one more worker.
            Err(_) => {
                lock(&self.state).end(user);
                job.refuse();
            }
        }
    }
}

impl<J> Drop for Workers<J> {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        let queues = state.users.values_mut();
        let waiting: Vec<_> = queues.map(|queue| std::mem::take(&mut queue.waiting)).collect();
        drop(state);
        drop(waiting);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender};

    use super::*;

    /// A job that ends when its sender is dropped, and tells its user and whether it was done.
    struct Slow(u32, Arc<Mutex<Receiver<()>>>, Sender<(u32, bool)>);

    impl Job for Slow {
        fn run(self) {
            // The error says that the sender is gone.
            _ = self.1.lock().unwrap().recv();
            self.2.send((self.0, true)).unwrap();
        }

        fn refuse(self) {
            self.2.send((self.0, false)).unwrap();
        }
    }

    #[test]
    fn refuse_the_jobs_beyond_the_bounds_of_their_user() {
        let (end, wait) = channel::<()>();
        let (wait, (tell, told)) = (Arc::new(Mutex::new(wait)), channel());
        let workers = Workers::new(Bounds { name: "slow", running: 4, waiting: 2 });
        let add = |user| workers.add(user, Slow(user, Arc::clone(&wait), tell.clone()));
        // Each of 16 users has 4 threads and 2 jobs that wait.
        let most = RUNNING_MOST as u32 / 4;
        for user in 0..most {
            (0..6).for_each(|_| add(user));
            assert!(told.try_recv().is_err(), "user {user}");
            add(user);
            assert_eq!(told.recv().unwrap(), (user, false));
        }
        add(most);
        assert_eq!(told.recv().unwrap(), (most, false), "there are threads for no more users");
        drop(end);
        let mut done: Vec<_> = (0..6 * most).map(|_| told.recv().unwrap()).collect();
        done.sort_unstable();
        let all = (0..most).flat_map(|user| [(user, true); 6]);
        assert_eq!(done, all.collect::<Vec<_>>());
        while !lock(&workers.state).users.is_empty() {
            thread::yield_now();
        }
        assert_eq!(lock(&workers.state).running, 0);
        add(most);
        assert_eq!(told.recv().unwrap(), (most, true));
    }
}
