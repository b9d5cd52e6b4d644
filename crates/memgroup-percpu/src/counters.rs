//! Counters on their own: many groups of additive counters, each with a copy on every slot, whose memory is given back.
//!
//! ```text
//!   CounterId {index, generation} ──▶ table[index] ── record ──▶ words of slot 0, of slot 1, ...
//! ```
//!
//! - I1. An entry's generation is odd while somebody has its id, and grows by one when it is created and when it is removed.
//! - I2. Records are linked and unlinked under the table's lock, their words are buried and credited under it, and so are sums taken:
//!   who holds it finds no value on its way, and no dead word in a record that is linked.
//! - I3. A place whose generations are used up is never free again, so no two sets have the same id.
//! - E1. remove → add: the generation is changed before the place's next record is linked, and looked at after the record: who found
//!   the record of another owner sees that the generation is no longer its own. Loom: `loom_an_addition_never_reaches_another_owner`.
//! - E2. move → add: a word is buried after its successor is linked, so who finds it dead finds the successor (`additive`).
//!   Loom: `loom_a_sum_neither_misses_nor_doubles_what_is_moved`.

use core::fmt;
use std::sync::OnceLock;

use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicU32, Ordering};
use memgroup_sync::grace::{self, Form};
use memgroup_sync::interleave;

use crate::additive;
use crate::arena::block::Wait;
use crate::arena::out_of_memory::{ArenaError, Lack, OutOfMemory};
use crate::arena::{ArenaConfig, ArenaStats};
use crate::mutation::{Mutation, active};
use crate::record::Record;
use crate::records::{Fresh, Records, Unlinked};
use crate::slot::source::SlotSource;

#[cfg(all(test, memgroup_loom))]
mod loom;
#[cfg(all(test, not(memgroup_loom)))]
mod tests;

const CHUNK: usize = if cfg!(memgroup_loom) { 2 } else { 256 };
const CHUNKS: usize = if cfg!(memgroup_loom) { 1 } else { 1 << 14 };
/// The most sets of one table.
const SETS_MAX: usize = CHUNK * CHUNKS;

/// A table of sets of counters. It lives for the rest of the process; the sets in it come and go, and their memory with them.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_percpu::{Counters, SlotSource};
///
/// // Sets of three counters each.
/// let table = Counters::new(SlotSource::detect(), 3)?;
/// let requests = table.create()?;
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| table.add(requests, 2, 10).unwrap());
///     }
/// });
/// assert_eq!(table.sum(requests, 2), Ok(40));
/// assert_eq!(table.remove(requests), Ok(vec![0, 0, 40]));
/// assert_eq!(table.add(requests, 2, 1).unwrap_err().to_string(), "find counter set 0: it was removed");
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Counters {
    source: SlotSource,
    records: Records,
    chunks: Box<[OnceLock<Box<[Entry]>>]>,
    places: Mutex<Places>,
}

struct Entry {
    record: Record,
    generation: AtomicU32,
}

struct Places {
    made: u32,
    free: Vec<u32>,
}

/// Names one set of counters; a plain value. Of a set that was removed it finds nothing, whoever has its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CounterId {
    index: u32,
    generation: u32,
}

/// The set of counters was removed, or has no counter of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCounter {
    index: u32,
    counter: Option<usize>,
    counters: usize,
}

impl fmt::Display for NoCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "find counter set {}", self.index)?;
        match self.counter {
            Some(counter) => write!(f, "'s counter {counter}: it has {}, numbered from 0", self.counters),
            None => f.write_str(": it was removed"),
        }
    }
}

impl core::error::Error for NoCounter {}

/// What [`Counters::maintain`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountersMaintained {
    /// Sets that moved.
    pub moved: usize,
    /// Bytes that went back to the system.
    pub depopulated_bytes: u64,
}

