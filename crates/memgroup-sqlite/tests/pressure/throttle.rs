//! Tenants above their `high` are slowed down between two statements. Work that runs out of memory
//! waits without holding any.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{hierarchy, sort, tenant, tenant_with_max};
use memgroup::stats::memory;
use memgroup::{Freshness, Group, Reach, WaitKind};
use memgroup_sqlite::{TenantConnection, TenantError, Throttling};

fn connect(group: &Group) -> TenantConnection {
    hierarchy();
    let conn = TenantConnection::open_in_memory(group).expect("a connection");
    conn.execute_batch("PRAGMA temp_store = MEMORY; CREATE TABLE t (x); INSERT INTO t VALUES (1)")
        .expect("enough memory");
    conn
}

/// How often the group was throttled.
fn throttles(group: &Group) -> i64 {
    hierarchy().memory().get(group, memory::THROTTLES, Reach::Local, Freshness::Fresh)
}

/// Makes the group owe: it keeps a megabyte above its `high`.
fn owe(conn: &TenantConnection) {
    let group = conn.group();
    group.set_high(group.usage_exact() + (256 << 10)).expect("a limit");
    conn.run(|conn| conn.execute("INSERT INTO t VALUES (zeroblob(1048576))", []))
        .expect("no limit refuses it");
    assert!(group.owed() > 0 && throttles(group) == 0, "{} owed", group.owed());
}

fn sleeping(group: &Group) -> usize {
    let path = group.path();
    hierarchy().waits().iter().filter(|wait| wait.kind == WaitKind::Throttle && wait.group == path).count()
}

/// Runs `work` on a thread of its own until the group sleeps. Then lifts the limit, which ends the
/// sleep.
fn until_it_sleeps(group: &Group, work: impl FnOnce() + Send) {
    thread::scope(|threads| {
        let working = threads.spawn(work);
        let began = Instant::now();
        while sleeping(group) == 0 {
            assert!(!working.is_finished(), "it did not sleep");
            assert!(began.elapsed() < Duration::from_secs(60), "it does not sleep");
            thread::yield_now();
        }
        group.set_high(None).expect("no limit");
        working.join().expect("the thread's own assertions");
    });
}

#[test]
fn sleeps_before_the_next_statement_of_a_group_that_owes() {
    let group = tenant("sleeper");
    let conn = connect(&group);
    owe(&conn);
    until_it_sleeps(&group, move || {
        let rows: u32 = conn.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).expect("no error");
        assert_eq!(rows, 2);
    });
    assert_eq!((throttles(&group), group.owed()), (1, 0));
}

#[test]
fn does_not_sleep_in_a_transaction_or_a_nested_run() {
    let (group, outer) = (tenant("inside"), tenant("outside"));
    let (conn, around) = (connect(&group), connect(&outer));
    conn.execute_batch("BEGIN").expect("no error");
    owe(&conn);
    conn.execute("INSERT INTO t VALUES (3)", []).expect("in a transaction");
    assert!(conn.take_throttle().is_none(), "it would be kept within a transaction");
    conn.execute_batch("COMMIT").expect("in a transaction");
    assert_eq!(throttles(&group), 0, "it slept");
    around
        .run(|_| {
            conn.execute("INSERT INTO t VALUES (4)", []).expect("within a use");
            assert!(conn.take_throttle().is_none(), "it would be kept within a use");
            Ok(())
        })
        .expect("no error");
    assert_eq!(throttles(&group), 0, "it slept");
    conn.run(|outer| {
        // The debt was paid before the run; nested runs pay nothing.
        owe_again(&conn);
        conn.execute("INSERT INTO t VALUES (5)", []).expect("within a use");
        outer.execute("DELETE FROM t", [])
    })
    .expect("no error");
    assert_eq!(throttles(&group), 1, "before the outermost use");
    assert!(group.owed() > 0);
}

fn owe_again(conn: &TenantConnection) {
    let before = conn.group().owed();
    conn.run(|conn| conn.execute("INSERT INTO t VALUES (zeroblob(1048576))", []))
        .expect("no limit refuses it");
    assert!(conn.group().owed() > before);
}

#[test]
fn does_not_sleep_when_the_application_takes_the_delay() {
    let group = tenant("scheduler");
    let conn = connect(&group);
    conn.set_throttling(Throttling::Manual);
    assert_eq!(conn.throttling(), Throttling::Manual);
    owe(&conn);
    conn.execute("INSERT INTO t VALUES (3)", []).expect("no limit refuses it");
    assert_eq!(throttles(&group), 0, "it slept");
    let throttle = conn.take_throttle().expect("it owes");
    assert!(throttle.delay() >= Duration::from_millis(10) && throttle.group() == &group);
    assert!(conn.take_throttle().is_none(), "each byte is paid for once");
    drop(throttle);
    assert_eq!(throttles(&group), 1);
}

