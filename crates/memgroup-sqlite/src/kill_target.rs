//! Kill targets: the connections of a group, which of them are running something now, and how a
//! running one is told to stop.
//!
//! A *run* is one outermost call of [`TenantConnection::run`](crate::TenantConnection::run) or of a
//! method built on it.
//!
//! ```text
//!           begin                  try_stop, under the list's lock: mark, then interrupt
//!   IDLE ─────────────▶ RUNNING ─────────────────────────────────────────▶ KILLED
//!    ▲                     │ end_if_running                                  │ end_work: waits for the lock, clears the interrupt
//!    │                     │                                                 ▼
//!    └─────────────────────┴────────────────────────────────────────────── ENDING ── rolls back, then end
//! ```
//!
//! - I1. The thread that uses the connection makes every transition except RUNNING → KILLED, which
//!   is made only under the list's lock.
//! - I2. A connection is interrupted under that lock, while it is in the list. It leaves the list
//!   before it is closed.
//! - I3. A run is interrupted by another thread once, when it becomes KILLED, and no later than it
//!   becomes ENDING. The step to ENDING clears the interrupt, so the next run starts without one.
//! - I4. A holder of the lock runs a few instructions for each connection of the group. It waits
//!   for nothing except the engine's report of an ended kill.
//! - I5. A killed run is interrupted again by its own thread until its work is done. SQLite forgets
//!   an interrupt that comes between two statements, and one that is set when it recovers from a
//!   failed allocation. So the thread interrupts again at its next allocation ([`may_allocate`]).
//! - B1. A killed run that no longer allocates continues, because it takes no memory. Resizing a
//!   block does not count as an allocation here. A new statement allocates before it resizes.
//! - E1. Interrupt of a killed run → end of that run: the lock. Loom:
//!   `loom_interrupts_only_the_run_that_was_running`.

#![allow(unsafe_code)]

#[cfg(all(test, memgroup_loom))]
mod loom;

use std::cell::Cell;
use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::Arc;

use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicU32, Ordering};
use memgroup_sync::interleave;
use rusqlite::ffi;

use crate::mutation::{self, Mutation};

const IDLE: u32 = 0;
const RUNNING: u32 = 1;
const KILLED: u32 = 2;
const ENDING: u32 = 3;

/// A connection that any thread can interrupt.
pub(crate) trait Interrupt {
    fn interrupt(&self);

    /// Clears an interrupt. Only the thread that uses the connection calls it.
    fn clear_interrupt(&self);
}

/// The handle of a connection that is open while it is in the list (I2).
///
/// rusqlite's interrupt handle is not used. Closing holds its mutex for the whole of
/// `sqlite3_close`. That call may allocate, be refused, and reach the kill hook.
pub(crate) struct Database(pub(crate) *mut ffi::sqlite3);

// SAFETY: SQLite lets any thread interrupt an open connection; only the thread that uses the
// connection calls anything else.
unsafe impl Send for Database {}
// SAFETY: SQLite lets any thread interrupt an open connection; only the thread that uses the
// connection calls anything else.
unsafe impl Sync for Database {}

impl Interrupt for Database {
    fn interrupt(&self) {
        // SAFETY: the caller holds the lock of the list that has the connection, or uses the
        // connection: it is open.
        unsafe { ffi::sqlite3_interrupt(self.0) };
    }

    /// Prepares an empty statement: SQLite clears the interrupt then, if no statement of the
    /// connection is open. A leaked statement or a blob may be open. Then an allocation is made to
    /// fail: SQLite clears the interrupt when it recovers from that. SQLite requires for both that
    /// no statement of the connection is being stepped, and none is at the end of an outermost run.
    fn clear_interrupt(&self) {
        self.prepare_empty(c"", -1);
        if self.is_interrupted() {
            // SQLite copies a text that does not end with a null byte. A persistent statement does
            // not use the lookaside.
            REFUSE_NEXT.set(true);
            self.prepare_empty(c" ", 1);
            REFUSE_NEXT.set(false);
        }
    }
}

impl Database {
    fn prepare_empty(&self, text: &CStr, bytes: c_int) {
        let (mut statement, flags) = (ptr::null_mut(), ffi::SQLITE_PREPARE_PERSISTENT);
        let out = &raw mut statement;
        // SAFETY: this thread uses the connection: it is open. The text has as many bytes, or a
        // null byte at its end.
        unsafe { ffi::sqlite3_prepare_v3(self.0, text.as_ptr(), bytes, flags, out, ptr::null_mut()) };
        debug_assert!(statement.is_null(), "an empty text has no statement");
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        // SAFETY: this thread uses the connection: it is open.
        unsafe { ffi::sqlite3_is_interrupted(self.0) != 0 }
    }

    #[inline]
    pub(crate) fn is_autocommit(&self) -> bool {
        // SAFETY: this thread uses the connection: it is open.
        unsafe { ffi::sqlite3_get_autocommit(self.0) != 0 }
    }
}

thread_local! {
    /// The innermost run on this thread, borrowed while it is set.
    pub(crate) static CURRENT_RUN: Cell<*const KillTarget<Database>> = const { Cell::new(ptr::null()) };
    /// The next allocation of an ending run is refused.
    static REFUSE_NEXT: Cell<bool> = const { Cell::new(false) };
}

