//! The page cache against SQLite's own, method by method, and in scans of a table that does not
//! fit.
//!
//! ```text
//! cargo run --release -p memgroup-sqlite --example page_cache [-- --rounds N]
//! ```
//!
//! Both caches allocate through memgroup and take turns, so only the cache differs.
//!
//! - *hit*: a page is fetched and unpinned again, in random order, with this many pages cached.
//! - *miss*: the same, and another page has to be recycled.
//! - *filling*: a new page is created and freed.
//! - *scan*: a statement reads a table ten times as large as the cache; the figure is for a page.
//!   Each cache has a process of its own, because SQLite is configured once.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use memgroup::{Config, Hierarchy, scope};
use memgroup_sqlite::{TenantConnection, install};
use rusqlite::ffi::{self, sqlite3_pcache_methods2 as Methods};

const PAGE_BYTES: c_int = 4096;
const EXTRA_BYTES: c_int = 208;
const CALLS: u32 = 400_000;
const SCANNED_PAGES: u32 = 5_000;
const SCANS: u32 = 10;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let rounds = match args.as_slice() {
        [] => 15,
        ["--rounds", rounds] => rounds.parse()?,
        ["--scan", cache, path] => {
            println!("{}", scan(*cache == "theirs", Path::new(path))?);
            return Ok(());
        }
        _ => return Err("usage: page_cache [--rounds N]".into()),
    };
    let hierarchy = Hierarchy::new(Config::new())?;
    let (theirs, ours) = both(&hierarchy)?;
    let tenant = hierarchy.create("/tenant")?;
    let _scope = scope::enter(&tenant);
    println!("{rounds} rounds, median ns a page: SQLite's own cache, memgroup's cache, median of the ratios");
    for pages in [4, 100, 500, 5_000, 50_000] {
        compare(&format!("hit, {pages} pages"), rounds, |is_theirs| {
            Ok(hits(if is_theirs { &theirs } else { &ours }, pages))
        })?;
    }
    for pages in [500, 5_000] {
        compare(&format!("miss, {pages} pages"), rounds, |is_theirs| {
            Ok(misses(if is_theirs { &theirs } else { &ours }, pages))
        })?;
        compare(&format!("filling, {pages} pages"), rounds, |is_theirs| {
            Ok(fillings(if is_theirs { &theirs } else { &ours }, pages))
        })?;
    }
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("a.db");
    fill(&path)?;
    compare(&format!("scan, {SCANNED_PAGES} pages"), rounds, |is_theirs| scan_in_child(is_theirs, &path))
}

/// SQLite's own methods, and those of memgroup.
fn both(hierarchy: &Hierarchy) -> Result<(Methods, Methods), Failure> {
    let theirs = current()?;
    install(hierarchy)?;
    // SQLite returns the current table only while it is not initialised.
    // SAFETY: nothing is open.
    succeeded("shut SQLite down", unsafe { ffi::sqlite3_shutdown() })?;
    let ours = current()?;
    // SAFETY: no precondition.
    succeeded("initialise SQLite", unsafe { ffi::sqlite3_initialize() })?;
    let init = theirs.xInit.ok_or("SQLite's own page cache has no xInit")?;
    // SAFETY: it is initialised once, with its own argument.
    succeeded("initialise SQLite's own page cache", unsafe { init(theirs.pArg) })?;
    Ok((theirs, ours))
}

fn current() -> Result<Methods, Failure> {
    let mut methods = std::mem::MaybeUninit::<Methods>::uninit();
    // SAFETY: this option fills a table of methods.
    let code = unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_GETPCACHE2, methods.as_mut_ptr()) };
    succeeded("read the current page cache", code)?;
    // SAFETY: SQLite has filled it.
    Ok(unsafe { methods.assume_init() })
}

fn succeeded(action: &str, code: c_int) -> Result<(), Failure> {
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(format!("failed to {action}: code {code}").into()) }
}

/// Measures both in turn, SQLite's own where the argument is true, round after round; prints
/// medians and the median ratio.
fn compare(name: &str, rounds: usize, measure: impl Fn(bool) -> Result<f64, Failure>) -> Result<(), Failure> {
    let (mut of_theirs, mut of_ours) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        for is_theirs in [round % 2 == 0, round % 2 != 0] {
            let sample = measure(is_theirs)?;
            if is_theirs { of_theirs.push(sample) } else { of_ours.push(sample) }
        }
    }
    let ratios = of_ours.iter().zip(&of_theirs).map(|(ours, theirs)| ours / theirs).collect();
    println!("{name:<22}{:>9.1}{:>9.1}{:>9.3}", median(of_theirs), median(of_ours), median(ratios));
    Ok(())
}

fn median(mut sample: Vec<f64>) -> f64 {
    sample.sort_by(f64::total_cmp);
    sample[sample.len() / 2]
}

/// A cache of one of the two.
struct Cache<'m> {
    methods: &'m Methods,
    handle: *mut ffi::sqlite3_pcache,
}

