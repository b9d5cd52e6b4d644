//! Tables of counters: their errors, and what becomes of their memory. What threads do to them at once is in `tests/counters.rs`.

use memgroup_sync::atomic::Ordering;
use memgroup_sync::grace::{self, Form};

use super::{CounterId, Counters, SETS_MAX};
use crate::arena::ArenaConfig;
use crate::arena::os::{Call, inject};
use crate::arena::page::PageSize;
use crate::slot::number::pin_virtual;
use crate::slot::source::SlotSource;

fn table(slots: usize, counters: usize) -> &'static Counters {
    table_of(slots, counters, PageSize::of_system())
}

fn table_of(slots: usize, counters: usize, page: PageSize) -> &'static Counters {
    let source = SlotSource::virtual_slots(slots).expect("a few slots");
    let config = ArenaConfig::new(slots).page(page).float_bytes(0);
    Counters::with_config(source, counters, config).expect("the setting is right")
}

/// How many places are taken.
fn taken(table: &'static Counters) -> usize {
    let places = table.places.lock();
    places.made as usize - places.free.len()
}

fn create(table: &'static Counters) -> CounterId {
    table.create().expect("the system has memory")
}

#[test]
fn a_set_that_was_removed_is_refused_whoever_has_its_place() {
    let table = table(2, 3);
    let first = create(table);
    table.add(first, 1, -4).expect("it is there");
    assert_eq!(table.remove(first), Ok(vec![0, -4, 0]));
    let second = create(table);
    assert_eq!(second.index, first.index, "the next set has the place");
    for gone in [table.add(first, 1, 1).err(), table.sum(first, 1).err(), table.remove(first).err()] {
        assert_eq!(gone.expect("it was removed").to_string(), "find counter set 0: it was removed");
    }
    assert_eq!(table.sum(second, 1), Ok(0));
}

#[test]
fn a_counter_that_a_set_does_not_have_is_refused_with_its_number() {
    let table = table(2, 3);
    let set = create(table);
    for refused in [table.add(set, 3, 1).err(), table.sum(set, 3).err()] {
        let message = refused.expect("there are three").to_string();
        assert_eq!(message, "find counter set 0's counter 3: it has 3, numbered from 0");
    }
    assert_eq!(table.remove(set), Ok(vec![0; 3]));
}

