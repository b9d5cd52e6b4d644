//! A failed read, write or sync returns its error, and is not counted. These tests replace system
//! calls of their process.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(unsafe_code)]

mod support;

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;

use memgroup_sqlite::TenantConnection;
use rusqlite::ffi;
use support::{counted_during, hierarchy, tenant};

thread_local! {
    /// The result code of the calls that are to fail on this thread.
    static FAILING: Cell<Option<c_int>> = const { Cell::new(None) };
}

unsafe extern "C" fn pwrite(file: c_int, from: *const c_void, bytes: usize, at: i64) -> isize {
    if FAILING.get() == Some(ffi::SQLITE_IOERR_WRITE) {
        return -1;
    }
    // SAFETY: the arguments are SQLite's own.
    unsafe { libc::pwrite(file, from, bytes, at) }
}

unsafe extern "C" fn pread(file: c_int, to: *mut c_void, bytes: usize, at: i64) -> isize {
    if FAILING.get() == Some(ffi::SQLITE_IOERR_READ) {
        return -1;
    }
    // SAFETY: the arguments are SQLite's own.
    unsafe { libc::pread(file, to, bytes, at) }
}

/// Replaces the C library's function in this whole process. SQLite has no other way to inject a
/// failing sync.
#[unsafe(no_mangle)]
extern "C" fn fsync(file: c_int) -> c_int {
    sync_by(libc::SYS_fsync, file)
}

#[unsafe(no_mangle)]
extern "C" fn fdatasync(file: c_int) -> c_int {
    sync_by(libc::SYS_fdatasync, file)
}

fn sync_by(call: libc::c_long, file: c_int) -> c_int {
    if FAILING.get() == Some(ffi::SQLITE_IOERR_FSYNC) {
        return -1;
    }
    // SAFETY: either call takes a descriptor and no pointer.
    unsafe { libc::syscall(call, file) as c_int }
}

/// Puts these calls under the unix VFS, through the VFS `memgroup`, which passes the request on.
fn replace_calls() {
    // SAFETY: the name is a terminated string.
    let vfs = unsafe { ffi::sqlite3_vfs_find(c"memgroup".as_ptr()) };
    // SAFETY: the VFS is registered, and a complete object.
    let methods = unsafe { vfs.read() };
    assert_eq!(methods.iVersion, 3);
    let (set, get) = (methods.xSetSystemCall.expect("offered"), methods.xGetSystemCall.expect("offered"));
    let next = methods.xNextSystemCall.expect("offered");
    let (pwrite, pread) = (pwrite as *const c_void, pread as *const c_void);
    // SQLite uses one pair or the other, as it was compiled; on 64 bits they are the same.
    let calls = [(c"pwrite", pwrite), (c"pwrite64", pwrite), (c"pread", pread), (c"pread64", pread)];
    for (name, call) in calls {
        // SAFETY: a function pointer is as large as a pointer; SQLite calls it with the signature
        // it has for the name.
        let call: ffi::sqlite3_syscall_ptr = unsafe { std::mem::transmute(call) };
        // SAFETY: the VFS and the name are as SQLite passes them.
        assert_eq!(unsafe { set(vfs, name.as_ptr(), call) }, ffi::SQLITE_OK);
        // SAFETY: as above.
        let now = unsafe { get(vfs, name.as_ptr()) };
        assert_eq!(now.map(|now| now as usize), call.map(|call| call as usize), "{name:?}");
    }
    // SAFETY: as above; a null name asks for the first.
    assert!(!unsafe { next(vfs, ptr::null()) }.is_null());
}

#[test]
fn does_not_count_failed_calls() {
    hierarchy();
    replace_calls();
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("failing"));
    let conn = TenantConnection::open(&group, dir.path().join("a.db")).expect("a connection");
    conn.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1)").expect("enough memory");
    for code in [ffi::SQLITE_IOERR_READ, ffi::SQLITE_IOERR_WRITE, ffi::SQLITE_IOERR_FSYNC] {
        let counted = counted_during(&group, || {
            FAILING.set(Some(code));
            let error = conn.execute("INSERT INTO t VALUES (2)", []).expect_err("the system fails");
            FAILING.set(None);
            let error = error.sqlite_error().and_then(rusqlite::Error::sqlite_error);
            assert_eq!(error.expect("an error of SQLite").extended_code, code);
        });
        let done = (counted.reads > 0, counted.writes > 0, counted.written_bytes > 0, counted.syncs > 0);
        // Calls up to the first that fails.
        let (reads, writes) = (code != ffi::SQLITE_IOERR_READ, code == ffi::SQLITE_IOERR_FSYNC);
        assert_eq!(done, (reads, writes, writes, false), "{counted:?}: a failed call was counted");
    }
    let synced = counted_during(&group, || {
        conn.execute("INSERT INTO t VALUES (2)", []).expect("the calls succeed again");
    });
    assert!(synced.syncs > 0, "{synced:?}");
    let rows: i64 = conn.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).expect("nothing was lost");
    assert_eq!(rows, 2);
}
