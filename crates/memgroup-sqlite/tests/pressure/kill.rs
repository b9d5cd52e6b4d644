//! A statement is stopped because another group needs its memory. Its error says so, and no other
//! work is disturbed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{generated, hierarchy, sort, tenant_with_max, without_lookaside};
use memgroup::{Group, KillAnswer, KillHookError, KillOutcome, KillRequest};
use memgroup_sqlite::rusqlite::{self, Connection, ErrorCode, Rows};
use memgroup_sqlite::{TenantConnection, TenantError};

/// A group with eight megabytes, the parent of all groups of a test.
fn tenants(name: &str) -> Group {
    hierarchy();
    tenant_with_max(name, 8 << 20)
}

/// A connection of a new group that sorts in memory.
fn connect(tenants: &Group, name: &str) -> TenantConnection {
    connect_to(&tenants.create(name).expect("a name of its own"))
}

fn connect_to(group: &Group) -> TenantConnection {
    let conn = TenantConnection::open_in_memory(group).expect("a connection");
    conn.execute_batch("PRAGMA temp_store = MEMORY; CREATE TABLE t (x); INSERT INTO t VALUES (1)")
        .expect("enough memory");
    conn
}

/// Charges so much in `group` that another group is killed, and uncharges it.
fn need(group: &Group, bytes: u64) {
    drop(group.try_charge(bytes));
}

/// Holds four megabytes in the sorter during `meanwhile`, then reads on to the last row.
fn hold(conn: &Connection, meanwhile: impl FnOnce()) -> rusqlite::Result<u32> {
    hold_rows(conn, 8_000, meanwhile)
}

/// The same with half a megabyte.
fn hold_little(conn: &Connection, meanwhile: impl FnOnce()) -> rusqlite::Result<u32> {
    hold_rows(conn, 1_000, meanwhile)
}

fn hold_rows(conn: &Connection, rows: u32, meanwhile: impl FnOnce()) -> rusqlite::Result<u32> {
    let mut statement = conn.prepare(&format!("SELECT x FROM {} ORDER BY x", generated(rows, 500)))?;
    let mut rows = statement.query([])?;
    assert!(rows.next()?.is_some());
    meanwhile();
    rest(rows).map(|rows| rows + 1)
}

fn rest(mut rows: Rows<'_>) -> rusqlite::Result<u32> {
    let mut count = 0;
    while rows.next()?.is_some() {
        count += 1;
    }
    Ok(count)
}

fn is_usable(conn: &TenantConnection) {
    let rows: u32 =
        conn.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).expect("a small statement");
    assert_eq!(rows, 1);
    assert_eq!(conn.execute("UPDATE t SET x = x", []).expect("a small statement"), 1);
}

/// The outcomes of a group's kills.
fn outcomes(group: &Group) -> Vec<Option<KillOutcome>> {
    let reports = hierarchy().kills();
    let of_group = reports.iter().filter(|report| report.victim == group.path());
    of_group.map(|report| report.outcome).collect()
}

#[test]
fn reports_the_requester_and_keeps_the_connection_usable() {
    let tenants = tenants("report");
    let (runaway, etl) = (connect(&tenants, "runaway"), tenants.create("etl").expect("a group"));
    for stopped in 1..=3 {
        let before = tenants.usage_exact();
        let failed = runaway.run(|conn| hold(conn, || need(&etl, 5 << 20))).expect_err("it is stopped");
        let details = failed.killed().unwrap_or_else(|| panic!("{failed}"));
        assert_eq!(
            (details.group(), details.requester(), details.full()),
            ("/report/runaway", "/report/etl", "/report")
        );
        assert_eq!((details.asked(), details.max()), (5 << 20, Some(8 << 20)));
        assert!(details.usage() > 4 << 20 && details.usage() <= 8 << 20 && !details.rolled_back());
        let text = failed.to_string();
        let begin = "failed to run SQL in group /report/runaway: stopped to free memory for group /report/etl, which needed 5242880 bytes in /report (usage ";
        assert!(text.starts_with(begin) && text.ends_with(" of max 8388608)"), "{text}");
        is_usable(&runaway);
        assert!(tenants.usage_exact() < before + (1 << 20), "its memory is free");
        assert_eq!((runaway.group().events().oom_kill, runaway.group().oom_kills_overdue()), (stopped, 0));
        assert_eq!(outcomes(runaway.group()).last(), Some(&Some(KillOutcome::Died)));
    }
}