#[test]
fn sets_of_no_counters_and_of_too_many_are_refused_with_their_number() {
    let source = SlotSource::virtual_slots(2).expect("two slots");
    for counters in [0, 8193, usize::MAX] {
        let error = Counters::new(source, counters).expect_err("it fits no block");
        let expected = format!("make a table of sets of {counters} counters: expected from 1 to 8192");
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn the_slots_are_those_of_the_source_whatever_the_configuration_says() {
    let source = SlotSource::virtual_slots(9).expect("nine slots");
    let table = Counters::with_config(source, 1, ArenaConfig::new(2)).expect("the setting is right");
    let set = create(table);
    for slot in 0..9 {
        let _pinned = pin_virtual(slot);
        table.add(set, 0, 1).expect("it is there");
    }
    assert_eq!(table.sum(set, 0), Ok(9));
}

#[test]
fn a_refused_chunk_leaves_the_table_as_it_was() {
    let table = table(2, 337);
    for removed in [false, true] {
        let known: Vec<CounterId> = (0..30).map(|_| create(table)).collect();
        if removed {
            // Its place is free, its memory waits for a grace period.
            table.remove(known[7]).expect("it is there");
        }
        let taken = taken(table);
        let guard = inject::fail(Call::Map, 0);
        let mut fitted = Vec::new();
        let error = loop {
            match table.create() {
                Ok(set) => fitted.push(set),
                Err(error) => break error,
            }
        };
        drop(guard);
        assert!(error.to_string().starts_with("map "), "{error}");
        for set in fitted.into_iter().rev() {
            table.remove(set).expect("it is there");
        }
        table.maintain(0, Form::Expedited);
        assert_eq!(self::taken(table), taken);
        let set = create(table);
        table.add(set, 336, 1).expect("it is there");
        assert_eq!(table.sum(set, 336), Ok(1));
    }
}

#[test]
fn a_full_table_is_an_error_that_says_so() {
    let table = table(2, 1);
    let set = create(table);
    table.places.lock().made = SETS_MAX as u32;
    let error = table.create().expect_err("all places are taken");
    assert_eq!(
        error.to_string(),
        "make another set of counters: the table has 4194304 places, and each is taken; remove sets, or make another table"
    );
    table.remove(set).expect("it is there");
    assert_eq!(create(table).index, set.index, "a place that is free again is used");
}

#[test]
fn a_place_whose_generations_are_used_up_is_not_used_again() {
    let table = table(2, 1);
    let first = create(table);
    table.remove(first).expect("it is there");
    let entry = table.entry(0).expect("it was made");
    // ORDERING: Relaxed; one thread.
    entry.generation.store(u32::MAX - 1, Ordering::Relaxed);
    let last = create(table);
    assert_eq!((last.index, last.generation), (0, u32::MAX));
    table.add(last, 0, 3).expect("it is there");
    assert_eq!(table.remove(last), Ok(vec![3]));
    let next = create(table);
    assert_eq!(next.index, 1, "an id of the first place would be that of the first set");
    assert!(table.add(first, 0, 1).is_err() && table.add(last, 0, 1).is_err());
}

#[test]
#[should_panic(expected = "counter 1 of counter set 0 is out of range on slot 1")]
fn a_counter_out_of_range_is_told_instead_of_tried_for_ever() {
    let table = table(2, 2);
    let set = create(table);
    let _pinned = pin_virtual(1);
    for _ in 0..2 {
        let _ = table.add(set, 1, i64::MIN / 2);
    }
}

#[test]
fn maintenance_within_a_section_panics_and_leaves_the_table_as_it_was() {
    let table = table(2, 1);
    let (kept, removed) = (create(table), create(table));
    table.add(kept, 0, 5).expect("it is there");
    table.remove(removed).expect("it is there");
    let told = std::panic::catch_unwind(|| {
        let _section = grace::enter();
        table.maintain(1, Form::Expedited)
    });
    assert!(told.is_err());
    assert_ne!(table.records.limbo_bytes(), 0);
    table.maintain(1, Form::Expedited);
    assert_eq!((table.records.limbo_bytes(), table.sum(kept, 0)), (0, Ok(5)));
}

/// Sets of 337 counters of which ten in eleven were removed, with the slots they were added to on.
fn ten_of_eleven_removed(table: &'static Counters, sets: usize, slots: &[usize]) -> Vec<CounterId> {
    let all: Vec<CounterId> = (0..sets).map(|_| create(table)).collect();
    for (number, &set) in all.iter().enumerate() {
        for &slot in slots {
            let _pinned = pin_virtual(slot);
            table.add(set, 336, number as i64).expect("it is there");
        }
    }
    all.into_iter()
        .enumerate()
        .filter_map(|(number, set)| {
            if number % 11 == 0 {
                return Some(set);
            }
            let sums = table.remove(set).expect("it is there");
            assert_eq!(sums[336], (slots.len() * number) as i64);
            None
        })
        .collect()
}

/// What is left after ten of eleven sets are removed, the rest moved, and the pages given back.
fn comes_down_to_its_live_bytes(page: PageSize, slots: usize) {
    const SETS: usize = if cfg!(miri) { 110 } else { 5_500 };
    let table = table_of(slots, 337, page);
    let admitted = [0, slots - 1];
    let left = ten_of_eleven_removed(table, SETS, &admitted);
    let peak = table.stats();
    let mut moved = 0;
    loop {
        let done = table.maintain(usize::MAX, Form::Expedited);
        moved += done.moved;
        if done.moved == 0 {
            break;
        }
    }
    table.records.arena().check();
    let stats = table.stats();
    for (turn, &set) in left.iter().enumerate() {
        assert_eq!(table.sum(set, 336), Ok((2 * 11 * turn) as i64), "a sum survives the move");
        assert_eq!(table.sum(set, 335), Ok(0));
    }
    println!(
        "{:>4} KiB pages, {slots} slots: peak {} live {} populated {} ({:.2} of live), {} chunks, {moved} of {} sets moved",
        page.bytes() >> 10,
        peak.populated_bytes,
        stats.live_bytes,
        stats.populated_bytes,
        stats.populated_bytes as f64 / stats.live_bytes as f64,
        stats.chunks,
        left.len(),
    );
    assert_eq!(stats.live_bytes, (left.len() * 337 * 8 * admitted.len()) as u64);
    assert_eq!((stats.leaving_bytes, table.records.limbo_bytes()), (0, 0));
    let unit_sets = table.records.arena().stride_bytes() / (337 * 8);
    assert!(moved <= left.len() + unit_sets, "{moved} moves of {} sets", left.len());
    if cfg!(all(target_os = "linux", not(miri))) {
        let page_a_slot_and_chunk = (page.bytes() * admitted.len() * stats.chunks) as f64;
        assert!(
            stats.populated_bytes as f64 <= 1.1 * stats.live_bytes as f64 + page_a_slot_and_chunk,
            "{stats:?}"
        );
    }
}

#[test]
fn memory_of_removed_sets_is_given_back_at_every_page_size() {
    for page in PageSize::ALL {
        comes_down_to_its_live_bytes(page, 2);
    }
    comes_down_to_its_live_bytes(PageSize::Kib64, 100);
}

#[test]
fn a_set_that_is_removed_between_two_moves_is_not_moved_any_more() {
    let table = table(2, 337);
    let left = ten_of_eleven_removed(table, 330, &[0]);
    table.maintain(0, Form::Expedited);
    // Their words wait for a grace period.
    for &set in &left[..20] {
        table.remove(set).expect("it is there");
    }
    let mut moves = 0;
    while let Some(moved) = table.move_next() {
        assert!(moved, "no move of a removed set is offered");
        moves += 1;
    }
    assert!(moves > 0, "those that are left do move");
    table.records.arena().check();
    let next: Vec<CounterId> = (0..20).map(|_| create(table)).collect();
    for &set in &next {
        assert_eq!(table.sum(set, 336), Ok(0));
        table.add(set, 336, 1).expect("it is there");
    }
    for set in next.into_iter().chain(left.into_iter().skip(20)) {
        table.remove(set).expect("it is there");
    }
    table.maintain(usize::MAX, Form::Expedited);
    table.records.arena().check();
    let stats = table.stats();
    assert_eq!((stats.live_bytes, stats.leaving_bytes), (0, 0), "no block is lost");
}
