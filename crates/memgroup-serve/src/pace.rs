//! Pace: the part of one CPU that requests may take.
//!
//! - I1. Requests pass in the order in which they came. Each connection has one at a time, so a client with many requests does not keep the others out.

use std::sync::Mutex as PlainMutex;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

/// Time that requests may take at once after a pause.
const BURST: Duration = Duration::from_millis(200);

/// A budget of time that fills at a rate.
#[derive(Debug)]
pub(crate) struct Pace {
    percent: u32,
    queue: Mutex<()>,
    /// When the budget is full again.
    full_at: PlainMutex<Instant>,
}

impl Pace {
    pub(crate) fn new(percent: u32) -> Pace {
        Pace { percent, queue: Mutex::new(()), full_at: PlainMutex::new(Instant::now()) }
    }

    fn full_at(&self) -> std::sync::MutexGuard<'_, Instant> {
        self.full_at.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Takes `time` off the budget.
    pub(crate) fn spend(&self, time: Duration) {
        let mut full_at = self.full_at();
        *full_at = (*full_at).max(Instant::now()) + time * 100 / self.percent;
    }

    /// When the budget has something left.
    pub(crate) fn free_at(&self) -> Instant {
        *self.full_at() - BURST * 100 / self.percent
    }

    /// Waits until it is the caller's turn, and the budget has something left.
    pub(crate) async fn turn(&self) {
        let _turn = self.queue.lock().await;
        while self.free_at() > Instant::now() {
            sleep_until(self.free_at()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn requests_beyond_the_part_wait() {
        let (pace, began) = (Pace::new(25), Instant::now());
        let mut spent = Duration::ZERO;
        while spent < Duration::from_secs(10) {
            pace.turn().await;
            pace.spend(Duration::from_millis(40));
            spent += Duration::from_millis(40);
        }
        let share = spent.as_secs_f64() / began.elapsed().as_secs_f64();
        assert!((0.25..0.26).contains(&share), "{share}");
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn a_burst_after_a_pause_is_bounded() {
        let pace = Pace::new(10);
        tokio::time::advance(Duration::from_secs(3600)).await;
        let began = Instant::now();
        for _ in 0..4 {
            pace.turn().await;
            pace.spend(Duration::from_millis(50));
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        pace.turn().await;
        assert_eq!(began.elapsed(), Duration::ZERO, "the budget is spent, and not exceeded");
        pace.spend(Duration::from_millis(50));
        pace.turn().await;
        assert!(began.elapsed() >= Duration::from_millis(500));
    }
}
