//! The memory left after most blocks are freed, the rest moved together and the pages given back.

use std::collections::BTreeMap;

use xtask::Watchdog;

use super::{GROUP, Marked, arena, depopulate_all, move_all};
use crate::arena::alloc::Arena;
use crate::arena::page::PageSize;

const BLOCKS: u32 = if cfg!(miri) { 200 } else { 11_000 };

/// Makes blocks, frees all but one in `one_in`, moves and depopulates; checks the rest, and prints
/// it.
fn evacuate(page: PageSize, slots: usize, one_in: u32, words: usize) {
    let (arena, name) = (arena(slots, page, words), words * 8);
    for slot in 0..2 {
        arena.slots.insert(slot * (slots - 1));
    }
    let admitted: Vec<usize> = arena.slots.iter().collect();
    let mut blocks: BTreeMap<u32, Marked> =
        (0..BLOCKS).map(|owner| (owner, Marked::new(&arena, owner))).collect();
    let peak = arena.stats();
    for owner in (0..BLOCKS).filter(|owner| owner % one_in != 0) {
        blocks.remove(&owner).expect("it is there").free(&arena);
    }
    let unmoved = arena.stats().unit_live_bytes;
    let moved = move_all(&arena, &mut blocks);
    arena.check();
    depopulate_all(&arena);
    arena.check();
    let stats = arena.stats();
    blocks.values().for_each(|block| block.check(&arena, &admitted));
    assert_eq!(stats.unit_live_bytes, unmoved);
    assert_eq!((stats.leaving_bytes, stats.empty_bytes), (0, 0));
    let unit = arena.geometry.stride as u64;
    assert!(moved <= unmoved + unit, "{moved} bytes were moved of {unmoved} that are live");
    let page_a_slot_and_chunk = (page.bytes() * admitted.len() * stats.chunks) as u64;
    println!(
        "{name:>6}, 1 of {one_in}, {:>4} KiB pages: peak {:>9} live {:>8} populated {:>8} ({:.2} of live, {:.1} % of peak), \
         {} chunks, moved {:.0} % of live",
        page.bytes() >> 10,
        peak.populated_bytes,
        stats.live_bytes,
        stats.populated_bytes,
        stats.populated_bytes as f64 / stats.live_bytes as f64,
        stats.populated_bytes as f64 * 100.0 / peak.populated_bytes as f64,
        stats.chunks,
        moved as f64 * 100.0 / unmoved as f64,
    );
    if cfg!(all(target_os = "linux", not(miri))) {
        assert!(
            stats.populated_bytes as f64 <= 1.1 * stats.live_bytes as f64 + page_a_slot_and_chunk as f64,
            "{stats:?}"
        );
        let chunks_needed = blocks.len().div_ceil(arena.geometry.blocks as usize);
        assert!(
            stats.chunks <= chunks_needed * 12 / 10 + 2,
            "{} chunks, needed {chunks_needed}",
            stats.chunks
        );
    }
    blocks.into_values().for_each(|block| block.free(&arena));
    assert_eq!(arena.begin_move(), None);
    arena.check();
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn records_shrink_to_their_live_bytes_at_every_page_size() {
    for page in PageSize::ALL {
        for one_in in [11, 51] {
            evacuate(page, 2, one_in, GROUP);
        }
    }
}

#[test]
fn other_sizes_shrink_to_their_live_bytes_at_every_page_size() {
    for page in [PageSize::Kib4, PageSize::Kib16, PageSize::Kib64] {
        for one_in in [11, 51] {
            for words in [1, 8, 48] {
                evacuate(page, 2, one_in, words);
            }
        }
    }
}

#[test]
fn shifted_units_shrink_to_their_live_bytes() {
    for page in [PageSize::Kib4, PageSize::Kib64] {
        evacuate(page, 100, 11, GROUP);
    }
}

#[test]
fn does_not_move_dense_blocks() {
    let _watchdog = Watchdog::over("the search for a victim");
    for page in PageSize::ALL {
        let arena = arena(2, page, GROUP);
        arena.slots.insert(0);
        let blocks: Vec<Marked> = (0..500).map(|owner| Marked::new(&arena, owner)).collect();
        assert_eq!(arena.begin_move(), None, "{page:?}");
        blocks.into_iter().for_each(|block| block.free(&arena));
        arena.check();
    }
}

#[test]
fn does_not_move_blocks_within_the_only_page() {
    let _watchdog = Watchdog::over("the search for a block that leaves a page");
    for page in PageSize::ALL {
        let arena = arena(2, page, 32);
        arena.slots.insert(0);
        let count = page.bytes() as u32 / 256 * 3 / 4;
        let blocks: Vec<Marked> = (0..count).map(|owner| Marked::new(&arena, owner)).collect();
        let (kept, freed): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|block| block.mark % 2 == 0);
        freed.into_iter().for_each(|block| block.free(&arena));
        assert_eq!(arena.begin_move(), None, "{page:?}");
        kept.into_iter().for_each(|block| block.free(&arena));
        arena.check();
    }
}

/// An arena of blocks of 2,816 bytes, and every fourth block of 500.
fn holed() -> (Arena, BTreeMap<u32, Marked>) {
    let arena = arena(2, PageSize::Kib4, 352);
    arena.slots.insert(0);
    let mut blocks: BTreeMap<u32, Marked> =
        (0..500).map(|owner| (owner, Marked::new(&arena, owner))).collect();
    blocks.retain(|owner, block| {
        let stays = owner % 4 == 0;
        if !stays {
            block.free(&arena);
        }
        stays
    });
    (arena, blocks)
}

