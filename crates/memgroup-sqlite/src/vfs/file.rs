//! A file opened through this crate's VFS: eight bytes for the methods, then the underlying file.
//!
//! ```text
//!   file ──▶ ┌──────────┬──────────┬──────────────────────────┐
//!            │ pMethods │ pMethods │ rest of the underlying's │
//!            └──────────┴──────────┴──────────────────────────┘
//!             ours       ▲ UNDERLYING_AT
//! ```
//!
//! - I1. While our `pMethods` is not null, the underlying file has methods as well. It is open, or
//!   opening it failed and it must be closed nevertheless. SQLite calls the methods here only in
//!   this state.
//! - I2. A table is offered only if the underlying file has every method of it (`offer`).
//! - I3. The bytes counted are those that the underlying file says it read or wrote, after it did
//!   so. A failed call is not counted. The size of the file shows how much a short read delivered.
//! - B1. If the file grows between a short read and the check of its size, up to the requested
//!   bytes are counted. A write that failed half way has written bytes that are not counted.
//!
//! Reads through a memory map (`xFetch`) are not counted: the processor reads. A read of a mapped
//! part with `xRead`, which copies it, is counted like any other.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use memgroup::stats::io;
use rusqlite::ffi;

use crate::account::count_io;

/// The name of the VFS. An application uses it if another VFS is the default.
pub(super) const NAME: &CStr = c"memgroup";

/// Where the underlying file begins: aligned to eight, as SQLite aligns the whole.
pub(super) const UNDERLYING_AT: usize = size_of::<ffi::sqlite3_file>().next_multiple_of(8);

/// SQLite's assumption for a file without a sector size.
const SECTOR_BYTES: c_int = 4096;

type File = ffi::sqlite3_file;
type Methods = ffi::sqlite3_io_methods;
type Int64 = ffi::sqlite3_int64;

/// Begins an opening: neither file has methods.
///
/// # Safety
///
/// `file` is memory for a file of our VFS, and only the caller uses it.
pub(super) unsafe fn prepare(file: *mut File) {
    // SAFETY: the caller's promise.
    unsafe { (*file).pMethods = ptr::null() };
    // SAFETY: the caller's promise; the memory is long enough.
    unsafe { (*underlying_of(file)).pMethods = ptr::null() };
}

/// Ends an opening. If the underlying file has methods, ours gets the corresponding table. Then
/// SQLite will close it, even if the opening failed (I1).
///
/// # Safety
///
/// `file` was prepared, and then the underlying VFS has opened it or failed.
pub(super) unsafe fn adopt(file: *mut File) {
    // SAFETY: the caller's promise.
    let methods = unsafe { (*underlying_of(file)).pMethods };
    // SAFETY: a table of methods outlives the files that have it.
    if let Some(methods) = unsafe { methods.as_ref() } {
        // SAFETY: the caller's promise.
        unsafe { (*file).pMethods = offer(methods) };
    }
}

/// The underlying file of ours.
pub(super) fn underlying_of(file: *mut File) -> *mut File {
    file.wrapping_byte_add(UNDERLYING_AT)
}

/// The underlying file of ours, and its methods.
///
/// # Safety
///
/// `file` has our methods (I1).
#[inline]
unsafe fn underlying(file: *mut File) -> (*mut File, &'static Methods) {
    let inner = underlying_of(file);
    // SAFETY: the caller's promise; the memory of our file contains the underlying one.
    let methods = unsafe { (*inner).pMethods };
    // SAFETY: it has methods (I1), and a table of methods outlives the files that have it.
    (inner, unsafe { &*methods })
}

/// Versions 1, 2 and 3, each without and with shared memory (which version 1 never has).
static TABLES: [[Methods; 2]; 3] = [
    [table(1, false), table(1, false)],
    [table(2, false), table(2, true)],
    [table(3, false), table(3, true)],
];

/// The table with the methods that `methods` has.
fn offer(methods: &Methods) -> &'static Methods {
    let has_shm = methods.iVersion >= 2
        && methods.xShmMap.is_some()
        && methods.xShmLock.is_some()
        && methods.xShmBarrier.is_some()
        && methods.xShmUnmap.is_some();
    let has_fetch = methods.iVersion >= 3 && methods.xFetch.is_some() && methods.xUnfetch.is_some();
    let version = if has_fetch { 3 } else { methods.iVersion.clamp(1, 2) };
    &TABLES[version as usize - 1][usize::from(has_shm)]
}

