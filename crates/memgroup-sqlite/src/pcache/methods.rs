//! The table of methods that SQLite copies at `SQLITE_CONFIG_PCACHE2`.
//!
//! - I1. A `sqlite3_pcache` is a strong reference to a [`PageCache`], made by `xCreate` and taken back by `xDestroy`.
//! - I2. SQLite calls the methods of one cache from one thread at a time, after `xCreate` and before `xDestroy`; a page that it passes
//!   is one that it has pinned in that cache.
//! - I3. No panic leaves this file: every path returns, and `extern "C"` turns what is left (a broken invariant) into an
//!   abort instead of unwinding through C.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use rusqlite::ffi;

use super::PageCache;
use super::page::{Format, Pin};
use crate::alloc::ACCOUNT;

/// The table.
pub(crate) fn methods() -> ffi::sqlite3_pcache_methods2 {
    ffi::sqlite3_pcache_methods2 {
        iVersion: 1,
        pArg: ptr::null_mut(),
        xInit: Some(x_init),
        xShutdown: None,
        xCreate: Some(x_create),
        xCachesize: Some(x_cachesize),
        xPagecount: Some(x_pagecount),
        xFetch: Some(x_fetch),
        xUnpin: Some(x_unpin),
        xRekey: Some(x_rekey),
        xTruncate: Some(x_truncate),
        xDestroy: Some(x_destroy),
        xShrink: Some(x_shrink),
    }
}

/// The cache behind SQLite's handle.
///
/// # Safety
///
/// `cache` came from [`x_create`] and was not given to [`x_destroy`] yet.
#[inline]
unsafe fn cache<'c>(cache: *mut ffi::sqlite3_pcache) -> &'c PageCache {
    // SAFETY: the handle is a strong reference (I1).
    unsafe { &*cache.cast_const().cast::<PageCache>() }
}

unsafe extern "C" fn x_init(_argument: *mut c_void) -> c_int {
    if ACCOUNT.get().is_some() { ffi::SQLITE_OK } else { ffi::SQLITE_MISUSE }
}

pub(super) unsafe extern "C" fn x_create(
    page: c_int,
    extra: c_int,
    is_purgeable: c_int,
) -> *mut ffi::sqlite3_pcache {
    let created = Format::new(page, extra).and_then(|format| PageCache::create(format, is_purgeable != 0));
    created.map_or(ptr::null_mut(), |cache| Arc::into_raw(cache).cast_mut().cast())
}

pub(super) unsafe extern "C" fn x_cachesize(handle: *mut ffi::sqlite3_pcache, pages: c_int) {
    // SAFETY: I2.
    unsafe { cache(handle) }.advise(u32::try_from(pages).unwrap_or(0));
}

pub(super) unsafe extern "C" fn x_pagecount(handle: *mut ffi::sqlite3_pcache) -> c_int {
    // SAFETY: I2.
    c_int::try_from(unsafe { cache(handle) }.pages()).unwrap_or(c_int::MAX)
}

pub(super) unsafe extern "C" fn x_fetch(
    handle: *mut ffi::sqlite3_pcache,
    key: c_uint,
    create: c_int,
) -> *mut ffi::sqlite3_pcache_page {
    // SAFETY: I2.
    let fetched = unsafe { cache(handle) }.fetch(key, create);
    fetched.map_or(ptr::null_mut(), Pin::for_sqlite)
}

pub(super) unsafe extern "C" fn x_unpin(
    handle: *mut ffi::sqlite3_pcache,
    page: *mut ffi::sqlite3_pcache_page,
    discard: c_int,
) {
    let Some(page) = Pin::from_sqlite(page) else { return };
    // SAFETY: I2.
    let cache = unsafe { cache(handle) };
    // SAFETY: I2.
    unsafe { cache.unpin(page, discard != 0) };
}

pub(super) unsafe extern "C" fn x_rekey(
    handle: *mut ffi::sqlite3_pcache,
    page: *mut ffi::sqlite3_pcache_page,
    _old: c_uint,
    new: c_uint,
) {
    let Some(page) = Pin::from_sqlite(page) else { return };
    // SAFETY: I2.
    let cache = unsafe { cache(handle) };
    // SAFETY: I2.
    unsafe { cache.rekey(page, new) };
}

pub(super) unsafe extern "C" fn x_truncate(handle: *mut ffi::sqlite3_pcache, limit: c_uint) {
    // SAFETY: I2.
    unsafe { cache(handle) }.truncate(limit);
}

pub(super) unsafe extern "C" fn x_destroy(handle: *mut ffi::sqlite3_pcache) {
    // SAFETY: the handle is the strong reference that `x_create` made (I1), and SQLite gives it up.
    unsafe { Arc::from_raw(handle.cast_const().cast::<PageCache>()) }.destroy();
}

pub(super) unsafe extern "C" fn x_shrink(handle: *mut ffi::sqlite3_pcache) {
    // SAFETY: I2.
    unsafe { cache(handle) }.empty();
}
