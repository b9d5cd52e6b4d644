//! Threads pinned one to a CPU, which run one closure at the same time.
//!
//!   caller ── run(2, job) ──▶ worker 0 on CPU 0 ──┐
//!                       └───▶ worker 1 on CPU 1 ──┴──▶ [result of 0, result of 1]
//!
//! - I1. Worker i stays on one CPU: the i-th that the process may use, counted modulo the number of
//!   CPUs.
//! - I2. Between two runs every worker sleeps, so a run on one worker leaves the other CPUs idle.
//! - I3. `run` returns only after each worker has dropped its job, so a job may borrow from the
//!   caller.
//! - I4. One run at a time: `Workers` is not `Sync`, so neither a job nor another thread can begin
//!   a second one.

#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use super::prelude::*;

type Job<'j> = Box<dyn FnOnce() + Send + 'j>;

/// A set of pinned threads.
pub(crate) struct Workers {
    workers: Vec<Worker>,
    /// Why a worker is not pinned, if one is not.
    pub(crate) unpinned: Option<String>,
    /// CPUs this process may use.
    pub(crate) cpus: usize,
}

struct Worker {
    jobs: Option<Sender<Job<'static>>>,
    /// One message for each job: whether it returned without a panic.
    done: Receiver<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Workers {
    /// Starts `threads` threads and pins each. A thread that cannot be pinned runs anywhere, and
    /// `unpinned` says so.
    pub(crate) fn start(threads: usize) -> Result<Workers> {
        let cpus = os::allowed_cpus()?;
        let mut workers = Vec::with_capacity(threads);
        let mut unpinned = None;
        for index in 0..threads {
            let cpu = cpus[index % cpus.len()];
            let ((jobs, orders), (done, results), (report, pinned)) =
                (channel::<Job<'static>>(), channel(), channel());
            let thread = spawn(&format!("lab-{index}"), move || {
                let _ = report.send(os::pin_to(cpu));
                while let Ok(job) = orders.recv() {
                    let _ = done.send(catch_unwind(AssertUnwindSafe(job)).is_ok());
                }
            })?;
            workers.push(Worker { jobs: Some(jobs), done: results, thread: Some(thread) });
            if let Ok(Err(why)) = pinned.recv() {
                unpinned.get_or_insert(format!("thread {index} could not be pinned to CPU {cpu}: {why}"));
            }
        }
        Ok(Workers { workers, unpinned, cpus: cpus.len() })
    }

    pub(crate) fn threads(&self) -> usize {
        self.workers.len()
    }

    /// Runs `job(i)` on workers 0 to `active` - 1 at the same time, and returns their results in
    /// order.
    ///
    /// # Panics
    /// When a job panicked, or when `active` exceeds the number of workers.
    pub(crate) fn run<R: Send>(&self, active: usize, job: impl Fn(usize) -> R + Sync) -> Vec<R> {
        let results: Vec<Mutex<Option<R>>> = (0..active).map(|_| Mutex::new(None)).collect();
        let workers = &self.workers[..active];
        for (index, (worker, result)) in workers.iter().zip(&results).enumerate() {
            let job = &job;
            let order: Job<'_> = Box::new(move || *lock(result) = Some(job(index)));
            // SAFETY: the job borrows from this call. A worker says that it is done after it has dropped the
            // job, and the loop below waits for that of every worker before this function returns
            // or panics (I3).
            let order = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(order) };
            // A worker receives until its sender is dropped, so this cannot fail while `self` lives.
            let _ = worker.jobs.as_ref().map(|jobs| jobs.send(order));
        }
        let done = workers.iter().filter(|worker| worker.done.recv() == Ok(true)).count();
        assert!(done == active, "a job of the workers panicked");
        let taken = results.into_iter().map(|result| result.into_inner().ok().flatten());
        taken.map(|result| result.expect("a job that is done has its result")).collect()
    }

    /// Runs `job(i, moment)` on `active` workers, which start together at a moment `lead_ticks`
    /// after the last of them is there, and returns the first error or all results.
    pub(crate) fn run_together<R: Send>(
        &self,
        active: usize,
        lead_ticks: u64,
        job: impl Fn(usize, u64) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        let start = Start::new(active);
        self.try_run(active, |thread| job(thread, start.wait(lead_ticks)))
    }

    /// Runs `job` on worker 0.
    pub(crate) fn run_one<R: Send>(&self, job: impl FnOnce() -> R + Send) -> R {
        let job = Mutex::new(Some(job));
        let mut results = self.run(1, |_| lock(&job).take().map(|job| job()));
        results.pop().flatten().expect("one worker ran it once")
    }

    /// Runs `job(i)` on `active` workers, and returns the first error or all results.
    pub(crate) fn try_run<R: Send>(
        &self,
        active: usize,
        job: impl Fn(usize) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        self.run(active, job).into_iter().collect()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            worker.jobs = None;
        }
        for thread in self.workers.iter_mut().filter_map(|worker| worker.thread.take()) {
            // Its loop catches the panics of jobs.
            let _ = thread.join();
        }
    }
}

/// Locks, also after a panic of another holder: the values here are whole at each moment.
pub(crate) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a named thread.
fn spawn<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map_err(Error::system(format!("start the thread {name}")))
}

/// The point where the threads of one run meet, so that they start together.
pub(crate) struct Start {
    expected: usize,
    arrived: AtomicUsize,
    at_ticks: AtomicU64,
}