#[test]
fn stops_a_running_statement_for_a_waiting_thread() {
    let tenants = tenants("waiting");
    let (runaway, etl) = (connect(&tenants, "runaway"), tenants.create("etl").expect("a group"));
    let runs = AtomicBool::new(false);
    thread::scope(|threads| {
        let runs = &runs;
        let failed = threads.spawn(move || {
            let endless =
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
            let failed = runaway.run(|conn| {
                hold(conn, || {
                    // ORDERING: Relaxed; a flag that carries nothing but itself.
                    runs.store(true, Ordering::Relaxed);
                    let failed =
                        conn.query_row(endless, [], |row| row.get::<_, i64>(0)).expect_err("it has no end");
                    assert_eq!(failed.sqlite_error_code(), Some(ErrorCode::OperationInterrupted));
                })
            });
            (runaway, failed)
        });
        // ORDERING: as above.
        while !runs.load(Ordering::Relaxed) {
            assert!(!failed.is_finished(), "it does not run");
            thread::yield_now();
        }
        let charge = etl
            .charge_until(5 << 20, Instant::now() + Duration::from_secs(60))
            .expect("the memory is free in the end");
        drop(charge);
        let (runaway, failed) = failed.join().expect("it only fails");
        let failed = failed.expect_err("it is stopped");
        assert!(failed.killed().is_some(), "{failed}");
        is_usable(&runaway);
    });
}

#[test]
fn shrinks_an_idle_connection_down_to_its_min() {
    let (dir, tenants) = (tempfile::tempdir().expect("a directory"), tenants("idle reader"));
    let (reader, etl) = (tenants.create("reader").expect("a group"), tenants.create("etl").expect("a group"));
    let conn = TenantConnection::open(&reader, dir.path().join("a.db")).expect("a connection");
    conn.execute_batch(&format!(
        "PRAGMA cache_size = -4000; CREATE TABLE t AS SELECT x FROM {}; SELECT sum(length(x)) FROM t",
        generated(4_000, 1_000)
    ))
    .expect("enough memory");
    // Caches of a group within its `min` are not shrunk.
    reader.set_min(8 << 20).expect("a minimum");
    let before = reader.usage_exact();
    assert!(before > 3 << 20, "{before} bytes are no cache");
    etl.try_charge(6 << 20).expect_err("the cache is within its minimum");
    assert_eq!((reader.usage_exact(), outcomes(&reader)), (before, Vec::new()), "it was shrunk");
    reader.set_min(0).expect("no minimum");
    let charge = etl.try_charge(6 << 20).expect("the cache gives way");
    assert!(reader.usage_exact() < before - (1 << 20) && reader.events().oom_kill == 0);
    drop(charge);
    let sum: i64 =
        conn.query_row("SELECT sum(length(x)) FROM t", [], |row| row.get(0)).expect("it was not stopped");
    assert_eq!(sum, 4_000_000);
}

#[test]
fn does_not_stop_a_small_group_for_a_large_one() {
    let tenants = tenants("small");
    let (giant, small) = (connect(&tenants, "giant"), connect(&tenants, "neighbour"));
    let rows = small.run(|conn| {
        hold_little(conn, || {
            let failed =
                giant.query_row(&sort(40_000, 500), [], |_| Ok(())).expect_err("20 megabytes in eight");
            assert!(failed.out_of_memory().is_some(), "{failed}");
        })
    });
    assert_eq!(rows.expect("it was not stopped"), 1_000);
    assert_eq!((small.group().events().oom_kill, giant.group().events().oom_kill), (0, 0));
}

