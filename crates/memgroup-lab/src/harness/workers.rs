//! Threads pinned one to a CPU, which run one closure at the same time.
//!
//!   caller ── run(2, job) ──▶ thread 0 on CPU 0 ──┐
//!                       └───▶ thread 1 on CPU 1 ──┴──▶ [result of 0, result of 1]
//!
//! - I1. Thread i stays on one CPU: the i-th that the process may use, counted modulo the number of
//!   CPUs.
//! - I2. The threads end with their run, so a run on one of them leaves the other CPUs idle.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use super::prelude::*;

/// The CPUs that the threads of each run are pinned to.
pub(crate) struct Workers {
    threads: usize,
    allowed: Vec<usize>,
    /// CPUs this process may use.
    pub(crate) cpus: usize,
    /// Why a thread is not pinned, if one is not.
    pub(crate) unpinned: Option<String>,
}

impl Workers {
    /// Starts and pins `threads` threads once, to find out whether that works. A thread that cannot
    /// be pinned runs anywhere, and `unpinned` says so.
    pub(crate) fn start(threads: usize) -> Result<Workers> {
        let allowed = os::allowed_cpus()?;
        let mut workers = Workers { threads, cpus: allowed.len(), allowed, unpinned: None };
        let pinned = workers.run(threads, |thread| os::pin_to(workers.cpu(thread)));
        let failed =
            pinned.into_iter().enumerate().find_map(|(thread, pinned)| Some((thread, pinned.err()?)));
        workers.unpinned = failed.map(|(thread, why)| {
            format!("thread {thread} could not be pinned to CPU {}: {why}", workers.cpu(thread))
        });
        Ok(workers)
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    fn cpu(&self, thread: usize) -> usize {
        self.allowed[thread % self.cpus]
    }

    /// Runs `job(i)` on threads 0 to `active` - 1 at the same time, and returns their results in
    /// order.
    ///
    /// # Panics
    /// When a job panicked.
    pub(crate) fn run<R: Send>(&self, active: usize, job: impl Fn(usize) -> R + Sync) -> Vec<R> {
        let pinned = |thread| {
            // A failure was reported by `start`.
            let _ = os::pin_to(self.cpu(thread));
            job(thread)
        };
        std::thread::scope(|scope| {
            let pinned = &pinned;
            let started: Vec<_> = (0..active).map(|thread| scope.spawn(move || pinned(thread))).collect();
            let results = started.into_iter().map(|thread| thread.join());
            results.map(|result| result.unwrap_or_else(|panic| resume_unwind(panic))).collect()
        })
    }

    /// Runs `job(i, moment)` on `active` threads, which start together at a moment `lead_ticks`
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

    /// Runs `job` on thread 0.
    pub(crate) fn run_one<R: Send>(&self, job: impl FnOnce() -> R + Send) -> R {
        let job = Mutex::new(Some(job));
        let mut results = self.run(1, |_| lock(&job).take().map(|job| job()));
        results.pop().flatten().expect("one thread ran it once")
    }

    /// Runs `job(i)` on `active` threads, and returns the first error or all results.
    pub(crate) fn try_run<R: Send>(
        &self,
        active: usize,
        job: impl Fn(usize) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        self.run(active, job).into_iter().collect()
    }
}

/// The time in which one thread does a job and another does something beside it.
#[derive(Default)]
pub(crate) struct Shift {
    begun: AtomicUsize,
    is_over: AtomicBool,
}

impl Shift {
    /// Says that so many of those beside the job have begun.
    pub(crate) fn begin(&self, number: usize) {
        // ORDERING: Release; pairs with the Acquire in `beside`, so the job sees what was prepared.
        self.begun.fetch_add(number, Ordering::Release);
    }

    /// Whether the job goes on.
    pub(crate) fn lasts(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release in `beside`.
        !self.is_over.load(Ordering::Acquire)
    }
}

impl Workers {
    /// Runs `job` on thread 0 once, after [`Shift::begin`] was called for `number`, and `other` on
    /// thread 1, which ends when the shift does. Returns both results.
    pub(crate) fn beside<R: Send, O: Send>(
        &self,
        number: usize,
        job: impl Fn() -> Result<R> + Sync,
        other: impl Fn(&Shift) -> Result<O> + Sync,
    ) -> Result<(R, O)> {
        let shift = Shift::default();
        let mut parts = self.run(2, |thread| {
            if thread == 1 {
                let done = other(&shift);
                // After an error the job must not wait.
                shift.begin(number);
                return (None, Some(done));
            }
            // ORDERING: Acquire; pairs with the Release in `begin`.
            while shift.begun.load(Ordering::Acquire) < number {
                std::thread::yield_now();
            }
            let done = job();
            // ORDERING: Release; pairs with the Acquire in `lasts`.
            shift.is_over.store(true, Ordering::Release);
            (Some(done), None)
        });
        let (other, job) = (parts.pop().and_then(|part| part.1), parts.pop().and_then(|part| part.0));
        let (job, other) = job.zip(other).expect("each worker did its part");
        Ok((job?, other?))
    }
}

/// Locks, also after a panic of another holder: the values here are whole at each moment.
pub(crate) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a pinned thread that sleeps until it is called, works, and sleeps again, until the sender
/// is dropped. The CPU is counted modulo those that the process may use.
pub(crate) fn sleeper(cpu: usize, work: impl Fn() + Send + 'static) -> Result<SyncSender<()>> {
    let (cpus, (calls, called)) = (os::allowed_cpus()?, sync_channel(1));
    let started = Builder::new().spawn(move || {
        // One that cannot be pinned runs anywhere.
        let _ = os::pin_to(cpus[cpu % cpus.len()]);
        called.iter().for_each(|()| work());
    });
    started.map(|_| calls).map_err(Error::system("start a thread that sleeps"))
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
        // ORDERING: AcqRel; publishes each thread's preparations to all. Weaker, a thread could
        // start on state that another has not finished writing.
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.expected {
            // ORDERING: Release; pairs with the Acquire below and hands on the preparations that
            // were published above.
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
    #[should_panic(expected = "on purpose")]
    fn panics_when_a_job_panics() {
        Workers::start(1).unwrap().run(1, |_| panic!("on purpose"));
    }

    #[test]
    fn does_a_job_while_something_goes_on_beside_it() {
        let workers = Workers::start(2).unwrap();
        let other = |shift: &Shift| {
            shift.begin(1);
            while shift.lasts() {
                std::thread::yield_now();
            }
            Ok(7)
        };
        assert_eq!(workers.beside(1, || Ok(3), other).unwrap(), (3, 7));
        let failed = workers.beside(1, || Ok(3), |_| Err::<(), _>(Error::Wrong("no".to_owned())));
        assert!(matches!(failed, Err(Error::Wrong(_))), "the job did not wait for what failed");
    }

    #[test]
    fn works_after_each_call_and_ends() {
        let (done, seen) = sync_channel(0);
        let sleeper = sleeper(1, move || done.send(()).unwrap()).unwrap();
        for _ in 0..3 {
            sleeper.send(()).unwrap();
            seen.recv().unwrap();
        }
        drop(sleeper);
        assert!(seen.recv().is_err(), "the thread has ended");
    }
}
