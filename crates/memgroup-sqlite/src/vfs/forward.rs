//! The methods of the VFS that open no file: each calls the underlying VFS.
//!
//! - I1. SQLite calls a method here only if the underlying VFS has it (I2 of `vfs.rs`). The answer for a missing method is there so that
//!   nothing can panic.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use rusqlite::ffi;

/// A name as SQLite passes it.
type Name = *const c_char;

/// The VFS under ours. Its fields are read through the pointer: SQLite may change its link meanwhile, so there must not be a reference to
/// the whole object.
///
/// # Safety
///
/// `vfs` is the object of `vfs.rs`.
pub(super) unsafe fn underlying(vfs: *mut ffi::sqlite3_vfs) -> *mut ffi::sqlite3_vfs {
    // SAFETY: the caller's promise; the field does not change after the object was made.
    unsafe { (*vfs).pAppData }.cast()
}

macro_rules! forward {
    ($($(#[$doc:meta])* $name:ident = $method:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?, else $missing:expr;)*) => {$(
        $(#[$doc])*
        pub(super) unsafe extern "C" fn $name(vfs: *mut ffi::sqlite3_vfs, $($arg: $type),*) $(-> $out)? {
            // SAFETY: SQLite passes the object from `register`.
            let underlying = unsafe { underlying(vfs) };
            // SAFETY: the VFS under ours stays (I1 of `vfs.rs`).
            match unsafe { (*underlying).$method } {
                // SAFETY: the arguments are SQLite's own, for the VFS that the method belongs to.
                Some(method) => unsafe { method(underlying, $($arg),*) },
                None => $missing,
            }
        }
    )*};
}

/// A function of a shared library, as the bindings have it.
type Symbol = Option<unsafe extern "C" fn(*mut ffi::sqlite3_vfs, *mut c_void, *const c_char)>;

forward! {
    x_delete = xDelete(name: Name, sync_dir: c_int) -> c_int, else ffi::SQLITE_IOERR_DELETE;
    x_access = xAccess(name: Name, flags: c_int, answer: *mut c_int) -> c_int, else ffi::SQLITE_IOERR_ACCESS;
    x_full_pathname = xFullPathname(name: Name, bytes: c_int, out: *mut c_char) -> c_int, else ffi::SQLITE_CANTOPEN;
    x_dl_open = xDlOpen(name: Name) -> *mut c_void, else ptr::null_mut();
    x_dl_error = xDlError(bytes: c_int, out: *mut c_char), else ();
    x_dl_sym = xDlSym(library: *mut c_void, symbol: *const c_char) -> Symbol, else None;
    x_dl_close = xDlClose(library: *mut c_void), else ();
    x_randomness = xRandomness(bytes: c_int, out: *mut c_char) -> c_int, else 0;
    x_sleep = xSleep(microseconds: c_int) -> c_int, else 0;
    x_current_time = xCurrentTime(out: *mut f64) -> c_int, else ffi::SQLITE_ERROR;
    x_get_last_error = xGetLastError(bytes: c_int, out: *mut c_char) -> c_int, else 0;
    x_current_time_int64 = xCurrentTimeInt64(out: *mut ffi::sqlite3_int64) -> c_int, else ffi::SQLITE_ERROR;
    x_set_system_call = xSetSystemCall(name: Name, call: ffi::sqlite3_syscall_ptr) -> c_int, else ffi::SQLITE_NOTFOUND;
    x_get_system_call = xGetSystemCall(name: Name) -> ffi::sqlite3_syscall_ptr, else None;
    x_next_system_call = xNextSystemCall(name: Name) -> Name, else ptr::null();
}
