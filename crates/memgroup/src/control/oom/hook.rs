//! Kill hooks: the user's code that stops the work of a group, its registration, and its call.
//!
//! - I1. Only the answer of a hook leaves [`Hook::call`]. A panic is caught, and the hook is set
//!   aside.
//! - I2. A hook holds a handle on its group until its last call has ended. So its place is empty
//!   before the group's node is reused.

use core::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use memgroup_sync::hazard::{Domain, Place, WaitError, Withdrawn};
use memgroup_sync::{global, interleave};

use crate::base::panic;
use crate::control::oom::state::OomState;
use crate::tree::handle::Group;

global! {
    static CALLS: Domain = Domain::new();
}

/// The hazard domain of all kill hooks, of every hierarchy.
pub(crate) fn domain() -> &'static Domain {
    &CALLS
}

/// Code that stops the work of a group, so that its memory is freed: it interrupts a query, ends a
/// session, or empties a cache.
///
/// A charging thread that finds no room calls the hook. That thread may be inside an allocator,
/// and may hold any lock. So the hook *tells* the work to stop, and returns. It must not wait, nor
/// take a lock that another thread holds while it charges. It frees only memory that it can free
/// at once. The engine holds no lock during the call, and makes one call of a hook at a time.
///
/// Charges that the hook makes may exceed the limits by
/// [`Config::reclaim_reserve_bytes`](crate::Config::reclaim_reserve_bytes), and are refused beyond
/// that. Within the hook, [`Group::reclaim`] does nothing, and no group is killed. Memory that the
/// hook frees on this thread is kept for the charge that needs it.
///
/// A hook that panics is set aside ([`KillRegistration::is_set_aside`]). While a hook hangs, other
/// charges skip its group after [`Config::kill_patience`](crate::Config::kill_patience).
///
/// A closure is a hook:
///
/// ```
/// use memgroup::{Config, Hierarchy, KillAnswer, KillRequest};
/// use std::sync::{Arc, Mutex};
///
/// let hierarchy = Hierarchy::new(Config::new())?;
/// let tenants = hierarchy.create("/tenants")?;
/// let (runaway, alice) = (tenants.create("runaway")?, tenants.create("alice")?);
/// tenants.set_max(1 << 20)?;
/// let memory = Arc::new(Mutex::new(vec![runaway.try_charge(1 << 20)?]));
///
/// let freed = Arc::clone(&memory);
/// let hook = runaway.set_kill_hook(move |request: &KillRequest<'_>| {
///     assert_eq!((request.requester.name(), request.asked), ("alice".to_owned(), 4096));
///     freed.lock().unwrap().clear();
///     KillAnswer::Dying
/// })?;
/// let _charge = alice.try_charge(4096)?;
/// assert_eq!((runaway.usage_exact(), runaway.events().oom_kill), (0, 1));
/// # drop(hook);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait KillHook: Send + Sync + 'static {
    /// Stops the work of the group, if it can be stopped now. The answer decides whether another
    /// group is asked. The engine trusts it no further: it tries the charge again to see whether
    /// there is room.
    fn kill(&self, request: &KillRequest<'_>) -> KillAnswer;
}

impl<F> KillHook for F
where
    F: Fn(&KillRequest<'_>) -> KillAnswer + Send + Sync + 'static,
{
    fn kill(&self, request: &KillRequest<'_>) -> KillAnswer {
        self(request)
    }
}

/// The answer of a kill hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillAnswer {
    /// The work was told to stop, and will free its memory or has freed it. No other group is
    /// killed for the full group until the memory is freed, or until the
    /// [patience](crate::Config::kill_patience) is over.
    Dying,
    /// Nothing runs in the group. The hook gave spare memory back, and killed nothing.
    Idle {
        /// Bytes that the hook gave back, as it believes. For the report.
        freed: u64,
    },
    /// The work cannot be stopped now, and another group is asked. If the victim is the [requester
    /// itself](KillRequest::kills_requester), its charge is refused, and no smaller group is
    /// killed for it.
    Refused,
}

/// The request to kill a group: the victim, the requester, and the group that is full.
#[derive(Debug)]
#[non_exhaustive]
pub struct KillRequest<'a> {
    /// The group to kill, which has this hook. The groups below it that have no hook of their own
    /// are part of it.
    pub group: &'a Group,
    /// The group that needs the memory for a charge.
    pub requester: &'a Group,
    /// The group that is full: the requester, or one above it.
    pub full: &'a Group,
    /// The group that is killed as a whole ([`Group::set_oom_group`]), if this group is killed as
    /// a part of it.
    pub unit: Option<&'a Group>,
    /// Bytes that the requester asks for.
    pub asked: u64,
    /// Bytes charged to the group, without those of groups below that have hooks of their own.
    pub usage: u64,
    /// Bytes by which the group exceeds its effective `min`. A hook that gives memory back instead
    /// of stopping should give no more.
    pub above_min: u64,
    /// Whether the requester is the victim, or a part of it. Then this thread does the work to be
    /// stopped, and can stop only after the hook has returned. Mostly its charge is refused.
    pub kills_requester: bool,
}

