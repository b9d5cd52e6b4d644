//! Records from their owner's side: blocks that are refused, and the way of their memory.

use std::sync::mpsc;
use std::time::Instant;

use memgroup_sync::ChunkPool;
use memgroup_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use memgroup_sync::grace::{self, Form};

use super::Record;
use crate::arena::chunk::LEAVING;
use crate::arena::config::ArenaConfig;
use crate::arena::os::{Call, inject};
use crate::arena::page::PageSize;
use crate::records::{Fresh, Records};

/// Records of 337 words on two slots, of which slot 0 is enabled.
fn records() -> &'static Records {
    let config = ArenaConfig::new(2).page(PageSize::of_system()).float_bytes(0);
    let records: &'static Records = Box::leak(Box::new(Records::new(config, 337).expect("it fits a block")));
    records.admit(0);
    records
}

fn fresh(records: &'static Records, owner: u32) -> Fresh {
    records.provide(1).expect("the system has memory");
    records.allocate(owner).expect("there is a chunk")
}

/// The value of word 3 on slot 0.
fn value(record: &Record) -> Option<u64> {
    // ORDERING: Relaxed; one thread, or after the join.
    record.access(0, 3).map(|word| word.load(Ordering::Relaxed))
}

fn set(record: &Record, value: u64) {
    // ORDERING: Relaxed; one thread, or after the join.
    record.access(0, 3).expect("it has memory").store(value, Ordering::Relaxed);
}

#[test]
fn finds_a_word_on_an_enabled_slot_of_a_linked_record() {
    let records = records();
    let record = records.record();
    let found = |record: &Record, slot, index| {
        let section = grace::enter();
        let word = record.word(&section, slot, index).is_some();
        assert_eq!(record.access(slot, index).is_some(), word);
        word
    };
    assert!(!record.is_linked() && !found(&record, 0, 0), "without memory");
    assert!(record.link(fresh(records, 1)).is_none() && record.is_linked());
    assert!(found(&record, 0, 0) && found(&record, 0, 336));
    assert!(!found(&record, 0, 337) && !found(&record, 0, usize::MAX), "beyond the end");
    assert!(!found(&record, 1, 0), "on a slot that is not enabled");
    assert!(!found(&record, 2, 0) && !found(&record, usize::MAX, 0), "on a slot that is not there");
    records.admit(1);
    assert!(found(&record, 1, 0));
    records.retire(record.unlink().expect("it had memory"));
    assert!(!record.is_linked() && !found(&record, 0, 0) && record.unlink().is_none());
}

#[test]
fn finds_the_same_word_with_and_without_a_call() {
    let Ok(source) = crate::SlotSource::cpu_id() else { return };
    let records: &'static Records =
        Box::leak(Box::new(Records::new(ArenaConfig::new(source.slots()), 2).expect("it fits a block")));
    (0..source.slots()).for_each(|slot| records.admit(slot));
    let record = records.record();
    assert!(record.fast_access(&source.fast(), 1).is_none(), "without memory");
    record.link(fresh(records, 1));
    assert!(record.fast_access(&source.fast(), 2).is_none(), "beyond the end");
    drop(record.access(0, 0));
    if let Some((slot, word)) = record.fast_access(&source.fast(), 1) {
        let same = record.access(slot, 1).expect("the slot is enabled");
        assert!(core::ptr::eq(&raw const *word, &raw const *same));
    }
}

#[test]
#[should_panic(expected = "records have owners below 4294967295, not 4294967295")]
fn the_numbers_that_the_arena_keeps_own_nothing() {
    let _ = records().allocate(LEAVING);
}

mod a_block_of_other_records {
    use super::{fresh, records};

    #[test]
    #[should_panic(expected = "the block is of other records: give it back where it was allocated")]
    fn is_not_linked() {
        records().record().link(fresh(records(), 1));
    }

    #[test]
    #[should_panic(expected = "the block is of other records")]
    fn is_not_discarded() {
        records().discard(fresh(records(), 1));
    }

    #[test]
    #[should_panic(expected = "the block is of other records")]
    fn is_not_retired() {
        let records_of_its_own = records();
        let record = records_of_its_own.record();
        record.link(fresh(records_of_its_own, 1));
        records().retire(record.unlink().expect("it had memory"));
    }

    #[test]
    #[should_panic(expected = "the block is of other records")]
    fn is_not_looked_into() {
        records().fresh_word(&fresh(records(), 1), 0, 0);
    }
}

#[test]
#[should_panic(expected = "a record is linked and unlinked by one owner at a time")]
fn panics_when_two_threads_link_at_once() {
    let records = records();
    let record = records.record();
    let linked = record.exclusively(None, |_, at| (at, record.link(fresh(records, 1))));
    assert!(linked.is_ok());
}

