//! The default VFS, before and after the application sets another.

#![allow(unsafe_code)]

mod support;

use std::ffi::CStr;
use std::ptr;

use memgroup_sqlite::install;
use rusqlite::ffi;
use support::hierarchy;

/// The name of the VFS of this name, or of the default.
fn found(name: Option<&CStr>) -> Option<String> {
    // SAFETY: the name is null or a terminated string.
    let vfs = unsafe { ffi::sqlite3_vfs_find(name.map_or(ptr::null(), CStr::as_ptr)) };
    // SAFETY: a registered VFS is a complete object.
    let vfs = unsafe { vfs.as_ref() }?;
    // SAFETY: it has a terminated name.
    Some(unsafe { CStr::from_ptr(vfs.zName) }.to_str().expect("ASCII").to_owned())
}

fn make_default(name: &CStr) {
    // SAFETY: the name is a terminated string.
    let vfs = unsafe { ffi::sqlite3_vfs_find(name.as_ptr()) };
    // SAFETY: the VFS is registered.
    assert_eq!(unsafe { ffi::sqlite3_vfs_register(vfs, 1) }, ffi::SQLITE_OK);
}

#[test]
fn stays_the_default_vfs_until_the_application_sets_another() {
    let hierarchy = hierarchy();
    assert_eq!(found(None).as_deref(), Some("memgroup"));
    assert_eq!(found(Some(c"unix")).as_deref(), Some("unix"));

    make_default(c"unix-none");
    install(hierarchy).expect("the same hierarchy");
    assert_eq!(found(None).as_deref(), Some("unix-none"), "the application's choice was overruled");
    assert_eq!(found(Some(c"memgroup")).as_deref(), Some("memgroup"));

    // The state after sqlite3_shutdown and sqlite3_initialize.
    make_default(c"unix");
    install(hierarchy).expect("the same hierarchy");
    assert_eq!(found(None).as_deref(), Some("memgroup"));
}
