//! After all connections are closed, every group has its initial usage.

mod support;

use memgroup::scope;
use memgroup_sqlite::{TenantConnection, installed};
use rusqlite::Connection;
use support::{generated, hierarchy, sort, tenant_with_max};

/// The work of one thread: connections of several tenants, within and beyond their limits. Some are
/// passed to the closing thread.
fn work(seed: u64, tenants: &[memgroup::Group], dir: &std::path::Path, hand: &dyn Fn(TenantConnection)) {
    let mut state = seed;
    let mut next = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    for round in 0..12 {
        let group = &tenants[next(tenants.len() as u64) as usize];
        let path = dir.join(format!("{seed}-{round}.db"));
        let opened = TenantConnection::open(group, path).and_then(|conn| {
            conn.execute_batch(
                "PRAGMA temp_store = MEMORY; PRAGMA synchronous = OFF; CREATE TABLE t (id INTEGER PRIMARY KEY, x)",
            )?;
            Ok(conn)
        });
        let conn = match opened {
            Ok(conn) => conn,
            // Other threads' connections of the same tenant may have filled it.
            Err(error) => {
                assert!(error.out_of_memory().is_some(), "seed {seed}, round {round}: {error}");
                continue;
            }
        };
        for _ in 0..next(6) {
            let rows = 20 + next(4_000) as u32;
            let outcome = match next(3) {
                0 => conn
                    .execute(&format!("INSERT INTO t (x) SELECT x FROM {}", generated(rows, 300)), [])
                    .map(drop),
                1 => conn.query_row(&sort(rows, 1_000), [], |_| Ok(())),
                _ => conn.transaction(|transaction| {
                    transaction.execute("INSERT INTO t (x) VALUES (1)", [])?;
                    transaction.query_row(&sort(rows, 1_000), [], |_| Ok(()))
                }),
            };
            if let Err(error) = outcome {
                assert!(error.out_of_memory().is_some(), "seed {seed}, round {round}: {error}");
            }
        }
        match next(3) {
            0 => hand(conn),
            1 => conn.close().expect("nothing uses it"),
            _ => drop(conn),
        }
    }
}

#[test]
fn returns_every_byte_to_every_group() {
    let dir = tempfile::tempdir().expect("a directory");
    let unattributed = installed_group();
    let initial_bytes = unattributed.usage_exact();
    let tenants: Vec<_> = (0..5).map(|index| tenant_with_max(&format!("tenant{index}"), 2 << 20)).collect();
    let outside = Connection::open(dir.path().join("outside.db")).expect("a plain connection");
    outside.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1)").expect("no limit");
    assert!(unattributed.usage_exact() > initial_bytes, "a plain connection was not charged");

    let (sender, receiver) = std::sync::mpsc::channel::<TenantConnection>();
    std::thread::scope(|threads| {
        for seed in [1, 2, 3] {
            let (sender, tenants, dir) = (sender.clone(), &tenants, dir.path());
            threads.spawn(move || {
                work(seed, tenants, dir, &|conn| sender.send(conn).expect("the closer lives"))
            });
        }
        drop(sender);
        let closer = &tenants[0];
        threads.spawn(move || {
            let _scope = scope::enter(closer);
            receiver.into_iter().for_each(drop);
        });
    });
    for group in &tenants {
        assert_eq!(group.usage_exact(), 0, "{}", group.path());
        assert!(group.peak() <= 2 << 20, "{} peaked at {}", group.path(), group.peak());
    }
    assert!(tenants.iter().any(|group| group.refusals() > 0), "no tenant met its limit");
    drop(outside);
    assert_eq!(unattributed.usage_exact(), initial_bytes);
    assert_eq!(hierarchy().root().usage_exact(), initial_bytes);
}

fn installed_group() -> memgroup::Group {
    hierarchy();
    installed().expect("installed").unattributed().clone()
}