#[test]
fn frees_a_discarded_block_at_once_and_zeroes_it() {
    let records = records();
    let block = fresh(records, 1);
    let word = records.fresh_word(&block, 0, 3).expect("the slot is enabled");
    // ORDERING: Relaxed; one thread, or after the join.
    word.store(9, Ordering::Relaxed);
    let place = core::ptr::from_ref(word).addr();
    assert!(records.fresh_word(&block, 0, 337).is_none() && records.fresh_word(&block, 1, 0).is_none());
    records.discard(block);
    assert_eq!((records.arena().stats().live_bytes, records.limbo_bytes()), (0, 0));
    let block = fresh(records, 1);
    let word = records.fresh_word(&block, 0, 3).expect("the slot is enabled");
    // ORDERING: Relaxed; one thread, or after the join.
    assert_eq!((core::ptr::from_ref(word).addr(), word.load(Ordering::Relaxed)), (place, 0));
    records.discard(block);
}

#[test]
fn a_retired_block_is_freed_once_after_a_grace_period() {
    let records = records();
    let record = records.record();
    record.link(fresh(records, 1));
    set(&record, 5);
    let old = record.link(fresh(records, 1)).expect("it had memory");
    assert_eq!(value(&record), Some(0));
    let word = records.unlinked_word(&old, 0, 3).expect("the slot is enabled");
    // ORDERING: Relaxed; one thread, or after the join.
    assert_eq!(word.load(Ordering::Relaxed), 5, "its owner may move the values");
    records.retire(old);
    assert_eq!(records.limbo_bytes(), 337 * 8);
    // It counts as it was retired, on one slot.
    records.admit(1);
    assert_eq!(records.limbo_bytes(), 337 * 8);
    grace::synchronize(Form::Expedited);
    let reclaimed = records.reclaim();
    assert_eq!((reclaimed, records.limbo_bytes()), (1, 0));
    assert_eq!(records.arena().stats().live_bytes, 2 * 337 * 8, "the record's own block is left");
    assert_eq!(records.reclaim(), 0);
}

#[test]
fn a_reader_that_stalls_keeps_its_memory_and_nothing_else() {
    let records = records();
    let record = records.record();
    record.link(fresh(records, 1));
    set(&record, 5);
    let (inside, is_inside) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let record = &record;
        scope.spawn(move || {
            let word = record.access(0, 3).expect("it has memory");
            inside.send(core::ptr::from_ref(&*word).addr()).expect("the test waits for it");
            goes_on.recv().expect("the test lets it go on");
            // ORDERING: Relaxed; one thread, or after the join.
            assert_eq!(word.load(Ordering::Relaxed), 5, "the reader's word has not changed");
        });
        let held = is_inside.recv().expect("the reader sends it");
        for turn in 0..20 {
            let old = record.link(fresh(records, 1)).expect("it had memory");
            records.retire(old);
            assert!(grace::synchronize_until(Form::Expedited, Instant::now()).is_err(), "it stalls");
            assert_eq!(records.reclaim(), 0);
            let section = grace::enter();
            let word = record.word(&section, 0, 3).expect("it has memory");
            assert_ne!(core::ptr::from_ref(word).addr(), held, "the memory is not used again");
            // ORDERING: Relaxed; one thread, or after the join.
            word.store(turn, Ordering::Relaxed);
        }
        assert_eq!(records.limbo_bytes(), 20 * 337 * 8);
        go_on.send(()).expect("the reader waits for it");
        grace::synchronize(Form::Expedited);
        assert_eq!(records.reclaim(), 20);
    });
    assert_eq!((records.limbo_bytes(), value(&record)), (0, Some(19)));
    assert_eq!(records.arena().stats().live_bytes, 337 * 8);
}

/// Records of which ten in eleven were given back.
fn sparse(records: &'static Records) -> Vec<Option<Record>> {
    let mut all: Vec<_> = (0..500)
        .map(|owner| {
            let record = records.record();
            record.link(fresh(records, owner));
            set(&record, u64::from(owner));
            Some(record)
        })
        .collect();
    for (_, place) in all.iter_mut().enumerate().filter(|(owner, _)| owner % 11 != 0) {
        let record = place.take().expect("it is there");
        records.retire(record.unlink().expect("it had memory"));
    }
    grace::synchronize(Form::Expedited);
    records.reclaim();
    all
}

#[test]
fn a_move_belongs_to_its_owners_record_until_it_is_unlinked() {
    let records = records();
    let all = sparse(records);
    let relocation = records.next_move().expect("most is free");
    let owner = relocation.owner();
    let record = all[owner as usize].as_ref().expect("the owner is there");
    assert!(relocation.is_current(record));
    let another = all[(owner as usize + 11) % 495].as_ref().expect("every eleventh is there");
    assert!(!relocation.is_current(another));
    records.retire(record.unlink().expect("it had memory"));
    assert!(!relocation.is_current(record), "it has no block");
    record.link(fresh(records, owner));
    assert!(!relocation.is_current(record), "it has another block");
    records.discard(relocation.into_target());
    grace::synchronize(Form::Expedited);
    assert_eq!(records.reclaim(), 1);
    records.arena().check();
    assert_eq!(records.arena().stats().live_bytes, 46 * 337 * 8, "nothing is left behind");
}

