//! Hook: what a user writes to have a group stopped, how it is called, and how it goes.
//!
//! - I1. Nothing a hook does comes out of here but its answer: a panic is caught, and sets the hook aside.
//! - I2. A hook holds a handle on its group until its last call has ended, so its place is vacant before the group's node is another's.

use std::panic::{AssertUnwindSafe, catch_unwind};

use memgroup_sync::global;
use memgroup_sync::hazard::{Domain, Place, WaitError, Withdrawn};
use memgroup_sync::interleave;

use super::error::HookError;
use crate::group::Group;

global! {
    static CALLS: Domain = Domain::new();
}

/// Who is calling which hook, in all hierarchies.
pub(super) fn domain() -> &'static Domain {
    &CALLS
}

/// Stops what runs in a group, so that its memory is freed: a query is interrupted, a session ended, a cache given up.
///
/// It is called by the thread whose charge found no room, perhaps from inside an allocator, while that thread holds whatever locks it holds. So it
/// *tells* what runs there to stop, and returns: it waits for nothing, takes no lock that somebody keeps while charging, and frees only what it can free at once.
/// No lock of the engine is held. One call of a hook is on at a time.
///
/// What it charges itself, to free more than that, may go above the limits by [`Config::reclaim_reserve_bytes`](crate::Config::reclaim_reserve_bytes), and is refused
/// beyond. From within, [`Group::reclaim`] does nothing and nobody is killed. What it frees on this thread is kept for the charge that needs it.
///
/// A hook that panics is set aside ([`KillHook::is_set_aside`]). While one hangs, other charges pass its group by after
/// [`Config::kill_patience`](crate::Config::kill_patience).
///
/// A closure will do:
///
/// ```
/// use memgroup::{Config, Hierarchy, Killed, Killing};
/// use std::sync::{Arc, Mutex};
///
/// let hierarchy = Hierarchy::new(Config::new())?;
/// let tenants = hierarchy.create("/tenants")?;
/// let (runaway, alice) = (tenants.create("runaway")?, tenants.create("alice")?);
/// tenants.set_max(1 << 20)?;
/// let memory = Arc::new(Mutex::new(vec![runaway.try_charge(1 << 20)?]));
///
/// let freed = Arc::clone(&memory);
/// let hook = runaway.set_kill_hook(move |killing: &Killing<'_>| {
///     assert_eq!((killing.requester().name(), killing.asked()), ("alice".to_owned(), 4096));
///     freed.lock().unwrap().clear();
///     Killed::Dying
/// })?;
/// let _charge = alice.try_charge(4096)?;
/// assert_eq!((runaway.usage_exact(), runaway.events().oom_kill), (0, 1));
/// # drop(hook);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Kill: Send + Sync + 'static {
    /// Stops what runs in the group, if it can be stopped now. What it answers decides whether the next group is asked, and is not believed further than
    /// that: whether there is room is seen by the charge that is made again.
    fn kill(&self, killing: &Killing<'_>) -> Killed;
}

impl<F> Kill for F
where
    F: Fn(&Killing<'_>) -> Killed + Send + Sync + 'static,
{
    fn kill(&self, killing: &Killing<'_>) -> Killed {
        self(killing)
    }
}

/// What a hook answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Killed {
    /// What runs there was told to stop, and will free its memory, or has done so. Nobody else is killed for the group that is full until it has, or until it has had its
    /// [time](crate::Config::kill_patience).
    Dying,
    /// Nothing runs there. What could be done without was given back, and nobody was killed.
    Idle {
        /// Bytes given back, as the hook believes; for the report.
        freed: u64,
    },
    /// Not now. Another is asked; but if the requester is [itself](Killing::by_itself) what is to die, its charge is refused, and nobody with less to lose is killed for it.
    Refused,
}

/// Who is to die, and for whom.
#[derive(Debug)]
pub struct Killing<'a> {
    pub(super) group: &'a Group,
    pub(super) requester: &'a Group,
    pub(super) full: &'a Group,
    pub(super) unit: Option<&'a Group>,
    pub(super) asked: u64,
    pub(super) usage: u64,
    pub(super) above_min: u64,
    pub(super) by_itself: bool,
}

