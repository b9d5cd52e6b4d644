//! A statement whose memory others need more is stopped, says so, and nothing else happens to anybody.

#![allow(unsafe_code)]

mod process;

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memgroup::{Group, HookError, KillOutcome, Killed, Killing};
use memgroup_sqlite::rusqlite::{self, Connection, ErrorCode, Rows, ffi};
use memgroup_sqlite::{TenantConnection, TenantError};
use process::{generated, hierarchy, sort, tenant_with_max};

/// What a test has: a group with eight megabytes, in which everybody else is.
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
        .expect("room");
    conn
}

/// Needs so much in `group` that somebody has to stop. What it gets is given back.
fn need(group: &Group, bytes: u64) {
    drop(group.try_charge(bytes));
}

/// Holds four megabytes, has `meanwhile` done, and goes on to the last row.
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

/// Takes the connection's lookaside away, so that every allocation asks the group.
fn without_lookaside(conn: &TenantConnection) {
    let set = conn.run(|conn| {
        // SAFETY: the handle is used at once, and the connection is open and idle.
        let handle = unsafe { conn.handle() };
        let lookaside = ptr::null_mut::<c_void>();
        // SAFETY: this option takes a pointer and two ints; no slots means no lookaside.
        let code = unsafe {
            ffi::sqlite3_db_config(handle, ffi::SQLITE_DBCONFIG_LOOKASIDE, lookaside, 0 as c_int, 0 as c_int)
        };
        assert_eq!(code, ffi::SQLITE_OK);
        Ok(())
    });
    set.expect("nothing to fail");
}

/// How kills of a group ended.
fn outcomes(group: &Group) -> Vec<Option<KillOutcome>> {
    let reports = hierarchy().kills();
    let of_group = reports.iter().filter(|report| report.victim == group.path());
    of_group.map(|report| report.outcome).collect()
}

#[test]
fn a_statement_that_is_stopped_says_for_whom_and_the_connection_goes_on() {
    let tenants = tenants("told");
    let (runaway, etl) = (connect(&tenants, "runaway"), tenants.create("etl").expect("a group"));
    for stopped in 1..=3 {
        let before = tenants.usage_exact();
        let failed = runaway.run(|conn| hold(conn, || need(&etl, 5 << 20))).expect_err("it is stopped");
        let details = failed.killed().unwrap_or_else(|| panic!("{failed}"));
        assert_eq!(
            (details.group(), details.requester(), details.full()),
            ("/told/runaway", "/told/etl", "/told")
        );
        assert_eq!((details.asked(), details.max()), (5 << 20, 8 << 20));
        assert!(details.usage() > 4 << 20 && details.usage() <= 8 << 20 && !details.rolled_back());
        let text = failed.to_string();
        let told = "failed to run SQL in group /told/runaway: stopped to free memory for group /told/etl, which needed 5242880 bytes in /told (usage ";
        assert!(text.starts_with(told) && text.ends_with(" of max 8388608)"), "{text}");
        is_usable(&runaway);
        assert!(tenants.usage_exact() < before + (1 << 20), "its memory is free");
        assert_eq!((runaway.group().events().oom_kill, runaway.group().oom_kills_overdue()), (stopped, 0));
        assert_eq!(outcomes(runaway.group()).last(), Some(&Some(KillOutcome::Died)));
    }
}

#[test]
fn a_running_statement_is_stopped_for_another_thread_that_waits() {
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
        let charge =
            etl.charge_until(5 << 20, Instant::now() + Duration::from_secs(60)).expect("it gets its room");
        drop(charge);
        let (runaway, failed) = failed.join().expect("it only fails");
        let failed = failed.expect_err("it is stopped");
        assert!(failed.killed().is_some(), "{failed}");
        is_usable(&runaway);
    });
}