impl Start {
    pub(crate) fn new(expected: usize) -> Start {
        Start { expected, arrived: AtomicUsize::new(0), at_ticks: AtomicU64::new(0) }
    }

    /// Waits for all threads, then for the moment that the last one sets, `lead_ticks` ahead;
    /// returns that moment.
    pub(crate) fn wait(&self, lead_ticks: u64) -> u64 {
        // ORDERING: AcqRel; publishes each thread's preparations to all. Weaker, a thread could start on
        // state that another has not finished writing.
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.expected {
            // ORDERING: Release; pairs with the Acquire below and hands on the preparations that were
            // published above.
            self.at_ticks.store(clock::now() + lead_ticks, Ordering::Release);
        }
        let at = spin_until(|| {
            // ORDERING: Acquire; pairs with the Release of the last thread.
            let at = self.at_ticks.load(Ordering::Acquire);
            (at != 0).then_some(at)
        });
        while clock::now() < at {
            std::hint::spin_loop();
        }
        at
    }
}

/// Spins until `ready` returns a value; yields the CPU now and then, for machines with fewer CPUs
/// than threads.
pub(crate) fn spin_until<T>(ready: impl Fn() -> Option<T>) -> T {
    let mut spins = 0_u32;
    loop {
        if let Some(value) = ready() {
            return value;
        }
        spins += 1;
        if spins.is_multiple_of(10_000) {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

/// A pinned thread that sleeps until it is called, works, and sleeps again; it ends on drop. A call
/// during the work makes it work once more.
pub(crate) struct Sleeper {
    calls: Arc<Calls>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Calls {
    made: AtomicU64,
    /// The number of calls at the begin of the last work that is done.
    answered: AtomicU64,
    closing: AtomicBool,
}

impl Sleeper {
    /// Starts the thread on a CPU, counted modulo those that the process may use. One that cannot
    /// be pinned runs anywhere.
    pub(crate) fn start(name: &str, cpu: usize, work: impl Fn() + Send + 'static) -> Result<Sleeper> {
        let cpus = os::allowed_cpus()?;
        let (cpu, calls) = (cpus[cpu % cpus.len()], Arc::<Calls>::default());
        let own = Arc::clone(&calls);
        let thread = spawn(name, move || {
            let _ = os::pin_to(cpu);
            own.answer(work);
        })?;
        Ok(Sleeper { calls, thread: Some(thread) })
    }

    /// Wakes the thread.
    pub(crate) fn call(&self) {
        // ORDERING: Release; pairs with the Acquire of the thread, which sees the caller's stores before
        // this.
        self.calls.made.fetch_add(1, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// Waits until every call is answered.
    pub(crate) fn rest(&self) {
        // ORDERING: Relaxed; the calls were made by this thread or before it joined those that made them.
        let made = self.calls.made.load(Ordering::Relaxed);
        // ORDERING: Acquire; pairs with the thread's Release.
        spin_until(|| (self.calls.answered.load(Ordering::Acquire) == made).then_some(()));
    }
}

impl Calls {
    /// The life of the thread.
    fn answer(&self, work: impl Fn()) {
        // ORDERING: Acquire; pairs with the Release in `drop`.
        while !self.closing.load(Ordering::Acquire) {
            // ORDERING: Acquire; pairs with the Release of a call. Relaxed: only this thread writes
            // `answered`.
            let (made, answered) = (self.made.load(Ordering::Acquire), self.answered.load(Ordering::Relaxed));
            if made == answered {
                std::thread::park();
                continue;
            }
            work();
            // ORDERING: Release; pairs with the Acquire in `rest`.
            self.answered.store(made, Ordering::Release);
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // ORDERING: Release; pairs with the thread's Acquire.
        self.calls.closing.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // One that panicked did no work, which the checks of its experiment show.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_results_in_order_of_the_threads() {
        let workers = Workers::start(3).unwrap();
        assert_eq!(workers.run(3, |index| index * 10), [0, 10, 20]);
        assert_eq!(workers.run(1, |index| index), [0]);
        assert_eq!(workers.run_one(|| 7), 7);
    }

    #[test]
    fn lets_a_job_borrow_from_the_caller() {
        let (workers, mut sums) = (Workers::start(2).unwrap(), Vec::new());
        for round in 0..100_usize {
            let local = [round; 8];
            sums.push(workers.run(2, |index| local.iter().sum::<usize>() + index).iter().sum::<usize>());
        }
        assert_eq!(sums, (0..100).map(|round| 16 * round + 1).collect::<Vec<_>>());
    }

    #[test]
    fn starts_all_threads_at_one_moment() {
        let moments = Workers::start(2).unwrap().run_together(2, 1000, |_, moment| Ok(moment)).unwrap();
        assert_eq!(moments[0], moments[1]);
    }

    #[test]
    #[should_panic(expected = "a job of the workers panicked")]
    fn panics_when_a_job_panics() {
        Workers::start(1).unwrap().run(1, |_| panic!("on purpose"));
    }

    #[test]
    fn works_after_each_call_and_ends() {
        let done = Arc::new(AtomicU64::new(0));
        let own = Arc::clone(&done);
        let sleeper = Sleeper::start("sleeper", 1, move || {
            // ORDERING: Relaxed; `rest` publishes it.
            own.fetch_add(1, Ordering::Relaxed);
        });
        let sleeper = sleeper.unwrap();
        for calls in 1..=3 {
            sleeper.call();
            sleeper.rest();
            // ORDERING: Relaxed; as above.
            assert_eq!(done.load(Ordering::Relaxed), calls);
        }
    }
}
