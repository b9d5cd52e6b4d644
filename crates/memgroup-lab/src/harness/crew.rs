//! Threads pinned one to a CPU, that run what they are given at the same time.
//!
//!   caller ── run(2, job) ──▶ thread 0 on CPU 0 ──┐
//!                       └───▶ thread 1 on CPU 1 ──┴──▶ [result of 0, result of 1]
//!
//! - I1. Thread i of a crew stays on one CPU: the i-th that the process may use, counted round.
//! - I2. Between two runs every thread of the crew sleeps, so a run on one thread has the other CPUs free of us.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::clock;
use super::os;
use crate::Error;

type Job = Box<dyn FnOnce() + Send>;

/// A set of pinned threads.
pub(crate) struct Crew {
    members: Vec<Member>,
    unpinned: Option<String>,
    cpus: usize,
}

struct Member {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Crew {
    /// Starts `threads` threads and pins each; a thread that cannot be pinned runs where it likes, and
    /// [`Crew::unpinned`] says so.
    pub(crate) fn start(threads: usize) -> Result<Crew, Error> {
        let cpus = os::allowed_cpus()?;
        let mut members = Vec::with_capacity(threads);
        let mut unpinned = None;
        for index in 0..threads {
            let cpu = cpus[index % cpus.len()];
            let (jobs, orders) = channel();
            let (report, pinned) = channel();
            let thread = std::thread::Builder::new()
                .name(format!("lab-{index}"))
                .spawn(move || member_loop(cpu, &report, &orders))
                .map_err(|source| Error::System {
                    what: format!("start thread {index} of the crew"),
                    source,
                })?;
            members.push(Member { jobs: Some(jobs), thread: Some(thread) });
            if let Ok(Err(why)) = pinned.recv() {
                unpinned.get_or_insert(format!("thread {index} could not be pinned to CPU {cpu}: {why}"));
            }
        }
        Ok(Crew { members, unpinned, cpus: cpus.len() })
    }

    pub(crate) fn threads(&self) -> usize {
        self.members.len()
    }

    /// CPUs this process may use.
    pub(crate) fn cpus(&self) -> usize {
        self.cpus
    }

    /// Why a thread of the crew is not pinned, if one is not.
    pub(crate) fn unpinned(&self) -> Option<&str> {
        self.unpinned.as_deref()
    }

    /// Runs `job(i)` on threads 0 to `active` - 1 at the same time, and returns what they returned, in order.
    ///
    /// # Panics
    /// When a job panicked, or when `active` exceeds the crew.
    pub(crate) fn run<R: Send + 'static>(
        &self,
        active: usize,
        job: impl Fn(usize) -> R + Send + Sync + 'static,
    ) -> Vec<R> {
        let job = Arc::new(job);
        let results: Vec<Receiver<R>> = self.members[..active]
            .iter()
            .enumerate()
            .map(|(index, member)| {
                let (job, (give, take)) = (Arc::clone(&job), channel());
                let order: Job = Box::new(move || {
                    // The receiver is gone only when the caller itself is unwinding.
                    let _ = give.send(job(index));
                });
                member.jobs.as_ref().expect("the crew is at work").send(order).expect("a member died");
                take
            })
            .collect();
        results.into_iter().map(|result| result.recv().expect("a job of the crew panicked")).collect()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for member in &mut self.members {
            member.jobs = None;
        }
        for member in &mut self.members {
            if let Some(thread) = member.thread.take() {
                // A member that panicked has already failed the run that gave it the job.
                let _ = thread.join();
            }
        }
    }
}

fn member_loop(cpu: usize, report: &Sender<std::io::Result<()>>, orders: &Receiver<Job>) {
    // The caller waits for this message, so it is there to take it.
    let _ = report.send(os::pin_to(cpu));
    while let Ok(job) = orders.recv() {
        job();
    }
}

/// Where the threads of one run meet, so that they start together.
pub(crate) struct Start {
    expected: usize,
    arrived: AtomicUsize,
    at_ticks: AtomicU64,
}

impl Start {
    pub(crate) fn new(expected: usize) -> Start {
        Start { expected, arrived: AtomicUsize::new(0), at_ticks: AtomicU64::new(0) }
    }

    /// Waits for all, then for the moment set by the last to arrive `lead_ticks` ahead; returns that moment.
    pub(crate) fn wait(&self, lead_ticks: u64) -> u64 {
        // ORDERING: AcqRel; the members' preparations become visible to all. Weaker, a member could start
        // on state that another has not finished writing.
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.expected {
            // ORDERING: Release; pairs with the Acquire below and hands on what the arrivals above collected.
            self.at_ticks.store(clock::now() + lead_ticks, Ordering::Release);
        }
        let at = spin_until(|| {
            // ORDERING: Acquire; pairs with the Release of the last to arrive.
            let at = self.at_ticks.load(Ordering::Acquire);
            (at != 0).then_some(at)
        });
        while clock::now() < at {
            std::hint::spin_loop();
        }
        at
    }
}

/// Spins until `ready` answers; gives the CPU away now and then, for machines with fewer CPUs than threads.
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
    fn results_come_back_in_order_of_the_threads() {
        let crew = Crew::start(3).unwrap();
        assert_eq!(crew.run(3, |index| index * 10), [0, 10, 20]);
        assert_eq!(crew.run(1, |index| index), [0]);
    }

    #[test]
    fn all_members_start_at_one_moment() {
        let crew = Crew::start(2).unwrap();
        let start = Start::new(2);
        let moments = crew.run(2, move |_| start.wait(1000));
        assert_eq!(moments[0], moments[1]);
    }

    #[test]
    #[should_panic(expected = "a job of the crew panicked")]
    fn a_panic_in_a_job_is_a_panic_of_the_run() {
        let crew = Crew::start(1).unwrap();
        crew.run(1, |_| panic!("on purpose"));
    }
}
