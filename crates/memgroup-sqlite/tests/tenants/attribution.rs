//! Tests which bytes of SQLite are charged to a tenant, and that each of them is credited to it
//! again.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::support::{generated, hierarchy, sort, tenant};
use memgroup::{ChargeErrorKind, scope};
use memgroup_sqlite::{AllocationError, TenantConnection, TenantError};
use rusqlite::{Connection, OpenFlags, ffi};

/// One of SQLite's counters for a connection.
fn db_status(conn: &Connection, counter: c_int) -> u64 {
    let (mut current, mut highest) = (0, 0);
    // SAFETY: the handle is used at once, and the connection is open.
    let handle = unsafe { conn.handle() };
    // SAFETY: the handle is open, and the two places are ours.
    let code = unsafe { ffi::sqlite3_db_status(handle, counter, &raw mut current, &raw mut highest, 0) };
    assert_eq!(code, ffi::SQLITE_OK);
    u64::try_from(current).expect("a count")
}

#[test]
fn charges_the_page_cache() {
    hierarchy();
    let group = tenant("pages");
    let conn = TenantConnection::open_in_memory(&group).expect("a connection");
    let empty_bytes = group.usage_exact();
    conn.execute_batch(&format!("CREATE TABLE t AS SELECT i, x FROM {}", generated(2_000, 1_000)))
        .expect("a table");
    let cached = conn.run(|conn| Ok(db_status(conn, ffi::SQLITE_DBSTATUS_CACHE_USED))).expect("a status");
    let grown_bytes = group.usage_exact() - empty_bytes;
    assert!(cached > 2_000_000, "SQLite caches {cached} bytes");
    assert!(grown_bytes > cached * 95 / 100, "SQLite caches {cached} bytes, the group pays {grown_bytes}");
    assert!(grown_bytes < cached * 105 / 100, "SQLite caches {cached} bytes, the group pays {grown_bytes}");
    conn.execute_batch("DROP TABLE t; VACUUM").expect("enough memory");
    drop(conn);
    assert_eq!(group.usage_exact(), 0);
}

#[test]
fn charges_the_sorter() {
    hierarchy();
    let group = tenant("sorter");
    let conn = TenantConnection::open_in_memory(&group).expect("a connection");
    conn.execute_batch("PRAGMA temp_store = MEMORY").expect("a setting");
    let before_bytes = group.usage_exact();
    let rows: i64 = conn.query_row(&sort(20_000, 500), [], |row| row.get(0)).expect("a sort");
    assert_eq!(rows, 20_000);
    assert!(group.peak() > before_bytes + 10_000_000, "peak {} for ten megabytes sorted", group.peak());
    let after_bytes = group.usage_exact();
    assert!(
        after_bytes < before_bytes + 1_000_000,
        "{after_bytes} bytes remain of {} at the peak",
        group.peak()
    );
}

#[test]
fn charges_the_lookaside() {
    hierarchy();
    let group = tenant("lookaside");
    let conn = TenantConnection::open_in_memory(&group).expect("a connection");
    let before_bytes = group.usage_exact();
    assert!(before_bytes > 40_000, "the default lookaside alone is larger than {before_bytes}");
    conn.run(|conn| {
        // SAFETY: the handle is used at once, and the connection is open and idle.
        let handle = unsafe { conn.handle() };
        // SAFETY: this option takes a pointer (null: SQLite allocates) and two ints.
        let code = unsafe {
            let lookaside = std::ptr::null_mut::<std::ffi::c_void>();
            ffi::sqlite3_db_config(
                handle,
                ffi::SQLITE_DBCONFIG_LOOKASIDE,
                lookaside,
                1024 as c_int,
                4_000 as c_int,
            )
        };
        assert_eq!(code, ffi::SQLITE_OK);
        Ok(())
    })
    .expect("enough memory");
    let grown_bytes = group.usage_exact() - before_bytes;
    assert!((3_900_000..4_200_000).contains(&grown_bytes), "{grown_bytes} bytes for 4 MB of lookaside");
}

#[test]
fn opens_serialized_with_any_flags() {
    hierarchy();
    let group = tenant("serialized");
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_SHARED_CACHE;
    let has_mutex = |conn: &Connection| {
        // SAFETY: the handle is used at once, and the connection is open.
        let handle = unsafe { conn.handle() };
        // SAFETY: the handle is open.
        !unsafe { ffi::sqlite3_db_mutex(handle) }.is_null()
    };
    assert!(
        !has_mutex(&Connection::open_in_memory().expect("a plain connection")),
        "rusqlite's default has changed"
    );
    let plain = TenantConnection::open_in_memory(&group).expect("a connection");
    let flagged = TenantConnection::open_with_flags(&group, ":memory:", flags).expect("a connection");
    for conn in [&plain, &flagged] {
        assert!(conn.run(|conn| Ok(has_mutex(conn))).expect("a mutex"));
    }
}

#[test]
fn credits_the_owner_when_another_thread_closes() {
    hierarchy();
    let (group, other) = (tenant("sent"), tenant("receiver"));
    let conn = TenantConnection::open_in_memory(&group).expect("a connection");
    conn.execute_batch(&format!("CREATE TABLE t AS SELECT x FROM {}", generated(500, 1_000)))
        .expect("a table");
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let _scope = scope::enter(&other);
            let conn = conn;
            let before_bytes = group.usage_exact();
            conn.execute_batch(&format!("INSERT INTO t SELECT x FROM {}", generated(500, 1_000)))
                .expect("enough memory");
            assert!(group.usage_exact() > before_bytes + 500_000, "the group did not pay on another thread");
            assert_eq!(scope::current().as_ref(), Some(&other), "the scope was not restored");
            conn.close().expect("nothing uses it");
            assert_eq!((group.usage_exact(), other.usage_exact()), (0, 0));
        });
    });
}

