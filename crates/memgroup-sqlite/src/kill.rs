//! Kill hooks: they stop the statements of a group to free its memory for another group.
//!
//! ```text
//!   a charge does not fit ──▶ the engine chooses a victim ──▶ its hook, on the charging thread
//!       some connections run ──▶ interrupt them ──▶ KillAnswer::Dying
//!       none runs ─────────────▶ shrink their page caches ──▶ KillAnswer::Idle
//!   the statement fails with SQLITE_INTERRUPT ──▶ TenantError::Killed ──▶ the run ends ──▶ Group::kill_done
//! ```
//!
//! A group with open [`TenantConnection`](crate::TenantConnection)s has a hook, from its first to
//! its last connection. If the application has set a hook of its own, that one stays. When the
//! application removes it, the group has none until its next connection is opened, because checking
//! at each run would slow down every run.
//!
//! The engine calls shrinkers before it kills. So an idle group has pages left to free only if
//! reclaim is off, or if a cache was busy.
//!
//! - I1. The hook may run inside any `xMalloc`. It allocates nothing, and waits for no lock of this
//!   crate; it only tries them. If the list of connections is locked, it answers `Refused`. Freed
//!   pages are uncharged by the engine, which may serve waiting charges.
//! - I2. No run leaves an interrupt behind: the thread clears it when the work is done and no other
//!   thread interrupts (kill_target.rs, I3).
//! - I3. After that, a killed run rolls back a transaction that it began and left open (tenant.rs).
//!   An interrupt during the first allocation of its ROLLBACK does not stop it, because SQLite does
//!   not check the flag afterwards. An interrupt that is set when the ROLLBACK begins does stop it,
//!   and SQLite clears that one only if no other statement of the connection is open.
//! - I4. The last killed run of a group reports to the engine that the kill has ended.
//! - B1. A kill of the group that begins between that report and the release of the list's lock is
//!   reported as ended too early. The engine may then kill another group.
//!
//! For synchronisation see kill_target.rs. The lock of [`GROUPS`] is taken only when a connection
//! is opened or closed. Its holder may wait for calls of the hook, which never takes the lock.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use memgroup::{Group, GroupId, KillAnswer, KillRegistration, KillRequest};
use memgroup_sync::Mutex;
use rusqlite::Connection;

use crate::kill_target::{CURRENT_RUN, Database, Interrupt, KillTarget, KillTargets, StopOutcome};
use crate::pcache;

/// The fewest bytes that idle caches are asked to free, because calling a hook costs more than
/// freeing a page.
const IDLE_BYTES_LEAST: u64 = 64 << 10;

/// Why a run was told to stop.
#[derive(Clone)]
pub(crate) struct KillReason {
    pub(crate) requester: Group,
    pub(crate) full: Group,
    pub(crate) asked: u64,
    pub(crate) usage: u64,
    pub(crate) max: Option<u64>,
}

type Targets = KillTargets<Database, KillReason>;

/// The hook of a group with these connections.
fn kill(targets: &Targets, killing: &KillRequest<'_>) -> KillAnswer {
    if killing.kills_requester && killing.unit.is_none() {
        // The charge of the requesting statement is refused. SQLite may continue without that
        // block, and other runs of the group continue.
        return KillAnswer::Refused;
    }
    let reason = || {
        let (requester, full) = (killing.requester.clone(), killing.full.clone());
        let (usage, max) = full.usage_and_max();
        KillReason { requester, full, asked: killing.asked, usage, max }
    };
    match targets.try_stop(reason) {
        StopOutcome::Busy => KillAnswer::Refused,
        StopOutcome::Running => KillAnswer::Dying,
        StopOutcome::NoneRunning => {
            let bytes = killing.asked.max(IDLE_BYTES_LEAST).min(killing.above_min);
            KillAnswer::Idle { freed: pcache::try_shrink_group(killing.group.id(), bytes) }
        }
    }
}

/// The connections of one group, and the hook that stops them. There is none if the application has
/// set its own.
struct GroupTargets {
    targets: Arc<Targets>,
    hook: Option<KillRegistration>,
}

static GROUPS: LazyLock<Mutex<HashMap<GroupId, GroupTargets>>> = LazyLock::new(Mutex::default);

/// Returns whether a run is active on this thread.
#[inline]
pub(crate) fn is_running_here() -> bool {
    !CURRENT_RUN.get().is_null()
}

/// A connection that the kill hook of its group can stop.
pub(crate) struct Registration {
    target: Arc<KillTarget<Database>>,
    targets: Arc<Targets>,
    group: Group,
}

