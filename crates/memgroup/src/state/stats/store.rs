//! Storage of one subsystem's statistics, slot by slot and group by group.
//!
//! - I1. A store is made once and never freed: a hierarchy that is used again uses it again.
//! - I2. Every node has an entry in every store. Nodes and stores are made under the tree lock.
//! - I3. Records are linked and unlinked under the tree lock.

use memgroup_percpu::{Mark, MarkCell, Record, Records};
use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::grace::Section;
use memgroup_sync::{Chunk, ChunkPool, Erasable, FixedRef, FixedSlice, Mutex, erasable};

use crate::base::id::NodeId;
use crate::base::mutation::{self, Mutation};
use crate::state::config::CHUNK;
use crate::state::stats::Reach;
use crate::state::stats::flushed::FlushedStats;
use crate::state::stats::stat::Subsystem;
use crate::state::stats::update_tree::UpdateTree;

/// The statistics of one subsystem.
pub(crate) struct StatStore {
    /// Position in the nodes' tables of entries.
    pub(crate) number: usize,
    /// One record for each group, with a copy on each slot and a word for each statistic.
    pub(crate) records: Records,
    /// The groups that changed since the last flush.
    pub(crate) updates: &'static UpdateTree,
    /// `None` while no subsystem of the hierarchy's present user has the store.
    subsystem: Mutex<Option<Subsystem>>,
    words: usize,
    /// The memory of flushed values: a chunk of them for each chunk of nodes. Its pages are backed
    /// when values are first written.
    values: ChunkPool<AtomicU64>,
    /// Chunks that were taken for nodes which the system then had no memory for. A chunk without
    /// an owner would be lost.
    spare: Mutex<Vec<ValuesChunk>>,
    /// Groups without a record, and the number of them that address space is set aside for. Under
    /// the tree lock.
    lacking: AtomicU64,
    provided: AtomicU64,
}

/// The flushed values of the places of one chunk of nodes.
pub(crate) type ValuesChunk = Chunk<AtomicU64>;

erasable! {
    /// The statistics of one group in one store.
    #[repr(C)]
    pub(crate) struct StatEntry {
        /// Additions on the slots since the last flush.
        pub(crate) record: Record,
        pub(crate) mark: MarkCell,
        flushed: FixedSlice<AtomicU64>,
        store: FixedRef<StatStore>,
    }
}

impl StatStore {
    pub(crate) fn new(
        number: usize,
        words: usize,
        updates: &'static UpdateTree,
        records: Records,
    ) -> StatStore {
        StatStore {
            number,
            records,
            updates,
            subsystem: Mutex::new(None),
            words,
            lacking: AtomicU64::new(0),
            provided: AtomicU64::new(0),
            values: ChunkPool::new(FlushedStats::words(words) * CHUNK as usize),
            spare: Mutex::new(Vec::new()),
        }
    }

    /// The most statistics that a subsystem with this store can have.
    pub(crate) fn words(&self) -> usize {
        self.words
    }

    pub(crate) fn subsystem(&self) -> Option<Subsystem> {
        *self.subsystem.lock()
    }

    pub(crate) fn set_subsystem(&self, subsystem: Option<Subsystem>) {
        *self.subsystem.lock() = subsystem;
    }

    /// Flushed values for a chunk of nodes, all zero; `None` if the system refuses address space.
    pub(crate) fn take_values(&'static self) -> Option<ValuesChunk> {
        let spare = self.spare.lock().pop();
        spare.or_else(|| self.values.take())
    }

    /// Keeps a chunk that no entry refers to for the next call of `take_values`.
    pub(crate) fn put_back(&self, values: ValuesChunk) {
        self.spare.lock().push(values);
    }

    /// Makes `entry`, which lies in `chunk`, the one of the group with this number. Its flushed
    /// values are in `values`.
    pub(crate) fn attach<T: Erasable>(
        &'static self,
        entry: &StatEntry,
        number: u32,
        chunk: &Chunk<T>,
        values: &ValuesChunk,
    ) {
        let words = FlushedStats::words(self.words);
        entry.flushed.set(&values.cells()[(number % CHUNK) as usize * words..][..words]);
        self.updates.marks.provide(number);
        entry.mark.set(self.updates.marks.of(number));
        entry.record.belong_to(&self.records, chunk);
        entry.store.set(self);
    }

    /// Counts a group that has no record and may need one. The caller holds the tree lock, as for
    /// all methods that follow.
    pub(crate) fn count_lacking(&self) {
        // ORDERING: Relaxed; under the tree lock, here and below.
        self.lacking.fetch_add(1, Ordering::Relaxed);
    }

