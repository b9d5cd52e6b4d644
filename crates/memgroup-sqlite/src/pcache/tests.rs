//! Page caches of SQLite's own making, given back to the byte. The unit tests of this crate share one process, hence one SQLite
//! and one hierarchy; each makes groups of its own.

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use memgroup::stats::io;
use memgroup::{Config, Freshness, Group, Hierarchy, Reach, scope};

use super::serve::ABSTAIN;
use super::*;
use crate::{TenantConnection, install};

type Told = Vec<(Arc<PageCache>, Option<GroupId>)>;

/// Remembers the caches that there are.
struct Recorder(Mutex<Told>);

static RECORDER: Recorder = Recorder(Mutex::new(Vec::new()));

impl Recorder {
    fn with<T>(&self, look: impl FnOnce(&mut Told) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Listener for Recorder {
    fn created(&self, cache: &Arc<PageCache>, group: Option<GroupId>) {
        self.with(|told| told.push((Arc::clone(cache), group)));
    }

    fn destroyed(&self, cache: &Arc<PageCache>) {
        self.with(|told| told.retain(|(other, _)| !Arc::ptr_eq(other, cache)));
    }
}

fn hierarchy() -> &'static Hierarchy {
    static HIERARCHY: OnceLock<Hierarchy> = OnceLock::new();
    HIERARCHY.get_or_init(|| {
        let hierarchy = Hierarchy::new(Config::new()).expect("the default configuration");
        assert!(listen(&RECORDER), "nobody else listens");
        install(&hierarchy).expect("nothing used SQLite before");
        hierarchy
    })
}

/// A new group under the root.
pub(super) fn tenant(name: &str) -> Group {
    hierarchy().root().create(name).expect("a name of its own")
}

/// The caches that were made while the group was in force, and are not destroyed.
pub(super) fn caches_of(group: &Group) -> Vec<Arc<PageCache>> {
    RECORDER.with(|told| {
        let of_group = told.iter().filter(|(_, of)| *of == Some(group.id()));
        of_group.map(|(cache, _)| Arc::clone(cache)).collect()
    })
}

/// The cache of the group that could give most.
fn largest(group: &Group) -> Arc<PageCache> {
    caches_of(group).into_iter().max_by_key(|cache| cache.evictable().bytes).expect("a cache")
}

pub(super) fn shrink_all(group: &Group, bytes: u64) -> u64 {
    let shrunk = caches_of(group).into_iter().map(|cache| cache.try_shrink(bytes));
    shrunk.map(|shrunk| if let Shrunk::Freed(bytes) = shrunk { bytes } else { 0 }).sum()
}

thread_local! {
    /// What this thread does when a group has refused it memory, as reclaim would.
    static ON_REFUSAL: Cell<Option<fn()>> = const { Cell::new(None) };
}

/// Called by the allocator of SQLite when it is refused memory.
pub(crate) fn refused() {
    if let Some(reclaim) = ON_REFUSAL.get() {
        reclaim();
    }
}

/// Rows whose keys are their numbers, one to a page: `SELECT .. WHERE id = n` reads a page of the table that no other reads.
fn fill(conn: &TenantConnection, rows: u32) {
    conn.execute_batch(&format!(
        "PRAGMA synchronous = OFF; CREATE TABLE t (id INTEGER PRIMARY KEY, x);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
         INSERT INTO t SELECT i, randomblob(3000) FROM n"
    ))
    .expect("room");
}

fn open(group: &Group, dir: &Path, settings: &str) -> TenantConnection {
    let conn = TenantConnection::open(group, dir.join("a.db")).expect("a connection");
    conn.execute_batch(settings).expect("settings");
    conn
}

/// Reads rows by their keys, and answers with the reads of files that took.
fn reads_of(conn: &TenantConnection, rows: impl Iterator<Item = u32>) -> i64 {
    let reads = || hierarchy().io().get(conn.group(), io::RIOS, Reach::Local, Freshness::Fresh);
    let before = reads();
    for row in rows {
        let id: u32 = conn
            .run(|conn| {
                conn.prepare_cached("SELECT id FROM t WHERE id = ?1")?.query_row([row], |row| row.get(0))
            })
            .expect("a row");
        assert_eq!(id, row);
    }
    reads() - before
}

/// No reads but those of pages, and a cache of 32 megabytes.
const LARGE: &str = "PRAGMA locking_mode = EXCLUSIVE; PRAGMA cache_size = -32000";

#[test]
fn as_many_bytes_as_asked_for_come_back_and_less_than_a_page_more() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("exact"));
    let conn = open(&group, dir.path(), LARGE);
    fill(&conn, 4_500);
    let cache = largest(&group);
    let page_bytes = cache.format.charged_bytes();
    for asked in [64 << 10, 1, page_bytes, page_bytes + 1, 3 << 20] {
        let (could, before_bytes) = (cache.evictable(), group.usage_exact());
        let Shrunk::Freed(freed) = cache.try_shrink(asked) else { panic!("nobody else uses it") };
        assert!((asked..asked + page_bytes).contains(&freed), "{freed} bytes for {asked}");
        assert_eq!(before_bytes - group.usage_exact(), freed);
        assert_eq!(could.bytes - cache.evictable().bytes, freed);
    }
    assert_eq!(cache.try_shrink(0), Shrunk::Freed(0));
    let rest = cache.evictable();
    assert!(rest.bytes > 10 << 20, "{rest:?}");
    assert_eq!(cache.try_shrink(u64::MAX), Shrunk::Freed(rest.bytes));
    assert_eq!(cache.evictable(), Evictable { bytes: 0, pages: 0 });
    assert!(reads_of(&conn, 1..=10) >= 10);
}

