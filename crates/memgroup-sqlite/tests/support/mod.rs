//! Shared code of the tests. One process has one SQLite, so the tests of one binary share one
//! hierarchy. Each creates groups of its own.
#![allow(unsafe_code)]
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use memgroup::stats::{io, memory};
use memgroup::{Config, Freshness, Group, Hierarchy, Reach, Statistics};
use memgroup_sqlite::rusqlite::ffi;
use memgroup_sqlite::{TenantConnection, install_unchecked};

/// Rows of a table that no other query touches, generated: `rows` blobs of `bytes` each.
pub(crate) fn generated(rows: u32, bytes: u32) -> String {
    format!(
        "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) \
         SELECT i, randomblob({bytes}) AS x FROM n)"
    )
}

/// A query that holds all generated rows in the sorter, and returns their number.
pub(crate) fn sort(rows: u32, bytes: u32) -> String {
    format!("SELECT count(*) FROM (SELECT x FROM {} ORDER BY x LIMIT -1 OFFSET 0)", generated(rows, bytes))
}

/// A block that may be sent to another thread, as SQLite does with its own.
pub(crate) struct Block(*mut c_void);
// SAFETY: a block of SQLite's allocator belongs to its holder, on any thread.
unsafe impl Send for Block {}

impl Block {
    pub(crate) fn new(bytes: u64) -> Block {
        hierarchy();
        // SAFETY: no precondition.
        Block(unsafe { ffi::sqlite3_malloc64(bytes) })
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn address(&self) -> usize {
        self.0.addr()
    }

    /// Whether the resize succeeded. If not, the block is unchanged.
    pub(crate) fn resize(&mut self, bytes: u64) -> bool {
        // SAFETY: the block is live and ours.
        let moved = unsafe { ffi::sqlite3_realloc64(self.0, bytes) };
        if moved.is_null() {
            return false;
        }
        self.0 = moved;
        true
    }

    pub(crate) fn size(&self) -> u64 {
        // SAFETY: the block is live or null.
        unsafe { ffi::sqlite3_msize(self.0) }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let size = usize::try_from(self.size()).expect("a size");
        // SAFETY: the block is live, ours, and that long; the tests fill it before they read it.
        unsafe { std::slice::from_raw_parts_mut(self.0.cast(), size) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the block is live or null, and not used after this.
        unsafe { ffi::sqlite3_free(self.0) };
    }
}

/// The hierarchy of this process, installed under SQLite.
pub(crate) fn hierarchy() -> &'static Hierarchy {
    static HIERARCHY: OnceLock<Hierarchy> = OnceLock::new();
    HIERARCHY.get_or_init(|| {
        let hierarchy = Hierarchy::new(Config::new()).expect("the default configuration");
        // SAFETY: each test that uses SQLite calls this function first, and the lock of `HIERARCHY`
        // makes others wait.
        unsafe { install_unchecked(&hierarchy, None) }.expect("nothing used SQLite before");
        hierarchy
    })
}

/// A new group under the root.
pub(crate) fn tenant(name: &str) -> Group {
    hierarchy().root().create(name).expect("a name of its own")
}

/// A new group under the root that may hold `bytes`.
pub(crate) fn tenant_with_max(name: &str, bytes: u64) -> Group {
    let group = tenant(name);
    group.set_max(bytes).expect("a limit");
    group
}

/// Removes the connection's lookaside, so that every allocation is charged to the group.
pub(crate) fn without_lookaside(conn: &TenantConnection) {
    let set = conn.run(|conn| {
        let (option, lookaside) = (ffi::SQLITE_DBCONFIG_LOOKASIDE, ptr::null_mut::<c_void>());
        // SAFETY: the handle is used at once, and the connection is open and idle.
        let handle = unsafe { conn.handle() };
        // SAFETY: this option takes a pointer and two ints; no slots means no lookaside.
        let code = unsafe { ffi::sqlite3_db_config(handle, option, lookaside, 0 as c_int, 0 as c_int) };
        assert_eq!(code, ffi::SQLITE_OK);
        Ok(())
    });
    set.expect("no error");
}

/// Statistics of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) read_bytes: i64,
    pub(crate) written_bytes: i64,
    pub(crate) reads: i64,
    pub(crate) writes: i64,
    pub(crate) syncs: i64,
    pub(crate) page_cache_bytes: i64,
    pub(crate) schema_bytes: i64,
    pub(crate) statement_bytes: i64,
    pub(crate) reclaimed_bytes: i64,
}

/// The statistics of `group` now.
pub(crate) fn counted(group: &Group) -> Counted {
    let installed = memgroup_sqlite::installed().expect("a test has installed it");
    let get = |of: &Statistics, stat| of.get(group, stat, Reach::Local, Freshness::Fresh);
    let (files, kinds) = (installed.hierarchy().io(), installed.hierarchy().memory());
    Counted {
        read_bytes: get(&files, io::RBYTES),
        written_bytes: get(&files, io::WBYTES),
        reads: get(&files, io::RIOS),
        writes: get(&files, io::WIOS),
        syncs: get(&files, io::SYNCS),
        page_cache_bytes: get(&kinds, memory::FILE),
        schema_bytes: get(&kinds, memory::SCHEMA),
        statement_bytes: get(&kinds, memory::STATEMENTS),
        reclaimed_bytes: get(&kinds, memory::RECLAIMED),
    }
}

/// The change of `group`'s statistics while `work` runs.
pub(crate) fn counted_during(group: &Group, work: impl FnOnce()) -> Counted {
    let before = counted(group);
    work();
    let after = counted(group);
    Counted {
        read_bytes: after.read_bytes - before.read_bytes,
        written_bytes: after.written_bytes - before.written_bytes,
        reads: after.reads - before.reads,
        writes: after.writes - before.writes,
        syncs: after.syncs - before.syncs,
        page_cache_bytes: after.page_cache_bytes - before.page_cache_bytes,
        schema_bytes: after.schema_bytes - before.schema_bytes,
        statement_bytes: after.statement_bytes - before.statement_bytes,
        reclaimed_bytes: after.reclaimed_bytes - before.reclaimed_bytes,
    }
}