const fn table(version: c_int, has_shm: bool) -> Methods {
    Methods {
        iVersion: version,
        xClose: Some(x_close),
        xRead: Some(x_read),
        xWrite: Some(x_write),
        xTruncate: Some(x_truncate),
        xSync: Some(x_sync),
        xFileSize: Some(x_file_size),
        xLock: Some(x_lock),
        xUnlock: Some(x_unlock),
        xCheckReservedLock: Some(x_check_reserved_lock),
        xFileControl: Some(x_file_control),
        xSectorSize: Some(x_sector_size),
        xDeviceCharacteristics: Some(x_device_characteristics),
        xShmMap: if has_shm { Some(x_shm_map) } else { None },
        xShmLock: if has_shm { Some(x_shm_lock) } else { None },
        xShmBarrier: if has_shm { Some(x_shm_barrier) } else { None },
        xShmUnmap: if has_shm { Some(x_shm_unmap) } else { None },
        xFetch: if version >= 3 { Some(x_fetch) } else { None },
        xUnfetch: if version >= 3 { Some(x_unfetch) } else { None },
    }
}

macro_rules! forward {
    ($($name:ident = $method:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?, else $missing:expr;)*) => {$(
        unsafe extern "C" fn $name(file: *mut File, $($arg: $type),*) $(-> $out)? {
            // SAFETY: SQLite calls the methods of a file that has them.
            let (inner, methods) = unsafe { underlying(file) };
            match methods.$method {
                // SAFETY: the arguments are SQLite's own, for the file that the method belongs to.
                Some(method) => unsafe { method(inner, $($arg),*) },
                None => $missing,
            }
        }
    )*};
}

forward! {
    x_close = xClose() -> c_int, else ffi::SQLITE_IOERR_CLOSE;
    x_truncate = xTruncate(bytes: Int64) -> c_int, else ffi::SQLITE_IOERR_TRUNCATE;
    x_file_size = xFileSize(bytes: *mut Int64) -> c_int, else ffi::SQLITE_IOERR_FSTAT;
    x_lock = xLock(level: c_int) -> c_int, else ffi::SQLITE_IOERR_LOCK;
    x_unlock = xUnlock(level: c_int) -> c_int, else ffi::SQLITE_IOERR_UNLOCK;
    x_check_reserved_lock = xCheckReservedLock(answer: *mut c_int) -> c_int, else ffi::SQLITE_IOERR_CHECKRESERVEDLOCK;
    x_sector_size = xSectorSize() -> c_int, else SECTOR_BYTES;
    x_device_characteristics = xDeviceCharacteristics() -> c_int, else 0;
    x_shm_map = xShmMap(region: c_int, bytes: c_int, extend: c_int, at: *mut *mut c_void) -> c_int, else ffi::SQLITE_IOERR_SHMMAP;
    x_shm_lock = xShmLock(offset: c_int, count: c_int, flags: c_int) -> c_int, else ffi::SQLITE_IOERR_SHMLOCK;
    x_shm_barrier = xShmBarrier(), else ();
    x_shm_unmap = xShmUnmap(delete: c_int) -> c_int, else ffi::SQLITE_OK;
    x_fetch = xFetch(offset: Int64, bytes: c_int, at: *mut *mut c_void) -> c_int, else ffi::SQLITE_IOERR_MMAP;
    x_unfetch = xUnfetch(offset: Int64, at: *mut c_void) -> c_int, else ffi::SQLITE_OK;
}

/// Reads, and counts the delivered bytes.
unsafe extern "C" fn x_read(file: *mut File, buffer: *mut c_void, asked: c_int, offset: Int64) -> c_int {
    // SAFETY: SQLite calls the methods of a file that has them.
    let (inner, methods) = unsafe { underlying(file) };
    let Some(read) = methods.xRead else { return ffi::SQLITE_IOERR_READ };
    // SAFETY: the arguments are SQLite's own, for the file that the method belongs to.
    let code = unsafe { read(inner, buffer, asked, offset) };
    let bytes = match code {
        ffi::SQLITE_OK => u64::try_from(asked).unwrap_or(0),
        // SAFETY: the arguments are SQLite's own, for the file that the method belongs to.
        ffi::SQLITE_IOERR_SHORT_READ => unsafe { delivered(inner, methods, asked, offset) },
        _ => return code,
    };
    count_io(&[(io::RBYTES, bytes), (io::RIOS, 1)]);
    code
}

/// Bytes that a short read of `asked` bytes at `offset` has delivered: those that the file has
/// there. All of `asked` if the file's size is unknown.
///
/// # Safety
///
/// `inner` is an open file with `methods`.
#[cold]
unsafe fn delivered(inner: *mut File, methods: &Methods, asked: c_int, offset: Int64) -> u64 {
    let (asked, mut size) = (Int64::from(asked), 0);
    // SAFETY: the caller's promise; the place is ours.
    let code = methods.xFileSize.map(|file_size| unsafe { file_size(inner, &raw mut size) });
    let is_known = code == Some(ffi::SQLITE_OK);
    let bytes = if is_known { size.saturating_sub(offset).clamp(0, asked.max(0)) } else { asked };
    u64::try_from(bytes).unwrap_or(0)
}

