//! Pace: the part of one CPU that requests may take, and the rests of the server's thread.
//!
//! - I1. The budget pays for all CPU time of the server's thread except that of its checks of the
//!   tree ([`Pace::exempt`]).
//! - I2. With up to a third of a CPU, the thread rests after each short piece of its work, so a
//!   tenant's thread on the same CPU waits for one piece only. Without rests it would wait for the
//!   time slice of the server's thread, which is some milliseconds.
//! - I3. Requests pass in the order in which they came. Each connection has one at a time, so a
//!   client with many requests does not keep the others out. Of the requests without a right, only
//!   one at a time is in that queue, and the others wait behind it. So a client with a right waits
//!   for at most one of them, however many connections strangers have.
//! - B1. Some pieces of work grow with the tree: listing its groups, the copy at the start of a
//!   snapshot, and choosing groups for `/metrics`.

use std::time::Duration;

use memgroup::scope;
use parking_lot::Mutex as PlainMutex;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

/// CPU time that requests may take in one burst after a pause.
const BURST: Duration = Duration::from_millis(200);

/// CPU time between two rests.
const PIECE: Duration = Duration::from_micros(100);
/// The largest share of a CPU with rests, in percent. If the system wakes the thread late, a rest
/// takes twice its time, so the thread could not reach a larger share.
const RESTFUL: u32 = 33;

/// Returns the CPU time of this thread so far.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// A budget of CPU time that fills at a rate. Only the server's thread uses it.
#[derive(Debug)]
pub(crate) struct Pace {
    percent: u32,
    queue: Mutex<()>,
    /// The queue of requests without a right. The first of them is in `queue`.
    strangers: Mutex<()>,
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
    /// CPU time of the thread at its last rest.
    rested: Duration,
    rested_at: std::time::Instant,
}

impl Pace {
    /// A full budget for the calling thread.
    pub(crate) fn new(percent: u32) -> Pace {
        Pace::with(percent, thread_time)
    }

    fn with(percent: u32, clock: fn() -> Duration) -> Pace {
        let now = clock();
        let (full_at, rested_at) = (Instant::now(), std::time::Instant::now());
        let state = PlainMutex::new(State { full_at, paid: now, rested: now, rested_at });
        Pace { percent, queue: Mutex::new(()), strangers: Mutex::new(()), state, clock }
    }

    /// [Rests](Pace::rest), and takes the CPU time since the last call off the budget. Returns the
    /// time from which the budget is positive.
    pub(crate) fn settle(&self) -> Instant {
        self.rest();
        let (mut state, now) = (self.state.lock(), (self.clock)());
        let time = now.saturating_sub(state.paid);
        state.paid = now;
        if !time.is_zero() {
            state.full_at = state.full_at.max(Instant::now()) + time * 100 / self.percent;
        }
        state.full_at - BURST * 100 / self.percent
    }

    /// Rests if the thread has worked for a piece since its last rest. Long work must call this
    /// often, but not while it holds a lock that another thread takes.
    pub(crate) fn rest(&self) {
        let (now, rest) = {
            let state = self.state.lock();
            let (now, passed) = ((self.clock)(), state.rested_at.elapsed());
            let worked = now.saturating_sub(state.rested);
            if worked < PIECE {
                return;
            }
            (now, self.rest_after(worked, passed))
        };
        if !rest.is_zero() {
            // A thread that rests isn't working in a group.
            let _outside = scope::leave();
            std::thread::sleep(rest);
        }
        let mut state = self.state.lock();
        (state.rested, state.rested_at) = (now, std::time::Instant::now());
    }

    /// Returns how long the thread should rest if it has `worked` within the time that has `passed`
    /// since its last rest.
    fn rest_after(&self, worked: Duration, passed: Duration) -> Duration {
        // The thread may have slept in between, because it had no work.
        let is_rested = passed >= worked + PIECE;
        if is_rested || self.percent > RESTFUL { Duration::ZERO } else { PIECE }
    }

    /// Calls `act`, which isn't part of a request and has a bound of its own.
    pub(crate) fn exempt<T>(&self, act: impl FnOnce() -> T) -> T {
        self.settle();
        let value = act();
        self.state.lock().paid = (self.clock)();
        value
    }

    /// Waits until it is the turn of a request, which has a right or not, and the budget is
    /// positive.
    pub(crate) async fn turn_of(&self, has_right: bool) {
        let _first = if has_right { None } else { Some(self.strangers.lock().await) };
        self.turn().await;
    }

    /// Waits until it is the caller's turn, and the budget is positive.
    pub(crate) async fn turn(&self) {
        let _turn = self.queue.lock().await;
        // Waiting costs CPU time as well, so the wait ends when at most one piece remains to be
        // paid.
        let little = PIECE * 100 / self.percent;
        loop {
            let free_at = self.settle();
            if free_at <= Instant::now() + little {
                return;
            }
            sleep_until(free_at).await;
        }
    }
}

