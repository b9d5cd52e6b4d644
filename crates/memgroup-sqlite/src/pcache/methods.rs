//! The table of methods that SQLite copies at `SQLITE_CONFIG_PCACHE2`.
//!
//! - I1. A `sqlite3_pcache` is a strong reference to a [`PageCache`], made by `xCreate` and taken
//!   back by `xDestroy`.
//! - I2. SQLite calls the methods of one cache from one thread at a time, after `xCreate` and
//!   before `xDestroy`. A page that it passes is one that it has pinned in that cache.
//! - I3. No panic leaves this file: every path returns, and `extern "C"` turns a broken invariant
//!   into an abort instead of unwinding through C.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::Arc;

use rusqlite::ffi;

use super::cache::PageCache;
use super::page::{Format, PagePtr};
use crate::alloc::x_init;

type RawCache = ffi::sqlite3_pcache;
type RawPage = ffi::sqlite3_pcache_page;

/// The table of methods.
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
/// `cache` came from [`x_create`] and was not passed to [`x_destroy`] yet.
#[inline]
unsafe fn cache<'c>(cache: *mut RawCache) -> &'c PageCache {
    // SAFETY: the handle is a strong reference (I1).
    unsafe { &*cache.cast_const().cast::<PageCache>() }
}

pub(super) unsafe extern "C" fn x_create(page: c_int, extra: c_int, is_purgeable: c_int) -> *mut RawCache {
    let created = Format::new(page, extra).and_then(|format| PageCache::create(format, is_purgeable != 0));
    created.map_or(ptr::null_mut(), |cache| Arc::into_raw(cache).cast_mut().cast())
}

pub(super) unsafe extern "C" fn x_cachesize(handle: *mut RawCache, pages: c_int) {
    // SAFETY: I2.
    unsafe { cache(handle) }.advise(u32::try_from(pages).unwrap_or(0));
}

pub(super) unsafe extern "C" fn x_pagecount(handle: *mut RawCache) -> c_int {
    // SAFETY: I2.
    c_int::try_from(unsafe { cache(handle) }.lock().pages.table.pages).unwrap_or(c_int::MAX)
}

pub(super) unsafe extern "C" fn x_fetch(handle: *mut RawCache, key: c_uint, create: c_int) -> *mut RawPage {
    // SAFETY: I2.
    let fetched = unsafe { cache(handle) }.fetch(key, create);
    fetched.map_or(ptr::null_mut(), |page| page.as_ptr().cast())
}

pub(super) unsafe extern "C" fn x_unpin(handle: *mut RawCache, page: *mut RawPage, discard: c_int) {
    let Some(page) = PagePtr::from_ptr(page.cast()) else { return };
    // SAFETY: I2.
    let cache = unsafe { cache(handle) };
    // SAFETY: I2.
    unsafe { cache.unpin(page, discard != 0) };
}

pub(super) unsafe extern "C" fn x_rekey(handle: *mut RawCache, page: *mut RawPage, _: c_uint, new: c_uint) {
    let Some(page) = PagePtr::from_ptr(page.cast()) else { return };
    // SAFETY: I2.
    let cache = unsafe { cache(handle) };
    // SAFETY: I2.
    unsafe { cache.rekey(page, new) };
}

pub(super) unsafe extern "C" fn x_truncate(handle: *mut RawCache, limit: c_uint) {
    // SAFETY: I2.
    unsafe { cache(handle) }.truncate(limit);
}

pub(super) unsafe extern "C" fn x_destroy(handle: *mut RawCache) {
    // SAFETY: the handle is the strong reference that `x_create` made (I1), and SQLite gives it up.
    unsafe { Arc::from_raw(handle.cast_const().cast::<PageCache>()) }.destroy();
}

pub(super) unsafe extern "C" fn x_shrink(handle: *mut RawCache) {
    // SAFETY: I2.
    unsafe { cache(handle) }.empty();
}
