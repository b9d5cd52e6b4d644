//! Whether a transaction was rolled back while a connection was in use, and that nothing is committed after it.
//!
//! SQLite rolls a whole transaction back when memory runs out in a statement that it cannot undo alone, and its error code
//! is the same as when it does not. Comparing `sqlite3_get_autocommit` before and after would not tell it for a transaction
//! that began in between; SQLite's rollback hook does, and costs nothing until it is called.
//!
//! ```text
//!   rollback ──▶ autocommit off ───────────────────────────▶ a transaction that was begun explicitly: noted
//!            ──▶ autocommit on, no writing statement runs ──▶ its COMMIT has failed: noted
//!            ──▶ autocommit on, a writing statement runs ───▶ that statement's own: not noted
//!
//!   guard:  free ── guard() ──▶ guarded ── noted rollback ──▶ doomed: the commit hook refuses every commit
//!             ▲─────────────────── outermost guard dropped ─────┘
//! ```
//!
//! - I1. A [`Watch`] belongs to one connection and tells of it alone, whatever other connections do meanwhile. Its address
//!   is the argument of the hooks, so it lives until they are taken off ([`Watch::stop`]) or the connection is closed.
//! - I2. A note is seen by the uses of the connection that were running when it was made, and by no later one.
//! - I3. Between a noted rollback under a guard and the end of that guard nothing is committed on the connection.
//! - B1. A rollback or commit hook that the application puts in place of these takes the notes, or I3, away.
//!
//! Who synchronises with whom: the fields are used by the thread that uses the connection, one at a time (a connection is
//! `Send`, not `Sync`); they are atomics only so that the connection may be sent.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use rusqlite::{Connection, ffi};

const FREE: u8 = 0;
const GUARDED: u8 = 1;
const DOOMED: u8 = 2;

/// What the hooks of one connection know.
pub(crate) struct Watch {
    is_noted: AtomicBool,
    guard: AtomicU8,
    db: *mut ffi::sqlite3,
}

// SAFETY: `db` is used by the hooks only, on the thread that uses the connection.
unsafe impl Send for Watch {}
// SAFETY: as above; the other fields are atomics.
unsafe impl Sync for Watch {}

impl Watch {
    /// Notes every rollback of `conn` from now on, until [`Watch::stop`].
    pub(crate) fn start(conn: &Connection) -> Arc<Watch> {
        // SAFETY: the handle is given to SQLite only, for as long as the connection is open.
        let db = unsafe { conn.handle() };
        let watch = Arc::new(Watch { is_noted: AtomicBool::new(false), guard: AtomicU8::new(FREE), db });
        let argument = Arc::as_ptr(&watch).cast_mut().cast::<c_void>();
        // SAFETY: `db` is open, and the argument outlives the hooks (I1).
        unsafe { ffi::sqlite3_rollback_hook(db, Some(on_rollback), argument) };
        // SAFETY: as above.
        unsafe { ffi::sqlite3_commit_hook(db, Some(on_commit), argument) };
        watch
    }

    /// Takes the hooks off `conn`, which is about to be closed.
    pub(crate) fn stop(conn: &Connection) {
        // SAFETY: the handle is used at once, and the connection is open.
        let db = unsafe { conn.handle() };
        // SAFETY: `db` is open.
        unsafe { ffi::sqlite3_rollback_hook(db, None, ptr::null_mut()) };
        // SAFETY: as above.
        unsafe { ffi::sqlite3_commit_hook(db, None, ptr::null_mut()) };
    }

    /// Whether a transaction was rolled back since [`Watch::set_aside`].
    #[inline]
    pub(crate) fn is_noted(&self) -> bool {
        // ORDERING: Relaxed; one thread uses the connection at a time, and sending it there orders the uses.
        self.is_noted.load(Ordering::Relaxed)
    }

    /// Forgets the note for as long as the guard lives; the use around it then sees the notes of both.
    #[inline]
    pub(crate) fn set_aside(&self) -> SetAside<'_> {
        let was_noted = self.is_noted();
        if was_noted {
            // ORDERING: Relaxed; as in `is_noted`.
            self.is_noted.store(false, Ordering::Relaxed);
        }
        SetAside { watch: self, was_noted }
    }

    /// Makes the first rollback from here on the last word: what follows it cannot be committed while the guard lives.
    /// Guards of one connection nest, and the outermost counts.
    pub(crate) fn guard(&self) -> Guard<'_> {
        // ORDERING: Relaxed; as in `is_noted`.
        let is_outermost = self.guard.load(Ordering::Relaxed) == FREE;
        if is_outermost {
            // ORDERING: Relaxed; as in `is_noted`.
            self.guard.store(GUARDED, Ordering::Relaxed);
        }
        Guard { watch: self, is_outermost }
    }

    /// Notes a rollback.
    pub(crate) fn note(&self) {
        // ORDERING: Relaxed; as in `is_noted`.
        self.is_noted.store(true, Ordering::Relaxed);
        // ORDERING: Relaxed; as in `is_noted`.
        if self.guard.load(Ordering::Relaxed) == GUARDED {
            // ORDERING: Relaxed; as in `is_noted`.
            self.guard.store(DOOMED, Ordering::Relaxed);
        }
    }
}

/// See [`Watch::set_aside`].
pub(crate) struct SetAside<'w> {
    watch: &'w Watch,
    was_noted: bool,
}

impl Drop for SetAside<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.was_noted {
            // ORDERING: Relaxed; as in `Watch::is_noted`.
            self.watch.is_noted.store(true, Ordering::Relaxed);
        }
    }
}

/// See [`Watch::guard`].
pub(crate) struct Guard<'w> {
    watch: &'w Watch,
    is_outermost: bool,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.is_outermost {
            // ORDERING: Relaxed; as in `Watch::is_noted`.
            self.watch.guard.store(FREE, Ordering::Relaxed);
        }
    }
}

unsafe extern "C" fn on_rollback(watch: *mut c_void) {
    // SAFETY: the argument is the connection's watch, which outlives the hooks (I1).
    let watch = unsafe { &*watch.cast::<Watch>() };
    // SAFETY: SQLite calls the hook of an open connection, whose mutex this thread holds; the mutex is recursive.
    let is_explicit = unsafe { ffi::sqlite3_get_autocommit(watch.db) } == 0;
    // SAFETY: as above.
    if is_explicit || !unsafe { is_writing(watch.db) } {
        watch.note();
    }
}

/// Anything but zero makes SQLite roll back instead of committing (I3).
unsafe extern "C" fn on_commit(watch: *mut c_void) -> c_int {
    // SAFETY: the argument is the connection's watch, which outlives the hooks (I1).
    let watch = unsafe { &*watch.cast::<Watch>() };
    // ORDERING: Relaxed; as in `Watch::is_noted`.
    c_int::from(watch.guard.load(Ordering::Relaxed) == DOOMED)
}

/// Whether a statement that may write is running.
///
/// # Safety
///
/// `db` is open, and this thread holds its mutex.
unsafe fn is_writing(db: *mut ffi::sqlite3) -> bool {
    let mut statement = ptr::null_mut();
    loop {
        // SAFETY: `db` is open; `statement` is null or one of its statements, which cannot go while we hold the mutex.
        statement = unsafe { ffi::sqlite3_next_stmt(db, statement) };
        if statement.is_null() {
            return false;
        }
        // SAFETY: as above.
        let is_running = unsafe { ffi::sqlite3_stmt_busy(statement) } != 0;
        // SAFETY: as above.
        if is_running && unsafe { ffi::sqlite3_stmt_readonly(statement) } == 0 {
            return true;
        }
    }
}
