//! The account: the installed hierarchy, the group charged by default, and the statistics that this
//! crate adds to.
//!
//! ```text
//!   alloc, pcache ── charge ────────▶ the current group, or the unattributed one
//!   vfs ──────────── count_io ──────▶ `io` statistics of the same group
//!   gauges, tenant ─ memory.add ────▶ `memory` statistics of the connection's group
//! ```
//!
//! The *current group* is the group of the innermost scope on this thread ([`memgroup::scope`]), if
//! the scope belongs to the installed hierarchy.
//!
//! - I1. Without a current group, memory and I/O are counted for the unattributed group.
//! - I2. `count_io` may run inside SQLite, under its mutexes and file locks. It only adds to a
//!   statistic ([`memgroup::Statistics::add`]).

use std::sync::OnceLock;

use memgroup::{Charge, ChargeError, Group, Hierarchy, StatKey, Statistics};

/// The account of this process. [`install`](crate::install) sets it once, before SQLite can
/// allocate.
pub(crate) static ACCOUNT: OnceLock<Account> = OnceLock::new();

/// The hierarchy of all owners of memory, and the group charged when no group is current.
pub(crate) struct Account {
    pub(crate) hierarchy: Hierarchy,
    pub(crate) unattributed: Group,
    pub(crate) memory: Statistics,
    io: Statistics,
}

impl Account {
    pub(crate) fn new(hierarchy: &Hierarchy, unattributed: &Group) -> Account {
        Account {
            hierarchy: hierarchy.clone(),
            unattributed: unattributed.clone(),
            memory: hierarchy.memory(),
            io: hierarchy.io(),
        }
    }

    /// Charges `bytes` to the current group, or to the unattributed one (I1).
    #[inline]
    pub(crate) fn charge(&self, bytes: u64) -> Result<Charge, ChargeError> {
        match self.hierarchy.try_charge_current(bytes) {
            Some(charged) => charged,
            None => self.unattributed.try_charge(bytes),
        }
    }
}

/// Adds to `io` statistics of the current group, or of the unattributed one (I1).
#[inline]
pub(crate) fn count_io(deltas: &[(StatKey, u64)]) {
    let Some(Account { io, unattributed, .. }) = ACCOUNT.get() else { return };
    for &(key, delta) in deltas {
        if !io.add_current(key, delta as i64) {
            io.add(unattributed, key, delta as i64);
        }
    }
}

/// Returns whether `group` belongs to `hierarchy`.
pub(crate) fn belongs(hierarchy: &Hierarchy, group: &Group) -> bool {
    std::iter::successors(Some(group.clone()), Group::parent).last() == Some(hierarchy.root())
}
