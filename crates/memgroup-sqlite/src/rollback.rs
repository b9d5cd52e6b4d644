//! Tracks whether a transaction was rolled back while a connection was in use. After that, nothing
//! more is committed in its transaction closure.
//!
//! SQLite rolls back a whole transaction when memory runs out in a statement that it cannot undo
//! alone, but its error code does not say so. Comparing `sqlite3_get_autocommit` before and after
//! would miss a transaction that began in between. SQLite's rollback hook does not miss it, and
//! costs nothing until it is called.
//!
//! ```text
//!   rollback ──▶ autocommit off ─────────────────────────────▶ an explicit transaction: noted
//!            ──▶ autocommit off, VACUUM runs ────────────────▶ VACUUM's own explicit transaction: not noted
//!            ──▶ autocommit on, COMMIT, END or RELEASE runs ─▶ that has failed, perhaps in a statement that it runs (FTS5 writes then): noted
//!            ──▶ autocommit on, no writing statement runs ───▶ as above: noted
//!            ──▶ autocommit on, a writing statement runs ────▶ that statement's own transaction: not noted
//!
//!   guard:  free ── guard() ──▶ guarded ── noted rollback ──▶ doomed: the commit hook refuses every commit
//!             ▲─────────────────── outermost guard dropped ─────┘
//! ```
//!
//! - I1. A [`RollbackWatch`] belongs to one connection and is independent of all others. The hooks
//!   have its address, so it lives until they are removed ([`RollbackWatch::stop`]) or the
//!   connection is closed.
//! - I2. A note is visible to the runs of the connection that were active when it was made, and to
//!   no later run.
//! - I3. Between a noted rollback under a guard and the end of that guard, nothing is committed on
//!   the connection.
//! - B1. If the application replaces the rollback hook, no rollback is noted. If it replaces either
//!   hook, I3 does not hold.
//! - B2. VACUUM's own transaction is recognised by the database that VACUUM attaches, `vacuum_..`.
//!   SQLite refuses a VACUUM in a transaction. If such a refused VACUUM is killed while the
//!   application has attached a database of that name, the rollback is not noted.
//!
//! Synchronisation: only the thread that uses the connection reads or writes the fields. A
//! connection is `Send`, not `Sync`.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use rusqlite::{Connection, ffi};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Commits {
    Free,
    Guarded,
    Doomed,
}

/// The state of one connection's hooks.
pub(crate) struct RollbackWatch {
    is_noted: Cell<bool>,
    commits: Cell<Commits>,
    db: *mut ffi::sqlite3,
}

// SAFETY: only the thread that uses the connection uses the fields, and sending the connection
// orders the uses.
unsafe impl Send for RollbackWatch {}
// SAFETY: only one thread at a time uses the fields, because the owner of the only other reference,
// the connection, is not `Sync`.
unsafe impl Sync for RollbackWatch {}

impl RollbackWatch {
    /// Notes every rollback of `conn` from now on, until [`RollbackWatch::stop`].
    pub(crate) fn start(conn: &Connection) -> Arc<RollbackWatch> {
        // SAFETY: only SQLite gets the handle, while the connection is open.
        let db = unsafe { conn.handle() };
        let (is_noted, commits) = (Cell::new(false), Cell::new(Commits::Free));
        let watch = Arc::new(RollbackWatch { is_noted, commits, db });
        let argument = Arc::as_ptr(&watch).cast_mut().cast::<c_void>();
        // SAFETY: `db` is open, and the argument outlives the hooks (I1).
        unsafe { ffi::sqlite3_rollback_hook(db, Some(on_rollback), argument) };
        // SAFETY: `db` is open, and the argument outlives the hooks (I1).
        unsafe { ffi::sqlite3_commit_hook(db, Some(on_commit), argument) };
        watch
    }

    /// Removes the hooks, before the connection is closed.
    pub(crate) fn stop(&self) {
        // SAFETY: the connection is open.
        unsafe { ffi::sqlite3_rollback_hook(self.db, None, ptr::null_mut()) };
        // SAFETY: the connection is open.
        unsafe { ffi::sqlite3_commit_hook(self.db, None, ptr::null_mut()) };
    }

    /// Returns whether a transaction was rolled back since [`RollbackWatch::set_aside`].
    #[inline]
    pub(crate) fn is_noted(&self) -> bool {
        self.is_noted.get()
    }

    /// Clears the note while the guard lives. Afterwards the outer run sees the notes of both.
    #[inline]
    pub(crate) fn set_aside(&self) -> SetAside<'_> {
        SetAside { watch: self, was_noted: self.is_noted.replace(false) }
    }

    /// Refuses every commit after the first noted rollback, while the guard lives. Guards of one
    /// connection nest, and the outermost counts.
    pub(crate) fn guard(&self) -> Guard<'_> {
        let is_outermost = self.commits.get() == Commits::Free;
        if is_outermost {
            self.commits.set(Commits::Guarded);
        }
        Guard { watch: self, is_outermost }
    }

    /// Notes a rollback.
    pub(crate) fn note(&self) {
        self.is_noted.set(true);
        if self.commits.get() == Commits::Guarded {
            self.commits.set(Commits::Doomed);
        }
    }
}

/// Guard of [`RollbackWatch::set_aside`].
pub(crate) struct SetAside<'w> {
    watch: &'w RollbackWatch,
    was_noted: bool,
}

impl Drop for SetAside<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.was_noted {
            self.watch.is_noted.set(true);
        }
    }
}

