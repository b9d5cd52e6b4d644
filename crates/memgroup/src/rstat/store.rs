//! Store: where one subsystem's statistics are, slot by slot and group by group.
//!
//! - I1. A store is made once and kept: a hierarchy that is used again uses it again.
//! - I2. Every node that was ever made has an entry in every store; both come to be under the tree lock.
//! - I3. Records are linked and unlinked under the tree lock.

use memgroup_percpu::{ArenaConfig, ArenaError, Mark, Record, Records, Wait};
use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::grace::Section;

use super::side::Side;
use super::stat::Subsystem;
use super::updates::Updates;
use crate::node::Node;
use crate::tree::Tree;

/// The statistics of one subsystem.
pub(crate) struct Store {
    /// Which of its kind, in the nodes' tables.
    pub(crate) number: usize,
    /// One record for each group, with a copy on each slot.
    pub(crate) records: Records,
    /// What was changed since the last flush.
    pub(crate) updates: &'static Updates,
    subsystem: Mutex<Subsystem>,
    words: usize,
    /// Groups that have no record, and how many of them have address space set aside; under the tree lock.
    lacking: AtomicU64,
    provided: AtomicU64,
}

/// One group's place in one store.
pub(crate) struct Entry {
    /// What was added on the slots since the last flush.
    pub(crate) record: Record,
    pub(crate) mark: Mark,
    pub(crate) side: Box<Side>,
    pub(crate) store: &'static Store,
}

impl Store {
    pub(super) fn new(
        number: usize,
        subsystem: Subsystem,
        updates: &'static Updates,
        config: ArenaConfig,
    ) -> Result<Store, ArenaError> {
        let words = subsystem.stats.len();
        let records = Records::new(config, words)?;
        Ok(Store {
            number,
            records,
            updates,
            subsystem: Mutex::new(subsystem),
            words,
            lacking: AtomicU64::new(0),
            provided: AtomicU64::new(0),
        })
    }

    /// How many statistics there is room for.
    pub(super) fn words(&self) -> usize {
        self.words
    }

    pub(super) fn subsystem(&self) -> Subsystem {
        *self.subsystem.lock()
    }

    /// Another subsystem has the store from now on.
    pub(super) fn pass_to(&self, subsystem: Subsystem) {
        *self.subsystem.lock() = subsystem;
    }

    pub(super) fn entry(&'static self, number: u32) -> Entry {
        self.updates.marks.provide(number);
        Entry {
            record: self.records.record(),
            mark: self.updates.marks.of(number),
            side: Box::new(Side::new(self.words)),
            store: self,
        }
    }

    /// One more group has no record, and may want one. The caller holds the tree lock, as for all that follow.
    pub(crate) fn lack(&self) {
        // ORDERING: Relaxed; under the tree lock, here and below.
        self.lacking.fetch_add(1, Ordering::Relaxed);
    }

    /// One of them has a record, or is no more.
    pub(crate) fn lack_no_more(&self) {
        for count in [&self.lacking, &self.provided] {
            // ORDERING: Relaxed, as above.
            count.store(count.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        }
    }

    /// A new group is to find address space for its record, if it has none: its additions wait for nothing. Refused, they go beside the
    /// slots.
    pub(crate) fn expect(&self, tree: &Tree, entry: &Entry) {
        const AT_ONCE: u64 = 64;
        if entry.record.is_linked() {
            return;
        }
        self.lack();
        // ORDERING: Relaxed, as above.
        let (lacking, provided) =
            (self.lacking.load(Ordering::Relaxed), self.provided.load(Ordering::Relaxed));
        if lacking > provided {
            self.set_aside(tree, lacking + AT_ONCE);
        }
    }

    /// Sets address space aside for the groups without a record, and gives the rest back.
    pub(crate) fn provide(&self, tree: &Tree) {
        // ORDERING: Relaxed, as above.
        self.set_aside(tree, self.lacking.load(Ordering::Relaxed));
    }

    fn set_aside(&self, _tree: &Tree, records: u64) {
        let provided = if self.records.provide(records).is_ok() { records } else { 0 };
        // ORDERING: Relaxed, as above.
        self.provided.store(provided, Ordering::Relaxed);
    }

    /// Bytes of one group's record over all slots that have copies.
    pub(crate) fn record_bytes(&self) -> u64 {
        (self.records.record_bytes() * self.records.admitted().count()) as u64
    }

    /// The row of marks for what is added beside the slots.
    pub(super) fn base_row(&self) -> usize {
        self.records.arena().slots()
    }
}

impl Entry {
    /// Of one for so many statistics, with what it points to on the heap.
    pub(super) fn bytes(stats: usize) -> usize {
        size_of::<Entry>() + Side::bytes(stats)
    }

    /// The word of one statistic in one row: that of a slot, or the one beside the slots.
    pub(super) fn word<'s>(
        &'s self,
        section: &'s Section,
        row: usize,
        index: usize,
    ) -> Option<&'s AtomicU64> {
        if row == self.store.base_row() {
            Some(&self.side.base()[index])
        } else {
            self.record.word(section, row, index)
        }
    }

    /// Sees to a record with a copy on `slot`, if that can be done at once; the caller holds the tree lock. Without, additions go beside the
    /// slots.
    pub(super) fn furnish(&self, node: &'static Node, slot: usize) {
        let records = &self.store.records;
        if !self.record.is_linked()
            && let Ok(fresh) = records.allocate(node.id.0, Wait::Never)
        {
            let before = self.record.link(fresh);
            debug_assert!(before.is_none());
            self.store.lack_no_more();
        }
        if !records.is_admitted(slot) {
            records.admit(slot, |_| ());
        }
    }
}