    /// Uncounts a group that got a record or is released.
    pub(crate) fn uncount_lacking(&self) {
        for count in [&self.lacking, &self.provided] {
            // ORDERING: Relaxed, as above.
            count.store(count.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        }
    }

    /// Returns whether memory waits for a grace period.
    pub(crate) fn has_limbo(&self) -> bool {
        self.records.limbo_records() > 0
    }

    /// Bytes that wait for a grace period.
    pub(crate) fn limbo_bytes(&self) -> u64 {
        self.records.limbo_bytes()
    }

    /// Frees retired memory after its grace period, at most so many records. Whether there may be
    /// more.
    pub(crate) fn reclaim(&'static self, most: usize) -> bool {
        self.records.reclaim_some(most) == most
    }

    /// Sets address space aside for the record of a new group, if it has none.
    ///
    /// So the group's additions never wait. Where the system refuses the space, they go to the
    /// base words.
    pub(crate) fn prepare(&self, entry: &StatEntry) {
        const AT_ONCE: u64 = 64;
        if entry.record.is_linked() {
            return;
        }
        self.count_lacking();
        // ORDERING: Relaxed, as above.
        let (lacking, provided) =
            (self.lacking.load(Ordering::Relaxed), self.provided.load(Ordering::Relaxed));
        if lacking > provided {
            self.set_aside(lacking + AT_ONCE);
        }
    }

    /// Sets address space aside for exactly the groups without a record.
    pub(crate) fn provide(&self) {
        // ORDERING: Relaxed, as above.
        self.set_aside(self.lacking.load(Ordering::Relaxed));
    }

    fn set_aside(&self, records: u64) {
        let provided = if self.records.provide(records).is_ok() { records } else { 0 };
        // ORDERING: Relaxed, as above.
        self.provided.store(provided, Ordering::Relaxed);
    }

    /// Bytes of one group's flushed values.
    pub(crate) fn group_bytes(&self) -> usize {
        FlushedStats::words(self.words) * size_of::<AtomicU64>()
    }

    /// The row of marks for the base words: the one after those of the slots.
    pub(crate) fn base_row(&self) -> usize {
        self.records.arena().slots()
    }

    /// The row of marks for the miss counts: the last one.
    pub(crate) fn misses_row(&self) -> usize {
        self.base_row() + 1
    }
}

impl StatEntry {
    /// The store; `None` where the hierarchy has no subsystem of this number.
    #[inline]
    pub(crate) fn find_store(&self) -> Option<&'static StatStore> {
        self.store.get()
    }

    /// Returns whether it is an entry of this very store.
    #[inline(always)]
    pub(crate) fn is_of(&self, store: &'static StatStore) -> bool {
        self.store.is(store)
    }

    pub(crate) fn store(&self) -> &'static StatStore {
        self.find_store().expect("a group has an entry in every subsystem")
    }

    /// Returns the mark of the slots that the group has changed on. The entry is that of the group
    /// at the place `id`.
    #[inline(always)]
    pub(crate) fn mark(&self, id: NodeId) -> Mark {
        self.mark.get(id.0)
    }

    /// The group's flushed values. A late thread finds those of the place's next group, or zeros.
    #[inline]
    pub(crate) fn flushed(&self) -> FlushedStats {
        self.find_flushed().expect("a group that is in use has flushed values")
    }

    /// As `flushed`; `None` in a node that was given back.
    #[inline]
    pub(crate) fn find_flushed(&self) -> Option<FlushedStats> {
        FlushedStats::of(self.flushed.get(), self.find_store()?.words)
    }

    /// Returns whether nothing was added to the group's statistics since they were last flushed,
    /// no flush of them is under way, and all flushed values are zero. The entry is that of the
    /// group at the place `id`, and nothing may be added to its statistics during the call.
    pub(crate) fn is_unused(&self, id: NodeId) -> bool {
        let is_clean = self.mark(id).is_clean()
            || mutation::active(Mutation::ReleaseLooksAtMarksAlone)
                && self.mark(id).marked_rows(usize::MAX).next().is_none();
        is_clean && self.flushed().is_reset()
    }

    /// Copies the group's own values into the first half of `row`, and those of its subtree into
    /// the second half.
    pub(crate) fn copy_both(&self, row: &mut [i64]) {
        let (local, subtree) = row.split_at_mut(row.len() / 2);
        self.flushed().copy(Reach::Local, local);
        self.flushed().copy(Reach::Subtree, subtree);
    }

    /// Prefetches the lines that a flush or a release of the group touches first.
    pub(crate) fn prefetch(&self, section: &Section, rows: impl Iterator<Item = usize>) {
        if let Some(flushed) = self.find_flushed() {
            flushed.prefetch();
        }
        rows.for_each(|row| self.record.prefetch_words(section, row));
    }

    /// Frees the record that a free place kept for its next group. The caller holds the tree lock,
    /// as for all methods that follow.
    pub(crate) fn free_record(&self) {
        if let Some(old) = self.record.unlink() {
            self.store().records.retire(old);
        }
    }

    /// Allocates a record with a copy on `slot`, if that needs no waiting. Without one, additions
    /// go to the base words.
    pub(crate) fn alloc_record(&self, owner: u32, slot: usize) {
        let records = &self.store().records;
        if !self.record.is_linked()
            && let Some(fresh) = records.allocate(owner)
        {
            let before = self.record.link(fresh);
            debug_assert!(before.is_none());
            self.store().uncount_lacking();
        }
        if !records.is_admitted(slot) {
            records.admit(slot);
        }
    }
}