#[test]
fn does_not_stop_connections_of_the_requesting_group() {
    let tenants = tenants("siblings");
    let first = connect(&tenants, "one");
    let second = connect_to(first.group());
    let rows = first.run(|conn| {
        hold(conn, || {
            let failed = second.query_row(&sort(20_000, 500), [], |_| Ok(())).expect_err("ten megabytes");
            assert!(failed.out_of_memory().is_some(), "{failed}");
        })
    });
    assert_eq!(rows.expect("it is not stopped"), 8_000);
    // For another group both are stopped.
    let etl = tenants.create("etl").expect("a group");
    let failed = first.run(|conn| {
        hold(conn, || {
            let failed = second.run(|conn| {
                need(&etl, 5 << 20);
                conn.query_row("SELECT count(*) FROM t, t, t", [], |row| row.get::<_, i64>(0))
            });
            // A run between two statements may end before it allocates.
            assert!(failed.is_ok() || failed.is_err_and(|failed| failed.killed().is_some()));
        })
    });
    assert!(failed.as_ref().is_err_and(|failed| failed.killed().is_some()), "{failed:?}");
}

#[test]
fn stops_connections_of_different_groups_one_by_one() {
    let tenants = tenants("apart");
    let tenant = tenants.create("tenant").expect("a group");
    let (large, small) = (connect(&tenant, "large"), connect(&tenant, "small"));
    let etl = tenants.create("etl").expect("a group");
    let failed = large.run(|conn| {
        hold(conn, || {
            let rows = small.run(|conn| hold_little(conn, || need(&etl, 5 << 20)));
            assert_eq!(rows.expect("it holds less"), 1_000);
        })
    });
    assert!(failed.as_ref().is_err_and(|failed| failed.killed().is_some()), "{failed:?}");
    assert_eq!((large.group().events().oom_kill, small.group().events().oom_kill), (1, 0));
}

#[test]
fn stops_a_run_at_its_next_allocation() {
    let tenants = tenants("between");
    let (runaway, etl) = (connect(&tenants, "runaway"), tenants.create("etl").expect("a group"));
    runaway
        .execute_batch(&format!("INSERT INTO t SELECT x FROM {}", generated(8_000, 500)))
        .expect("enough memory");
    let failed = runaway.run(|conn| {
        conn.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0))?;
        need(&etl, 5 << 20);
        hold(conn, || ())
    });
    let failed = failed.expect_err("it is stopped");
    assert!(failed.killed().is_some(), "{failed}");
    let rows = runaway.run(|conn| hold(conn, || ()));
    rows.expect_err("not enough memory, with the table")
        .out_of_memory()
        .expect("the next run is not stopped");
}

#[test]
fn rolls_back_a_killed_transaction_that_writes() {
    let (dir, tenants) = (tempfile::tempdir().expect("a directory"), tenants("writing"));
    let (writer, etl) = (tenants.create("writer").expect("a group"), tenants.create("etl").expect("a group"));
    let conn = TenantConnection::open(&writer, dir.path().join("a.db")).expect("a connection");
    conn.execute_batch("PRAGMA cache_size = -6000; CREATE TABLE t (x)").expect("enough memory");
    let insert = format!("INSERT INTO t SELECT x FROM {}", generated(4_000, 1_000));
    let failed = conn.transaction(|transaction| {
        transaction.execute(&insert, [])?;
        need(&etl, 6 << 20);
        transaction.execute(&insert, [])
    });
    let failed = failed.expect_err("it is stopped");
    assert!(failed.killed().is_some_and(|details| details.rolled_back()), "{failed}");
    assert!(failed.to_string().ends_with("; the transaction was rolled back"), "{failed}");
    let rows: u32 =
        conn.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).expect("a small statement");
    assert_eq!(rows, 0);
}

