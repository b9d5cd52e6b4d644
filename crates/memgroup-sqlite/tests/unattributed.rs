//! A tenant's group pays for its connection: for its opening, its work, and its closing.

#![allow(unsafe_code)]

mod support;

use memgroup::{Config, Hierarchy};
use memgroup_sqlite::{TenantConnection, install_unchecked};
use rusqlite::{Connection, ffi};
use support::generated;

#[test]
fn never_charges_the_unattributed_group_for_a_tenant() {
    // Without stock every charge reaches the counters, so that the peak shows the smallest of them.
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).expect("a configuration without stock");
    // SAFETY: this is the only test of its process, and the thread that runs it does not use
    // SQLite.
    let installed = unsafe { install_unchecked(&hierarchy, None) };
    let unattributed = installed.expect("nothing used SQLite before").unattributed().clone();
    let dir = tempfile::tempdir().expect("a directory");
    let (group, initial_bytes) = (hierarchy.create("/tenant").expect("a group"), unattributed.peak());
    for is_closed in [false, true] {
        let conn =
            TenantConnection::open(&group, dir.path().join(format!("{is_closed}.db"))).expect("a connection");
        // Closing the last connection of a write-ahead log copies it into the database, which takes
        // memory.
        conn.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF").expect("a log");
        conn.execute_batch(&format!("CREATE TABLE t AS SELECT x FROM {}", generated(200, 500)))
            .expect("enough memory");
        conn.run(|conn| conn.prepare_cached("SELECT x FROM t ORDER BY x")?.exists([])).expect("rows");
        conn.transaction(|transaction| transaction.execute("UPDATE t SET x = 1", [])).expect("enough memory");
        // SAFETY: no precondition.
        let counted_bytes = unsafe { ffi::sqlite3_memory_used() };
        assert!(group.usage() > 60_000);
        assert_eq!(counted_bytes, 0, "SQLite keeps its own statistics, under one mutex");
        if is_closed {
            conn.close().expect("nothing uses it");
        } else {
            drop(conn);
        }
        assert_eq!(unattributed.peak(), initial_bytes, "closed: {is_closed}");
    }
    assert_eq!(group.usage_exact(), 0);

    let outside = Connection::open_in_memory().expect("a plain connection");
    assert!(unattributed.peak() > initial_bytes, "a plain connection was not charged");
    drop(outside);

    // A group of another hierarchy has an id that means another group here: it must not be written
    // into a block.
    let elsewhere = Hierarchy::new(Config::new()).expect("another hierarchy");
    let (stranger, before) = (elsewhere.create("/stranger").expect("a group"), unattributed.usage());
    let inside = {
        let _scope = memgroup::scope::enter(&stranger);
        Connection::open_in_memory().expect("a plain connection")
    };
    assert!(unattributed.usage() > before && stranger.usage() == 0);
    drop(inside);
    assert_eq!((unattributed.usage(), stranger.usage()), (before, 0));
}