impl Registration {
    /// Registers an open connection; the first of a group sets the hook. Call
    /// [`remove`](Registration::remove) before it is closed.
    pub(crate) fn new(group: &Group, connection: &Connection) -> Registration {
        // SAFETY: the handle is used only while the connection is open (kill_target.rs, I2).
        Registration::of(group, Database(unsafe { connection.handle() }))
    }

    fn of(group: &Group, connection: Database) -> Registration {
        let target = Arc::new(KillTarget::new(connection));
        let mut groups = GROUPS.lock();
        let of_group = groups
            .entry(group.id())
            .or_insert_with(|| GroupTargets { targets: Arc::new(KillTargets::new()), hook: None });
        if of_group.hook.is_none() {
            // This fails if the application has a hook on the group. In that case only that hook
            // decides.
            let targets = Arc::clone(&of_group.targets);
            of_group.hook =
                group.set_kill_hook(move |killing: &KillRequest<'_>| kill(&targets, killing)).ok();
        }
        of_group.targets.add(&target);
        Registration { target, targets: Arc::clone(&of_group.targets), group: group.clone() }
    }

    /// Removes the connection, which is about to be closed. The last connection of a group removes
    /// the hook.
    pub(crate) fn remove(&self) {
        let mut groups = GROUPS.lock();
        if self.targets.remove(&self.target)
            && let Some(hook) = groups.remove(&self.group.id()).and_then(|removed| removed.hook)
        {
            // Waits for calls of the hook, so that the next connection can set one. It fails only
            // within such a call, and no call closes a connection.
            let _ = hook.remove();
        }
    }

    /// Clears an interrupt that came while nothing ran, because it would stop the checkpoint of a
    /// write-ahead log at closing. The connection must have been removed before.
    pub(crate) fn clear_interrupt(&self) {
        if self.target.connection.is_interrupted() {
            self.target.connection.clear_interrupt();
        }
    }

    /// Begins a run on this thread.
    #[inline]
    pub(crate) fn begin(&self) -> Running<'_> {
        let is_outermost = self.target.begin();
        Running {
            outer: CURRENT_RUN.replace(&raw const *self.target),
            registration: self,
            is_outermost,
            began_in_transaction: !self.target.connection.is_autocommit(),
        }
    }

    /// Returns why the current run was told to stop, if it was.
    #[cold]
    pub(crate) fn reason(&self) -> Option<KillReason> {
        if self.target.is_killed() { self.targets.reason(&self.target) } else { None }
    }
}

/// A run of a connection; the pointer in it keeps it on its thread. Runs of one thread are dropped
/// in the reverse order of their beginning.
pub(crate) struct Running<'r> {
    registration: &'r Registration,
    outer: *const KillTarget<Database>,
    /// Dropping this ends an outermost run that has not ended yet.
    is_outermost: bool,
    began_in_transaction: bool,
}

impl Running<'_> {
    /// Ends the work of the run. No other thread interrupts it after this. Returns whether the run
    /// was killed and left a transaction open that it began.
    #[inline]
    pub(crate) fn end_work(&mut self) -> bool {
        if self.is_outermost {
            self.is_outermost = !self.registration.target.end_if_running();
        }
        self.is_outermost && self.end_killed_work()
    }

    #[cold]
    fn end_killed_work(&self) -> bool {
        let Registration { target, targets, .. } = self.registration;
        targets.end_work(target);
        !self.began_in_transaction && !target.connection.is_autocommit()
    }
}

impl Drop for Running<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.is_outermost {
            let Registration { target, targets, group } = self.registration;
            targets.end(target, || {
                group.kill_done();
            });
        }
        CURRENT_RUN.set(self.outer);
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use std::ptr;

    use memgroup::{Config, Hierarchy};

    use super::*;

    #[test]
    fn forgets_a_removed_connection_and_its_group() {
        let hierarchy = Hierarchy::new(Config::new()).expect("the default configuration");
        let group = hierarchy.create("/leaving").expect("a group");
        let register = || Registration::of(&group, Database(ptr::null_mut()));
        let (first, second) = (register(), register());
        assert!(Arc::ptr_eq(&first.targets, &second.targets));
        first.remove();
        first.remove();
        assert_eq!((Arc::strong_count(&first.target), Arc::strong_count(&second.target)), (1, 2));
        assert!(
            group.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Refused).is_err(),
            "the second has the hook"
        );
        second.remove();
        assert!(group.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Refused).is_ok());
        assert!(!GROUPS.lock().contains_key(&group.id()));
    }
}
