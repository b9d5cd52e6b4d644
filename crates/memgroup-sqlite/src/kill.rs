//! Kill: what stops the statements of a group whose memory others need.
//!
//! ```text
//!   a charge finds no room ──▶ the group is chosen ──▶ its hook, on the thread of that charge ──▶ running uses: KILLED, interrupted ──▶ Dying
//!                                                                                  └──▶ none runs: its page caches give back ──▶ Idle
//!   the statement fails with SQLITE_INTERRUPT ──▶ TenantError::Killed ──▶ the use ends ──▶ Group::kill_done
//! ```
//!
//! A group with open [`TenantConnection`](crate::TenantConnection)s has a hook, from its first to its last, unless the application has set one of its own there. When that goes, the next
//! connection that is opened sets one: a use that looked would pay for it each time.
//! What caches hold has been asked for before anybody is killed, so an idle group has something to give where reclaim is off, or found its caches busy.
//!
//! - I1. The hook may run inside anybody's xMalloc. It allocates nothing and waits for nothing: it tries locks, and who holds one makes it answer "not now".
//! - I2. A connection leaves the list before it is closed, and is interrupted only while it stands there, under the list's lock (`uses` I2). So its handle is good. (rusqlite's
//!   interrupt handle is not used: closing holds its mutex for the whole of `sqlite3_close`, which may allocate, and be refused, and come here.)
//! - I3. A use that was told to stop is interrupted until its work is done. SQLite forgets an interrupt that comes between two statements, and when it has recovered from a failed allocation; so the
//!   use's thread says it again where it next allocates ([`look`]). ROLLBACK does not fail by that: it has no loop and no word after its first allocation, where SQLite would look. But it fails by an interrupt that
//!   stands when it begins, which SQLite takes back only where no other statement of the connection is open.
//! - I4. No use leaves an interrupt behind: it is taken back when the work is done, when nobody interrupts any more (`uses` I3), by a prepared nothing. Where statements are open then (leaked ones, or blobs, which
//!   nobody but their owner may close) SQLite would keep it, but not when it recovers from a failed allocation: so one is made to fail ([`look`] refuses it). No statement of the connection is being
//!   stepped at the end of an outermost use, which is what SQLite asks of both.
//! - I5. Then, still told to stop, the use rolls back a transaction that it began and left open (tenant.rs).
//! - I6. When the last of those that were told has ended, the engine is told.
//! - B1. If another kill of the group begins between that and the list's lock, it counts as ended too early: then another group may be killed besides.
//! - B2. A use that is told and allocates no more goes on: it takes no memory. Blocks that grow are not looked at: one that a new statement needs is allocated first.
//!
//! Who synchronises with whom: uses.rs. [`GROUPS`] is locked at the opening and closing of connections alone; who holds it waits for calls of the hook, which never take it.

#![allow(unsafe_code)]

#[cfg(all(test, memgroup_loom))]
mod loom;
mod uses;

use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CStr, c_int};
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use memgroup::{Group, GroupId, Kill, KillHook, Killed, Killing};
use rusqlite::{Connection, ffi};

use crate::shrink;
use uses::{Interrupt, Told, Use, Uses};

/// What idle caches give back at a time, where less is asked for: a hook is dearer than a page.
const IDLE_BYTES_LEAST: u64 = 64 << 10;

/// The handle of a connection that is open as long as it is listed (I2).
struct Database(*mut ffi::sqlite3);

// SAFETY: SQLite lets any thread interrupt an open connection; all else is done by the thread that uses it.
unsafe impl Send for Database {}
// SAFETY: as above.
unsafe impl Sync for Database {}

impl Interrupt for Database {
    fn interrupt(&self) {
        // SAFETY: whoever interrupts holds the lock of the list that the connection stands in, or uses it: it is open.
        unsafe { ffi::sqlite3_interrupt(self.0) };
    }

    fn forget(&self) {
        self.prepare_nothing(c"", -1);
        if self.is_interrupted() {
            // A text without an end is copied; one that lasts is not put into the lookaside.
            REFUSES_ONE.set(true);
            self.prepare_nothing(c" ", 1);
            REFUSES_ONE.set(false);
        }
    }
}