#[test]
fn offers_a_block_once_and_counts_it_as_leaving() {
    let _watchdog = Watchdog::over("the first two moves");
    let (arena, mut blocks) = holed();
    let live = arena.stats().unit_live_bytes;
    let first = arena.begin_move().expect("three of four blocks are free");
    let second = arena.begin_move().expect("one move is not enough");
    assert_ne!(first.owner, second.owner);
    let moved = 2 * arena.geometry.block_bytes as u64;
    assert_eq!(arena.stats().unit_live_bytes, live, "the old copies are not live, the new ones are");
    assert_eq!(arena.stats().leaving_bytes, moved);
    arena.check();
    for offer in [first, second] {
        let moved = Marked::mark(&arena, offer.to, offer.owner + 1);
        blocks.insert(offer.owner, moved);
        arena.free(offer.from);
    }
    move_all(&arena, &mut blocks);
    arena.check();
    blocks.values().for_each(|block| block.check(&arena, &[0]));
    blocks.into_values().for_each(|block| block.free(&arena));
    assert_eq!(arena.stats().chunks, 1);
}

#[test]
fn ends_the_offers_when_no_owner_moves() {
    let _watchdog = Watchdog::over("the offers of moves");
    let (arena, blocks) = holed();
    let offers: Vec<_> = std::iter::from_fn(|| arena.begin_move()).take(blocks.len() + 1).collect();
    assert!((1..=blocks.len()).contains(&offers.len()), "each block is offered once at most");
    arena.check();
    blocks.values().for_each(|block| block.check(&arena, &[0]));
    // Their owners free them meanwhile.
    blocks.into_values().for_each(|block| block.free(&arena));
    offers.into_iter().for_each(|offer| arena.free(offer.to));
    arena.check();
    assert_eq!(arena.stats().live_bytes, 0);
}

#[test]
fn a_victim_is_used_again_before_another_chunk_is_mapped() {
    let _watchdog = Watchdog::over("the use of a victim");
    let (arena, blocks) = holed();
    let offer = arena.begin_move().expect("three of four blocks are free");
    let chunks = arena.stats().chunks;
    let mut more = Vec::new();
    while arena.stats().chunks == chunks {
        more.push(Marked::new(&arena, 1000));
    }
    let in_victim = more.iter().filter(|block| block.block.chunk == offer.from.chunk).count();
    assert!(in_victim > 10, "{in_victim} blocks went where the victim has room");
    arena.check();
    arena.free(offer.to);
    more.into_iter().chain(blocks.into_values()).for_each(|block| block.free(&arena));
    arena.check();
}

/// Fills one chunk with blocks of an eighth of a page, and puts `more` into another one.
fn full_chunk_and(more: usize) -> (Arena, Vec<Marked>, Vec<Marked>) {
    let arena = arena(1, PageSize::Kib4, 64);
    arena.slots.insert(0);
    let mut full: Vec<Marked> = (0..128).map(|owner| Marked::new(&arena, owner)).collect();
    assert_eq!(arena.stats().chunks, 1);
    let mut other: Vec<Marked> = (128..).take(more).map(|owner| Marked::new(&arena, owner)).collect();
    assert!(arena.stats().chunks == 2 && full.iter().all(|block| block.block.chunk == full[0].block.chunk));
    full.sort_by_key(|block| block.block.at);
    other.sort_by_key(|block| block.block.at);
    (arena, full, other)
}

#[test]
fn moves_no_more_blocks_than_their_pages_are_worth() {
    let _watchdog = Watchdog::over("the moves of one page");
    let (arena, full, other) = full_chunk_and(8);
    // The last seven pages of the full chunk have a hole each, and no live block: any block that
    // moves there backs a page.
    let (pages, leaving) = full.split_at(72);
    let (holes, leaving): (Vec<_>, Vec<_>) = leaving.iter().enumerate().partition(|(at, _)| at % 8 == 0);
    holes.into_iter().for_each(|(_, block)| block.free(&arena));
    leaving.iter().for_each(|(_, block)| arena.leave(block.block));
    let offers: Vec<_> = std::iter::from_fn(|| arena.begin_move()).take(20).collect();
    // The first one is moved before it shows that the page's eight blocks would back eight pages
    // (B1).
    let from: Vec<_> = offers.iter().map(|offer| offer.from).collect();
    assert_eq!(from, [other[7].block], "a page of blocks moves to more pages than one");
    arena.check();
    offers.into_iter().for_each(|offer| arena.free(offer.to));
    leaving.into_iter().for_each(|(_, block)| arena.free(block.block));
    pages.iter().chain(&other).for_each(|block| block.free(&arena));
    arena.check();
}

#[test]
fn moves_nothing_for_less_than_a_part_of_the_live_bytes() {
    let _watchdog = Watchdog::over("the search for a victim");
    // Half a page of blocks, of which one would fit into the hole of the full chunk: no page would
    // become empty.
    let (arena, full, other) = full_chunk_and(4);
    let (hole, rest) = full.split_first().expect("it is full");
    hole.free(&arena);
    assert_eq!(arena.begin_move(), None);
    rest.iter().chain(&other).for_each(|block| block.free(&arena));
    arena.check();
}
