//! Whether a transaction was rolled back while a connection was in use, and that nothing is committed after it.
//!
//! SQLite rolls a whole transaction back when memory runs out in a statement that it cannot undo alone, and its error code
//! is the same as when it does not. Comparing `sqlite3_get_autocommit` before and after would not tell it for a transaction
//! that began in between; SQLite's rollback hook does, and costs nothing until it is called.
//!
//! ```text
//!   rollback ──▶ autocommit off ────────────────────────────────▶ a transaction that was begun explicitly: noted
//!            ──▶ autocommit off, VACUUM runs ───────────────────▶ VACUUM's own, begun explicitly by itself: not noted
//!            ──▶ autocommit on, COMMIT, END or RELEASE runs ────▶ that has failed, perhaps in a statement that it runs (FTS5 writes then): noted
//!            ──▶ autocommit on, else no writing statement runs ─▶ as above: noted
//!            ──▶ autocommit on, else a writing statement runs ──▶ that statement's own: not noted
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
//! - B2. VACUUM's own transaction is known by the database that it attaches, `vacuum_..`. Where the application has one of such a name attached, in a transaction, and is stopped in a VACUUM, which SQLite
//!   would have refused there, the rollback is not noted.
//!
//! Who synchronises with whom: the fields are used by the thread that uses the connection, one at a time (a connection is
//! `Send`, not `Sync`); they are atomics only so that the connection may be sent.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
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
    let running = unsafe { Statements::running(watch.db) };
    // SAFETY: as above.
    let is_vacuums_own = || running.vacuum && unsafe { has_vacuums_copy(watch.db) };
    let is_noted = if is_explicit { !is_vacuums_own() } else { running.end || !running.write };
    if is_noted {
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

/// Which statements of a connection are running.
#[derive(Default)]
struct Statements {
    /// One that may write.
    write: bool,
    /// One that ends a transaction by committing it.
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
            // SAFETY: `db` is open; `statement` is null or one of its statements, which cannot go while we hold the mutex.
            statement = unsafe { ffi::sqlite3_next_stmt(db, statement) };
            if statement.is_null() {
                return running;
            }
            // SAFETY: as above.
            if unsafe { ffi::sqlite3_stmt_busy(statement) } == 0 {
                continue;
            }
            // SAFETY: as above.
            running.write |= unsafe { ffi::sqlite3_stmt_readonly(statement) } == 0;
            // SAFETY: as above.
            let text = unsafe { ffi::sqlite3_sql(statement) };
            if text.is_null() {
                // A blob's.
                continue;
            }
            // SAFETY: the text lives as long as the statement.
            let word = first_word(unsafe { CStr::from_ptr(text) }.to_bytes());
            let is_any =
                |words: &[&str]| words.iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes()));
            running.end |= is_any(&["COMMIT", "END", "RELEASE"]);
            running.vacuum |= is_any(&["VACUUM"]);
        }
    }
}

/// The first word of a statement, behind spaces, comments and the ends of empty statements.
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

/// Whether the database is attached that VACUUM makes, in a transaction that it has begun as an application would.
///
/// # Safety
///
/// As for [`Statements::running`].
unsafe fn has_vacuums_copy(db: *mut ffi::sqlite3) -> bool {
    // Behind the main and the temporary database.
    (2..)
        .map_while(|at| {
            // SAFETY: `db` is open; null behind its last database.
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
    fn the_first_word_stands_behind_spaces_and_comments() {
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