impl Counters {
    /// A table of sets of `counters` counters each, on the slots of `source`.
    ///
    /// The table itself takes 0.4 MB, and 64 bytes more for each set.
    ///
    /// # Errors
    /// `counters` is 0, or more than a unit holds.
    pub fn new(source: SlotSource, counters: usize) -> Result<&'static Counters, ArenaError> {
        Self::with_config(source, counters, ArenaConfig::new(source.slots()))
    }

    /// The same with a page size and thresholds of the caller's; the number of slots is that of `source`, whatever `config` says.
    ///
    /// # Errors
    /// As [`new`](Self::new), and for a setting out of its range.
    pub fn with_config(
        source: SlotSource,
        counters: usize,
        config: ArenaConfig,
    ) -> Result<&'static Counters, ArenaError> {
        let records =
            Records::new(ArenaConfig { slots: source.slots(), ..config }, counters).map_err(|error| {
                match error {
                    ArenaError::Object { .. } => ArenaError::Counters { counters },
                    other => other,
                }
            })?;
        let chunks = (0..CHUNKS).map(|_| OnceLock::new()).collect();
        let places = Mutex::new(Places { made: 0, free: Vec::new() });
        Ok(memgroup_sync::keep(Box::new(Counters { source, records, chunks, places })))
    }

    #[inline(always)]
    fn entry(&'static self, index: u32) -> Option<&'static Entry> {
        self.chunks.get(index as usize / CHUNK)?.get()?.get(index as usize % CHUNK)
    }

    fn make_entry(&'static self, index: u32) -> &'static Entry {
        let chunk = self.chunks[index as usize / CHUNK].get_or_init(|| {
            let entry = || Entry { record: self.records.record(), generation: AtomicU32::new(0) };
            (0..CHUNK).map(|_| entry()).collect()
        });
        &chunk[index as usize % CHUNK]
    }

    /// A new set, all zero.
    ///
    /// # Errors
    /// The system refuses memory, or four million sets are there.
    pub fn create(&'static self) -> Result<CounterId, OutOfMemory> {
        let mut places = self.places.lock();
        let index = match places.free.last() {
            Some(&index) => index,
            None if (places.made as usize) < SETS_MAX => places.made,
            None => return Err(self.full()),
        };
        let entry = self.make_entry(index);
        let fresh = self.records.allocate(index, Wait::May)?;
        if places.free.pop().is_none() {
            places.made += 1;
        }
        let before = entry.record.link(fresh);
        debug_assert!(before.is_none());
        // ORDERING: AcqRel; as an RMW it follows the link: who finds the new generation finds the new record.
        let generation = entry.generation.fetch_add(1, Ordering::AcqRel) + 1;
        Ok(CounterId { index, generation })
    }

    #[cold]
    fn full(&self) -> OutOfMemory {
        let (bytes, slots) = (self.records.record_bytes(), self.source.slots());
        OutOfMemory { lack: Lack::Place(SETS_MAX), bytes, slots }
    }

    fn gone(&self, id: CounterId) -> NoCounter {
        NoCounter { index: id.index, counter: None, counters: self.records.words() }
    }

    fn find(&'static self, id: CounterId, counter: usize) -> Result<&'static Entry, NoCounter> {
        let entry = self.entry(id.index).ok_or_else(|| self.gone(id))?;
        if counter < self.records.words() {
            Ok(entry)
        } else {
            Err(NoCounter { counter: Some(counter), ..self.gone(id) })
        }
    }

    /// Adds to a counter: one atomic addition in this thread's slot, whatever is moved meanwhile.
    ///
    /// # Errors
    /// The set was removed, or has no such counter; nothing is added.
    ///
    /// # Panics
    /// If what was added on this slot is out of range: not above -2<sup>61</sup>, or 2<sup>63</sup> and more.
    #[inline]
    pub fn add(&'static self, id: CounterId, counter: usize, delta: i64) -> Result<(), NoCounter> {
        if self.try_add(id, counter, delta) { Ok(()) } else { self.add_by_turns(id, counter, delta) }
    }

    /// The addition, if it can be made without a call. If not, nothing was added.
    #[inline(always)]
    fn try_add(&'static self, id: CounterId, counter: usize, delta: i64) -> bool {
        let Some(entry) = self.entry(id.index) else { return false };
        let Some((_, word)) = entry.record.glance(&self.source, counter) else { return false };
        // ORDERING: Acquire; after the record, as in `add_by_turns`.
        entry.generation.load(Ordering::Acquire) == id.generation && additive::add(&word, delta)
    }

    #[inline(never)]
    fn add_by_turns(&'static self, id: CounterId, counter: usize, delta: i64) -> Result<(), NoCounter> {
        let entry = self.find(id, counter)?;
        let slot = self.source.current();
        loop {
            if active(Mutation::GenerationBeforeRecord) {
                self.check(entry, id)?;
            }
            let word = entry.record.access(slot, counter);
            interleave::point();
            // ORDERING: Acquire; after the record, so that another owner's record is not taken for ours (E1).
            let generation = entry.generation.load(Ordering::Acquire);
            if generation != id.generation && !active(Mutation::GenerationBeforeRecord) {
                return Err(self.gone(id));
            }
            interleave::point();
            match word.map(|word| additive::add(&word, delta)) {
                Some(true) => return Ok(()),
                Some(false) => self.outlast(entry, id, counter, slot),
                None => self.admit(slot),
            }
        }
    }

    /// Waits until the move or removal that buried a word is over.
    ///
    /// # Panics
    /// If nobody buried it.
    #[cold]
    #[inline(never)]
    fn outlast(&'static self, entry: &Entry, id: CounterId, counter: usize, slot: usize) {
        let _places = self.places.lock();
        let section = grace::enter();
        let dead = entry.record.word(&section, slot, counter).is_some_and(additive::is_dead);
        let index = id.index;
        assert!(!dead, "counter {counter} of counter set {index} is out of range on slot {slot}");
    }

    #[cold]
    #[inline(never)]
    fn admit(&'static self, slot: usize) {
        let _places = self.places.lock();
        self.records.admit(slot, |_| ());
    }

    /// The sum over all slots: exact when nobody adds.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn sum(&'static self, id: CounterId, counter: usize) -> Result<i64, NoCounter> {
        let entry = self.find(id, counter)?;
        let _places = (!active(Mutation::SumIgnoresMoves)).then(|| self.places.lock());
        self.check(entry, id)?;
        let section = grace::enter();
        let words = self.records.admitted().filter_map(|slot| entry.record.word(&section, slot, counter));
        Ok(words.map(additive::read).sum())
    }

    fn check(&self, entry: &Entry, id: CounterId) -> Result<(), NoCounter> {
        // ORDERING: Relaxed; it changes under the lock that the caller holds.
        if entry.generation.load(Ordering::Relaxed) == id.generation { Ok(()) } else { Err(self.gone(id)) }
    }

    /// Ends a set and returns its sums. An addition that comes later is refused; one that came earlier is in them.
    ///
    /// # Errors
    /// It was removed before.
    pub fn remove(&'static self, id: CounterId) -> Result<Vec<i64>, NoCounter> {
        let entry = self.find(id, 0)?;
        let mut places = self.places.lock();
        let next = id.generation.wrapping_add(1);
        if active(Mutation::GenerationAfterNextRecord) {
            self.check(entry, id)?;
        } else {
            // ORDERING: AcqRel; before the unlinking, so that an addition that finds no record knows why, and before the next
            // record of the place is linked (E1). Relaxed on failure, which concludes nothing.
            let changed =
                entry.generation.compare_exchange(id.generation, next, Ordering::AcqRel, Ordering::Relaxed);
            changed.map_err(|_| self.gone(id))?;
        }
        interleave::point();
        let mut sums = vec![0; self.records.words()];
        if let Some(old) = entry.record.unlink() {
            for (counter, sum) in sums.iter_mut().enumerate() {
                *sum = self.bury(&old, counter).map(|(_, value)| value).sum();
            }
            self.records.retire(old, 0);
        }
        if next != 0 {
            places.free.push(id.index);
        }
        Ok(sums)
    }

    fn bury<'a>(&'a self, old: &'a Unlinked, counter: usize) -> impl Iterator<Item = (usize, i64)> + 'a {
        self.records.admitted().filter_map(move |slot| {
            self.records.unlinked_word(old, slot, counter).map(|word| (slot, additive::bury(word)))
        })
    }

    /// Gives memory back: moves at most `moves` sets out of sparse pages, waits for a grace period, and returns what is empty to
    /// the system. Additions go on meanwhile; a sum, a creation or a removal waits for a few moves at the most.
    ///
    /// Without it the memory of sets that were removed is not used again.
    ///
    /// # Panics
    /// In a read section of the calling thread, for whose end it would wait for ever. The table is as it was.
    pub fn maintain(&'static self, moves: usize, form: Form) -> CountersMaintained {
        let mut done = CountersMaintained::default();
        let arena = self.records.arena();
        let before = arena.returned_bytes_total();
        self.settle(form);
        while done.moved < moves
            && let Some(moved) = self.move_next()
        {
            done.moved += usize::from(moved);
        }
        self.settle(form);
        loop {
            let returned = arena.depopulate_now(64);
            if !returned.more || returned.pages == 0 {
                done.depopulated_bytes = arena.returned_bytes_total() - before;
                return done;
            }
        }
    }

    /// Handles the next set that should move: whether it did. `None` when nothing is gained by moving on.
    fn move_next(&'static self) -> Option<bool> {
        let _places = self.places.lock();
        let relocation = self.records.next_move()?;
        let entry = self.entry(relocation.owner()).filter(|entry| relocation.is_of(&entry.record));
        match entry {
            Some(entry) => self.relocate(entry, relocation.into_target()),
            // The set was removed, and its words wait for a grace period: linked to its place, the target would be another's.
            None => self.records.discard(relocation.into_target()),
        }
        Some(entry.is_some())
    }

    /// Moves a set that is linked, with the table's lock held.
    fn relocate(&'static self, entry: &Entry, target: Fresh) {
        let Some(old) = entry.record.link(target) else {
            unreachable!("a set that moves has a block to move from")
        };
        let section = grace::enter();
        for counter in 0..self.records.words() {
            for (slot, value) in self.bury(&old, counter) {
                interleave::point();
                let target = entry.record.word(&section, slot, counter);
                let kept = value == 0 || target.is_some_and(|word| additive::add(word, value));
                assert!(kept, "a moved count of {value} has a place to go");
            }
        }
        self.records.retire(old, 0);
    }

    fn settle(&'static self, form: Form) {
        if self.records.limbo_records() > 0 {
            grace::synchronize(form);
            self.records.reclaim(|_, _| ());
        }
    }

    /// The memory behind the table.
    pub fn stats(&self) -> ArenaStats {
        self.records.arena().stats()
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counters").field("counters", &self.records.words()).finish_non_exhaustive()
    }
}
