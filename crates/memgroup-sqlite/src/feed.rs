//! What SQLite's adapter tells of a group besides its memory: files read and written, memory by kind, memory released.
//!
//! ```text
//!   vfs ── read, wrote, synced ──▶ `io` of the group in force, or of the unattributed one
//!   kinds ── kind ───────────────▶ `memory` of the connection's group
//! ```
//!
//! Everything here may run inside SQLite, under its mutexes and file locks: an addition to a statistic waits for nobody and
//! allocates nothing ([`memgroup::Statistics::add`]).
//!
//! - I1. What is told while no group of the installed hierarchy is in force is the unattributed group's.

use memgroup::Group;
use memgroup::stats::{io, memory};

use crate::alloc::{ACCOUNT, Account};

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

/// A read of a file that delivered `bytes`.
#[inline]
pub(crate) fn read(bytes: u64) {
    add_io(&[(io::RBYTES, bytes), (io::RIOS, 1)]);
}

/// A write of `bytes` to a file.
#[inline]
pub(crate) fn wrote(bytes: u64) {
    add_io(&[(io::WBYTES, bytes), (io::WIOS, 1)]);
}

/// A file that was synced.
#[inline]
pub(crate) fn synced() {
    add_io(&[(io::SYNCS, 1)]);
}

#[inline]
fn add_io(what: &[(usize, u64)]) {
    let Some(Account { io, unattributed, .. }) = ACCOUNT.get() else { return };
    for &(stat, delta) in what {
        if !io.add_current(stat, delta as i64) {
            io.add(unattributed, stat, delta as i64);
        }
    }
}

/// A group's memory of one kind changed by `delta` bytes.
pub(crate) fn kind(group: &Group, kind: Kind, delta: i64) {
    let gauge = match kind {
        Kind::PageCache => memory::FILE,
        Kind::Schema => memory::SCHEMA,
        Kind::Statements => memory::STATEMENTS,
    };
    if let Some(account) = ACCOUNT.get() {
        account.memory.add(group, gauge, delta);
    }
}

/// Memory of a group that was released because somebody asked for it.
pub(crate) fn reclaimed(group: &Group, bytes: u64) {
    if let Some(account) = ACCOUNT.get() {
        account.memory.add(group, memory::RECLAIMS, 1);
        account.memory.add(group, memory::RECLAIMED, bytes as i64);
    }
}