/// Called by the allocator before each new block. Interrupts a killed run again (I5). Returns
/// `false` if the allocation must fail, which happens once ([`Database::clear_interrupt`]).
#[inline]
pub(crate) fn may_allocate() -> bool {
    let current = CURRENT_RUN.get();
    if current.is_null() {
        return true;
    }
    // SAFETY: the run that set the pointer borrows its target.
    let current = unsafe { &*current };
    !current.is_killed() || may_allocate_killed(current)
}

#[cold]
#[inline(never)]
fn may_allocate_killed(target: &KillTarget<Database>) -> bool {
    if target.is_ending() {
        return !REFUSE_NEXT.take();
    }
    if !target.connection.is_interrupted() {
        target.connection.interrupt();
    }
    true
}

/// A connection and the state of its run.
pub(crate) struct KillTarget<D> {
    state: AtomicU32,
    pub(crate) connection: D,
}

impl<D> KillTarget<D> {
    pub(crate) fn new(connection: D) -> KillTarget<D> {
        KillTarget { state: AtomicU32::new(IDLE), connection }
    }

    /// IDLE → RUNNING. Returns `false` if a run is active and the new one is a part of it.
    #[inline]
    pub(crate) fn begin(&self) -> bool {
        // ORDERING: Relaxed; only this thread leaves IDLE or returns to it.
        let is_outermost = self.state.load(Ordering::Relaxed) == IDLE;
        if is_outermost {
            // ORDERING: Relaxed; the value publishes nothing. The killing thread reads it by an
            // RMW, which sees the last value.
            self.state.store(RUNNING, Ordering::Relaxed);
        }
        is_outermost
    }

    /// Returns whether the run was told to stop and has not ended.
    #[inline]
    pub(crate) fn is_killed(&self) -> bool {
        // ORDERING: Relaxed; a hint for the thread that runs, and exact under the list's lock.
        self.state.load(Ordering::Relaxed) >= KILLED
    }

    /// Returns whether a killed run has done its work, and its interrupt is cleared.
    fn is_ending(&self) -> bool {
        // ORDERING: Relaxed; only this thread enters and leaves ENDING.
        self.state.load(Ordering::Relaxed) == ENDING
    }

    /// RUNNING → `to`. Returns `false` if the target was in another state.
    fn leave_running(&self, to: u32) -> bool {
        // ORDERING: Relaxed, both; an unmarked run is not interrupted, and the end of a marked one
        // takes the lock that the marking thread holds (E1).
        self.state.compare_exchange(RUNNING, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// RUNNING → IDLE. Returns `false` if the run was told to stop.
    #[inline]
    pub(crate) fn end_if_running(&self) -> bool {
        self.leave_running(IDLE)
    }
}

/// Result of [`KillTargets::try_stop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopOutcome {
    /// At least one connection runs, and all that run were told to stop.
    Running,
    NoneRunning,
    /// Another thread holds the list's lock.
    Busy,
}

struct Listed<D, R> {
    target: Arc<KillTarget<D>>,
    /// Why the run was told to stop, from KILLED to its end.
    reason: Option<R>,
}

/// The connections of one group.
pub(crate) struct KillTargets<D, R> {
    list: Mutex<Vec<Listed<D, R>>>,
}

impl<D: Interrupt, R: Clone> KillTargets<D, R> {
    pub(crate) fn new() -> KillTargets<D, R> {
        KillTargets { list: Mutex::new(Vec::new()) }
    }

    pub(crate) fn add(&self, target: &Arc<KillTarget<D>>) {
        self.list.lock().push(Listed { target: Arc::clone(target), reason: None });
    }

    /// Removes a connection, which gets no interrupt after this (I2). Returns whether the list is
    /// empty now.
    pub(crate) fn remove(&self, target: &Arc<KillTarget<D>>) -> bool {
        let mut list = self.list.lock();
        list.retain(|listed| !Arc::ptr_eq(&listed.target, target));
        list.is_empty()
    }

    /// Tells all running connections to stop. Tries the lock, and allocates nothing.
    pub(crate) fn try_stop(&self, reason: impl Fn() -> R) -> StopOutcome {
        let Some(mut list) = self.list.try_lock() else { return StopOutcome::Busy };
        let mut outcome = StopOutcome::NoneRunning;
        for listed in list.iter_mut() {
            if listed.target.leave_running(KILLED) {
                interleave::point();
                listed.reason = Some(reason());
                listed.target.connection.interrupt();
            }
            if listed.target.is_killed() {
                outcome = StopOutcome::Running;
            }
        }
        outcome
    }

    /// Why the run was told to stop.
    pub(crate) fn reason(&self, target: &Arc<KillTarget<D>>) -> Option<R> {
        let list = self.list.lock();
        list.iter().find(|listed| Arc::ptr_eq(&listed.target, target))?.reason.clone()
    }

