//! Store: where one subsystem's statistics are, slot by slot and group by group.
//!
//! - I1. A store is made once and kept: a hierarchy that is used again uses it again.
//! - I2. Every node that was ever made has an entry in every store; both come to be under the tree lock.
//! - I3. Records are linked and unlinked under the tree lock.

use memgroup_percpu::{Mark, Record, Records, Wait};
use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::grace::{self, Attic, Published, Section};

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
    /// Sides of free places, until a grace period is over.
    attic: Mutex<Attic<Side>>,
    /// Groups that have no record, and how many of them have address space set aside; under the tree lock.
    lacking: AtomicU64,
    provided: AtomicU64,
    /// Places that have a side; changed under the tree lock.
    sides: AtomicU64,
}

/// One group's place in one store.
pub(crate) struct Entry {
    /// What was added on the slots since the last flush.
    pub(crate) record: Record,
    pub(crate) mark: Mark,
    side: Published<Side>,
    pub(crate) store: &'static Store,
}

impl Store {
    /// `records` has a word for each statistic.
    pub(super) fn new(
        number: usize,
        subsystem: Subsystem,
        updates: &'static Updates,
        records: Records,
    ) -> Store {
        Store {
            number,
            records,
            updates,
            subsystem: Mutex::new(subsystem),
            words: subsystem.stats.len(),
            lacking: AtomicU64::new(0),
            provided: AtomicU64::new(0),
            sides: AtomicU64::new(0),
            attic: Mutex::new(Attic::new()),
        }
    }

    /// How many statistics there is room for.
    pub(crate) fn words(&self) -> usize {
        self.words
    }

    pub(crate) fn subsystem(&self) -> Subsystem {
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
            side: Published::empty(),
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

    /// Whether something waits for a grace period.
    pub(crate) fn has_limbo(&self) -> bool {
        self.records.limbo_records() > 0 || !self.attic.lock().is_empty()
    }

    /// Frees what waited for a grace period that is over.
    pub(crate) fn reclaim(&'static self) {
        self.records.reclaim(|_, _| ());
        self.attic.lock().reclaim();
    }

    /// A new group gets a side, and is to find address space for its record, if it has none: its additions wait for nothing. Refused,
    /// they go beside the slots.
    pub(crate) fn expect(&self, tree: &Tree, entry: &Entry) {
        const AT_ONCE: u64 = 64;
        entry.make_side();
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

    /// Bytes of one group beside the slots.
    pub(crate) fn group_bytes(&self) -> usize {
        Side::bytes(self.words)
    }

    /// How many places have a side.
    pub(crate) fn sides(&self) -> usize {
        // ORDERING: Relaxed; a figure for reports.
        self.sides.load(Ordering::Relaxed) as usize
    }

    /// The row of marks for what is added beside the slots.
    pub(super) fn base_row(&self) -> usize {
        self.records.arena().slots()
    }
}

impl Entry {
    /// The group's side, for as long as the section lasts.
    #[inline]
    pub(crate) fn side<'s>(&'s self, section: &'s Section) -> &'s Side {
        self.find_side(section).expect("a group that is in use has a side")
    }

    /// As `side`; `None` in a free place.
    #[inline]
    pub(super) fn find_side<'s>(&'s self, section: &'s Section) -> Option<&'s Side> {
        self.side.get(section)
    }

    /// The place has a group: it gets a side, if its last group has not left one. The caller holds the tree lock, as for all that follow.
    pub(super) fn make_side(&self) {
        if self.find_side(&grace::enter()).is_none() {
            let before = self.side.publish(Box::new(Side::new(self.store.words)));
            debug_assert!(before.is_none());
            // ORDERING: Relaxed; a figure for reports.
            self.store.sides.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The place is free, and so is all that it keeps for its next group.
    pub(crate) fn vacate(&self) {
        if let Some(old) = self.record.unlink() {
            self.store.records.retire(old, 0);
        }
        if let Some(side) = self.side.withdraw() {
            self.store.attic.lock().retire(side, Side::bytes(self.store.words));
            // ORDERING: Relaxed, as above.
            self.store.sides.fetch_sub(1, Ordering::Relaxed);
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
