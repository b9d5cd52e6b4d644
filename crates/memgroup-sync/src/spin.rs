//! Waiting for another thread that is a few instructions from done.

/// How many rounds of [`Wait::wait`] spin before the first one yields.
const SPIN_ROUNDS: u32 = 6;

/// One wait for a condition that another *running* thread is about to make true.
///
/// The first six rounds spin for 1, 2, 4, .. 32 pause instructions. Each later round yields the CPU, so that a holder
/// that lost its CPU gets it back. Under loom every round yields, which tells the model checker that this thread
/// cannot continue alone.
///
/// It is no lock and no sleep: use it only where the condition becomes true within nanoseconds.
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
        if cfg!(not(memgroup_loom)) && self.rounds < SPIN_ROUNDS {
            for _ in 0..1_u32 << self.rounds {
                core::hint::spin_loop();
            }
            self.rounds += 1;
        } else {
            crate::thread::yield_now();
        }
    }

    /// Whether the next round yields the CPU, so that the caller may do other work instead.
    pub fn yields_next(&self) -> bool {
        cfg!(memgroup_loom) || self.rounds >= SPIN_ROUNDS
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;
    use crate::atomic::{AtomicU32, Ordering};

    #[test]
    fn spins_six_rounds_and_yields_from_then_on() {
        let mut wait = Wait::new();
        for round in 0..SPIN_ROUNDS {
            assert!(!wait.yields_next(), "round {round}");
            wait.wait();
        }
        for _ in 0..100 {
            assert!(wait.yields_next());
            wait.wait();
        }
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
