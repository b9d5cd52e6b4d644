//! What SQLite's adapter tells of a group besides its memory: files read and written, memory by kind, memory released.
//!
//! ```text
//!   vfs ── read, wrote, synced ──▶ the group in force, or the unattributed one
//!   kinds ── kind ───────────────▶ the group of the connection
//! ```
//!
//! Everything here may run inside SQLite, under its mutexes and file locks: it is a few additions, waits for nobody
//! and allocates nothing.
//!
//! - I1. The group in force is taken for one of the installed hierarchy; [`TenantConnection`](crate::TenantConnection)
//!   sees to that, and so has whoever enters a scope himself.
//! - B1. Figures are kept for the groups whose place in the hierarchy is below [`PLACES`], and belong to the place: a
//!   group that is given the place of a released one goes on from its figures.
//!
//! Who synchronises with whom: nobody. The figures are sums, read one by one.

use std::sync::atomic::{AtomicI64, Ordering};

use memgroup::{Group, GroupId, scope};

use crate::alloc::ACCOUNT;

/// Groups that figures are kept for (B1).
const PLACES: usize = 4096;

/// A kind of memory that SQLite can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Pages of all databases of a connection, and what it takes to find them.
    PageCache,
    /// Parsed schemas.
    Schema,
    /// Prepared statements.
    Statements,
}

/// What is kept for one group.
struct Figures {
    read_bytes: AtomicI64,
    written_bytes: AtomicI64,
    reads: AtomicI64,
    writes: AtomicI64,
    syncs: AtomicI64,
    page_cache_bytes: AtomicI64,
    schema_bytes: AtomicI64,
    statement_bytes: AtomicI64,
    reclaimed_bytes: AtomicI64,
}

static FIGURES: [Figures; PLACES] = [const { Figures::new() }; PLACES];

impl Figures {
    const fn new() -> Self {
        Figures {
            read_bytes: AtomicI64::new(0),
            written_bytes: AtomicI64::new(0),
            reads: AtomicI64::new(0),
            writes: AtomicI64::new(0),
            syncs: AtomicI64::new(0),
            page_cache_bytes: AtomicI64::new(0),
            schema_bytes: AtomicI64::new(0),
            statement_bytes: AtomicI64::new(0),
            reclaimed_bytes: AtomicI64::new(0),
        }
    }
}

/// A read of a file that delivered `bytes`.
#[inline]
pub(crate) fn read(bytes: u64) {
    if let Some(figures) = current() {
        add(&figures.read_bytes, bytes as i64);
        add(&figures.reads, 1);
    }
}

/// A write of `bytes` to a file.
#[inline]
pub(crate) fn wrote(bytes: u64) {
    if let Some(figures) = current() {
        add(&figures.written_bytes, bytes as i64);
        add(&figures.writes, 1);
    }
}

/// A file that was synced.
#[inline]
pub(crate) fn synced() {
    if let Some(figures) = current() {
        add(&figures.syncs, 1);
    }
}

/// A group's memory of one kind changed by `delta` bytes.
pub(crate) fn kind(group: &Group, kind: Kind, delta: i64) {
    if let Some(figures) = of(group.id()) {
        let gauge = match kind {
            Kind::PageCache => &figures.page_cache_bytes,
            Kind::Schema => &figures.schema_bytes,
            Kind::Statements => &figures.statement_bytes,
        };
        add(gauge, delta);
    }
}

/// Memory of a group that was released because somebody asked for it.
pub(crate) fn reclaimed(group: &Group, bytes: u64) {
    if let Some(figures) = of(group.id()) {
        add(&figures.reclaimed_bytes, bytes as i64);
    }
}

/// Of the group in force, else of the unattributed one.
#[inline]
fn current() -> Option<&'static Figures> {
    of(scope::current_id().or_else(|| ACCOUNT.get().map(|account| account.unattributed.id()))?)
}

#[inline]
fn of(id: GroupId) -> Option<&'static Figures> {
    FIGURES.get(id.as_u32() as usize)
}

#[inline]
fn add(figure: &AtomicI64, delta: i64) {
    // ORDERING: Relaxed; the figures are sums that order nothing.
    figure.fetch_add(delta, Ordering::Relaxed);
}

/// The figures of one group, read one after the other.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the tests' view, until the engine shows the figures")]
pub struct Counted {
    pub read_bytes: i64,
    pub written_bytes: i64,
    pub reads: i64,
    pub writes: i64,
    pub syncs: i64,
    pub page_cache_bytes: i64,
    pub schema_bytes: i64,
    pub statement_bytes: i64,
    pub reclaimed_bytes: i64,
}

/// What was counted for `group` so far.
#[doc(hidden)]
pub fn counted(group: &Group) -> Counted {
    let Some(figures) = of(group.id()) else { return Counted::default() };
    // ORDERING: Relaxed; as in `add`.
    let get = |figure: &AtomicI64| figure.load(Ordering::Relaxed);
    Counted {
        read_bytes: get(&figures.read_bytes),
        written_bytes: get(&figures.written_bytes),
        reads: get(&figures.reads),
        writes: get(&figures.writes),
        syncs: get(&figures.syncs),
        page_cache_bytes: get(&figures.page_cache_bytes),
        schema_bytes: get(&figures.schema_bytes),
        statement_bytes: get(&figures.statement_bytes),
        reclaimed_bytes: get(&figures.reclaimed_bytes),
    }
}
