//! Waiting for another thread that is a few instructions from done.

use core::time::Duration;

/// How many rounds of [`Wait::wait`] spin before the first one yields.
const SPIN_ROUNDS: u32 = 6;

/// How many rounds spin or yield before the first one sleeps.
const AWAKE_ROUNDS: u32 = 64;

/// The sleep of the first round that sleeps. Each later one sleeps twice as long, up to
/// `SLEEP_MOST`.
const SLEEP_FIRST: Duration = Duration::from_micros(50);
const SLEEP_MOST: Duration = Duration::from_millis(1);

/// One wait for a condition that another thread is about to make true.
///
/// The first six rounds spin for 1, 2, 4, .. 32 pause instructions. The next ones yield the CPU,
/// so that a thread that lost its CPU gets it back. After 64 rounds each one sleeps, for 50 us at
/// first and for up to 1 ms later: a yield lets only threads of the same priority run, so a thread
/// of real-time priority that only yielded would wait for ever for one that it has itself pushed
/// off the CPU. Under loom every round yields, which tells the model checker that this thread
/// cannot continue alone.
///
/// It is no lock: nothing wakes a round that sleeps. Use it only where the condition becomes true
/// within nanoseconds once the other thread runs.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_sync::atomic::{AtomicBool, Ordering};
/// use memgroup_sync::{spin, thread};
/// use std::sync::Arc;
///
/// let ready = Arc::new(AtomicBool::new(false));
/// let setter = thread::spawn({
///     let ready = Arc::clone(&ready);
///     move || ready.store(true, Ordering::Release)
/// });
/// let mut wait = spin::Wait::new();
/// while !ready.load(Ordering::Acquire) {
///     wait.wait();
/// }
/// setter.join().unwrap();
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Wait {
    rounds: u32,
}

impl Wait {
    /// A wait that has not waited yet.
    pub const fn new() -> Self {
        Self { rounds: 0 }
    }

    /// Waits one round, longer than the one before.
    pub fn wait(&mut self) {
        self.wait_at_most(SLEEP_MOST);
    }

    /// Waits one round, longer than the one before. If it sleeps, it sleeps for at most `most`.
    pub fn wait_at_most(&mut self, most: Duration) {
        self.wait_by(|sleep| std::thread::sleep(sleep.min(most)));
    }

    /// Waits one round. `sleep` is called if it is one that sleeps.
    fn wait_by(&mut self, sleep: impl FnOnce(Duration)) {
        if cfg!(memgroup_loom) {
            return crate::thread::yield_now();
        }
        match self.sleep_of_next() {
            Some(time) => sleep(time),
            None if self.yields_next() => crate::thread::yield_now(),
            None => (0..1_u32 << self.rounds).for_each(|_| core::hint::spin_loop()),
        }
        self.rounds = self.rounds.saturating_add(1);
    }

    /// Returns whether the next round yields the CPU, so that the caller may do other work
    /// instead.
    pub fn yields_next(&self) -> bool {
        cfg!(memgroup_loom) || self.rounds >= SPIN_ROUNDS
    }

    /// Returns whether the next round sleeps. Never under loom.
    pub fn sleeps_next(&self) -> bool {
        self.sleep_of_next().is_some()
    }

    fn sleep_of_next(&self) -> Option<Duration> {
        let doublings = self.rounds.checked_sub(AWAKE_ROUNDS)?;
        Some((SLEEP_FIRST * 2_u32.pow(doublings.min(5))).min(SLEEP_MOST))
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;
    use crate::atomic::{AtomicU32, Ordering};

    #[test]
    fn spins_then_yields_then_sleeps_longer_and_longer() {
        let (mut wait, mut slept) = (Wait::new(), Vec::new());
        for round in 0..AWAKE_ROUNDS {
            assert_eq!(wait.yields_next(), round >= SPIN_ROUNDS, "round {round}");
            assert!(!wait.sleeps_next(), "round {round}");
            wait.wait_by(|time| slept.push(time));
        }
        assert!(slept.is_empty(), "{slept:?}");
        for _ in 0..7 {
            assert!(wait.sleeps_next());
            wait.wait_by(|time| slept.push(time));
        }
        assert_eq!(
            slept.iter().map(Duration::as_micros).collect::<Vec<_>>(),
            [50, 100, 200, 400, 800, 1000, 1000]
        );
        // Without end, and still in so small steps.
        wait.rounds = u32::MAX;
        wait.wait_by(|time| slept.push(time));
        assert_eq!((slept.last(), wait.rounds), (Some(&SLEEP_MOST), u32::MAX));
    }

    #[test]
    fn gives_each_of_three_waiting_threads_its_turns() {
        const TURNS: u32 = 300;
        let turn = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for me in 0..3 {
                let turn = &turn;
                scope.spawn(move || {
                    for mine in (me..TURNS).step_by(3) {
                        let mut wait = Wait::new();
                        // ORDERING: Acquire; pairs with the Release store of the thread before.
                        while turn.load(Ordering::Acquire) != mine {
                            wait.wait();
                        }
                        // ORDERING: Release; pairs with the Acquire load above.
                        turn.store(mine + 1, Ordering::Release);
                    }
                });
            }
        });
        assert_eq!(turn.into_inner(), TURNS);
    }
}

#[cfg(all(test, memgroup_loom))]
mod loom_models {
    use std::sync::Arc;

    use super::*;
    use crate::atomic::{AtomicBool, AtomicU64, Ordering};
    use crate::thread;

    /// A waiter reads a word that was written before the flag was set with `publish`.
    fn read_after_the_wait(publish: Ordering) -> u64 {
        let shared = Arc::new((AtomicBool::new(false), AtomicU64::new(0)));
        let writer = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                // ORDERING: Relaxed; published by the store of the flag.
                shared.1.store(7, Ordering::Relaxed);
                shared.0.store(true, publish);
            }
        });
        let mut wait = Wait::new();
        // ORDERING: Acquire; pairs with the store of the flag.
        while !shared.0.load(Ordering::Acquire) {
            wait.wait();
        }
        // ORDERING: Relaxed; ordered by the Acquire load of the flag.
        let read = shared.1.load(Ordering::Relaxed);
        writer.join().unwrap();
        read
    }

    #[test]
    fn loom_a_wait_ends_and_sees_the_published_word() {
        // ORDERING: Release; pairs with the Acquire load of the flag.
        crate::model(|| assert_eq!(read_after_the_wait(Ordering::Release), 7));
    }

    /// The mutation: the flag is set without Release.
    #[test]
    #[should_panic(expected = "the published word is seen")]
    fn loom_finds_the_flag_that_publishes_nothing() {
        // ORDERING: Relaxed; too weak, which the model finds.
        crate::model(|| assert!(read_after_the_wait(Ordering::Relaxed) == 7, "the published word is seen"));
    }
}
