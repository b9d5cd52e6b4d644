//! Tasks: the tasks of a group that its kill hook ends.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use memgroup::{Group, KillAnswer, KillHookError, KillRequest};
use tokio::task::JoinHandle;

use crate::in_group::InGroupExt;
use crate::limited::{Ended, Limited};
use crate::stop::{StopReason, Stopped, Stops, Work};

/// The tasks of a group, which the group's kill hook ends. Clones are the same tasks.
///
/// When memory runs out in a group above and the engine chooses this group
/// ([`KillHook`](memgroup::KillHook)), all its tasks are woken. Each ends at its next poll: its
/// future is dropped in the group, and its output is [`Ended::Killed`]. Tasks that are added later
/// run.
///
/// The hook takes time in proportion to the number of tasks, some 100 ns each. It waits for
/// nothing, and allocates nothing itself. If another thread adds or ends a task at that very
/// moment, it answers [`KillAnswer::Refused`], and the engine asks another group. It answers the
/// same if a task of the group makes the charge itself, and that charge is refused. A waker that
/// panics is skipped.
///
/// A poll that runs for a long time keeps its memory until it ends, because a kill stops no thread.
///
/// ```
/// use memgroup::{Config, Hierarchy, scope};
/// use memgroup_tokio::{Ended, Tasks};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let tenants = hierarchy.create("/tenants").unwrap();
/// tenants.set_max(1 << 20).unwrap();
/// let (alice, runaway) = (tenants.create("alice").unwrap(), tenants.create("runaway").unwrap());
///
/// let tasks = Tasks::of(&runaway).unwrap();
/// let task = tasks.spawn(async {
///     let _held = scope::try_charge_current(1 << 20).unwrap().unwrap();
///     std::future::pending::<()>().await
/// });
/// tokio::task::yield_now().await;
/// assert!(alice.try_charge(4096).is_err(), "the task has not been polled yet");
/// assert!(matches!(task.await.unwrap(), Err(Ended::Killed { asked: 4096, .. })));
/// assert!(alice.try_charge(4096).is_ok());
/// # }
/// ```
#[derive(Clone)]
pub struct Tasks {
    stops: Arc<Stops>,
}

/// Runs as the kill hook of a group with these tasks.
fn kill(stops: &Weak<Stops>, request: &KillRequest<'_>) -> KillAnswer {
    let Some(stops) = stops.upgrade() else { return KillAnswer::Idle { freed: 0 } };
    if request.kills_requester && request.unit.is_none() {
        return KillAnswer::Refused;
    }
    let (requester, full, asked) = (request.requester.id(), request.full.id(), request.asked);
    match stops.stop(Some(StopReason { requester, full, asked })) {
        Stopped::Told(_) => KillAnswer::Dying,
        Stopped::NoneRuns if stops.is_cut_short() => KillAnswer::Dying,
        Stopped::NoneRuns => KillAnswer::Idle { freed: 0 },
        Stopped::Busy => KillAnswer::Refused,
    }
}

impl Tasks {
    /// Sets the group's kill hook, which ends the tasks that this handle and its clones spawn or
    /// track. The hook is removed with the last handle and the last of these tasks.
    ///
    /// # Errors
    /// The group has a hook, or was removed.
    pub fn of(group: &Group) -> Result<Tasks, KillHookError> {
        Tasks::hook(group, Work::Tasks)
    }

    /// The handler of a request in the group.
    pub(crate) fn of_request(group: &Group) -> Result<Tasks, KillHookError> {
        Tasks::hook(group, Work::Request { has_answered: AtomicBool::new(false) })
    }

    fn hook(group: &Group, work: Work) -> Result<Tasks, KillHookError> {
        let stops = Arc::new(Stops::new(work));
        let hooked = Arc::downgrade(&stops);
        stops.keep(group.set_kill_hook(move |request: &KillRequest<'_>| kill(&hooked, request))?);
        Ok(Tasks { stops })
    }

    /// The request's handler has returned its response.
    pub(crate) fn answered(&self) {
        self.stops.answered();
    }

    /// The group.
    pub fn group(&self) -> &Group {
        self.stops.group()
    }

    /// Number of tasks that were neither dropped nor told to stop.
    pub fn count(&self) -> usize {
        self.stops.members()
    }

    /// Spawns a task in the group that a kill ends, as the group's limit does
    /// ([`InGroup::ended_over_limit`](crate::InGroup::ended_over_limit)).
    ///
    /// **Panics** outside of a tokio runtime.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<Result<F::Output, Ended>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        tokio::spawn(self.track(future))
    }

    /// Puts the future in the group, and ends it by a kill and by the group's limit. This is for
    /// work that is not spawned here, such as a branch of `select!` or a request.
    ///
    /// **Cancel safety** and **panics**: those of
    /// [`InGroup::ended_over_limit`](crate::InGroup::ended_over_limit).
    pub fn track<F: Future>(&self, future: F) -> Limited<F> {
        Limited::new(future.in_group(self.group()), Some(self.stops.join()))
    }

    /// Ends all tasks, as a kill does. Their output is [`Ended::Stopped`]. Returns their number.
    pub fn stop(&self) -> usize {
        loop {
            match self.stops.stop(None) {
                Stopped::Told(members) => return members,
                Stopped::NoneRuns => return 0,
                // The lock is held for a few steps.
                Stopped::Busy => std::thread::yield_now(),
            }
        }
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").field("group", self.group()).field("count", &self.count()).finish()
    }
}