impl Database {
    /// Prepares no statement.
    fn prepare_nothing(&self, text: &CStr, bytes: c_int) {
        let mut statement = ptr::null_mut();
        // SAFETY: this thread uses the connection: it is open. The text has as many bytes, or an end.
        unsafe {
            ffi::sqlite3_prepare_v3(
                self.0,
                text.as_ptr(),
                bytes,
                ffi::SQLITE_PREPARE_PERSISTENT,
                &raw mut statement,
                ptr::null_mut(),
            )
        };
        debug_assert!(statement.is_null(), "a statement of nothing");
    }

    fn is_interrupted(&self) -> bool {
        // SAFETY: this thread uses the connection: it is open.
        unsafe { ffi::sqlite3_is_interrupted(self.0) != 0 }
    }

    #[inline]
    fn is_autocommit(&self) -> bool {
        // SAFETY: as above.
        unsafe { ffi::sqlite3_get_autocommit(self.0) != 0 }
    }

    /// Interrupts what the connection does, on the thread that uses it.
    fn interrupt_again(&self) {
        if !self.is_interrupted() {
            self.interrupt();
        }
    }
}

/// Why a use was told to stop.
#[derive(Clone)]
pub(crate) struct Reason {
    pub(crate) requester: Group,
    pub(crate) full: Group,
    pub(crate) asked: u64,
    pub(crate) usage: u64,
    pub(crate) max: u64,
}

impl Reason {
    fn of(killing: &Killing<'_>) -> Reason {
        let (usage, max) = killing.full().usage_and_max();
        let (requester, full) = (killing.requester().clone(), killing.full().clone());
        Reason { requester, full, asked: killing.asked(), usage, max }
    }
}

/// The hook of a group.
struct Stop(Arc<Uses<Database, Reason>>);

impl Kill for Stop {
    fn kill(&self, killing: &Killing<'_>) -> Killed {
        if killing.by_itself() && killing.unit().is_none() {
            // What asks is refused, and SQLite's answer to that is its own: it may do without. Others of the group are not stopped for it.
            return Killed::Refused;
        }
        match self.0.try_stop(|| Reason::of(killing)) {
            Told::Busy => Killed::Refused,
            Told::Running => Killed::Dying,
            Told::NoneRuns => {
                let wanted = killing.asked().max(IDLE_BYTES_LEAST).min(killing.above_min());
                Killed::Idle { freed: shrink::shrink_group(killing.group().id(), wanted) }
            }
        }
    }
}

/// A group that has connections.
struct Tenancy {
    uses: Arc<Uses<Database, Reason>>,
    connections: usize,
    /// None where the application has its own.
    hook: Option<KillHook>,
}

static GROUPS: LazyLock<Mutex<HashMap<GroupId, Tenancy>>> = LazyLock::new(Mutex::default);

thread_local! {
    /// The innermost use on this thread. It is borrowed for as long as it stands here.
    static INNERMOST: Cell<*const Use<Database>> = const { Cell::new(ptr::null()) };
    /// The next allocation of a use that is ending is refused (I4).
    static REFUSES_ONE: Cell<bool> = const { Cell::new(false) };
}

/// For the allocator, which SQLite has just asked for memory: says again to a use that was told to stop that it is (I3). False: there is to be none, for once (I4).
#[inline]
pub(crate) fn look() -> bool {
    let innermost = INNERMOST.get();
    if innermost.is_null() {
        return true;
    }
    // SAFETY: it is borrowed by the use that put it here (`Running`).
    let innermost = unsafe { &*innermost };
    !innermost.is_killed() || look_at(innermost)
}

#[cold]
#[inline(never)]
fn look_at(killed: &Use<Database>) -> bool {
    if killed.is_quiet() {
        return !REFUSES_ONE.take();
    }
    killed.connection.interrupt_again();
    true
}

/// Whether a connection is in use on this thread.
#[inline]
pub(crate) fn is_in_use_here() -> bool {
    !INNERMOST.get().is_null()
}

/// A connection among those of its group that can be stopped.
pub(crate) struct Member {
    one: Arc<Use<Database>>,
    uses: Arc<Uses<Database, Reason>>,
    group: Group,
    has_left: Cell<bool>,
}

impl Member {
    /// Adds an open connection; the first of a group brings the hook. To be taken out before it is closed.
    pub(crate) fn join(group: &Group, connection: &Connection) -> Member {
        // SAFETY: the handle is used for as long as the connection is open (I2).
        Member::of(group, Database(unsafe { connection.handle() }))
    }

