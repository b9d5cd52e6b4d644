//! Every request to the system fails once, at every place. The error names it, nothing is lost, and the arena works afterwards.

use std::collections::BTreeMap;

use super::{Marked, arena, depopulate_all, move_all};
use crate::arena::alloc::Arena;
use crate::arena::block::{NO_OWNER, Shape, Wait};
use crate::arena::os::{Call, inject};
use crate::arena::page::PageSize;

const SHAPE: Shape = Shape::new(2704, 8);

fn larger_than_system() -> PageSize {
    let system = PageSize::of_system();
    PageSize::ALL.into_iter().find(|&page| page > system).unwrap_or(PageSize::Mib2)
}

/// The arena works: blocks can be had, and their memory comes back.
fn works(arena: &Arena) {
    let admitted: Vec<usize> = arena.slots.iter().collect();
    let blocks: Vec<Marked> = (0..100).map(|mark| Marked::new(arena, SHAPE, mark, mark + 1)).collect();
    arena.check();
    for block in blocks {
        block.check(arena, &admitted);
        block.free(arena);
    }
    depopulate_all(arena);
    arena.check();
    let stats = arena.stats();
    assert_eq!((stats.live_bytes, stats.empty_bytes), (0, 0), "{stats:?}");
}

#[test]
fn a_refused_chunk_is_an_error_that_says_so() {
    let arena = arena(3, PageSize::of_system());
    arena.admit(0);
    let guard = inject::fail(Call::Map, 0);
    let error = arena.alloc(SHAPE, NO_OWNER, Wait::May).expect_err("the chunk is refused");
    drop(guard);
    assert_eq!(arena.stats().chunks, 0);
    works(&arena);
    let bytes = arena.stats().reserved_bytes;
    assert_eq!(
        error.to_string(),
        format!(
            "map {bytes} bytes of address space for per-slot objects of 3 slots: the system refused it; raise RLIMIT_AS \
             or vm.max_map_count, or use fewer slots"
        )
    );
}

#[test]
fn reports_a_refused_chunk_while_it_provides_room() {
    let arena = arena(2, PageSize::of_system());
    let guard = inject::fail(Call::Map, 1);
    assert!(arena.provide(SHAPE.count, 60).is_err());
    assert_eq!(arena.stats().chunks, 1, "the first is there");
    drop(guard);
    arena.provide(SHAPE.count, 60).expect("the system has memory");
    works(&arena);
}

#[test]
fn pages_that_are_refused_on_any_slot_leave_nothing_behind() {
    let arena = arena(4, larger_than_system());
    (0..4).for_each(|slot| arena.admit(slot));
    let held = Marked::unmovable(&arena, SHAPE, 1);
    let before = arena.stats();
    // 32 KiB need up to three more pages on each slot; the first object shares the first of them.
    let shape = Shape::new(32 << 10, 8);
    let mut failures = 0;
    for after in 0.. {
        let guard = inject::fail(Call::Populate, after);
        let answer = arena.alloc(shape, NO_OWNER, Wait::May);
        drop(guard);
        arena.check();
        match answer {
            Ok(block) => {
                arena.free(block);
                break;
            }
            Err(error) => {
                failures += 1;
                assert!(
                    error
                        .to_string()
                        .starts_with("back a per-slot object with 32768 bytes on each of up to 4 slots")
                );
                let now = arena.stats();
                assert_eq!(
                    (now.populated_bytes, now.live_bytes),
                    (before.populated_bytes, before.live_bytes)
                );
            }
        }
    }
    assert!(failures >= 4, "{failures} requests were made to fail");
    assert_eq!(arena.stats().refusals_total, failures);
    held.check(&arena, &[0, 1, 2, 3]);
    held.free(&arena);
    works(&arena);
}

#[test]
fn pages_refused_to_a_new_slot_are_backed_at_the_first_touch() {
    let arena = arena(2, larger_than_system());
    arena.admit(0);
    let block = Marked::unmovable(&arena, SHAPE, 5);
    let guard = inject::fail(Call::Populate, 0);
    arena.admit(1);
    drop(guard);
    assert_eq!(arena.stats().refusals_total, 1);
    block.check(&arena, &[0]);
    block.free(&arena);
    works(&arena);
}

#[test]
fn pages_that_the_system_does_not_take_are_offered_again() {
    for page in [PageSize::of_system(), larger_than_system()] {
        for after in 0..6 {
            // Chunks that are unmapped have no pages to give back.
            let config = crate::ArenaConfig::new(2).page(page).float_bytes(0).unmap(false);
            let arena = Arena::new(config).expect("right");
            (0..2).for_each(|slot| arena.admit(slot));
            let mut blocks: Vec<Marked> =
                (0..200).map(|mark| Marked::unmovable(&arena, SHAPE, mark + 1)).collect();
            let kept = blocks.split_off(199);
            blocks.into_iter().for_each(|block| block.free(&arena));
            let guard = inject::fail(Call::Discard, after);
            let mut refused = false;
            for _ in 0..40 {
                let done = arena.depopulate_now(7);
                refused |= arena.stats().refusals_total > 0;
                arena.check();
                if refused {
                    assert!(!done.more, "a caller does not turn in circles");
                    break;
                }
            }
            assert!(refused);
            drop(guard);
            kept[0].check(&arena, &[0, 1]);
            kept.into_iter().for_each(|block| block.free(&arena));
            works(&arena);
            if cfg!(all(target_os = "linux", not(miri))) {
                assert_eq!(arena.stats().populated_bytes, 0, "{page:?} {after}");
            }
        }
    }
}

#[test]
fn offers_no_move_when_its_pages_are_refused() {
    let arena = arena(2, larger_than_system());
    arena.admit(0);
    let mut blocks: BTreeMap<u32, Marked> =
        (0..1200).map(|owner| (owner, Marked::new(&arena, SHAPE, owner, owner + 1))).collect();
    blocks.retain(|owner, block| {
        let stays = owner % 40 == 0;
        if !stays {
            block.free(&arena);
        }
        stays
    });
    depopulate_all(&arena);
    let live = arena.stats().unit_live_bytes;
    let guard = inject::fail(Call::Populate, 0);
    let moved = move_all(&arena, &mut blocks);
    drop(guard);
    arena.check();
    assert_eq!(arena.stats().unit_live_bytes, live);
    assert!(moved < live);
    move_all(&arena, &mut blocks);
    blocks.values().for_each(|block| block.check(&arena, &[0]));
    blocks.into_values().for_each(|block| block.free(&arena));
    works(&arena);
}

#[test]
fn residency_that_cannot_be_asked_counts_as_backed() {
    let arena = arena(2, PageSize::of_system());
    arena.admit(1);
    let block = Marked::unmovable(&arena, SHAPE, 1);
    let told = arena.stats().populated_bytes;
    let guard = inject::fail(Call::Resident, 0);
    let stats = arena.stats();
    drop(guard);
    assert!(stats.populated_bytes >= told && stats.refusals_total == 1);
    block.free(&arena);
    works(&arena);
}
