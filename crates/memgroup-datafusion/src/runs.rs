//! The queries of a tenant that run at one time, and the turn of the one that is begun anew.
//!
//! A query that ran out of memory beside others of its tenant would run out again, because those hold the memory. So it waits until they have freed as
//! much as it wanted, and then has a plan for the room that there is. One query at a time waits for room, and has the turn
//! until it ends.
//!
//! - I1. Waits are futures. Caches shrink for them on a thread of the runtime that may block. A query that waits holds no memory.
//! - I2. All waits of a query together have one deadline. A query that another one runs as a part of itself waits so long for its turn.

use std::iter;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use memgroup::{Effort, Group};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep, timeout_at};

/// The most that a query waits in all.
const WAIT_MOST: Duration = Duration::from_secs(60);
/// How often a query looks whether there is room.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The queries of one tenant.
#[derive(Default)]
pub(crate) struct Runs {
    running: AtomicUsize,
    /// Held by the query that is begun anew, until its end.
    turn: Mutex<()>,
}

/// One of them.
pub(crate) struct Run<'t> {
    runs: &'t Runs,
    turn: Option<MutexGuard<'t, ()>>,
    deadline: Option<Instant>,
}

// ORDERING: Relaxed, all of them; a number by itself.
impl Run<'_> {
    pub(crate) fn of(runs: &Runs) -> Run<'_> {
        runs.running.fetch_add(1, Ordering::Relaxed);
        Run { runs, turn: None, deadline: None }
    }

    /// Waits for the turn, and then for room for `bytes` in `group`. Returns whether there is room. It ends without room when no other query runs.
    pub(crate) async fn wait(&mut self, group: &Group, bytes: u64) -> bool {
        let mut levels = iter::successors(Some(group.clone()), Group::parent);
        if bytes == 0 || levels.any(|level| level.max().is_some_and(|max| max < bytes)) {
            return false;
        }
        let waiting = Waiting::of(self.runs);
        let others_run = || self.runs.running.load(Ordering::Relaxed) > 0;
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + WAIT_MOST);
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
        let mut has_room = group.headroom() >= bytes;
        if !has_room {
            // Caches shrink on a thread that may block.
            let caches = group.clone();
            let shrink = move || caches.try_charge_by(bytes, Effort::Reclaim).is_ok();
            has_room = tokio::task::spawn_blocking(shrink).await.unwrap_or(false);
        }
        let room = async {
            while group.headroom() < bytes && others_run() {
                sleep(LOOK_AGAIN).await;
            }
        };
        if !has_room {
            _ = timeout_at(deadline, room).await;
        }
        drop(waiting);
        has_room || group.headroom() >= bytes
    }
}

/// A query that waits does not count as one that runs: it holds no memory.
struct Waiting<'t>(&'t Runs);

// ORDERING: Relaxed, both; as above.
impl Waiting<'_> {
    fn of(runs: &Runs) -> Waiting<'_> {
        runs.running.fetch_sub(1, Ordering::Relaxed);
        Waiting(runs)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.runs.running.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use memgroup::{Config, Hierarchy};

    use super::*;

    #[test]
    fn a_query_does_not_wait_for_no_bytes_or_for_those_beyond_a_limit() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let query = hierarchy.get_or_create("/tenant/query").unwrap();
        query.parent().unwrap().set_max(1000).unwrap();
        let runs = Runs::default();
        let (mut run, _other) = (Run::of(&runs), Run::of(&runs));
        assert_eq!(run.wait(&query, 0).now_or_never(), Some(false));
        assert_eq!(run.wait(&query, 1001).now_or_never(), Some(false));
    }

    #[tokio::test]
    async fn queries_that_wait_do_not_wait_for_each_other() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let query = hierarchy.get_or_create("/tenant/query").unwrap();
        query.parent().unwrap().set_max(1000).unwrap();
        let held = query.try_charge(900).unwrap();
        let runs = Runs::default();
        let wait = async |mut run: Run<'_>| {
            let has_room = run.wait(&query, 200).await;
            assert!(Instant::now() < run.deadline.unwrap(), "it ends before the deadline");
            has_room
        };
        let (one, two) = (Run::of(&runs), Run::of(&runs));
        assert_eq!(tokio::join!(wait(one), wait(two)), (false, false));
        drop(held);
        assert!(wait(Run::of(&runs)).await);
        assert_eq!(runs.running.load(Ordering::Relaxed), 0);
    }
}
