//! Whether a transaction was rolled back while a connection was in use.
//!
//! SQLite rolls a whole transaction back when memory runs out in a statement that it cannot undo alone, and its error code
//! is the same as when it does not. Comparing `sqlite3_get_autocommit` before and after would tell, but takes the
//! connection's mutex each time; SQLite's rollback hook costs nothing until it is called.
//!
//! ```text
//!   rollback ──▶ autocommit off ───────────────────────────▶ a transaction that was begun explicitly
//!            ──▶ autocommit on, no writing statement runs ──▶ its COMMIT has failed
//!            ──▶ autocommit on, a writing statement runs ───▶ that statement's own: not noted
//! ```
//!
//! - I1. The hook runs on the thread that works with the connection, inside the use that is to know; so the note is
//!   thread-local, and uses nest as those of `shortage` do.
//! - B1. A hook that the application puts in this one's place takes the notes away.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

use rusqlite::{Connection, ffi};

thread_local! {
    static NOTED: Cell<bool> = const { Cell::new(false) };
}

/// Notes every rollback of `conn` from now on.
pub(crate) fn watch(conn: &Connection) {
    // SAFETY: the handle is given to SQLite only, for as long as the connection is open.
    let db = unsafe { conn.handle() };
    // SAFETY: `db` is an open connection; it is also the argument, and so is alive whenever the hook is called.
    unsafe { ffi::sqlite3_rollback_hook(db, Some(on_rollback), db.cast()) };
}

/// Whether a transaction was rolled back on this thread since [`set_aside`].
pub(crate) fn is_noted() -> bool {
    NOTED.get()
}

/// Forgets the note for as long as the guard lives, and then puts back what was there.
#[inline]
pub(crate) fn set_aside() -> SetAside {
    SetAside { outer: NOTED.take() }
}

/// See [`set_aside`].
pub(crate) struct SetAside {
    outer: bool,
}

impl Drop for SetAside {
    #[inline]
    fn drop(&mut self) {
        NOTED.set(self.outer);
    }
}

unsafe extern "C" fn on_rollback(db: *mut c_void) {
    let db = db.cast::<ffi::sqlite3>();
    // SAFETY: SQLite calls the hook of an open connection, whose mutex this thread holds; the mutex is recursive.
    let is_explicit = unsafe { ffi::sqlite3_get_autocommit(db) } == 0;
    // SAFETY: as above.
    if is_explicit || !unsafe { is_writing(db) } {
        NOTED.set(true);
    }
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