impl<'m> Cache<'m> {
    fn new(methods: &'m Methods, pages: u32) -> Self {
        let (create, advise) = (methods.xCreate.expect("a method"), methods.xCachesize.expect("a method"));
        // SAFETY: SQLite is initialised.
        let handle = unsafe { create(PAGE_BYTES, EXTRA_BYTES, 1) };
        assert!(!handle.is_null(), "no limit is set");
        // SAFETY: the cache is live.
        unsafe { advise(handle, pages as c_int) };
        Cache { methods, handle }
    }

    /// The calls that SQLite makes for a page: fetches it, writes its extra bytes, and unpins it.
    #[inline]
    fn touch(&self, key: u32) {
        let (fetch, unpin) = (self.methods.xFetch.expect("a method"), self.methods.xUnpin.expect("a method"));
        // SAFETY: the cache is live.
        let page = unsafe { fetch(self.handle, key, 2) };
        assert!(!page.is_null(), "no limit is set");
        // SAFETY: the page is pinned.
        let extra = unsafe { (*page).pExtra }.cast::<u64>();
        // SAFETY: the extra bytes are longer than a word, and ours while the page is pinned.
        unsafe { extra.write(black_box(1)) };
        // SAFETY: the page is pinned.
        unsafe { unpin(self.handle, page, 0) };
    }
}

impl Drop for Cache<'_> {
    fn drop(&mut self) {
        // SAFETY: the cache is live, and not used any more.
        unsafe { self.methods.xDestroy.expect("a method")(self.handle) };
    }
}

fn timed(calls: u32, mut call: impl FnMut()) -> f64 {
    let started = Instant::now();
    for _ in 0..calls {
        call();
    }
    started.elapsed().as_nanos() as f64 / f64::from(calls)
}

fn hits(methods: &Methods, pages: u32) -> f64 {
    let cache = Cache::new(methods, pages + 100);
    (1..=pages).for_each(|key| cache.touch(key));
    let mut state = 1_u64;
    timed(CALLS, || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        cache.touch(1 + ((state >> 33) % u64::from(pages)) as u32);
    })
}

fn misses(methods: &Methods, pages: u32) -> f64 {
    let cache = Cache::new(methods, pages);
    (1..=pages).for_each(|key| cache.touch(key));
    let mut key = pages;
    timed(CALLS, || {
        key += 1;
        cache.touch(key);
    })
}

fn fillings(methods: &Methods, pages: u32) -> f64 {
    let started = Instant::now();
    let rounds = (CALLS / 10).div_ceil(pages);
    for _ in 0..rounds {
        let cache = Cache::new(methods, pages + 100);
        (1..=pages).for_each(|key| cache.touch(key));
    }
    started.elapsed().as_nanos() as f64 / f64::from(rounds * pages)
}

/// A table with a row on each page.
fn fill(path: &Path) -> Result<(), Failure> {
    let hierarchy = memgroup_sqlite::installed().ok_or("memgroup is installed")?.hierarchy().clone();
    let conn = TenantConnection::open(&hierarchy.create("/filling")?, path)?;
    conn.execute_batch(&format!(
        "PRAGMA synchronous = OFF; CREATE TABLE t (x);
         INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {SCANNED_PAGES})
             SELECT randomblob(3000) FROM n"
    ))?;
    Ok(())
}

fn scan_in_child(is_theirs: bool, path: &Path) -> Result<f64, Failure> {
    let cache = if is_theirs { "theirs" } else { "ours" };
    let output = Command::new(std::env::current_exe()?).args(["--scan", cache]).arg(path).output()?;
    if !output.status.success() {
        return Err(format!("{cache}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// In the child: nanoseconds a page.
fn scan(is_theirs: bool, path: &Path) -> Result<f64, Failure> {
    let hierarchy = Hierarchy::new(Config::new())?;
    let mut theirs = current()?;
    install(&hierarchy)?;
    // Both children do this, so that they differ in the cache alone.
    // SAFETY: nothing is open.
    succeeded("shut SQLite down", unsafe { ffi::sqlite3_shutdown() })?;
    if is_theirs {
        // SAFETY: SQLite is not initialised, and copies the table.
        let code = unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_PCACHE2, &raw mut theirs) };
        succeeded("put SQLite's own page cache back", code)?;
    }
    install(&hierarchy)?;
    let conn = TenantConnection::open(&hierarchy.create("/tenant")?, path)?;
    conn.execute_batch(&format!("PRAGMA cache_size = {}", SCANNED_PAGES / 10))?;
    let scan = || conn.query_row("SELECT count(*) FROM t WHERE x IS NULL", [], |row| row.get::<_, i64>(0));
    scan()?;
    let started = Instant::now();
    for _ in 0..SCANS {
        scan()?;
    }
    Ok(started.elapsed().as_nanos() as f64 / f64::from(SCANS * SCANNED_PAGES))
}