#[test]
fn an_idle_connection_is_shrunk_and_not_stopped_and_what_is_within_its_min_is_left_to_it() {
    let (dir, tenants) = (tempfile::tempdir().expect("a directory"), tenants("idle"));
    let (reader, etl) = (tenants.create("reader").expect("a group"), tenants.create("etl").expect("a group"));
    let conn = TenantConnection::open(&reader, dir.path().join("a.db")).expect("a connection");
    conn.execute_batch(&format!(
        "PRAGMA cache_size = -4000; CREATE TABLE t AS SELECT x FROM {}; SELECT sum(length(x)) FROM t",
        generated(4_000, 1_000)
    ))
    .expect("room");
    // Caches of a group within its minimum are not asked.
    reader.set_min(8 << 20).expect("a minimum");
    let before = reader.usage_exact();
    assert!(before > 3 << 20, "{before} bytes are no cache");
    etl.try_charge(6 << 20).expect_err("the cache is within its minimum");
    assert_eq!((reader.usage_exact(), outcomes(&reader)), (before, Vec::new()), "nobody asked");
    reader.set_min(0).expect("no minimum");
    let charge = etl.try_charge(6 << 20).expect("the cache gives way");
    assert!(reader.usage_exact() < before - (1 << 20) && reader.events().oom_kill == 0);
    drop(charge);
    let sum: i64 =
        conn.query_row("SELECT sum(length(x)) FROM t", [], |row| row.get(0)).expect("nobody has stopped it");
    assert_eq!(sum, 4_000_000);
}

#[test]
fn the_small_neighbour_of_a_giant_is_not_stopped_for_it() {
    let tenants = tenants("small");
    let (giant, small) = (connect(&tenants, "giant"), connect(&tenants, "neighbour"));
    let rows = small.run(|conn| {
        hold_little(conn, || {
            let failed =
                giant.query_row(&sort(40_000, 500), [], |_| Ok(())).expect_err("20 megabytes in eight");
            assert!(failed.out_of_memory().is_some(), "{failed}");
        })
    });
    assert_eq!(rows.expect("it has nothing to do with it"), 1_000);
    assert_eq!((small.group().events().oom_kill, giant.group().events().oom_kill), (0, 0));
}

#[test]
fn a_connection_that_is_out_of_memory_stops_no_other_of_its_group() {
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
    // For another group both are.
    let etl = tenants.create("etl").expect("a group");
    let failed = first.run(|conn| {
        hold(conn, || {
            let failed = second.run(|conn| {
                need(&etl, 5 << 20);
                conn.query_row("SELECT count(*) FROM t, t, t", [], |row| row.get::<_, i64>(0))
            });
            // What was between two statements has nothing to lose.
            assert!(failed.is_ok() || failed.is_err_and(|failed| failed.killed().is_some()));
        })
    });
    assert!(failed.as_ref().is_err_and(|failed| failed.killed().is_some()), "{failed:?}");
}

#[test]
fn connections_with_groups_of_their_own_are_stopped_one_by_one() {
    let tenants = tenants("apart");
    let tenant = tenants.create("tenant").expect("a group");
    let (large, small) = (connect(&tenant, "large"), connect(&tenant, "small"));
    let etl = tenants.create("etl").expect("a group");
    let failed = large.run(|conn| {
        hold(conn, || {
            let rows = small.run(|conn| hold_little(conn, || need(&etl, 5 << 20)));
            assert_eq!(rows.expect("it has least to lose"), 1_000);
        })
    });
    assert!(failed.as_ref().is_err_and(|failed| failed.killed().is_some()), "{failed:?}");
    assert_eq!((large.group().events().oom_kill, small.group().events().oom_kill), (1, 0));
}

#[test]
fn a_use_that_was_told_between_two_statements_is_stopped_in_the_next_that_takes_memory() {
    let tenants = tenants("between");
    let (runaway, etl) = (connect(&tenants, "runaway"), tenants.create("etl").expect("a group"));
    runaway.execute_batch(&format!("INSERT INTO t SELECT x FROM {}", generated(8_000, 500))).expect("room");
    let failed = runaway.run(|conn| {
        conn.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0))?;
        need(&etl, 5 << 20);
        hold(conn, || ())
    });
    let failed = failed.expect_err("it is stopped");
    assert!(failed.killed().is_some(), "{failed}");
    let rows = runaway.run(|conn| hold(conn, || ()));
    rows.expect_err("no room, with the table").out_of_memory().expect("and nobody stops the next use");
}

