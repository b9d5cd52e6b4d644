//! The VFS `memgroup`: it passes calls to SQLite's default VFS, and counts reads, writes and syncs.
//!
//! ```text
//!   SQLite ── memgroup: xOpen, xDelete, ..  ──────────▶ the VFS that was the default (pAppData)
//!          ── file:  ┌──────────┬───────────────────┐
//!                    │ pMethods │ underlying's file │   szOsFile = 8 + the underlying VFS's
//!                    └────┬─────┴─────────▲─────────┘
//!                         └── xRead, .. ──┘ counts successful calls: `account::count_io`
//! ```
//!
//! - I1. The object that SQLite links into its list, and the VFS under it, live as long as the
//!   process: the first is in [`SHIM`], and SQLite's own is static. An application that unregisters
//!   a VFS must keep it in memory if it was the default when memgroup was installed.
//! - I2. A method is offered if and only if the underlying object has it, up to version 3. SQLite
//!   sees the same methods as without this VFS.
//! - I3. Names, flags, buffers, results and errors pass through unchanged. The only different
//!   answer is the name of the VFS (`SQLITE_FCNTL_VFSNAME`), which ours precedes.
//! - I4. No method waits for another thread or allocates through Rust's allocator by itself; the
//!   underlying VFS and the statistics may. No panic leaves this file, as in `alloc.rs`.
//! - I5. SQLite calls a forwarding method only if the underlying VFS has it (I2). There is an
//!   answer for a missing method only so that nothing can panic.
//!
//! Synchronisation: an installation makes [`SHIM`] once, before a file is opened through it. The
//! link in it (`pNext`) is SQLite's, under SQLite's own mutex, and this crate does not read it.
//! SQLite uses a file from one thread at a time.

#![allow(unsafe_code)]

mod file;

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use rusqlite::ffi;

/// I1.
static SHIM: OnceLock<Shim> = OnceLock::new();

/// Our VFS object.
struct Shim(UnsafeCell<ffi::sqlite3_vfs>);

// SAFETY: the VFS under ours is used through its methods only, which SQLite calls from any thread.
unsafe impl Send for Shim {}
// SAFETY: any thread may use the VFS under ours through its methods. Once our object is registered,
// only SQLite writes to it, under its mutex.
unsafe impl Sync for Shim {}

/// Puts our VFS in front of the default one; SQLite is initialised. If a third VFS has become the
/// default since the first call, it stays.
///
/// Returns SQLite's result code.
pub(crate) fn register() -> c_int {
    // SAFETY: a null name asks for the default.
    let default = unsafe { ffi::sqlite3_vfs_find(ptr::null()) };
    if default.is_null() {
        return ffi::SQLITE_ERROR;
    }
    let shim = SHIM.get_or_init(|| {
        // SAFETY: a registered VFS is complete, and stays (I1); no other thread uses SQLite before
        // an installation has succeeded (install.rs, I1).
        Shim(UnsafeCell::new(unsafe { over(default) }))
    });
    let ours = shim.0.get();
    // SAFETY: it is our object.
    if default != unsafe { underlying(ours) } {
        return ffi::SQLITE_OK;
    }
    // SAFETY: the object is complete and stays (I1); SQLite takes its mutex before it links it.
    unsafe { ffi::sqlite3_vfs_register(ours, 1) }
}

/// Our VFS over `underlying` (I2).
///
/// # Safety
///
/// `underlying` is a complete VFS object, and no VFS is registered or unregistered during the call.
unsafe fn over(underlying: *mut ffi::sqlite3_vfs) -> ffi::sqlite3_vfs {
    // SAFETY: the caller's promise.
    let under = unsafe { &*underlying };
    let (has_2, has_3) = (under.iVersion >= 2, under.iVersion >= 3);
    ffi::sqlite3_vfs {
        iVersion: under.iVersion.min(3),
        szOsFile: file::UNDERLYING_AT as c_int + under.szOsFile,
        mxPathname: under.mxPathname,
        pNext: ptr::null_mut(),
        zName: file::NAME.as_ptr(),
        pAppData: underlying.cast(),
        xOpen: under.xOpen.is_some().then_some(x_open as _),
        xDelete: under.xDelete.is_some().then_some(x_delete as _),
        xAccess: under.xAccess.is_some().then_some(x_access as _),
        xFullPathname: under.xFullPathname.is_some().then_some(x_full_pathname as _),
        xDlOpen: under.xDlOpen.is_some().then_some(x_dl_open as _),
        xDlError: under.xDlError.is_some().then_some(x_dl_error as _),
        xDlSym: under.xDlSym.is_some().then_some(x_dl_sym as _),
        xDlClose: under.xDlClose.is_some().then_some(x_dl_close as _),
        xRandomness: under.xRandomness.is_some().then_some(x_randomness as _),
        xSleep: under.xSleep.is_some().then_some(x_sleep as _),
        xCurrentTime: under.xCurrentTime.is_some().then_some(x_current_time as _),
        xGetLastError: under.xGetLastError.is_some().then_some(x_get_last_error as _),
        xCurrentTimeInt64: (has_2 && under.xCurrentTimeInt64.is_some()).then_some(x_current_time_int64 as _),
        xSetSystemCall: (has_3 && under.xSetSystemCall.is_some()).then_some(x_set_system_call as _),
        xGetSystemCall: (has_3 && under.xGetSystemCall.is_some()).then_some(x_get_system_call as _),
        xNextSystemCall: (has_3 && under.xNextSystemCall.is_some()).then_some(x_next_system_call as _),
    }
}