#[test]
fn a_refused_chunk_is_an_error_and_changes_nothing() {
    let records = records();
    let guard = inject::fail(Call::Map, 0);
    let error = records.provide(1).expect_err("the system refuses");
    assert!(records.allocate(1).is_none());
    drop(guard);
    assert!(error.to_string().starts_with("map "), "{error}");
    assert_eq!(records.arena().stats().chunks, 0);
    records.discard(fresh(records, 1));
}

#[test]
fn records_that_fit_no_block_are_refused_with_their_size() {
    for (words, bytes) in [(0, 0), (8193, 65_544), (usize::MAX, usize::MAX)] {
        let error = Records::new(ArenaConfig::new(2), words).err().expect("it fits no block");
        let expected =
            format!("make an arena for records of {bytes} bytes on each slot: expected from 8 to 65536");
        assert_eq!(error.to_string(), expected);
    }
    assert!(Records::new(ArenaConfig::new(2), 8192).is_ok());
}

#[test]
fn discards_the_target_of_a_record_that_is_gone() {
    for all_go in [false, true] {
        let records = records();
        let mut all = sparse(records);
        let relocation = records.next_move().expect("most is free");
        let owner = relocation.owner() as usize;
        for record in all.iter_mut().enumerate().filter(|(place, _)| all_go || *place == owner) {
            if let Some(record) = record.1.take() {
                records.retire(record.unlink().expect("it had memory"));
            }
        }
        grace::synchronize(Form::Expedited);
        records.reclaim();
        records.discard(relocation.into_target());
        records.arena().check();
        let left = all.iter().flatten().count() as u64;
        let stats = records.arena().stats();
        assert_eq!((stats.live_bytes, stats.leaving_bytes), (left * 337 * 8, 0));
    }
}

#[test]
fn a_record_that_is_erased_has_no_memory_and_can_belong_to_other_records() {
    static POOL: ChunkPool<Record> = ChunkPool::new(100);
    let (few, many) = (records(), records());
    let chunk = POOL.take().unwrap();
    let record = &chunk.cells()[7];
    assert!(!record.is_linked() && record.access(0, 0).is_none());
    record.belong_to(few, &chunk);
    assert!(record.link(fresh(few, 1)).is_none());
    let section = grace::enter();
    let word = record.word(&section, 0, 0).expect("it has memory");
    let retired = chunk.retire();
    assert!(!record.is_linked() && record.word(&section, 0, 0).is_none());
    // ORDERING: Relaxed; one thread.
    assert_eq!(word.load(Ordering::Relaxed), 0, "the section keeps the word");
    drop(section);
    grace::synchronize(Form::Quiet);
    drop(retired);
    assert!(record.access(0, 0).is_none());
    grace::synchronize(Form::Quiet);
    let chunk = POOL.take().unwrap();
    assert!(core::ptr::eq(&chunk.cells()[7], record), "the same addresses");
    record.belong_to(many, &chunk);
    assert!(record.link(fresh(many, 1)).is_none());
    set(record, 5);
    assert_eq!(value(record), Some(5));
}

#[test]
#[should_panic(expected = "by one owner at a time")]
fn a_record_that_is_retired_gets_no_block() {
    static POOL: ChunkPool<Record> = ChunkPool::new(1);
    let (records, chunk) = (records(), POOL.take().unwrap());
    let record = &chunk.cells()[0];
    record.belong_to(records, &chunk);
    drop(chunk.retire());
    record.link(fresh(records, 1));
}

#[test]
#[should_panic(expected = "the record lies in another chunk")]
fn a_record_is_in_the_chunk_that_owns_it() {
    static POOL: ChunkPool<Record> = ChunkPool::new(1);
    let (first, second) = (POOL.take().unwrap(), POOL.take().unwrap());
    first.cells()[0].belong_to(records(), &second);
}

#[test]
#[should_panic(expected = "the record belongs to records already")]
fn a_record_stays_with_its_records() {
    static POOL: ChunkPool<Record> = ChunkPool::new(1);
    let chunk = POOL.take().unwrap();
    chunk.cells()[0].belong_to(records(), &chunk);
    chunk.cells()[0].belong_to(records(), &chunk);
}

/// An access may come before the record has an owner, and while it gets one.
#[test]
fn an_access_beside_the_beginning_of_a_record_finds_nothing() {
    const CELLS: usize = 16_384;
    static POOL: ChunkPool<Record> = ChunkPool::new(CELLS);
    let records = records();
    for _ in 0..4 {
        let chunk = POOL.take().unwrap();
        let (cells, at, is_over) = (chunk.cells(), AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                // ORDERING: Relaxed, twice; hints of where to look.
                while !is_over.load(Ordering::Relaxed) {
                    let record = &cells[at.load(Ordering::Relaxed)];
                    assert!((0..16).all(|_| record.access(0, 0).is_none()));
                }
            });
            for (number, record) in cells.iter().enumerate() {
                // ORDERING: Relaxed; as above.
                at.store(number, Ordering::Relaxed);
                (0..20 + number * 7 % 61).for_each(|_| core::hint::spin_loop());
                record.belong_to(records, &chunk);
            }
            // ORDERING: Relaxed; as above.
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