#[test]
fn the_least_recently_used_pages_go_first() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("order"));
    let conn = open(&group, dir.path(), LARGE);
    fill(&conn, 1_000);
    conn.release_memory().expect("it is idle");
    assert!(reads_of(&conn, 1..=1_000) >= 1_000);
    assert_eq!(reads_of(&conn, 1..=1_000), 0);
    // Used last: the first hundred rows, and every tenth of the others before them.
    assert_eq!(reads_of(&conn, (101..=1_000).step_by(10).chain(1..=100)), 0);
    let cache = largest(&group);
    let page_bytes = cache.format.charged_bytes();
    assert_eq!(cache.try_shrink(810 * page_bytes), Shrunk::Freed(810 * page_bytes));
    assert_eq!(reads_of(&conn, (101..=1_000).step_by(10).chain(1..=100)), 0, "used last, and gone");
    assert_eq!(
        reads_of(&conn, (1..=1_000).filter(|row| *row > 100 && row % 10 != 1)),
        810,
        "used first, and there"
    );
}

#[test]
fn pages_of_a_statement_that_runs_stay() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("running"));
    let conn = open(&group, dir.path(), LARGE);
    fill(&conn, 500);
    conn.run(|inner| {
        let mut statement =
            inner.prepare("SELECT a.id, b.id FROM t a JOIN t b ON b.id = a.id + 1 ORDER BY a.id")?;
        let (mut rows, mut seen) = (statement.query([])?, 0);
        while let Some(row) = rows.next()? {
            seen += 1;
            assert_eq!((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?), (seen, seen + 1));
            let freed = std::thread::scope(|threads| {
                threads.spawn(|| shrink_all(&group, u64::MAX)).join().expect("nothing to fail")
            });
            assert!(freed > 0, "the row before has been let go");
            assert_eq!(caches_of(&group).iter().map(|cache| cache.evictable().pages).sum::<u32>(), 0);
        }
        assert_eq!(seen, 499);
        Ok(())
    })
    .expect("rows");
}

#[test]
fn pages_that_are_not_written_yet_stay() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("dirty"));
    let conn = open(&group, dir.path(), LARGE);
    fill(&conn, 1_000);
    conn.transaction(|transaction| {
        transaction.execute("UPDATE t SET x = zeroblob(3000)", [])?;
        let before_bytes = group.usage_exact();
        let freed = shrink_all(&group, u64::MAX);
        assert!(before_bytes - freed > 1_000 * 4096, "{freed} of {before_bytes} bytes");
        Ok(())
    })
    .expect("room");
    assert!(shrink_all(&group, u64::MAX) > 1_000 * 4096);
    let zeros: i64 = conn
        .query_row("SELECT count(*) FROM t WHERE x = zeroblob(3000)", [], |row| row.get(0))
        .expect("rows");
    assert_eq!(zeros, 1_000);
}

#[test]
fn databases_in_memory_are_left_alone() {
    let group = tenant("in memory");
    let conn = TenantConnection::open_in_memory(&group).expect("a connection");
    conn.execute_batch("PRAGMA temp_store = MEMORY; CREATE TEMP TABLE s AS SELECT 1").expect("room");
    fill(&conn, 500);
    assert!(caches_of(&group).iter().all(|cache| cache.evictable().pages == 0));
    assert_eq!(shrink_all(&group, u64::MAX), 0);
    assert_eq!(reads_of(&conn, 1..=500), 0);
}

