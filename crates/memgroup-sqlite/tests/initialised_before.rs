//! Installation after SQLite was used.

#![allow(unsafe_code)]

use memgroup::{Config, Hierarchy};
use memgroup_sqlite::{InstallError, TenantConnection, TenantError, install_unchecked, installed};
use rusqlite::Connection;

#[test]
fn refuses_when_sqlite_is_in_use() {
    let before = Connection::open_in_memory().expect("a plain connection");
    let hierarchy = Hierarchy::new(Config::new()).expect("the default configuration");
    // SAFETY: this is the only test of its process, and the thread that runs it does not use
    // SQLite.
    let refused = unsafe { install_unchecked(&hierarchy, None) }.expect_err("SQLite is initialised");
    assert!(matches!(refused, InstallError::AlreadyInitialized), "{refused}");
    assert!(refused.to_string().contains("already initialised"), "{refused}");
    assert!(installed().is_none());
    assert!(matches!(TenantConnection::open_in_memory(&hierarchy.root()), Err(TenantError::NotInstalled)));

    let two: i64 = before.query_row("SELECT 1 + 1", [], |row| row.get(0)).expect("SQLite is as it was");
    assert_eq!(two, 2);
    assert_eq!(hierarchy.root().usage_exact(), 0);
    assert!(hierarchy.lookup("/unattributed").is_err(), "a refused installation left a group behind");
}