#[test]
fn credits_the_owner_of_cached_statements() {
    hierarchy();
    let group = tenant("statements");
    let conn = TenantConnection::open_in_memory(&group).expect("a connection");
    conn.run(|conn| {
        conn.set_prepared_statement_cache_capacity(500);
        for index in 0..500 {
            let sql = format!("SELECT {index}, 'a statement that is not shared', ?1 + ?2 WHERE ?3 = {index}");
            conn.prepare_cached(&sql)?.exists([1, 2, 3])?;
        }
        Ok(())
    })
    .expect("enough memory");
    let kept_bytes = group.usage_exact();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let conn = conn;
            conn.run(|conn| {
                conn.flush_prepared_statement_cache();
                Ok(())
            })
            .expect("no error");
            assert!(group.usage_exact() + 200_000 < kept_bytes, "{} of {kept_bytes}", group.usage_exact());
        });
    });
}

#[test]
fn leaves_the_scope_and_loses_no_byte_on_a_panic() {
    hierarchy();
    let (group, outer) = (tenant("panicking"), tenant("outer"));
    let conn = TenantConnection::open_in_memory(&group).expect("a connection");
    let _scope = scope::enter(&outer);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        conn.run(|conn| {
            let mut statement =
                conn.prepare(&format!("SELECT x FROM {} ORDER BY x", generated(1_000, 1_000)))?;
            let mut rows = statement.query([])?;
            assert!(rows.next()?.is_some());
            assert_eq!(scope::current().as_ref(), Some(&group));
            panic!("in the middle of a sort");
            #[allow(unreachable_code, reason = "gives the closure its type")]
            Ok(())
        })
    }));
    let payload = panicked.expect_err("the panic goes on");
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"in the middle of a sort"));
    assert_eq!(scope::current().as_ref(), Some(&outer));
    let one: i64 = conn.query_row("SELECT 1", [], |row| row.get(0)).expect("the connection is usable");
    assert_eq!(one, 1);
    drop(conn);
    assert_eq!((group.usage_exact(), outer.usage_exact()), (0, 0));
}

#[test]
fn lists_a_removed_group_until_its_connection_is_closed() {
    let hierarchy = hierarchy();
    let group = tenant("leaving");
    let conn = TenantConnection::open_in_memory(&group).expect("a connection");
    conn.execute_batch(&format!("CREATE TABLE t AS SELECT x FROM {}", generated(500, 1_000)))
        .expect("a table");
    let held_bytes = group.usage_exact();
    group.remove().expect("no children");

    let dying = |path: &str| hierarchy.dying().into_iter().find(|dying| dying.path == path);
    let listed = dying("/leaving").expect("it still holds bytes");
    assert!(listed.usage_bytes >= held_bytes, "{} bytes of {held_bytes} listed", listed.usage_bytes);
    let refused =
        conn.query_row(&sort(20_000, 500), [], |row| row.get::<_, i64>(0)).expect_err("it was removed");
    let details = refused.out_of_memory().unwrap_or_else(|| panic!("{refused}"));
    let Some(AllocationError::Refused(refusal)) = details.cause() else { panic!("{refused}") };
    assert_eq!(refusal.kind(), ChargeErrorKind::Offline, "{refused}");

    drop(conn);
    assert_eq!(group.usage_exact(), 0);
    assert!(dying("/leaving").is_none(), "nothing is left of it");
}

#[test]
fn credits_a_connection_that_ends_with_its_thread() {
    thread_local! {
        static KEPT: RefCell<Option<TenantConnection>> = const { RefCell::new(None) };
    }
    hierarchy();
    let group = tenant("thread");
    let ended = std::thread::spawn({
        let group = group.clone();
        move || {
            let conn = TenantConnection::open_in_memory(&group).expect("a connection");
            conn.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1)").expect("enough memory");
            KEPT.set(Some(conn));
            assert!(group.usage_exact() > 0);
        }
    });
    ended.join().expect("the thread ends well");
    assert_eq!(group.usage_exact(), 0);
}

#[test]
fn never_shares_a_page_cache() {
    hierarchy();
    let (ours, theirs) = (tenant("ours"), tenant("theirs"));
    let flags = OpenFlags::default() | OpenFlags::SQLITE_OPEN_SHARED_CACHE;
    let open = |group| TenantConnection::open_with_flags(group, "file:one?mode=memory", flags);
    // SAFETY: no precondition. Connections that other tests open at the same time have other names.
    let enabled = unsafe { ffi::sqlite3_enable_shared_cache(1) };
    let (first, second) = (open(&ours).expect("a connection"), open(&theirs).expect("a connection"));
    // SAFETY: as above.
    let disabled = unsafe { ffi::sqlite3_enable_shared_cache(0) };
    assert_eq!((enabled, disabled), (ffi::SQLITE_OK, ffi::SQLITE_OK));
    first.execute_batch("CREATE TABLE t (x)").expect("enough memory");
    let unseen = second.execute("INSERT INTO t VALUES (1)", []);
    assert!(unseen.is_err(), "two tenants share a database in memory");

    for name in ["file:two?mode=memory&cache=shared", "file:two?cach%65=shared&mode=memory"] {
        let refused = TenantConnection::open(&ours, name).expect_err("a shared cache");
        assert!(matches!(&refused, TenantError::SharedCache { group } if group == "/ours"), "{refused}");
        assert!(refused.to_string().contains("cache=shared"), "{refused}");
    }
    TenantConnection::open(&ours, "file:two?mode=memory&cache=private").expect("a cache of its own");
}
