//! A limit on the unattributed group: SQLite may not get the memory to initialise.

#![allow(unsafe_code)]

use memgroup::{Config, Hierarchy};
use memgroup_sqlite::{InstallError, install_unchecked};
use rusqlite::{Connection, ffi};

#[test]
fn initialises_sqlite_after_the_limit_was_lifted() {
    let hierarchy = Hierarchy::new(Config::new()).expect("the default configuration");
    let shared = hierarchy.create("/shared").expect("a group");
    shared.set_max(0).expect("a limit");
    // SAFETY: this is the only test of its process, and the thread that runs it does not use
    // SQLite.
    let install = || unsafe { install_unchecked(&hierarchy, Some(&shared)) };
    let refused = install().expect_err("no memory to initialise in");
    assert!(matches!(refused, InstallError::Initialize { code: ffi::SQLITE_NOMEM }), "{refused}");
    assert!(shared.refusals() > 0);

    shared.set_max(None).expect("no limit");
    let sqlite = install().expect("enough memory now");
    assert_eq!(sqlite.unattributed(), &shared);
    let initial_bytes = shared.usage_exact();

    let outside = Connection::open_in_memory().expect("a plain connection");
    assert!(shared.usage_exact() > initial_bytes, "a connection outside of any scope was not charged");
    drop(outside);
    assert_eq!(shared.usage_exact(), initial_bytes);
}