#[test]
fn ends_the_delay_at_the_deadline() {
    let group = tenant("hurried");
    let conn = connect(&group);
    owe(&conn);
    let deadline = Instant::now() + Duration::from_millis(50);
    let rows = conn
        .run_until(deadline, |conn| conn.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, u32>(0)));
    assert_eq!(rows.expect("no error"), 2);
    assert!(group.owed() > 0, "two seconds were to be paid");
}

/// A minute from now: every wait of these tests ends before it.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Sorts four megabytes, until the deadline.
fn sorted(conn: &TenantConnection, attempts: &Cell<u32>, deadline: Instant) -> Result<u32, TenantError> {
    // A query of a table: when it fails, SQLite rolls back an open transaction.
    let query = format!("SELECT (SELECT count(*) FROM t) * 0 + ({})", sort(8_000, 500));
    conn.run_until(deadline, |conn| {
        attempts.set(attempts.get() + 1);
        conn.query_row(&query, [], |row| row.get(0))
    })
}

#[test]
fn waits_for_free_memory_and_retries() {
    let family = tenant_with_max("family", 8 << 20);
    let (child, other) = (family.create("child").expect("a group"), family.create("other").expect("a group"));
    let conn = connect(&child);
    let held = other.try_charge(6 << 20).expect("enough memory");
    thread::scope(|threads| {
        let working = threads.spawn(move || {
            let attempts = Cell::new(0);
            (sorted(&conn, &attempts, soon()).expect("memory is free in the end"), attempts.get())
        });
        let began = Instant::now();
        while !hierarchy()
            .waits()
            .iter()
            .any(|wait| wait.kind == WaitKind::Charge && wait.group == child.path())
        {
            assert!(!working.is_finished() && began.elapsed() < Duration::from_secs(60), "it does not wait");
            thread::yield_now();
        }
        assert!(child.usage_exact() < 1 << 20, "it waits with memory charged");
        drop(held);
        let (rows, attempts) = working.join().expect("the thread's own assertions");
        assert!(rows == 8_000 && attempts >= 2, "{rows} rows in {attempts} attempts");
    });
}

#[test]
fn gives_up_at_the_deadline_after_a_few_attempts() {
    let group = tenant_with_max("never", 2 << 20);
    let conn = connect(&group);
    let attempts = Cell::new(0);
    let deadline = Instant::now() + Duration::from_millis(400);
    let failed = sorted(&conn, &attempts, deadline).expect_err("four megabytes in two");
    assert!(failed.out_of_memory().is_some(), "{failed}");
    assert!(Instant::now() >= deadline, "it gave up");
    // After waits of 10, 20, 40, .. ms.
    assert!((2..=8).contains(&attempts.get()), "{} attempts", attempts.get());
    drop(conn);
    assert_eq!(group.usage_exact(), 0);
}

#[test]
fn tries_once_when_waiting_cannot_help() {
    let group = tenant_with_max("once", 2 << 20);
    let conn = connect(&group);
    let attempts = Cell::new(0);
    conn.execute_batch("BEGIN; INSERT INTO t VALUES (2)").expect("enough memory");
    assert!(sorted(&conn, &attempts, soon()).is_err_and(|failed| failed.out_of_memory().is_some()));
    assert_eq!(attempts.get(), 1, "a retry would lose the transaction's earlier statements");
    assert!(conn.run(|conn| Ok(conn.is_autocommit())).expect("no error"), "it was rolled back");
    sorted(&conn, &attempts, Instant::now()).expect_err("four megabytes in two");
    assert_eq!(attempts.get(), 2, "the deadline had passed");
    let long = format!("SELECT '{}'", "x".repeat(3 << 20));
    let failed = conn.run_until(soon(), |conn| {
        attempts.set(attempts.get() + 1);
        conn.query_row(&long, [], |_| Ok(()))
    });
    assert!(failed.is_err_and(|failed| failed.out_of_memory().is_some()));
    assert_eq!(attempts.get(), 3, "three megabytes never fit in two");
    group.remove().expect("it has no children");
    let failed = sorted(&conn, &attempts, soon()).expect_err("a removed group gives nothing");
    assert!(failed.out_of_memory().is_some_and(|details| details.is_removed()), "{failed}");
    assert_eq!(attempts.get(), 4);
}

#[test]
fn ends_the_wait_when_the_group_is_woken() {
    let group = tenant_with_max("woken", 2 << 20);
    let conn = connect(&group);
    thread::scope(|threads| {
        let working = threads.spawn(move || {
            let failed = sorted(&conn, &Cell::new(0), soon() + Duration::from_secs(60))
                .expect_err("four megabytes in two");
            assert!(failed.out_of_memory().is_some(), "{failed}");
        });
        let began = Instant::now();
        while !working.is_finished() {
            group.wake_waiters();
            assert!(began.elapsed() < Duration::from_secs(60), "it waits on");
            thread::yield_now();
        }
        working.join().expect("the thread's own assertions");
    });
}
