//! A pinned thread that sleeps until it is called, works, and sleeps again: controls wake one to have their work done.
//!
//! - I1. A call during the work makes the thread work once more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use super::prelude::*;

/// The thread; it ends on drop.
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
    /// Starts the thread on a CPU, counted modulo those that the process may use. One that cannot be pinned runs anywhere.
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
        // ORDERING: Release; pairs with the Acquire of the thread, which sees the caller's stores before this.
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
            // ORDERING: Acquire; pairs with the Release of a call. Relaxed: only this thread writes `answered`.
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