impl Killing<'_> {
    /// The group that is to die, whose hook this is: with it all groups below that have no hook of their own.
    pub fn group(&self) -> &Group {
        self.group
    }

    /// The group whose charge needs the memory.
    pub fn requester(&self) -> &Group {
        self.requester
    }

    /// The group that is full: the requester, or one above it.
    pub fn full(&self) -> &Group {
        self.full
    }

    /// The group that dies as a whole ([`Group::set_oom_group`]), if that is why this one dies.
    pub fn unit(&self) -> Option<&Group> {
        self.unit
    }

    /// Bytes that the requester asks for.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// Bytes charged to the group, without those of groups below that have hooks of their own.
    pub fn usage(&self) -> u64 {
        self.usage
    }

    /// Bytes by which the group is above its effective `min`, for a hook that gives something back instead: more is not to be taken from it.
    pub fn above_min(&self) -> u64 {
        self.above_min
    }

    /// Whether the requester is itself what is to die: this very thread does what is to be stopped, and can stop only when the hook has returned and
    /// its charge, mostly, was refused.
    pub fn by_itself(&self) -> bool {
        self.by_itself
    }

    /// Whether the hook may wait for what it stops. Never within a charge, and as yet no other calls are made: the thread may hold what it would wait for.
    pub fn may_wait(&self) -> bool {
        false
    }
}

/// A hook in its place.
pub(crate) struct Hook {
    /// A panic of it goes no further than here, and then it is not called again.
    kill: AssertUnwindSafe<Box<dyn Kill>>,
    /// No other hook of the hierarchy has it.
    pub(super) number: u64,
    /// Dropped last (I2).
    pub(super) group: Group,
}

impl Hook {
    /// Its answer; `None`: it panicked.
    pub(super) fn call(&self, killing: &Killing<'_>) -> Option<Killed> {
        interleave::point();
        match catch_unwind(AssertUnwindSafe(|| self.kill.kill(killing))) {
            Ok(answer) => Some(answer),
            Err(panic) => {
                // What was thrown is the user's too, and so is its drop.
                if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
                    std::mem::forget(again);
                }
                None
            }
        }
    }
}

/// The registration of a group's [`Kill`] hook. Dropping it removes the hook without waiting: a call that is on goes on, and drops the hook when it ends. What
/// was dying by it counts as dead.
#[must_use = "a hook is removed when this is dropped"]
pub struct KillHook {
    group: Group,
    number: u64,
    is_withdrawn: bool,
}

impl KillHook {
    /// The group.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Whether it is not called any more because it panicked.
    #[must_use]
    pub fn is_set_aside(&self) -> bool {
        self.group.node().shared.victims.is_set_aside(self.group.node())
    }

    /// It is called again, although it panicked.
    pub fn reinstate(&self) {
        self.group.node().shared.victims.reinstate(self.group.node());
    }

    /// Removes it, and waits until a call of it that is on has ended; for nobody else's.
    ///
    /// # Errors
    /// It is removed within its own call. It is removed all the same, and dropped when that ends.
    pub fn remove(mut self) -> Result<(), HookError> {
        match self.withdraw().map(Withdrawn::wait) {
            None | Some(Ok(_)) => Ok(()),
            Some(Err(WaitError::UsedHere(_) | WaitError::Deadline(_))) => {
                Err(HookError::FromWithin { group: self.group.path() })
            }
        }
    }

    /// Once: the next hook of the group is another's.
    fn withdraw(&mut self) -> Option<Withdrawn<Hook>> {
        if std::mem::replace(&mut self.is_withdrawn, true) {
            return None;
        }
        let node = self.group.node();
        node.shared.victims.forget(node, self.number);
        node.control.oom.place().and_then(Place::withdraw)
    }
}

impl Drop for KillHook {
    fn drop(&mut self) {
        drop(self.withdraw());
    }
}

impl Group {
    /// Sets what stops the group when memory runs out: for it and all groups below that have no hook of their own. One for each group.
    ///
    /// # Errors
    /// The group has one, or was removed; or the one it had is in a call that goes on.
    pub fn set_kill_hook(&self, hook: impl Kill) -> Result<KillHook, HookError> {
        let node = self.node();
        let kill: Box<dyn Kill> = Box::new(hook);
        if !self.is_online() {
            return Err(HookError::Removed { group: self.path() });
        }
        let number = node.shared.victims.draw_number();
        let hook = Box::new(Hook { kill: AssertUnwindSafe(kill), number, group: self.clone() });
        match node.shared.victims.enlist(node, hook) {
            Ok(()) => Ok(KillHook { group: self.clone(), number, is_withdrawn: false }),
            Err(Taken::Hook) => Err(HookError::Exists { group: self.path() }),
            Err(Taken::Call) => Err(HookError::InCall { group: self.path() }),
        }
    }
}

/// Why a group has no place for a hook now.
pub(super) enum Taken {
    Hook,
    Call,
}