#[test]
fn a_refusal_within_a_fetch_may_shrink_the_same_cache() {
    const NAME: &str = "within";
    static FREED: AtomicU64 = AtomicU64::new(0);
    static REFUSALS: AtomicU64 = AtomicU64::new(0);
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant(NAME));
    let conn = open(&group, dir.path(), LARGE);
    fill(&conn, 2_000);
    conn.release_memory().expect("it is idle");
    group.set_max(group.usage_exact() + (2 << 20)).expect("a limit");
    ON_REFUSAL.set(Some(|| {
        let group = hierarchy().lookup("/within").expect("it is there");
        for cache in caches_of(&group) {
            // ORDERING: Relaxed, here and below; one thread.
            REFUSALS.fetch_add(1, Ordering::Relaxed);
            match cache.try_shrink(64 << 10) {
                // ORDERING: as above.
                Shrunk::Freed(bytes) => drop(FREED.fetch_add(bytes, Ordering::Relaxed)),
                Shrunk::Busy => panic!("the lock is held while memory is asked for"),
            }
        }
    }));
    let reads = reads_of(&conn, (1..=2_000).chain(1..=2_000));
    ON_REFUSAL.set(None);
    assert!(reads >= 4_000, "{reads}");
    // ORDERING: as above.
    let (freed, refusals) = (FREED.load(Ordering::Relaxed), REFUSALS.load(Ordering::Relaxed));
    assert!(refusals > 10 && freed >= refusals * (64 << 10), "{freed} bytes in {refusals} refusals");
}

#[test]
fn a_tenant_at_its_limit_goes_on_with_the_pages_it_has_and_is_seldom_refused() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("full"));
    let conn = open(&group, dir.path(), LARGE);
    fill(&conn, 3_000);
    conn.release_memory().expect("it is idle");
    let max = group.usage_exact() + (1 << 20);
    group.set_max(max).expect("a limit");
    let refusals = group.refusals();
    let reads = reads_of(&conn, (1..=3_000).chain(1..=3_000));
    let refused = group.refusals() - refusals;
    assert!(reads >= 6_000 && refused > 0, "{reads} reads, {refused} refusals");
    assert!(refused <= reads as u64 / u64::from(ABSTAIN) + 4, "{refused} refusals in {reads} reads");
    assert!(group.usage_exact() <= max);
    assert_eq!(reads_of(&conn, 2_900..=3_000), 0, "what was read last is there");
    group.set_max(memgroup::UNLIMITED).expect("no limit");
    reads_of(&conn, 1..=3_000);
    assert!(largest(&group).evictable().pages > 2_900, "it grows where there is room again");
}

#[test]
fn nobody_goes_on_paying_for_what_another_group_reads() {
    let dir = tempfile::tempdir().expect("a directory");
    let (group, guest) = (tenant("host"), tenant("guest"));
    let conn = open(&group, dir.path(), "PRAGMA locking_mode = EXCLUSIVE; PRAGMA cache_size = 200");
    fill(&conn, 1_000);
    conn.release_memory().expect("it is idle");
    reads_of(&conn, 1..=1);
    let total = || group.usage_exact() + guest.usage_exact();
    conn.run(|conn| {
        let _scope = scope::enter(&guest);
        conn.query_row("SELECT count(*) FROM t WHERE length(x) = 3000", [], |row| row.get::<_, i64>(0))
    })
    .expect("rows");
    let before_bytes = total();
    assert!(guest.usage_exact() > 190 * 4096, "{}", guest.usage_exact());
    assert!(reads_of(&conn, 1..=1_000) >= 800);
    assert_eq!(total(), before_bytes);
    assert!(guest.usage_exact() < 20 * 4096, "{}", guest.usage_exact());
}

#[test]
fn the_listener_is_told_of_caches_that_come_and_go() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("told"));
    let conn = open(&group, dir.path(), LARGE);
    fill(&conn, 100);
    assert_eq!(caches_of(&group).len(), 1);
    conn.execute_batch(&format!("ATTACH '{}' AS b; CREATE TABLE b.u (x)", dir.path().join("b.db").display()))
        .expect("room");
    assert_eq!(caches_of(&group).len(), 2);
    let kept = caches_of(&group);
    conn.execute_batch("DETACH b").expect("nothing uses it");
    assert_eq!(caches_of(&group).len(), 1);
    conn.close().expect("nothing uses it");
    assert_eq!(caches_of(&group).len(), 0);
    assert!(kept.iter().all(|cache| cache.try_shrink(u64::MAX) == Shrunk::Freed(0)));
    drop(kept);
    assert_eq!(group.usage_exact(), 0);
}