#[test]
fn does_not_stop_the_rollback_after_a_killed_read() {
    let tenants = tenants("reading");
    let (runaway, etl) = (connect(&tenants, "runaway"), tenants.create("etl").expect("a group"));
    // Every allocation is charged to the group, also that of the ROLLBACK.
    without_lookaside(&runaway);
    for _ in 0..3 {
        let failed = runaway.transaction(|transaction| {
            transaction.execute("INSERT INTO t VALUES (2)", [])?;
            hold(transaction, || need(&etl, 5 << 20))
        });
        let failed = failed.expect_err("it is stopped");
        assert!(failed.killed().is_some_and(|details| details.rolled_back()), "{failed}");
        assert!(runaway.run(|conn| Ok(conn.is_autocommit())).expect("no error"), "a transaction is open");
        is_usable(&runaway);
    }
}

#[test]
fn does_not_stop_a_finished_statement_or_the_next_run() {
    let tenants = tenants("finished");
    let (runaway, etl) = (connect(&tenants, "runaway"), tenants.create("etl").expect("a group"));
    let rows = runaway.run(|conn| {
        let mut statement = conn.prepare(&format!("SELECT x FROM {} ORDER BY x", generated(8_000, 500)))?;
        let mut rows = statement.query([])?;
        assert!(rows.next()?.is_some());
        need(&etl, 5 << 20);
        Ok(())
    });
    rows.expect("it wanted one row");
    assert_eq!(runaway.group().events().oom_kill, 1, "it was not killed");
    assert_eq!(runaway.run(|conn| hold(conn, || ())).expect("this run was not killed"), 8_000);
    assert_eq!(outcomes(runaway.group()), [Some(KillOutcome::Died)]);
}

#[test]
fn ends_the_kill_with_the_run_even_if_memory_stays() {
    let tenants = tenants("staying");
    let (runaway, etl) = (connect(&tenants, "runaway"), tenants.create("etl").expect("a group"));
    runaway
        .execute_batch(&format!("INSERT INTO t SELECT x FROM {}", generated(8_000, 500)))
        .expect("enough memory");
    for killed in 1..=3 {
        runaway
            .run(|_| {
                need(&etl, 5 << 20);
                assert_eq!(outcomes(runaway.group()).last(), Some(&None), "it has not ended");
                Ok(())
            })
            .expect("it did nothing");
        assert_eq!(outcomes(runaway.group()), vec![Some(KillOutcome::Died); killed]);
    }
}

#[test]
fn tells_kills_from_interrupts_and_out_of_memory() {
    let tenants = tenants("kinds");
    let (runaway, etl) = (connect(&tenants, "runaway"), tenants.create("etl").expect("a group"));
    let handle = runaway.interrupt_handle();
    let failed = runaway.run(|conn| hold(conn, || handle.interrupt())).expect_err("it is interrupted");
    let code = failed.sqlite_error().and_then(rusqlite::Error::sqlite_error_code);
    assert_eq!(code, Some(ErrorCode::OperationInterrupted), "{failed}");
    let failed = runaway.run(|conn| {
        hold(conn, || need(&etl, 5 << 20)).expect_err("it is stopped");
        let long = format!("SELECT '{}'", "x".repeat(9 << 20));
        conn.query_row(&long, [], |_| Ok(()))
    });
    let failed = failed.expect_err("nine megabytes in eight");
    assert!(failed.out_of_memory().is_some(), "{failed}");
    let failed = runaway.run(|conn| {
        hold(conn, || need(&etl, 5 << 20)).expect_err("it is stopped");
        conn.execute("SELECT nothing FROM nowhere", [])
    });
    assert!(matches!(failed, Err(TenantError::Sqlite { .. })), "{failed:?}");
    is_usable(&runaway);
}