/// Writes, and counts the written bytes.
unsafe extern "C" fn x_write(file: *mut File, buffer: *const c_void, bytes: c_int, offset: Int64) -> c_int {
    // SAFETY: SQLite calls the methods of a file that has them.
    let (inner, methods) = unsafe { underlying(file) };
    let Some(write) = methods.xWrite else { return ffi::SQLITE_IOERR_WRITE };
    // SAFETY: the arguments are SQLite's own, for the file that the method belongs to.
    let code = unsafe { write(inner, buffer, bytes, offset) };
    if code == ffi::SQLITE_OK {
        count_io(&[(io::WBYTES, u64::try_from(bytes).unwrap_or(0)), (io::WIOS, 1)]);
    }
    code
}

/// Syncs, and counts it.
unsafe extern "C" fn x_sync(file: *mut File, flags: c_int) -> c_int {
    // SAFETY: SQLite calls the methods of a file that has them.
    let (inner, methods) = unsafe { underlying(file) };
    let Some(sync) = methods.xSync else { return ffi::SQLITE_IOERR_FSYNC };
    // SAFETY: the arguments are SQLite's own, for the file that the method belongs to.
    let code = unsafe { sync(inner, flags) };
    if code == ffi::SQLITE_OK {
        count_io(&[(io::SYNCS, 1)]);
    }
    code
}

/// Passes the request on. Puts our name before the underlying VFS's where the request is for the
/// name.
unsafe extern "C" fn x_file_control(file: *mut File, request: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: SQLite calls the methods of a file that has them.
    let (inner, methods) = unsafe { underlying(file) };
    let Some(control) = methods.xFileControl else { return ffi::SQLITE_NOTFOUND };
    // SAFETY: the arguments are SQLite's own, for the file that the method belongs to.
    let code = unsafe { control(inner, request, argument) };
    if request != ffi::SQLITE_FCNTL_VFSNAME || code != ffi::SQLITE_OK {
        return code;
    }
    let name = argument.cast::<*mut std::ffi::c_char>();
    // SAFETY: the argument of this request is a place for a string of SQLite's allocator, and is
    // filled now.
    let inner_name = unsafe { *name };
    // SAFETY: two strings, of which `%z` frees the second; it may be null.
    let both = unsafe { ffi::sqlite3_mprintf(c"%s/%z".as_ptr(), NAME.as_ptr(), inner_name) };
    // SAFETY: the argument points to a string of SQLite's allocator, which the caller frees.
    unsafe { *name = both };
    if both.is_null() { ffi::SQLITE_NOMEM } else { ffi::SQLITE_OK }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Methods that a VFS may offer: fewer than its version has.
    fn with(version: c_int, has_shm: bool, has_fetch: bool) -> Methods {
        let mut methods = table(3, true);
        methods.iVersion = version;
        if !has_shm {
            methods.xShmMap = None;
        }
        if !has_fetch {
            methods.xUnfetch = None;
        }
        methods
    }

    #[test]
    fn offers_the_methods_that_the_underlying_file_has() {
        for (version, has_shm, has_fetch, offered) in [
            (1, true, true, (1, false)),
            (2, true, true, (2, true)),
            (2, false, false, (2, false)),
            (3, true, true, (3, true)),
            (3, false, true, (3, false)),
            (3, true, false, (2, true)),
            (4, true, true, (3, true)),
        ] {
            let methods = offer(&with(version, has_shm, has_fetch));
            assert_eq!((methods.iVersion, methods.xShmMap.is_some()), offered, "version {version}");
            assert_eq!(methods.xFetch.is_some(), offered.0 == 3, "version {version}");
        }
    }

    unsafe extern "C" fn of_100_bytes(_: *mut ffi::sqlite3_file, size: *mut Int64) -> c_int {
        // SAFETY: the caller passes a place for the size.
        unsafe { *size = 100 };
        ffi::SQLITE_OK
    }

    unsafe extern "C" fn of_no_known_size(_: *mut ffi::sqlite3_file, _: *mut Int64) -> c_int {
        ffi::SQLITE_IOERR_FSTAT
    }

    #[test]
    fn counts_a_short_read_up_to_the_end_of_the_file() {
        let mut methods = table(3, true);
        methods.xFileSize = Some(of_100_bytes);
        for (asked, offset, bytes) in [(64, 0, 64), (64, 60, 40), (64, 100, 0), (64, 4096, 0), (200, 0, 100)]
        {
            // SAFETY: the method does not access the file.
            assert_eq!(unsafe { delivered(ptr::null_mut(), &methods, asked, offset) }, bytes, "at {offset}");
        }
        for unknown in [Some(of_no_known_size as _), None] {
            methods.xFileSize = unknown;
            // SAFETY: the method does not access the file.
            assert_eq!(unsafe { delivered(ptr::null_mut(), &methods, 64, 60) }, 64);
        }
    }
}
