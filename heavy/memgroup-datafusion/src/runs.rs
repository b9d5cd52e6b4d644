//! The queries of a tenant that run at the same time, and the turn of the one that is restarted.
//!
//! A query that ran out of memory while others of its tenant were running would run out again,
//! because those have the memory. So it waits until they have freed as much as it wanted, which is
//! charged to it at once. It then gets a plan for the available memory. One query at a time waits
//! for room, and has the turn until it ends.
//!
//! - I1. Waits are futures. One query of a tenant at a time waits for room on a thread of its own,
//!   where caches shrink for it. A waiting query holds no memory. If the system refuses a thread,
//!   the query continues without waiting.
//! - I2. All waits of a query together have one deadline, which also ends its restarts. A query
//!   that is run as a part of another one waits for its turn until that deadline.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use memgroup::{Charge, ChargeError, ChargeErrorKind, Effort, Group};
use tokio::sync::{Mutex, MutexGuard, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// The longest that a query waits in all.
const WAIT_MOST: Duration = Duration::from_secs(60);
/// How often a waiting query checks whether others are running.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The queries of one tenant: those in groups with the same parent.
#[derive(Default)]
pub(crate) struct Runs {
    running: AtomicUsize,
    /// Held by the query that is restarted, until its end.
    turn: Mutex<()>,
}

/// One of them.
pub(crate) struct Run<'t> {
    runs: &'t Runs,
    turn: Option<MutexGuard<'t, ()>>,
    deadline: Option<Instant>,
}

impl Run<'_> {
    pub(crate) fn of(runs: &Runs) -> Run<'_> {
        // ORDERING: Relaxed, because the number publishes nothing else.
        runs.running.fetch_add(1, Ordering::Relaxed);
        Run { runs, turn: None, deadline: None }
    }

    /// Returns whether other queries of the tenant run, and do not wait.
    pub(crate) fn is_beside_others(&self) -> bool {
        // ORDERING: Relaxed; as in `Run::of`.
        self.runs.running.load(Ordering::Relaxed) > 1
    }

    /// Waits for the turn, and then for room for `bytes` in `group`. Returns their charge. Returns
    /// none if no other query is running, or at the deadline of all waits.
    pub(crate) async fn wait(&mut self, group: &Group, bytes: u64) -> Option<Charge> {
        if bytes == 0 {
            return None;
        }
        let _waiting = Waiting::of(self.runs);
        // ORDERING: Relaxed; as in `Run::of`.
        let others_run = || self.runs.running.load(Ordering::Relaxed) > 0;
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + WAIT_MOST);
        if Instant::now() >= deadline {
            return None;
        }
        if self.turn.is_none() {
            let (mut turn, mut alone) = (
                pin!(self.runs.turn.lock()),
                pin!(async {
                    while others_run() {
                        sleep(LOOK_AGAIN).await;
                    }
                }),
            );
            let first = select(turn.as_mut(), alone.as_mut());
            if let Ok(Either::Left((turn, _))) = timeout_at(deadline, first).await {
                self.turn = Some(turn);
            }
        }
        let mut room = wait_on_a_thread(group.clone(), bytes, deadline.into_std())?;
        loop {
            match timeout(LOOK_AGAIN, &mut room.charge).await {
                Ok(ended) => {
                    room.is_over = true;
                    return ended.ok().flatten();
                }
                // Repeated, because the wait may not have begun yet.
                Err(_) if !others_run() => _ = group.wake_waiters(),
                Err(_) => {}
            }
        }
    }
}

fn is_for_lack_of_room(error: &ChargeError) -> bool {
    matches!(error.kind(), ChargeErrorKind::Refused | ChargeErrorKind::VictimDying)
}

/// Waits for room on a thread of its own, because tokio's pool panics if the system has no thread
/// for it. Returns `None` without a thread, and the query does not wait.
fn wait_on_a_thread(group: Group, bytes: u64, until: std::time::Instant) -> Option<Room> {
    let (sender, charge) = oneshot::channel::<Option<Charge>>();
    let room = Room { charge, group: group.clone(), is_over: false };
    let wait = move |is_wanted: &dyn Fn() -> bool| {
        while is_wanted() {
            group.wait_for_room(bytes, until).ok()?;
            match group.try_charge_by(bytes, Effort::Reclaim) {
                Ok(charge) => return Some(charge),
                // Others were faster.
                Err(error) if is_for_lack_of_room(&error) => {}
                // There is room, and no wait changes the reason.
                Err(_) => return None,
            }
        }
        None
    };
    // If the query was dropped by then, the charge comes back and is dropped.
    let thread = std::thread::Builder::new().name("memgroup-room".to_owned());
    let work = move || {
        let charge = wait(&|| !sender.is_closed());
        drop(sender.send(charge));
    };
    thread.spawn(work).is_ok().then_some(room)
}