#[test]
fn stops_a_nested_run_with_the_outer_one() {
    let tenants = tenants("within");
    let (runaway, etl) = (connect(&tenants, "runaway"), tenants.create("etl").expect("a group"));
    let failed = runaway.run(|conn| {
        hold(conn, || {
            let inner = runaway.run(|conn| hold_little(conn, || need(&etl, 5 << 20)));
            let inner = inner.expect_err("it is stopped");
            assert!(inner.killed().is_some(), "{inner}");
            assert_eq!(outcomes(runaway.group()).last().copied().flatten(), None, "it has not ended");
        })
    });
    assert!(failed.as_ref().is_err_and(|failed| failed.killed().is_some()), "{failed:?}");
    is_usable(&runaway);
}

#[test]
fn stops_all_groups_of_a_unit() {
    let tenants = tenants("units");
    let tenant = tenants.create("tenant").expect("a group");
    tenant.set_oom_group(true);
    let (large, small) = (connect(&tenant, "large"), connect(&tenant, "small"));
    let etl = tenants.create("etl").expect("a group");
    let failed = large.run(|conn| {
        hold(conn, || {
            let failed = small.run(|conn| hold_little(conn, || need(&etl, 5 << 20)));
            assert!(failed.as_ref().is_err_and(|failed| failed.killed().is_some()), "{failed:?}");
        })
    });
    assert!(failed.as_ref().is_err_and(|failed| failed.killed().is_some()), "{failed:?}");
    let failed = small.run(|conn| {
        hold_little(conn, || {
            let failed =
                large.query_row(&sort(40_000, 500), [], |_| Ok(())).expect_err("20 megabytes in eight");
            assert!(failed.out_of_memory().is_some(), "{failed}");
        })
    });
    let failed = failed.expect_err("it is in the unit");
    let details = failed.killed().unwrap_or_else(|| panic!("{failed}"));
    assert_eq!((details.group(), details.requester()), ("/units/tenant/small", "/units/tenant/large"));
    // Another connection of the requesting group is stopped too.
    let sibling = connect_to(large.group());
    let failed = sibling.run(|conn| {
        hold_little(conn, || {
            large.query_row(&sort(40_000, 500), [], |_| Ok(())).expect_err("20 megabytes in eight");
        })
    });
    assert!(failed.as_ref().is_err_and(|failed| failed.killed().is_some()), "{failed:?}");
    is_usable(&large);
    is_usable(&small);
}

#[test]
fn sets_the_hook_from_first_to_last_connection() {
    let tenants = tenants("hooks");
    let group = tenants.create("group").expect("a group");
    let hook = || group.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Refused);
    for _ in 0..3 {
        let (first, second) = (connect_to(&group), connect_to(&group));
        assert!(matches!(hook(), Err(KillHookError::Exists { .. })));
        drop(first);
        assert!(matches!(hook(), Err(KillHookError::Exists { .. })));
        second.close().expect("nothing uses it");
        drop(hook().expect("no connection has one"));
    }
    // The application's own hook stays, and decides alone.
    let own = hook().expect("no connection has one");
    let conn = connect_to(&group);
    let etl = tenants.create("etl").expect("a group");
    assert_eq!(conn.run(|conn| hold(conn, || need(&etl, 5 << 20))).expect("it is not stopped"), 8_000);
    assert_eq!(outcomes(&group), [Some(KillOutcome::Refused)]);
    drop((conn, own));
}

