//! Pace: the part of one CPU that requests may take.
//!
//! - I1. The budget pays all CPU time of the server's thread but that of its looks at the tree ([`Pace::exempt`]).
//! - I2. Requests pass in the order in which they came. Each connection has one at a time, so a client with many requests does not keep the others out.

use std::sync::Mutex as PlainMutex;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

/// Time that requests may take at once after a pause.
const BURST: Duration = Duration::from_millis(200);

/// CPU time of this thread so far.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// A budget of CPU time that fills at a rate. Only the server's thread uses it.
#[derive(Debug)]
pub(crate) struct Pace {
    percent: u32,
    queue: Mutex<()>,
    state: PlainMutex<State>,
    /// The clock of the thread.
    clock: fn() -> Duration,
}

#[derive(Debug)]
struct State {
    /// When the budget is full again.
    full_at: Instant,
    /// CPU time of the thread that is paid or exempt.
    paid: Duration,
}

impl Pace {
    /// A full budget for the calling thread.
    pub(crate) fn new(percent: u32) -> Pace {
        Pace::with(percent, thread_time)
    }

    fn with(percent: u32, clock: fn() -> Duration) -> Pace {
        let state = PlainMutex::new(State { full_at: Instant::now(), paid: clock() });
        Pace { percent, queue: Mutex::new(()), state, clock }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Takes the CPU time since the last call off the budget, and returns when the budget has something left.
    pub(crate) fn settle(&self) -> Instant {
        let (mut state, now) = (self.state(), (self.clock)());
        let time = now.saturating_sub(state.paid);
        state.paid = now;
        if !time.is_zero() {
            state.full_at = state.full_at.max(Instant::now()) + time * 100 / self.percent;
        }
        state.full_at - BURST * 100 / self.percent
    }

    /// Calls `act`, which is no part of a request and has a bound of its own.
    pub(crate) fn exempt<T>(&self, act: impl FnOnce() -> T) -> T {
        self.settle();
        let value = act();
        self.state().paid = (self.clock)();
        value
    }

    /// Waits until it is the caller's turn, and the budget has something left.
    pub(crate) async fn turn(&self) {
        let _turn = self.queue.lock().await;
        loop {
            let free_at = self.settle();
            if free_at <= Instant::now() {
                return;
            }
            sleep_until(free_at).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static SPENT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// A budget with a clock that only [`spend`] moves.
    fn pace(percent: u32) -> Pace {
        Pace::with(percent, || SPENT.get())
    }

    fn spend(millis: u64) {
        SPENT.set(SPENT.get() + Duration::from_millis(millis));
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn requests_beyond_the_part_wait() {
        let (pace, began) = (pace(25), Instant::now());
        let mut spent = 0;
        while spent < 10_000 {
            pace.turn().await;
            spend(40);
            spent += 40;
        }
        pace.turn().await;
        let share = spent as f64 / 1e3 / began.elapsed().as_secs_f64();
        assert!((0.25..0.26).contains(&share), "{share}");
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn a_burst_after_a_pause_is_bounded() {
        let pace = pace(10);
        tokio::time::advance(Duration::from_secs(3600)).await;
        let began = Instant::now();
        for _ in 0..4 {
            pace.turn().await;
            spend(50);
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        pace.turn().await;
        assert_eq!(began.elapsed(), Duration::ZERO, "the budget is spent, and not exceeded");
        spend(50);
        pace.turn().await;
        assert!(began.elapsed() >= Duration::from_millis(500));
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn exempt_time_is_not_paid_and_time_before_it_is() {
        let (pace, began) = (pace(10), Instant::now());
        spend(250);
        pace.exempt(|| spend(10_000));
        pace.turn().await;
        assert_eq!(began.elapsed().as_millis(), 500);
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn work_of_the_thread_is_paid_wherever_it_is_done() {
        let (pace, began) = (Pace::new(1), Instant::now());
        let until = thread_time() + 2 * BURST;
        while thread_time() < until {
            std::hint::spin_loop();
        }
        pace.turn().await;
        assert!(began.elapsed() >= 100 * BURST, "{:?}", began.elapsed());
    }
}