/// Opens the underlying file behind ours. `name` is passed on unchanged: the VFS may read the
/// parameters that SQLite keeps behind it. It is null for a temporary file.
unsafe extern "C" fn x_open(
    vfs: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite passes the object from `register`.
    let underlying = unsafe { underlying(vfs) };
    // SAFETY: the VFS under ours stays (I1).
    let Some(open) = (unsafe { (*underlying).xOpen }) else { return ffi::SQLITE_CANTOPEN };
    // SAFETY: SQLite passes szOsFile bytes, aligned to eight, which only this thread has yet.
    unsafe { file::prepare(file) };
    // SAFETY: the arguments are SQLite's own; the underlying file's memory has the size that
    // `underlying` asks for.
    let code = unsafe { open(underlying, name, file::underlying_of(file), flags, out_flags) };
    // SAFETY: `open` has left a file, or no methods.
    unsafe { file::adopt(file) };
    code
}

/// A name as SQLite passes it.
type Name = *const c_char;

/// Returns the VFS under ours. Its fields are read through the pointer, because SQLite may change
/// its link at the same time, so there must not be a reference to the whole object.
///
/// # Safety
///
/// `vfs` is our VFS object.
unsafe fn underlying(vfs: *mut ffi::sqlite3_vfs) -> *mut ffi::sqlite3_vfs {
    // SAFETY: the caller's promise; the field does not change after the object was made.
    unsafe { (*vfs).pAppData }.cast()
}

macro_rules! forward {
    ($($(#[$doc:meta])* $name:ident = $method:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?, else $missing:expr;)*) => {$(
        $(#[$doc])*
        unsafe extern "C" fn $name(vfs: *mut ffi::sqlite3_vfs, $($arg: $type),*) $(-> $out)? {
            // SAFETY: SQLite passes the object from `register`.
            let underlying = unsafe { underlying(vfs) };
            // SAFETY: the VFS under ours stays (I1).
            match unsafe { (*underlying).$method } {
                // SAFETY: the arguments are SQLite's own, for the VFS that the method belongs to.
                Some(method) => unsafe { method(underlying, $($arg),*) },
                None => $missing,
            }
        }
    )*};
}

/// A function of a shared library, in the form of the bindings.
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::mem::zeroed;

    use super::*;

    thread_local! {
        /// Whether a file that the underlying VFS failed to open has methods nevertheless; and how
        /// often it was closed.
        static HAS_METHODS: Cell<bool> = const { Cell::new(false) };
        static CLOSED: Cell<u32> = const { Cell::new(0) };
    }

    unsafe extern "C" fn close(_: *mut ffi::sqlite3_file) -> c_int {
        CLOSED.set(CLOSED.get() + 1);
        ffi::SQLITE_OK
    }

    static METHODS: ffi::sqlite3_io_methods = {
        // SAFETY: all zero is a table without methods.
        let none: ffi::sqlite3_io_methods = unsafe { zeroed() };
        ffi::sqlite3_io_methods { iVersion: 1, xClose: Some(close), ..none }
    };

    unsafe extern "C" fn fail_to_open(
        _: *mut ffi::sqlite3_vfs,
        _: ffi::sqlite3_filename,
        file: *mut ffi::sqlite3_file,
        _: c_int,
        _: *mut c_int,
    ) -> c_int {
        if HAS_METHODS.get() {
            // SAFETY: the memory for the file is the test's.
            unsafe { (*file).pMethods = &METHODS };
        }
        ffi::SQLITE_CANTOPEN
    }

    #[test]
    fn closes_a_failed_file_if_the_underlying_vfs_asks_for_it() {
        // SAFETY: all zero is a VFS without methods.
        let mut under: ffi::sqlite3_vfs = unsafe { zeroed() };
        under.szOsFile = size_of::<ffi::sqlite3_file>() as c_int;
        under.xOpen = Some(fail_to_open);
        // SAFETY: the VFS is complete, and only this test has it.
        let mut ours = unsafe { over(&raw mut under) };
        let open = ours.xOpen.expect("offered");
        for has_methods in [true, false] {
            HAS_METHODS.set(has_methods);
            // SQLite's memory, which another file may have used before.
            let mut memory = [usize::MAX; 2];
            assert_eq!(size_of_val(&memory) as c_int, ours.szOsFile);
            let file = memory.as_mut_ptr().cast::<ffi::sqlite3_file>();
            // SAFETY: the arguments are as SQLite passes them for a temporary file.
            let code = unsafe { open(&raw mut ours, ptr::null(), file, 0, ptr::null_mut()) };
            assert_eq!(code, ffi::SQLITE_CANTOPEN);
            // SAFETY: the opening has filled it.
            let methods = unsafe { (*file).pMethods };
            assert_eq!(!methods.is_null(), has_methods);
            // SAFETY: a table of methods outlives the files that have it.
            if let Some(methods) = unsafe { methods.as_ref() } {
                let close = methods.xClose.expect("offered");
                // SAFETY: SQLite closes a file that has methods.
                assert_eq!(unsafe { close(file) }, ffi::SQLITE_OK);
            }
            assert_eq!(CLOSED.replace(0), u32::from(has_methods));
        }
    }
}