/// Guard of [`RollbackWatch::guard`].
pub(crate) struct Guard<'w> {
    watch: &'w RollbackWatch,
    is_outermost: bool,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.is_outermost {
            self.watch.commits.set(Commits::Free);
        }
    }
}

unsafe extern "C" fn on_rollback(watch: *mut c_void) {
    // SAFETY: the argument is the connection's watch, which outlives the hooks (I1).
    let watch = unsafe { &*watch.cast::<RollbackWatch>() };
    // SAFETY: SQLite calls the hook of an open connection, and this thread holds its recursive
    // mutex.
    let is_explicit = unsafe { ffi::sqlite3_get_autocommit(watch.db) } == 0;
    // SAFETY: SQLite calls the hook of an open connection, and this thread holds its recursive
    // mutex.
    let running = unsafe { Statements::running(watch.db) };
    // SAFETY: SQLite calls the hook of an open connection, and this thread holds its recursive
    // mutex.
    let is_vacuums_own = || running.vacuum && unsafe { has_vacuums_copy(watch.db) };
    if if is_explicit { !is_vacuums_own() } else { running.end || !running.write } {
        watch.note();
    }
}

/// The commit hook. Anything but zero makes SQLite roll back instead of committing (I3).
unsafe extern "C" fn on_commit(watch: *mut c_void) -> c_int {
    // SAFETY: the argument is the connection's watch, which outlives the hooks (I1).
    let watch = unsafe { &*watch.cast::<RollbackWatch>() };
    c_int::from(watch.commits.get() == Commits::Doomed)
}

/// The kinds of statements of a connection that are running.
#[derive(Default)]
struct Statements {
    /// A statement that may write.
    write: bool,
    /// A statement that commits a transaction.
    end: bool,
    /// VACUUM.
    vacuum: bool,
}

impl Statements {
    /// # Safety
    ///
    /// `db` is open, and this thread holds its mutex.
    unsafe fn running(db: *mut ffi::sqlite3) -> Statements {
        let (mut running, mut statement) = (Statements::default(), ptr::null_mut());
        loop {
            // SAFETY: `db` is open; `statement` is null or one of its statements, which stay while
            // this thread holds the mutex.
            statement = unsafe { ffi::sqlite3_next_stmt(db, statement) };
            if statement.is_null() {
                return running;
            }
            // SAFETY: `db` is open; `statement` is null or one of its statements, which stay while
            // this thread holds the mutex.
            if unsafe { ffi::sqlite3_stmt_busy(statement) } == 0 {
                continue;
            }
            // SAFETY: `db` is open; `statement` is null or one of its statements, which stay while
            // this thread holds the mutex.
            running.write |= unsafe { ffi::sqlite3_stmt_readonly(statement) } == 0;
            // SAFETY: `db` is open; `statement` is null or one of its statements, which stay while
            // this thread holds the mutex.
            let text = unsafe { ffi::sqlite3_sql(statement) };
            // A blob's statement has no text.
            if !text.is_null() {
                // SAFETY: the text lives as long as the statement.
                let word = first_word(unsafe { CStr::from_ptr(text) }.to_bytes());
                let is = |known: &&[u8]| word.eq_ignore_ascii_case(known);
                running.end |= [&b"COMMIT"[..], b"END", b"RELEASE"].iter().any(is);
                running.vacuum |= is(&&b"VACUUM"[..]);
            }
        }
    }
}

/// The first word of a statement, after spaces, comments and empty statements.
fn first_word(mut text: &[u8]) -> &[u8] {
    loop {
        let skipped = match text {
            [b' ' | b'\t' | b'\n' | b'\x0c' | b'\r' | b';', ..] => Some(1),
            [b'-', b'-', ..] => text.iter().position(|&byte| byte == b'\n'),
            [b'/', b'*', rest @ ..] => rest.windows(2).position(|two| two == b"*/").map(|at| at + 4),
            // A byte order mark.
            [0xef, 0xbb, 0xbf, ..] => Some(3),
            _ => break,
        };
        text = &text[skipped.unwrap_or(text.len())..];
    }
    let end = text.iter().position(|byte| !byte.is_ascii_alphabetic());
    &text[..end.unwrap_or(text.len())]
}

/// Returns whether the database is attached that VACUUM makes, in an explicit transaction of its
/// own.
///
/// # Safety
///
/// As for [`Statements::running`].
unsafe fn has_vacuums_copy(db: *mut ffi::sqlite3) -> bool {
    // After the main and the temporary database.
    (2..)
        .map_while(|at| {
            // SAFETY: `db` is open; the name is null after its last database.
            let name = unsafe { ffi::sqlite3_db_name(db, at) };
            // SAFETY: the name lives as long as the database is attached.
            (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })
        })
        .any(|name| name.to_bytes().starts_with(b"vacuum_"))
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;

    #[test]
    fn finds_the_first_word_after_spaces_and_comments() {
        for (text, word) in [
            ("COMMIT", "COMMIT"),
            (" \n\t;; end;", "end"),
            ("-- COMMIT\nRELEASE a", "RELEASE"),
            ("/* a * / */ -- b\n vacuum main", "vacuum"),
            ("/**/commit-- c", "commit"),
            ("-- no end", ""),
            ("/* no end", ""),
            ("", ""),
            ("\u{feff}VACUUM", "VACUUM"),
            ("SELECT 'COMMIT'", "SELECT"),
        ] {
            assert_eq!(first_word(text.as_bytes()), word.as_bytes(), "{text}");
        }
    }
}
