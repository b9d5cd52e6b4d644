//! Models of records: every interleaving of a few calls, with up to three preemptions.
//!
//! The oracle is that of the arena's memory (`os/model.rs`). A word of a block that is free panics
//! when it is asked for. The arena writes to a block when it takes it back and clears it, and
//! these writes must be ordered against every access.

use std::sync::Arc;

use memgroup_sync::atomic::Ordering;
use memgroup_sync::grace::{self, Form};
use memgroup_sync::{Chunk, ChunkPool, thread};

use super::Record;
use crate::arena::config::ArenaConfig;
use crate::models::explore;
use crate::mutation::{self, Mutation};
use crate::records::{Fresh, Records};

const MARK: u64 = 7;

/// Runs `model` with records of one word on one slot, and a record of them that has no memory.
fn with_record(model: impl FnOnce(&'static Records, &Arc<Record>)) {
    let records = Records::new(ArenaConfig::new(1), 1).expect("one word on one slot is allowed");
    let records = memgroup_sync::keep(Box::new(records));
    records.provide(1).expect("loom has memory");
    model(records, &Arc::new(records.record()));
}

fn fresh(records: &'static Records) -> Fresh {
    records.allocate(0).expect("its chunk has room")
}

fn access(record: &Arc<Record>) -> thread::JoinHandle<()> {
    let record = Arc::clone(record);
    thread::spawn(move || {
        if let Some(word) = record.access(0, 0) {
            // ORDERING: Relaxed; the model is about the memory, which must not be used again
            // meanwhile.
            word.fetch_add(1, Ordering::Relaxed);
        }
    })
}

/// The first block is replaced by another or taken away, and its memory is used again.
fn memory_is_used_again(moves: bool) {
    with_record(|records, record| {
        records.admit(0);
        record.link(fresh(records));
        let target = moves.then(|| fresh(records));
        let other = access(record);
        let old = match target {
            Some(target) => record.link(target),
            None => record.unlink(),
        };
        records.retire(old.expect("it had a block"));
        grace::synchronize(Form::Quiet);
        records.reclaim();
        assert_eq!(records.limbo_bytes(), 0, "the grace period is over");
        let again = fresh(records);
        other.join().unwrap();
        let word = records.fresh_word(&again, 0, 0).expect("the slot is enabled");
        // ORDERING: Relaxed; at rest, after the join.
        assert!(word.load(Ordering::Relaxed) == 0, "memory that is used again was changed by an access");
    });
}

#[test]
fn loom_an_access_never_reaches_memory_that_is_used_again() {
    explore(3, || memory_is_used_again(true));
    explore(3, || memory_is_used_again(false));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_memory_reused_without_a_grace_period_is_caught() {
    mutation::with(Mutation::RetiredIsFreeAtOnce, || explore(3, || memory_is_used_again(true)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_an_unlinking_that_leaves_slots_enabled_is_caught() {
    mutation::with(Mutation::UnlinkLeavesSlotsEnabled, || explore(3, || memory_is_used_again(false)));
}

/// The caller's fault: the grace period began before the unlinking.
#[test]
#[should_panic(expected = "used after its block was freed")]
fn loom_a_grace_period_begun_before_the_unlinking_is_caught() {
    explore(3, || {
        with_record(|records, record| {
            records.admit(0);
            record.link(fresh(records));
            let other = access(record);
            grace::synchronize(Form::Quiet);
            mutation::with(Mutation::RetiredIsFreeAtOnce, || {
                records.retire(record.unlink().expect("it had a block"));
            });
            other.join().unwrap();
        });
    });
}

/// A block is marked before it takes the place of another.
fn a_marked_block_is_linked() {
    with_record(|records, record| {
        records.admit(0);
        record.link(fresh(records));
        let target = fresh(records);
        let other = thread::spawn({
            let record = Arc::clone(record);
            move || {
                let section = grace::enter();
                // ORDERING: Acquire; as an access finds it.
                let base = record.base.load(Ordering::Acquire);
                let word = record.word(&section, 0, 0).expect("the slot is enabled");
                // ORDERING: Relaxed; the oracle is a word written before the block was linked.
                (base, word.load(Ordering::Relaxed))
            }
        });
        let word = records.fresh_word(&target, 0, 0).expect("the slot is enabled");
        // ORDERING: Relaxed; linking publishes it.
        word.store(MARK, Ordering::Relaxed);
        // ORDERING: Relaxed; the owner's.
        let before = record.base.load(Ordering::Relaxed);
        record.link(target);
        let (base, value) = other.join().unwrap();
        assert!(base == before || value == MARK, "a block is found without its mark");
    });
}

#[test]
fn loom_an_access_that_finds_a_block_finds_its_words() {
    explore(3, a_marked_block_is_linked);
}

#[test]
#[should_panic(expected = "without its mark")]
fn loom_a_link_that_publishes_nothing_is_caught() {
    mutation::with(Mutation::LinkPublishesNothing, || explore(3, a_marked_block_is_linked));
}

/// A slot is admitted beside a thread that uses it. A third one, which has only waited for that
/// thread, frees the memory.
fn a_slot_is_admitted() {
    with_record(|records, record| {
        record.link(fresh(records));
        let admitting = thread::spawn(|| records.admit(0));
        let user = thread::spawn({
            let record = Arc::clone(record);
            move || {
                // ORDERING: Relaxed; the model is about the memory.
                record.access(0, 0).map(|word| word.store(MARK, Ordering::Relaxed)).is_some()
            }
        });
        let is_used = user.join().unwrap();
        records.retire(record.unlink().expect("it had a block"));
        grace::synchronize(Form::Quiet);
        records.reclaim();
        let again = fresh(records);
        admitting.join().unwrap();
        let word = records.fresh_word(&again, 0, 0).expect("the slot is enabled");
        // ORDERING: Relaxed; at rest, after the joins.
        let is_clear = word.load(Ordering::Relaxed) == 0;
        assert!(is_clear || !is_used, "what was written on a new slot is not cleared");
    });
}

#[test]
fn loom_memory_that_was_used_on_a_new_slot_is_cleared() {
    explore(3, a_slot_is_admitted);
}

#[test]
#[should_panic(expected = "is not cleared")]
fn loom_a_slot_enabled_relaxed_is_caught() {
    mutation::with(Mutation::SlotIsEnabledRelaxed, || explore(3, a_slot_is_admitted));
}

static RECORDS: ChunkPool<Record> = ChunkPool::new(1);

/// A record with a block is retired and erased beside an access to its second slot. With `waits`,
/// a grace period lies between.
fn a_record_is_erased(waits: bool) {
    let records = Records::new(ArenaConfig::new(2), 1).expect("one word on two slots is allowed");
    let records: &'static Records = memgroup_sync::keep(Box::new(records));
    records.provide(1).expect("loom has memory");
    let chunk = RECORDS.take().expect("loom has memory");
    let record = &chunk.cells()[0];
    record.belong_to(records, &chunk);
    (0..2).for_each(|slot| records.admit(slot));
    record.link(fresh(records));
    // ORDERING: Relaxed; before the other thread.
    record.access(1, 0).expect("it has memory").store(MARK, Ordering::Relaxed);
    let other = thread::spawn(move || {
        // The model checker sees no fixed values; it does see this.
        record.is_linked();
        // ORDERING: Relaxed; the oracle is which word it is.
        let found = record.access(1, 0).map(|word| word.load(Ordering::Relaxed));
        assert!(found.is_none_or(|value| value == MARK), "an access finds another word");
    });
    let retired = chunk.retire();
    if waits {
        grace::synchronize(Form::Quiet);
    }
    drop(retired);
    other.join().unwrap();
    assert!(record.access(1, 0).is_none());
}

#[test]
fn loom_an_access_finds_its_word_or_none_beside_an_erasure() {
    explore(3, || a_record_is_erased(true));
}

/// The caller's fault, which a `RetiredChunk` outside of models prevents.
#[test]
#[should_panic(expected = "an access finds another word")]
fn loom_an_erasure_without_a_grace_period_is_caught() {
    explore(3, || a_record_is_erased(false));
}

#[test]
#[should_panic(expected = "an access finds another word")]
fn loom_a_retirement_that_leaves_slots_enabled_is_caught() {
    mutation::with(Mutation::RetireLeavesSlotsEnabled, || explore(3, || a_record_is_erased(true)));
}

/// Records of so many words on one slot, which is admitted.
fn records_of(words: usize) -> &'static Records {
    let records = Records::new(ArenaConfig::new(1), words).expect("a few words on one slot are allowed");
    let records: &'static Records = memgroup_sync::keep(Box::new(records));
    records.provide(1).expect("loom has memory");
    records.admit(0);
    records
}

/// Ends the life of a chunk, and begins the next one of the same cells.
fn next_life(chunk: Chunk<Record>) -> Chunk<Record> {
    let retired = chunk.retire();
    grace::synchronize(Form::Quiet);
    let chunk = retired.erase_and_take();
    grace::synchronize(Form::Quiet);
    chunk
}

/// A cell is a record of two words, and then one of one word, beside an access to the second word.
fn a_cell_becomes_a_shorter_record() {
    let (long, short) = (records_of(2), records_of(1));
    let chunk = RECORDS.take().expect("loom has memory");
    let record = &chunk.cells()[0];
    record.belong_to(long, &chunk);
    let other = thread::spawn(move || {
        // The model checker sees no fixed values; it does see this.
        record.is_linked();
        assert!(record.access(0, 1).is_none(), "a record of one word has a second one");
    });
    let chunk = next_life(chunk);
    record.belong_to(short, &chunk);
    record.link(fresh(short));
    other.join().unwrap();
    assert!(record.access(0, 0).is_some() && record.access(0, 1).is_none());
}

#[test]
fn loom_an_access_keeps_to_the_length_of_the_record_that_it_finds() {
    explore(3, a_cell_becomes_a_shorter_record);
}

#[test]
#[should_panic(expected = "a record of one word has a second one")]
fn loom_a_length_that_is_read_outside_the_section_is_caught() {
    mutation::with(Mutation::LengthIsReadOutsideTheSection, || explore(3, a_cell_becomes_a_shorter_record));
}

/// A cell is a record of one word, and then one of two words, while a thread links a block of the
/// first kind.
fn a_block_comes_late() {
    let (short, long) = (records_of(1), records_of(2));
    let chunk = RECORDS.take().expect("loom has memory");
    let record = &chunk.cells()[0];
    record.belong_to(short, &chunk);
    let block = fresh(short);
    let other = thread::spawn(move || {
        // The model checker sees no fixed values; it does see this.
        record.is_linked();
        record.try_link(block).is_ok()
    });
    let chunk = next_life(chunk);
    record.belong_to(long, &chunk);
    other.join().unwrap();
    assert!(record.access(0, 1).is_none(), "a record has a block of other records");
}

#[test]
fn loom_a_block_that_comes_late_is_refused() {
    explore(3, a_block_comes_late);
}

#[test]
#[should_panic(expected = "a record has a block of other records")]
fn loom_a_link_that_checks_the_records_first_is_caught() {
    mutation::with(Mutation::LinkChecksRecordsFirst, || explore(3, a_block_comes_late));
}
