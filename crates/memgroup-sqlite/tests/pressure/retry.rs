//! Work that waits for free memory between two attempts, and its effect on other groups.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{generated, hierarchy, sort, tenant_with_max};
use memgroup::stats::memory;
use memgroup::{Freshness, Group, Reach, WaitKind};
use memgroup_sqlite::rusqlite::{self, Connection};
use memgroup_sqlite::{TenantConnection, TenantError};

/// A group with eight megabytes, the parent of all groups of a test.
fn tenants(name: &str) -> Group {
    hierarchy();
    tenant_with_max(name, 8 << 20)
}

/// A connection of a new group that sorts in memory.
fn connect(tenants: &Group, name: &str) -> TenantConnection {
    let group = tenants.create(name).expect("a name of its own");
    let conn = TenantConnection::open_in_memory(&group).expect("a connection");
    conn.execute_batch("PRAGMA temp_store = MEMORY; CREATE TABLE t (x)").expect("enough memory");
    conn
}

/// Holds `rows` rows of 500 bytes in the sorter during `meanwhile`, then reads on to the last.
fn hold(conn: &Connection, rows: u32, meanwhile: impl FnOnce()) -> rusqlite::Result<()> {
    let mut statement = conn.prepare(&format!("SELECT x FROM {} ORDER BY x", generated(rows, 500)))?;
    let mut rows = statement.query([])?;
    assert!(rows.next()?.is_some());
    meanwhile();
    while rows.next()?.is_some() {}
    Ok(())
}

/// Counts an attempt. The attempt with the number `one_too_many` fails with another error, which
/// ends the work.
fn nth_attempt(attempts: &Cell<u32>, one_too_many: u32) -> rusqlite::Result<()> {
    attempts.set(attempts.get() + 1);
    if attempts.get() < one_too_many { Ok(()) } else { Err(rusqlite::Error::InvalidQuery) }
}

/// The number of waiting charges of a group.
fn waiting(group: &Group) -> usize {
    let path = group.path();
    hierarchy().waits().iter().filter(|wait| wait.kind == WaitKind::Charge && wait.group == path).count()
}

/// A minute from now: every wait of these tests ends before it.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[test]
fn kills_no_small_group_while_a_large_one_waits() {
    let tenants = tenants("giant");
    let (giant, small) = (connect(&tenants, "waits"), connect(&tenants, "neighbour"));
    let (group, neighbour) = (giant.group().clone(), small.group().clone());
    let rows = small.run(|conn| {
        hold(conn, 1_000, || {
            thread::scope(|threads| {
                let working = threads.spawn(move || {
                    let attempts = Cell::new(0);
                    giant.run_until(soon(), |conn| {
                        nth_attempt(&attempts, 4)?;
                        conn.query_row(&sort(40_000, 500), [], |_| Ok(()))
                    })
                });
                let failed = working.join().expect("it only fails").expect_err("20 megabytes in eight");
                assert!(matches!(failed, TenantError::Sqlite { .. }), "after waits: {failed}");
            });
        })
    });
    rows.expect("it was not stopped");
    assert_eq!((neighbour.events().oom_kill, group.events().oom_kill), (0, 0));
}

#[test]
fn kills_by_an_attempt_and_succeeds_after_the_wait() {
    let tenants = tenants("etl");
    let (runaway, etl) = (connect(&tenants, "runaway"), connect(&tenants, "etl"));
    let (stopped, waits) = (runaway.group().clone(), etl.group().clone());
    let holds = AtomicBool::new(false);
    let (holds, waits, stopped) = (&holds, &waits, &stopped);
    thread::scope(|threads| {
        let victim = threads.spawn(move || {
            runaway.run(|conn| {
                hold(conn, 13_000, || {
                    // ORDERING: Relaxed; a flag that carries nothing but itself.
                    holds.store(true, Ordering::Relaxed);
                    let began = Instant::now();
                    // It holds its memory until the other group waits, after its attempt.
                    while waiting(waits) == 0 {
                        assert!(began.elapsed() < Duration::from_secs(60), "the other group does not wait");
                        thread::yield_now();
                    }
                    assert_eq!(stopped.events().oom_kill, 1, "the attempt has killed it");
                })
            })
        });
        // ORDERING: as above.
        while !holds.load(Ordering::Relaxed) {
            assert!(!victim.is_finished(), "it does not run");
            thread::yield_now();
        }
        let attempts = Cell::new(0);
        let rows = etl.run_until(soon(), |conn| {
            attempts.set(attempts.get() + 1);
            conn.query_row(&sort(6_000, 500), [], |row| row.get::<_, u32>(0))
        });
        assert_eq!(rows.expect("memory is free in the end"), 6_000);
        assert!(attempts.get() >= 2, "the first was refused");
        let failed = victim.join().expect("the thread's own assertions").expect_err("it is stopped");
        assert!(failed.killed().is_some(), "{failed}");
    });
    assert_eq!((stopped.events().oom_kill, waits.events().oom_kill), (1, 0));
}

#[test]
fn does_not_wait_with_an_open_transaction() {
    let group = tenants("open");
    let conn = connect(&group, "transaction");
    let _ballast = group.try_charge(6 << 20).expect("enough memory");
    let long = format!("SELECT '{}'", "x".repeat(3 << 20));
    let attempts = Cell::new(0);
    let failed = conn.run_until(soon(), |conn| {
        attempts.set(attempts.get() + 1);
        conn.execute_batch("BEGIN; INSERT INTO t VALUES (1)")?;
        conn.query_row(&long, [], |_| Ok(()))
    });
    let failed = failed.expect_err("three megabytes in two");
    assert!(failed.out_of_memory().is_some_and(|details| !details.rolled_back()), "{failed}");
    assert_eq!(attempts.get(), 1);
    assert!(!conn.run(|conn| Ok(conn.is_autocommit())).expect("no error"), "it is open");
    conn.execute_batch("COMMIT").expect("it can go on");
}

#[test]
fn pays_the_debt_of_one_attempt_before_the_next() {
    let group = tenants("debtor");
    let conn = connect(&group, "connection");
    let tenant = conn.group().clone();
    let throttles = || hierarchy().memory().get(&tenant, memory::THROTTLES, Reach::Local, Freshness::Fresh);
    let _ballast = tenant.try_charge(1 << 20).expect("enough memory");
    tenant.set_high(512 << 10).expect("a limit");
    let (attempts, before_each) = (Cell::new(0), Cell::new([0; 2]));
    let failed = conn.run_until(soon(), |conn| {
        let mut seen = before_each.get();
        seen[attempts.get() as usize] = throttles();
        before_each.set(seen);
        nth_attempt(&attempts, 2)?;
        conn.query_row(&sort(20_000, 500), [], |_| Ok(()))
    });
    assert!(failed.is_err() && attempts.get() == 2, "ten megabytes in seven");
    assert_eq!(before_each.get(), [0, 1], "throttled before the second");
}