    fn of(group: &Group, connection: Database) -> Member {
        let one = Arc::new(Use::new(connection));
        let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
        let tenancy = groups.entry(group.id()).or_insert_with(|| Tenancy {
            uses: Arc::new(Uses::new()),
            connections: 0,
            hook: None,
        });
        tenancy.connections += 1;
        if tenancy.hook.is_none() {
            // An application that has a hook on the group decides itself what is stopped there.
            tenancy.hook = group.set_kill_hook(Stop(Arc::clone(&tenancy.uses))).ok();
        }
        let uses = Arc::clone(&tenancy.uses);
        uses.enlist(&one);
        Member { one, uses, group: group.clone(), has_left: Cell::new(false) }
    }

    /// The connection is about to be closed; the last of its group takes the hook along.
    pub(crate) fn leave(&self) {
        if self.has_left.replace(true) {
            return;
        }
        self.uses.delist(&self.one);
        let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
        let Entry::Occupied(mut tenancy) = groups.entry(self.group.id()) else { return };
        tenancy.get_mut().connections -= 1;
        if tenancy.get().connections == 0
            && let Some(hook) = tenancy.remove().hook
        {
            // Waits for calls of it, so that the next connection can set one. The hook itself closes nothing: this is not within it.
            let _ = hook.remove();
        }
    }

    /// Takes back an interrupt that came while nothing ran, before the connection is closed: the checkpoint of a write-ahead log would be interrupted. It has left.
    pub(crate) fn forget_interrupt(&self) {
        if self.one.connection.is_interrupted() {
            self.one.connection.forget();
        }
    }

    /// A use begins on this thread.
    #[inline]
    pub(crate) fn begin(&self) -> Running<'_> {
        let is_outermost = self.one.begin();
        Running {
            before: INNERMOST.replace(&raw const *self.one),
            member: self,
            is_outermost,
            began_in_transaction: !self.one.connection.is_autocommit(),
            here: PhantomData,
        }
    }

    /// Why the use that is on was told to stop, if it was.
    #[cold]
    pub(crate) fn reason(&self) -> Option<Reason> {
        if self.one.is_killed() { self.uses.reason(&self.one) } else { None }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A use of a connection. Those of one thread are dropped in the reverse order of their making.
pub(crate) struct Running<'m> {
    member: &'m Member,
    before: *const Use<Database>,
    /// The end of this is the end of the use: it is outermost, and has not ended.
    is_outermost: bool,
    began_in_transaction: bool,
    here: PhantomData<*const ()>,
}

impl Running<'_> {
    /// The work is done. True: it was told to stop, and is to be [quieted](Running::quieten). False: nobody tells it to stop any more, or it is a part of another use.
    #[inline]
    pub(crate) fn finish(&mut self) -> bool {
        if !self.is_outermost {
            return false;
        }
        self.is_outermost = !self.member.one.end_unmarked();
        self.is_outermost
    }

    /// Takes the interrupt back (I4); whether the work has left a transaction open that it began.
    #[cold]
    pub(crate) fn quieten(&self) -> bool {
        self.member.uses.quieten(&self.member.one);
        !self.began_in_transaction && !self.member.one.connection.is_autocommit()
    }
}

impl Drop for Running<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.is_outermost {
            let member = self.member;
            member.uses.end(&member.one, || {
                member.group.kill_done();
            });
        }
        INNERMOST.set(self.before);
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use memgroup::{Config, Hierarchy};

    use super::*;

    #[test]
    fn nobody_else_knows_a_connection_that_has_left() {
        let hierarchy = Hierarchy::new(Config::new()).expect("the default configuration");
        let group = hierarchy.create("/leaving").expect("a group");
        let join = || Member::of(&group, Database(ptr::null_mut()));
        let (first, second) = (join(), join());
        assert!(Arc::ptr_eq(&first.uses, &second.uses));
        first.leave();
        first.leave();
        assert_eq!((Arc::strong_count(&first.one), Arc::strong_count(&second.one)), (1, 2));
        assert!(group.set_kill_hook(|_: &Killing<'_>| Killed::Refused).is_err(), "the second is there");
        second.leave();
        assert!(group.set_kill_hook(|_: &Killing<'_>| Killed::Refused).is_ok());
        assert!(!GROUPS.lock().expect("nobody panics").contains_key(&group.id()));
    }
}