/// A registered hook.
pub(crate) struct Hook {
    /// A panic leaves the engine's state whole: the hook is set aside after it.
    kill: AssertUnwindSafe<Box<dyn KillHook>>,
    /// Unique among the hooks of the hierarchy.
    pub(crate) number: u64,
    /// Dropped last (I2).
    pub(crate) group: Group,
}

impl Hook {
    /// Calls the hook. Returns `None` if it panicked.
    pub(crate) fn call(&self, request: &KillRequest<'_>) -> Option<KillAnswer> {
        interleave::point();
        let outcome = catch_unwind(AssertUnwindSafe(|| self.kill.kill(request)));
        outcome.map_err(panic::drop_caught).ok()
    }
}

/// The registration of a group's [`KillHook`].
///
/// Dropping it removes the hook without waiting. While a thread looks through kill hooks, that
/// makes an expedited `membarrier`, which interrupts the running threads of the process. A call
/// that has begun goes on, and drops the hook when it ends. If the group was told to stop and
/// still holds memory, its bytes stay claimed: no other group is stopped for them within the
/// [patience](crate::Config::kill_patience), unless [`Group::kill_done`] reports the end or the
/// group gets another hook.
#[must_use = "a hook is removed when this is dropped"]
pub struct KillRegistration {
    group: Group,
    number: u64,
    is_withdrawn: bool,
}

impl KillRegistration {
    /// The group that has the hook.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Returns whether the hook panicked, and is called no more.
    #[must_use]
    pub fn is_set_aside(&self) -> bool {
        self.group.node().shared().victims().is_set_aside(self.group.node())
    }

    /// Allows calls of a hook that panicked.
    pub fn reinstate(&self) {
        self.group.node().shared().victims().reinstate(self.group.node());
    }

    /// Removes the hook, and waits until its call has ended, if one is under way. It does not wait
    /// for other hooks.
    ///
    /// # Errors
    /// It is called within the hook. The hook is removed all the same, and dropped when its call
    /// ends.
    pub fn remove(mut self) -> Result<(), KillHookError> {
        match self.withdraw().map(Withdrawn::wait) {
            None | Some(Ok(_)) => Ok(()),
            Some(Err(WaitError::UsedHere(_) | WaitError::Deadline(_))) => {
                Err(KillHookError::FromWithin { group: self.group.path() })
            }
        }
    }

    /// Removes the hook, once: the next hook of the group has its own registration.
    fn withdraw(&mut self) -> Option<Withdrawn<Hook>> {
        if std::mem::replace(&mut self.is_withdrawn, true) {
            return None;
        }
        let node = self.group.node();
        node.shared().victims().unregister(node, self.number);
        node.find_oom().and_then(OomState::place).and_then(Place::withdraw)
    }
}

impl Drop for KillRegistration {
    fn drop(&mut self) {
        drop(self.withdraw());
    }
}

/// The kill hook.
impl Group {
    /// Sets the hook that stops this group, and all groups below that have no hook of their own,
    /// when memory runs out. A group has one hook.
    ///
    /// # Errors
    /// The group has a hook, or was removed; or the hook it had is still in a call.
    pub fn set_kill_hook(&self, hook: impl KillHook) -> Result<KillRegistration, KillHookError> {
        let (node, group) = (self.node(), self.clone());
        if !self.is_online() {
            return Err(KillHookError::Removed { group: self.path() });
        }
        let hook = Box::new(Hook { kill: AssertUnwindSafe(Box::new(hook)), number: 0, group });
        match node.shared().victims().register(node, hook) {
            Ok(number) => Ok(KillRegistration { group: self.clone(), number, is_withdrawn: false }),
            Err(Taken::ByHook) => Err(KillHookError::Exists { group: self.path() }),
            Err(Taken::ByCall) => Err(KillHookError::InCall { group: self.path() }),
        }
    }
}

/// The reason why a group can take no hook now.
pub(crate) enum Taken {
    ByHook,
    ByCall,
}

/// The reason why a kill hook was not set, or why its end was not awaited.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KillHookError {
    /// The group has a hook.
    Exists {
        /// The group's path.
        group: String,
    },
    /// The hook that the group had was removed, and its call goes on.
    InCall {
        /// The group's path.
        group: String,
    },
    /// The group was removed.
    Removed {
        /// The path it had.
        group: String,
    },
    /// A hook cannot wait for its own call. It is removed all the same, and dropped when that call
    /// ends.
    FromWithin {
        /// The group's path.
        group: String,
    },
}

impl fmt::Display for KillHookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (group, reason) = match self {
            KillHookError::Exists { group } => (group, "it has one; drop that registration first"),
            KillHookError::InCall { group } => {
                (group, "a call of the removed hook goes on; KillRegistration::remove waits for it")
            }
            KillHookError::Removed { group } => (group, "the group was removed"),
            KillHookError::FromWithin { group } => {
                return write!(f, "wait for the kill hook of group {group}: the wait is within a call of it");
            }
        };
        write!(f, "set the kill hook of group {group}: {reason}")
    }
}

impl std::error::Error for KillHookError {}