    /// KILLED → ENDING, at the end of a killed run's work: its interrupt has come, is cleared, and
    /// none follows (I3).
    #[cold]
    #[inline(never)]
    pub(crate) fn end_work(&self, target: &KillTarget<D>) {
        if target.is_ending() {
            return;
        }
        if !mutation::active(Mutation::KilledEndsUnlocked) {
            // The thread that marked the target holds the lock until it has interrupted it.
            drop(self.list.lock());
        }
        // ORDERING: Relaxed; no other thread changes a state of KILLED.
        target.state.store(ENDING, Ordering::Relaxed);
        target.connection.clear_interrupt();
    }

    /// Ends an outermost run. `after_last` runs if this was the last killed run, while no run can
    /// be told to stop.
    #[inline]
    pub(crate) fn end(&self, target: &Arc<KillTarget<D>>, after_last: impl FnOnce()) {
        if !target.end_if_running() {
            self.end_killed(target, after_last);
        }
    }

    #[cold]
    #[inline(never)]
    fn end_killed(&self, target: &Arc<KillTarget<D>>, after_last: impl FnOnce()) {
        self.end_work(target);
        let mut list = self.list.lock();
        // ORDERING: Relaxed; as in `begin`.
        target.state.store(IDLE, Ordering::Relaxed);
        let ended = list.iter_mut().find(|listed| Arc::ptr_eq(&listed.target, target));
        let reason = ended.and_then(|listed| listed.reason.take());
        if !list.iter().any(|listed| listed.target.is_killed()) {
            after_last();
        }
        drop(list);
        // The reason may have the last handle of a group, so it is dropped without the lock.
        drop(reason);
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Interrupts(Cell<u32>);

    impl Interrupt for Interrupts {
        fn interrupt(&self) {
            self.0.set(self.0.get() + 1);
        }

        fn clear_interrupt(&self) {
            self.0.set(0);
        }
    }

    fn target(targets: &KillTargets<Interrupts, &'static str>) -> Arc<KillTarget<Interrupts>> {
        // These tests have one thread.
        #[allow(clippy::arc_with_non_send_sync)]
        let target = Arc::new(KillTarget::new(Interrupts::default()));
        targets.add(&target);
        target
    }

    #[test]
    fn interrupts_each_running_target_once_and_no_idle_one() {
        let targets = KillTargets::new();
        let (first, second, idle) = (target(&targets), target(&targets), target(&targets));
        assert_eq!(targets.try_stop(|| "too early"), StopOutcome::NoneRunning);
        assert!(first.begin() && second.begin() && !first.begin(), "the third is a part of the first");
        let outcomes = (targets.try_stop(|| "a"), targets.try_stop(|| "b"));
        assert_eq!(outcomes, (StopOutcome::Running, StopOutcome::Running));
        assert_eq!((first.connection.0.get(), second.connection.0.get(), idle.connection.0.get()), (1, 1, 0));
        let reasons = (targets.reason(&first), targets.reason(&second), targets.reason(&idle));
        assert_eq!(reasons, (Some("a"), Some("a"), None));
    }

    #[test]
    fn reports_the_end_of_a_kill_with_its_last_run() {
        let targets = KillTargets::new();
        let (first, second, third) = (target(&targets), target(&targets), target(&targets));
        assert!(first.begin() && second.begin());
        assert_eq!(targets.try_stop(|| "a"), StopOutcome::Running);
        assert!(third.begin());
        let ended = Cell::new(0);
        let end = |target| targets.end(target, || ended.set(ended.get() + 1));
        end(&first);
        assert_eq!((ended.get(), targets.reason(&first)), (0, None));
        end(&third);
        assert_eq!(ended.get(), 0, "the third was not killed");
        end(&second);
        assert_eq!(ended.get(), 1);
        assert!(second.begin() && !second.is_killed());
    }

    #[test]
    fn clears_the_interrupt_before_a_killed_run_ends() {
        let targets = KillTargets::new();
        let target = target(&targets);
        assert!(target.begin());
        assert_eq!((targets.try_stop(|| "a"), target.connection.0.get()), (StopOutcome::Running, 1));
        assert!(!target.is_ending() && !target.end_if_running());
        targets.end_work(&target);
        assert_eq!((target.is_ending(), target.is_killed(), target.connection.0.get()), (true, true, 0));
        let again = targets.try_stop(|| "b");
        assert_eq!((again, target.connection.0.get()), (StopOutcome::Running, 0), "it was told before");
        assert_eq!(targets.reason(&target), Some("a"));
        let mut has_ended = false;
        targets.end(&target, || has_ended = true);
        assert!(has_ended && !target.is_killed() && targets.reason(&target).is_none());
    }

    #[test]
    fn interrupts_no_removed_target_and_none_while_locked() {
        let targets = KillTargets::new();
        let (gone, stays) = (target(&targets), target(&targets));
        assert!(gone.begin() && stays.begin());
        assert!(!targets.remove(&gone));
        {
            let _locked = targets.list.lock();
            assert_eq!(targets.try_stop(|| "a"), StopOutcome::Busy);
        }
        assert_eq!(targets.try_stop(|| "a"), StopOutcome::Running);
        assert_eq!((gone.connection.0.get(), stays.connection.0.get()), (0, 1));
    }
}