/// The room that a thread waits for. If it is dropped early, the thread ends at once, or, if its
/// wait was just about to begin, at the deadline of the wait or the end of the query.
struct Room {
    charge: oneshot::Receiver<Option<Charge>>,
    group: Group,
    is_over: bool,
}

impl Drop for Room {
    fn drop(&mut self) {
        if !self.is_over {
            self.charge.close();
            self.group.wake_waiters();
        }
    }
}

/// A waiting query does not count as a running one, because it holds no memory.
struct Waiting<'t>(&'t Runs);

impl Waiting<'_> {
    fn of(runs: &Runs) -> Waiting<'_> {
        // ORDERING: Relaxed; as in `Run::of`.
        runs.running.fetch_sub(1, Ordering::Relaxed);
        Waiting(runs)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed; as in `Run::of`.
        self.0.running.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed; as in `Run::of`.
        self.runs.running.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::execution::memory_pool::MemoryConsumer;
    use futures_util::FutureExt as _;
    use memgroup::{Config, Hierarchy};

    use super::*;
    use crate::pool::GroupPool;

    #[test]
    fn a_query_does_not_wait_for_no_bytes() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let query = hierarchy.get_or_create("/tenant/query").unwrap();
        let runs = Runs::default();
        let (mut run, _other) = (Run::of(&runs), Run::of(&runs));
        assert!(run.wait(&query, 0).now_or_never().unwrap().is_none());
    }

    #[test]
    fn a_query_does_not_lack_bytes_beyond_a_limit() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let [query, other] =
            ["/tenant/query", "/tenant/other"].map(|path| hierarchy.get_or_create(path).unwrap());
        query.parent().unwrap().set_max(1000).unwrap();
        let _held = other.try_charge(900).unwrap();
        let pool = Arc::new(GroupPool::new(&hierarchy, &query));
        let rows = MemoryConsumer::new("rows").register(&(Arc::clone(&pool) as _));
        rows.try_grow(1001).unwrap_err();
        assert_eq!(pool.lacked(), 0);
        rows.try_grow(1000).unwrap_err();
        assert_eq!(pool.lacked(), 1000);
    }

    #[tokio::test]
    async fn the_room_that_a_query_waited_for_is_its_own() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let [query, other] =
            ["/tenant/query", "/tenant/other"].map(|path| hierarchy.get_or_create(path).unwrap());
        query.parent().unwrap().set_max(1000).unwrap();
        let held = other.try_charge(900).unwrap();
        let runs = Runs::default();
        let (mut run, _other) = (Run::of(&runs), Run::of(&runs));
        let (charge, ()) = tokio::join!(run.wait(&query, 200), async {
            sleep(2 * LOOK_AGAIN).await;
            drop(held);
        });
        assert_eq!(query.usage_exact(), 200);
        drop(charge);
        assert_eq!(query.usage_exact(), 0);
    }

    #[tokio::test]
    async fn the_thread_of_a_wait_that_is_cancelled_ends() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let query = hierarchy.get_or_create("/tenant/query").unwrap();
        let _held = query.try_charge(900).unwrap();
        query.set_max(1000).unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(3600);
        let room = wait_on_a_thread(query.clone(), 200, until).unwrap();
        while query.waiters().now == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        drop(room);
        while query.waiters().now > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn queries_that_wait_do_not_wait_for_each_other() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let query = hierarchy.get_or_create("/tenant/query").unwrap();
        query.parent().unwrap().set_max(1000).unwrap();
        let held = query.try_charge(900).unwrap();
        let runs = Runs::default();
        let wait = async |mut run: Run<'_>| {
            let charge = run.wait(&query, 200).await;
            assert!(Instant::now() < run.deadline.unwrap(), "it ends before the deadline");
            charge.is_some()
        };
        let (one, two) = (Run::of(&runs), Run::of(&runs));
        assert_eq!(tokio::join!(wait(one), wait(two)), (false, false));
        drop(held);
        assert!(wait(Run::of(&runs)).await);
        // ORDERING: Relaxed; as in `Run::of`.
        assert_eq!(runs.running.load(Ordering::Relaxed), 0);
    }
}