#[test]
fn a_writing_transaction_that_is_stopped_is_rolled_back_and_says_so() {
    let (dir, tenants) = (tempfile::tempdir().expect("a directory"), tenants("writing"));
    let (writer, etl) = (tenants.create("writer").expect("a group"), tenants.create("etl").expect("a group"));
    let conn = TenantConnection::open(&writer, dir.path().join("a.db")).expect("a connection");
    conn.execute_batch("PRAGMA cache_size = -6000; CREATE TABLE t (x)").expect("room");
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
fn the_rollback_after_a_reading_statement_that_was_stopped_is_not_stopped() {
    let tenants = tenants("reading");
    let (runaway, etl) = (connect(&tenants, "runaway"), tenants.create("etl").expect("a group"));
    // Every allocation asks the group: that of the ROLLBACK, too.
    without_lookaside(&runaway);
    for _ in 0..3 {
        let failed = runaway.transaction(|transaction| {
            transaction.execute("INSERT INTO t VALUES (2)", [])?;
            hold(transaction, || need(&etl, 5 << 20))
        });
        let failed = failed.expect_err("it is stopped");
        assert!(failed.killed().is_some_and(|details| details.rolled_back()), "{failed}");
        assert!(
            runaway.run(|conn| Ok(conn.is_autocommit())).expect("nothing to fail"),
            "a transaction is open"
        );
        is_usable(&runaway);
    }
}

#[test]
fn a_statement_that_has_finished_succeeds_and_the_next_use_is_not_stopped() {
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
    assert_eq!(runaway.group().events().oom_kill, 1, "nobody has told it");
    assert_eq!(runaway.run(|conn| hold(conn, || ())).expect("nobody has told this one"), 8_000);
    assert_eq!(outcomes(runaway.group()), [Some(KillOutcome::Died)]);
}

#[test]
fn a_kill_has_ended_with_the_use_also_where_its_memory_stays() {
    let tenants = tenants("staying");
    let (runaway, etl) = (connect(&tenants, "runaway"), tenants.create("etl").expect("a group"));
    runaway.execute_batch(&format!("INSERT INTO t SELECT x FROM {}", generated(8_000, 500))).expect("room");
    for told in 1..=3 {
        runaway
            .run(|_| {
                need(&etl, 5 << 20);
                assert_eq!(outcomes(runaway.group()).last(), Some(&None), "it is on");
                Ok(())
            })
            .expect("it did nothing");
        assert_eq!(outcomes(runaway.group()), vec![Some(KillOutcome::Died); told]);
    }
}

#[test]
fn out_of_memory_and_interrupts_of_the_application_are_told_apart_from_kills() {
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
fn a_use_within_another_of_the_same_connection_is_a_part_of_it() {
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
fn a_tenant_that_dies_as_a_whole_is_stopped_in_all_its_groups_also_by_its_own_hand() {
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
    let failed = failed.expect_err("it is a part of the tenant");
    let details = failed.killed().unwrap_or_else(|| panic!("{failed}"));
    assert_eq!((details.group(), details.requester()), ("/units/tenant/small", "/units/tenant/large"));
    // Another connection of the group that asks is a part of it, too.
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
fn a_hook_comes_with_the_first_connection_and_goes_with_the_last() {
    let tenants = tenants("hooks");
    let group = tenants.create("group").expect("a group");
    let hook = || group.set_kill_hook(|_: &Killing<'_>| Killed::Refused);
    for _ in 0..3 {
        let (first, second) = (connect_to(&group), connect_to(&group));
        assert!(matches!(hook(), Err(HookError::Exists { .. })));
        drop(first);
        assert!(matches!(hook(), Err(HookError::Exists { .. })));
        second.close().expect("nothing uses it");
        drop(hook().expect("no connection has one"));
    }
    // The application's own stays, and is asked alone.
    let own = hook().expect("no connection has one");
    let conn = connect_to(&group);
    let etl = tenants.create("etl").expect("a group");
    assert_eq!(conn.run(|conn| hold(conn, || need(&etl, 5 << 20))).expect("it is not stopped"), 8_000);
    assert_eq!(outcomes(&group), [Some(KillOutcome::Refused)]);
    drop((conn, own));
}

/// Ends the others when it goes, also with a panic.
struct Over<'f>(&'f AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed; a flag that carries nothing but itself.
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn closing_and_opening_under_kills_loses_nothing() {
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
                let other = busy.set_kill_hook(|_: &Killing<'_>| Killed::Refused);
                assert!(
                    matches!(other, Err(HookError::Exists { .. })),
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
fn tenants_that_stop_one_another_on_all_threads_lose_no_row_and_no_byte() {
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

/// Transactions of some rows each, with a sort in them; how many were stopped. What was said to be committed is there, and nothing else.
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
        assert!(conn.run(|conn| Ok(conn.is_autocommit())).expect("nothing to fail"), "a transaction is open");
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
