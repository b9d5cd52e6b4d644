//! A kill hook may run inside an allocator, so it allocates nothing. This process counts Rust's
//! allocations.

#![allow(unsafe_code)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use memgroup::{Group, KillOutcome};
use memgroup_sqlite::TenantConnection;
use support::{generated, hierarchy, tenant_with_max};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with a count of each thread's calls.
struct Counting;

// SAFETY: forwards to the system's allocator; the count is a plain cell without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of allocations of a charge on this thread, successful or not.
fn allocations(group: &Group, bytes: u64) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    let charge = group.try_charge(bytes);
    let allocated = ALLOCATIONS.with(Cell::get) - before;
    drop(charge);
    allocated
}

fn outcome(group: &Group) -> Option<KillOutcome> {
    let reports = hierarchy().kills();
    reports.iter().rev().find(|report| report.victim == group.path()).and_then(|report| report.outcome)
}

#[test]
fn allocates_nothing_to_kill_or_to_shrink_idle_caches() {
    hierarchy();
    let (dir, tenants) = (tempfile::tempdir().expect("a directory"), tenant_with_max("quiet", 8 << 20));
    let (group, etl) = (tenants.create("group").expect("a group"), tenants.create("etl").expect("a group"));
    let conn = TenantConnection::open(&group, dir.path().join("a.db")).expect("a connection");
    let table =
        format!("PRAGMA cache_size = -4000; CREATE TABLE t AS SELECT x FROM {}", generated(4_000, 1_000));
    conn.execute_batch(&table).expect("enough memory");
    // No shrinker can free this, so the hook is called after the caches have freed all their pages.
    let held = group.try_charge(3 << 20).expect("enough memory");
    // The first round shows that a hierarchy's first kill allocates nothing either.
    for round in 0..3 {
        conn.run(|_| {
            assert_eq!(allocations(&etl, 6 << 20), 0, "a kill in round {round}");
            Ok(())
        })
        .expect("it runs no statement");
        assert_eq!(outcome(&group), Some(KillOutcome::Died));
        conn.query_row("SELECT sum(length(x)) FROM t", [], |row| row.get::<_, i64>(0))
            .expect("enough memory");
        assert_eq!(allocations(&etl, 6 << 20), 0, "shrinking idle caches in round {round}");
        assert!(matches!(outcome(&group), Some(KillOutcome::Idle { .. })));
        conn.query_row("SELECT sum(length(x)) FROM t", [], |row| row.get::<_, i64>(0))
            .expect("enough memory");
    }
    drop(held);
}