/// Sets the flag when it is dropped, also by a panic.
struct Over<'f>(&'f AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed; a flag that carries nothing but itself.
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn opens_and_closes_connections_during_kills() {
    let tenants = tenants("closing");
    let (busy, etl) = (tenants.create("busy").expect("a group"), tenants.create("etl").expect("a group"));
    let is_over = AtomicBool::new(false);
    let (killed, refused) = thread::scope(|threads| {
        let killing = threads.spawn(|| {
            // ORDERING: Relaxed; as in `Over`.
            while !is_over.load(Ordering::Relaxed) {
                need(&etl, 8 << 20);
                thread::yield_now();
            }
        });
        let over = Over(&is_over);
        let (mut killed, mut refused, mut round) = (0, 0, 0);
        while round < 400 || (killed == 0 && round < 40_000) {
            round += 1;
            let worked = TenantConnection::open_in_memory(&busy).and_then(|conn| {
                let other = busy.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Refused);
                assert!(
                    matches!(other, Err(KillHookError::Exists { .. })),
                    "round {round}: it cannot be stopped"
                );
                conn.execute_batch(
                    "PRAGMA temp_store = MEMORY; CREATE TABLE t (x); INSERT INTO t VALUES (1)",
                )?;
                conn.query_row(&sort(1_000, 1_000), [], |_| Ok(()))?;
                if round % 2 == 0 { conn.close() } else { Ok(()) }
            });
            match worked {
                Ok(()) => {}
                Err(TenantError::Killed(_)) => killed += 1,
                Err(TenantError::OutOfMemory(_)) => refused += 1,
                Err(failed) => panic!("round {round}: {failed}"),
            }
        }
        drop(over);
        killing.join().expect("it only asks");
        (killed, refused)
    });
    assert!(killed > 0, "nothing was stopped, {refused} refused");
    assert_eq!((busy.usage_exact(), tenants.usage_exact()), (0, 0));
}

#[test]
fn loses_no_row_or_byte_when_tenants_kill_each_other() {
    const TENANTS: usize = 4;
    let (dir, tenants) = (tempfile::tempdir().expect("a directory"), tenants("storm"));
    let etl = tenants.create("etl").expect("a group");
    let killed: usize = thread::scope(|threads| {
        let working: Vec<_> = (0..TENANTS)
            .map(|number| {
                let (dir, tenants) = (dir.path(), &tenants);
                threads.spawn(move || {
                    let group = tenants.create(&format!("{number}")).expect("a group");
                    let conn =
                        TenantConnection::open(&group, dir.join(format!("{number}"))).expect("a connection");
                    let killed = churn(&conn);
                    drop(conn);
                    assert_eq!(group.usage_exact(), 0);
                    killed
                })
            })
            .collect();
        while !working.iter().all(thread::ScopedJoinHandle::is_finished) {
            need(&etl, 6 << 20);
            thread::sleep(Duration::from_millis(1));
        }
        working.into_iter().map(|tenant| tenant.join().expect("its own assertions")).sum()
    });
    assert!(killed > 0);
    assert_eq!(tenants.usage_exact(), 0);
}

/// Runs transactions with a sort each. Returns how many were killed. Checks that exactly the
/// committed rows are there.
fn churn(conn: &TenantConnection) -> usize {
    let retried =
        |sql: &str| while conn.execute_batch(sql).is_err_and(|failed| failed.sqlite_error().is_none()) {};
    retried("PRAGMA temp_store = MEMORY; PRAGMA cache_size = -2000");
    retried("CREATE TABLE IF NOT EXISTS t (x)");
    let (mut rows, mut killed) = (0, 0);
    let insert = format!("INSERT INTO t SELECT x FROM {} ORDER BY x", generated(1_000, 1_000));
    for round in 0..60 {
        let committed = conn.transaction(|transaction| {
            transaction.execute("INSERT INTO t VALUES (?1)", [round])?;
            let more = transaction.execute(&insert, [])?;
            transaction.execute("DELETE FROM t WHERE length(x) = 1000", [])?;
            Ok(more)
        });
        match committed {
            Ok(_) => rows += 1,
            Err(TenantError::Killed(_)) => killed += 1,
            Err(TenantError::OutOfMemory(_)) => {}
            Err(failed) => panic!("round {round}: {failed}"),
        }
        assert!(conn.run(|conn| Ok(conn.is_autocommit())).expect("no error"), "a transaction is open");
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    let count = loop {
        match conn.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0)) {
            Ok(count) => break count,
            Err(failed) => assert!(failed.sqlite_error().is_none() && Instant::now() < deadline, "{failed}"),
        }
    };
    assert_eq!(count, rows);
    killed
}
