//! Workers: threads for requests that call code of the program, so that a slow cache or callback
//! delays only its own requests.
//!
//! | pool | calls | bound reached |
//! |---|---|---|
//! | [`RECLAIMS`] | shrinkers | `EAGAIN` |
//! | [`REMOVALS`] | callbacks of the group's end | `EBUSY` |
//!
//! A thread works for one user. It is started for a job if fewer threads than the pool's bound run
//! for that user, and ends when no job of the user waits. A panic of a shrinker or a callback does
//! not reach it, because the engine catches it.
//!
//! - I1. Jobs wait only for a thread of their own user, so slow jobs of one user delay no job of
//!   another.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use fuser::{Errno, ReplyWrite};
use memgroup::Group;
use parking_lot::Mutex;

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

/// The kernel locks the parent until a removal is answered, so no removal may wait for the
/// callbacks of another.
pub(crate) const REMOVALS: Bounds = Bounds { name: "memgroup-remove", running: 16, waiting: 0 };

/// The most threads of a pool for all users. When they are running, a user without a thread is
/// refused.
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

/// A removal of a group. The watch has its reply, and answers earlier if callbacks are slow.
pub(crate) struct Removal {
    pub(crate) group: Group,
    pub(crate) owners: Arc<Owners>,
    pub(crate) watch: Arc<Shared>,
}

impl Job for Removal {
    fn run(self) {
        let (id, removed) = (self.group.id(), self.group.remove());
        // Dropped before the answer, so that whoever sent the request finds no dying group that
        // only this handle keeps.
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

/// The workers of one pool. Dropping it drops the waiting jobs; running ones end by themselves.
pub(crate) struct Workers<J> {
    bounds: Bounds,
    state: Arc<Mutex<State<J>>>,
}

impl<J> State<J> {
    /// Notes that a thread of the user has ended, or was not started.
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

/// Returns the next job for a thread of the user. If there is none, the thread is no longer counted
/// and must end.
fn next<J>(state: &Mutex<State<J>>, user: u32) -> Option<J> {
    let mut state = state.lock();
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

    /// Makes a thread do the user's job and answer it. Only the serving thread may call this.
    pub(crate) fn add(&self, user: u32, job: J) {
        let mut state = self.state.lock();
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
                self.state.lock().end(user);
                job.refuse();
            }
        }
    }
}

impl<J> Drop for Workers<J> {
    fn drop(&mut self) {
        let mut state = self.state.lock();
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

    /// A job that ends when its sender is dropped, and reports its user and whether it was done.
    struct Slow(u32, Arc<Mutex<Receiver<()>>>, Sender<(u32, bool)>);

    impl Job for Slow {
        fn run(self) {
            // The error says that the sender is gone.
            _ = self.1.lock().recv();
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
        while !workers.state.lock().users.is_empty() {
            thread::yield_now();
        }
        assert_eq!(workers.state.lock().running, 0);
        add(most);
        assert_eq!(told.recv().unwrap(), (most, true));
    }
}
