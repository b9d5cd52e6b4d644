//! Every request to the system fails once, at every place. The error names it, nothing is lost,
//! and the arena works afterwards.

use super::{GROUP, Marked, arena, depopulate_all};
use crate::arena::alloc::Arena;
use crate::arena::os::{Call, inject};
use crate::arena::page::PageSize;

/// The arena works: blocks can be had, and their memory comes back.
fn works(arena: &Arena) {
    let admitted: Vec<usize> = arena.slots.iter().collect();
    let blocks: Vec<Marked> = (0..100).map(|owner| Marked::new(arena, owner)).collect();
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
    let arena = arena(3, PageSize::of_system(), GROUP);
    arena.slots.insert(0);
    let guard = inject::fail(Call::Map, 0);
    let error = arena.provide(1).expect_err("the chunk is refused");
    drop(guard);
    assert_eq!((arena.stats().chunks, arena.alloc(0)), (0, None));
    works(&arena);
    let bytes = arena.stats().reserved_bytes;
    assert_eq!(
        error.to_string(),
        format!(
            "map {bytes} bytes of address space for per-slot memory of 3 slots: the system refused it; raise RLIMIT_AS \
             or vm.max_map_count, or use fewer slots"
        )
    );
}

#[test]
fn reports_a_refused_chunk_while_it_provides_room() {
    let arena = arena(2, PageSize::Kib4, GROUP);
    let guard = inject::fail(Call::Map, 1);
    assert!(arena.provide(60).is_err());
    assert_eq!(arena.stats().chunks, 1, "the first is there");
    drop(guard);
    arena.provide(60).expect("the system has memory");
    works(&arena);
}

#[test]
fn pages_that_the_system_does_not_take_are_offered_again() {
    for page in [PageSize::of_system(), PageSize::Kib64] {
        for after in 0..6 {
            let arena = arena(2, page, GROUP);
            (0..2).for_each(|slot| _ = arena.slots.insert(slot));
            let blocks: Vec<Marked> = (0..1000).map(|owner| Marked::new(&arena, owner)).collect();
            let (kept, freed): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|block| block.mark % 90 == 0);
            freed.into_iter().for_each(|block| block.free(&arena));
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
            for block in kept {
                block.check(&arena, &[0, 1]);
                block.free(&arena);
            }
            works(&arena);
            if cfg!(all(target_os = "linux", not(miri))) {
                assert_eq!(arena.stats().populated_bytes, 0, "{page:?} {after}");
            }
        }
    }
}

#[test]
fn residency_that_cannot_be_asked_counts_as_backed() {
    let arena = arena(2, PageSize::of_system(), GROUP);
    arena.slots.insert(1);
    let block = Marked::new(&arena, 1);
    let told = arena.stats().populated_bytes;
    let guard = inject::fail(Call::Resident, 0);
    let stats = arena.stats();
    drop(guard);
    assert!(stats.populated_bytes >= told && stats.refusals_total == 1);
    block.free(&arena);
    works(&arena);
}