/// Returns how often `act` settles with the budget that it gets. The clock stands still.
#[cfg(test)]
pub(crate) fn settles_of(act: impl FnOnce(&std::sync::Arc<Pace>)) -> u32 {
    thread_local! {
        static LOOKS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }
    let clock = || {
        LOOKS.set(LOOKS.get() + 1);
        Duration::ZERO
    };
    let pace = std::sync::Arc::new(Pace::with(25, clock));
    let before = LOOKS.get();
    pace.settle();
    let each = LOOKS.get() - before;
    act(&pace);
    (LOOKS.get() - before) / each - 1
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
    async fn a_client_with_a_right_waits_for_one_stranger_only() {
        let (pace, passed) = (pace(25), std::cell::RefCell::new(Vec::new()));
        spend(1000);
        let ask = async |name: &'static str| {
            pace.turn_of(name == "operator").await;
            passed.borrow_mut().push(name);
            spend(40);
        };
        tokio::join!(ask("first"), ask("second"), ask("third"), ask("operator"), ask("fourth"));
        assert_eq!(*passed.borrow(), ["first", "operator", "second", "third", "fourth"]);
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

    #[test]
    fn the_thread_rests_after_each_piece_outside_its_group() {
        let hierarchy = memgroup::Hierarchy::new(memgroup::Config::new()).unwrap();
        let (group, pace) = (hierarchy.create("/serve").unwrap(), pace(25));
        let began = std::time::Instant::now();
        {
            let _scope = scope::enter(&group);
            for _ in 0..1000 {
                SPENT.set(SPENT.get() + PIECE / 4);
                pace.settle();
            }
        }
        let (all, rests) = (began.elapsed(), 250 * PIECE);
        assert!(all >= rests, "{all:?}: a rest each fourth time");
        let key = memgroup::stats::cpu::SCOPE_USEC;
        let in_group = group.snapshot().groups[0].statistic(key, memgroup::Reach::Local).unwrap();
        assert!(in_group as u128 <= (all - rests).as_micros() + 1, "{in_group} us of {all:?}");
    }

    #[test]
    fn there_are_no_rests_with_more_than_a_third_of_a_cpu() {
        for (percent, rest) in
            [(1, PIECE), (25, PIECE), (33, PIECE), (34, Duration::ZERO), (100, Duration::ZERO)]
        {
            assert_eq!(pace(percent).rest_after(PIECE, PIECE), rest, "{percent} percent");
        }
    }

    #[test]
    fn a_thread_that_slept_for_the_time_of_a_rest_does_not_rest() {
        let (pace, micro) = (pace(25), Duration::from_micros(1));
        for worked in [PIECE, 10 * PIECE] {
            assert_eq!(pace.rest_after(worked, worked + PIECE), Duration::ZERO);
            assert_eq!(pace.rest_after(worked, worked + PIECE - micro), PIECE);
        }
    }

    #[test]
    fn a_piece_begins_after_the_last_one() {
        let pace = pace(100);
        for _ in 0..3 {
            SPENT.set(SPENT.get() + PIECE - Duration::from_nanos(1));
            let before = pace.state.lock().rested_at;
            pace.settle();
            assert_eq!(pace.state.lock().rested_at, before);
            SPENT.set(SPENT.get() + Duration::from_nanos(1));
            pace.settle();
            assert!(pace.state.lock().rested_at > before);
        }
    }

    #[test]
    fn a_long_text_is_written_in_pieces() {
        let hierarchy = memgroup::Hierarchy::new(memgroup::Config::new()).unwrap();
        let account = crate::account::Account { group: hierarchy.create("/serve").unwrap() };
        let mut text = crate::account::Chunks::new(&account, &std::sync::Arc::new(pace(25))).unwrap();
        let began = std::time::Instant::now();
        for _ in 0..1000 {
            SPENT.set(SPENT.get() + PIECE);
            std::fmt::Write::write_str(&mut text, &"x".repeat(4096)).unwrap();
        }
        assert!(began.elapsed() >= 1000 * PIECE);
        assert_eq!(text.len(), 1000 * 4096);
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn a_wait_that_costs_time_itself_ends() {
        let clock = || {
            SPENT.set(SPENT.get() + PIECE / 4);
            SPENT.get()
        };
        let (pace, began) = (Pace::with(1, clock), Instant::now());
        spend(2 * BURST.as_millis() as u64);
        let ended = tokio::time::timeout(400 * BURST, pace.turn()).await;
        ended.expect("the wait costs less than a piece");
        let waited = began.elapsed();
        assert!(waited + 100 * PIECE >= 100 * BURST, "all but a piece is paid: {waited:?}");
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
