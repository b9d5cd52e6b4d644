//! Tables: the statistics of all subsystems in all groups of a snapshot.
//!
//! - I1. The values of one subsystem are those of one moment, in all groups: while they are copied no flush and no release goes on.
//! - I2. A subsystem is flushed once, those that share one tree of updates once together; room is made before.

use memgroup_sync::grace;

use super::listing::Listed;
use crate::node::Node;
use crate::rstat::builtin::{MEMORY, memory};
use crate::rstat::{Reach, Stat, StatKind, Store, Subsystem, flush, text};
use crate::stock::StockStats;

/// One subsystem. For each group its own values, then those with what is below it.
#[derive(Debug, PartialEq)]
pub(super) struct Table {
    subsystem: Subsystem,
    number: usize,
    values: Vec<i64>,
}

/// The statistics of one subsystem in one group of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct SubsystemSnapshot<'s> {
    /// The subsystem's name.
    pub name: &'static str,
    /// Its statistics, in the order of the values.
    pub stats: &'static [Stat],
    /// The group's own values. Times are in microseconds.
    pub local: &'s [i64],
    /// The values with all that is and was below the group: what the files show.
    pub hierarchical: &'s [i64],
    number: usize,
}

impl SubsystemSnapshot<'_> {
    /// As cgroup v2's files have it, with all that is and was below the group.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy, stats};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// hierarchy.io().add(&hierarchy.root(), stats::io::RIOS, 2);
    /// let snapshot = hierarchy.snapshot();
    /// let io = snapshot.groups[0].subsystem("io").unwrap();
    /// assert_eq!(io.text(), "all rbytes=0 wbytes=0 rios=2 wios=0 syncs=0\n");
    /// ```
    #[must_use]
    pub fn text(&self) -> String {
        text::render(self.number, self.stats, self.hierarchical)
    }
}

/// The statistics of `groups`, all of which are `top` or below it.
pub(super) fn read(top: &'static Node, groups: &[Listed]) -> Vec<Table> {
    let mut flushed: Vec<&Store> = Vec::new();
    let stores = top.shared.statistics.registered();
    let read = |store: &'static Store| {
        let subsystem = store.subsystem();
        let stats = subsystem.stats.len();
        let mut values = vec![0; groups.len() * 2 * stats];
        let mut copy = || {
            for (listed, row) in groups.iter().zip(values.chunks_exact_mut(2 * stats)) {
                let (local, subtree) = row.split_at_mut(stats);
                let section = grace::enter();
                let side = listed.group.node().entry(store).side(&section);
                side.copy(Reach::Local, local);
                side.copy(Reach::Subtree, subtree);
            }
        };
        if flushed.iter().any(|other| std::ptr::eq(other.updates, store.updates)) {
            flush::hold_still(store, top.shared, |_| copy());
        } else {
            flush::flush(store, top, |_| copy());
            flushed.push(store);
        }
        to_units(&subsystem, &mut values);
        Table { subsystem, number: store.number, values }
    };
    stores.into_iter().map(read).collect()
}

/// Times are kept in nanoseconds and read in microseconds.
fn to_units(subsystem: &Subsystem, values: &mut [i64]) {
    for (index, _) in subsystem.stats.iter().enumerate().filter(|(_, stat)| stat.kind() == StatKind::Time) {
        values.iter_mut().skip(index).step_by(subsystem.stats.len()).for_each(|value| *value /= 1000);
    }
}

impl Table {
    /// The values of the group in that row.
    pub(super) fn of(&self, row: usize) -> SubsystemSnapshot<'_> {
        let stats = self.subsystem.stats.len();
        let (local, hierarchical) = self.values[row * 2 * stats..][..2 * stats].split_at(stats);
        SubsystemSnapshot {
            name: self.subsystem.name,
            stats: self.subsystem.stats,
            local,
            hierarchical,
            number: self.number,
        }
    }

    /// What the stocks of that group did, if this is the subsystem that counts it.
    pub(super) fn stock(&self, row: usize, prepaid_bytes: u64) -> Option<StockStats> {
        let values = self.of(row).local.get(..=memory::STOCK_DRAINED)?.try_into().ok()?;
        (self.number == MEMORY).then(|| StockStats::of(values, prepaid_bytes))
    }
}
