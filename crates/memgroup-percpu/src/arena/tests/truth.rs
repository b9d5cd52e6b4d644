//! The arena's own figures, compared with the system's.

use std::time::{Duration, Instant};

use super::{GROUP, Marked, Random, arena, depopulate_all};
use crate::arena::alloc::Arena;
use crate::arena::config::ArenaConfig;
use crate::arena::page::PageSize;

/// The bytes in memory of the arena's chunks, by the process's list of mappings.
fn resident_bytes(arena: &Arena) -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps").expect("Linux has the list");
    let state = arena.state.lock();
    let chunks: Vec<_> = state.chunks.all().map(|(_, chunk)| chunk.region.addresses()).collect();
    let (mut within, mut sum) = (false, 0);
    for line in text.lines() {
        let range = line.split(' ').next().and_then(|word| word.split_once('-'));
        if let Some((start, end)) = range
            && let (Ok(start), Ok(end)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
        {
            // The system merges neighbouring mappings: a line may be one chunk, several, or a part
            // of one.
            within =
                chunks.iter().any(|chunk| start <= chunk.start && chunk.end <= end || chunk.contains(&start));
        } else if within && let Some(rest) = line.strip_prefix("Rss:") {
            let kib: u64 = rest.trim().trim_end_matches(" kB").parse().expect("a number");
            sum += kib << 10;
        }
    }
    sum
}

/// Runs `test` in a process of its own, so that no other test's chunks are merged with the arena's
/// mappings.
fn alone(name: &str, test: impl FnOnce()) {
    const MARK: &str = "MEMGROUP_TEST_ALONE";
    if std::env::var_os(MARK).is_some_and(|value| value == name) {
        return test();
    }
    let this = std::env::current_exe().expect("a test has a file");
    let path = format!("arena::tests::truth::{name}");
    let output = std::process::Command::new(this)
        .args([path.as_str(), "--exact", "--nocapture", "--test-threads=1"])
        .env(MARK, name)
        .output()
        .expect("a process can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
#[cfg_attr(memgroup_emulated, ignore = "starts a process")]
fn reports_the_populated_bytes_of_the_system() {
    alone("reports_the_populated_bytes_of_the_system", || {
        println!("seed 3");
        for page in [PageSize::Kib4, PageSize::Kib16, PageSize::Kib64] {
            for (slots, admitted) in [(2, vec![0]), (2, vec![0, 1]), (128, vec![3, 64, 127])] {
                let (arena, mut random) = (arena(slots, page, GROUP), Random(3));
                admitted.iter().for_each(|&slot| _ = arena.slots.insert(slot));
                let mut blocks = Vec::new();
                for turn in 0..3000 {
                    if random.below(5) < 3 || blocks.is_empty() {
                        blocks.push(Marked::new(&arena, turn));
                    } else {
                        blocks.swap_remove(random.below(blocks.len())).free(&arena);
                    }
                    if turn % 500 == 499 {
                        let before = arena.stats();
                        assert_eq!(
                            before.populated_bytes,
                            resident_bytes(&arena),
                            "{page:?} {slots} {before:?}"
                        );
                        if page == PageSize::of_system() {
                            assert!(before.populated_bytes >= before.live_bytes + before.empty_bytes);
                        }
                        let given = depopulate_all(&arena);
                        let after = arena.stats();
                        assert_eq!(
                            after.populated_bytes,
                            resident_bytes(&arena),
                            "{page:?} {slots} {after:?}"
                        );
                        assert_eq!(before.populated_bytes - given, after.populated_bytes, "every page once");
                        if admitted == [0] && page == PageSize::of_system() {
                            // In a unit that is shifted a free page may lie on two that are not
                            // free.
                            assert!(given >= before.empty_bytes, "all empty pages, and edges of others");
                        }
                    }
                }
                blocks.into_iter().for_each(|block| block.free(&arena));
                depopulate_all(&arena);
                assert_eq!((arena.stats().populated_bytes, resident_bytes(&arena)), (0, 0));
            }
        }
    });
}

#[test]
fn backs_no_page_of_a_slot_that_never_ran() {
    for page in [PageSize::Kib4, PageSize::Kib64] {
        let arena = arena(100, page, 125);
        arena.slots.insert(7);
        for round in 0..3 {
            let blocks: Vec<Marked> = (0..200).map(|owner| Marked::new(&arena, owner)).collect();
            blocks.into_iter().for_each(|block| block.free(&arena));
            if round == 1 {
                depopulate_all(&arena);
            }
        }
        let state = arena.state.lock();
        for (_, chunk) in state.chunks.all() {
            let ran = chunk.geometry.pages_around(7, 0, chunk.geometry.blocks);
            let before = chunk.region.resident_bytes(0..ran.start);
            let after = chunk.region.resident_bytes(ran.end..chunk.geometry.chunk_bytes());
            assert_eq!((before, after), (Ok(0), Ok(0)));
        }
    }
}

#[test]
fn a_slot_that_is_admitted_later_finds_zeros() {
    let arena = arena(4, PageSize::Kib64, 125);
    arena.slots.insert(0);
    let block = Marked::new(&arena, 9);
    arena.slots.insert(3);
    block.check(&arena, &[0]);
    block.free(&arena);
}

#[test]
fn gives_a_page_back_once_and_backs_it_again_when_used() {
    let arena = arena(3, PageSize::Kib4, GROUP);
    arena.slots.insert(0);
    arena.slots.insert(2);
    for _ in 0..3 {
        let blocks: Vec<Marked> = (0..100).map(|owner| Marked::new(&arena, owner)).collect();
        let populated = arena.stats().populated_bytes;
        assert!(populated >= 100 * 2704 * 2);
        blocks.into_iter().for_each(|block| block.free(&arena));
        depopulate_all(&arena);
        assert_eq!(arena.stats().populated_bytes, 0);
        assert_eq!(arena.depopulate_now(64).calls, 0, "empty pages are not asked for again");
    }
}

#[test]
fn an_empty_chunk_of_many_pages_goes_in_calls_of_64() {
    for words in [1, 512, 8192] {
        let arena = arena(40, PageSize::Kib4, words);
        (0..40).for_each(|slot| _ = arena.slots.insert(slot));
        let blocks: Vec<_> = (0..8192 / words).map(|owner| Marked::new(&arena, owner as u32)).collect();
        blocks.into_iter().for_each(|block| block.free(&arena));
        let mut calls = 0;
        loop {
            let returned = arena.depopulate_now(usize::MAX);
            assert!(returned.pages <= 64, "whatever is asked for: {returned:?}");
            arena.check();
            if !returned.more {
                break;
            }
            calls += 1;
            // Only whole slots go: three of 17 pages.
            assert!(calls < 14 || words < 8192 && calls < 30, "40 slots of 17 pages are 680 pages");
        }
        assert_eq!(arena.stats().populated_bytes, 0);
    }
}

#[test]
fn the_float_stays_and_decays_with_the_time_that_is_passed_in() {
    let decay = Duration::from_millis(1600);
    let config = ArenaConfig::new(1).page(PageSize::of_system()).float_bytes(32 << 10).decay(decay);
    let arena = Arena::new(config, 512).expect("right");
    arena.slots.insert(0);
    let blocks: Vec<Marked> = (0..40).map(|owner| Marked::new(&arena, owner)).collect();
    let mut blocks = blocks.into_iter();
    let kept = blocks.next().expect("there are forty");
    blocks.for_each(|block| block.free(&arena));
    let (start, mut before) = (Instant::now(), u64::MAX);
    let settle = |now| while arena.depopulate(now, 64).more {};
    settle(start);
    let page = PageSize::of_system().bytes() as u64;
    let float = arena.stats().empty_bytes;
    assert!(float <= 32 << 10 && float + 16 * page > 32 << 10, "the float stays: {float}");
    for step in 1..=16 {
        settle(start + decay / 16 * step);
        let empty = arena.stats().empty_bytes;
        assert!(empty <= before);
        before = empty;
        if step == 4 {
            assert!(empty > 0, "a quarter of the time leaves most of it");
        }
    }
    assert_eq!(before, 0, "nothing is left after the decay");
    kept.check(&arena, &[0]);
    kept.free(&arena);
}

#[test]
fn allocates_from_provided_room_alone() {
    use crate::arena::os::{Call, inject};
    let arena = arena(2, PageSize::of_system(), 125);
    assert_eq!(arena.alloc(1), None, "there is no chunk");
    arena.provide(60).expect("the system has memory");
    assert_eq!((arena.stats().chunks, arena.stats().populated_bytes), (1, 0), "address space, not pages");
    let guards = [Call::Map, Call::Discard].map(|call| inject::fail(call, 0));
    let blocks: Vec<_> = (0..60).map_while(|_| arena.alloc(1)).collect();
    assert_eq!(blocks.len(), 60);
    drop(guards);
    let held = arena.state.lock();
    assert!(arena.alloc(1).is_none(), "it does not wait for the lock");
    drop(held);
    blocks.into_iter().for_each(|block| arena.free(block));
    assert_eq!(arena.stats().chunks, 1, "one empty chunk stays");
}

#[test]
fn gives_back_pages_freed_above_an_interrupted_call() {
    let config = ArenaConfig::new(1).page(PageSize::Kib4).float_bytes(0);
    let arena = Arena::new(config, 256).expect("right");
    arena.slots.insert(0);
    // Two chunks of sixteen pages, each page of two blocks.
    let mut blocks: Vec<Option<Marked>> = (0..64).map(|owner| Some(Marked::new(&arena, owner))).collect();
    let mut free = |number: usize| blocks[number].take().expect("it is there").free(&arena);
    // A page of each chunk, and below it a half in the first, with which the next call is to go on.
    [0, 28, 29, 60, 61].into_iter().for_each(&mut free);
    let now = std::time::Instant::now();
    let first = arena.depopulate(now, 1);
    assert!(first.pages == 1 && first.more, "{first:?}");
    [30, 31].into_iter().for_each(&mut free);
    while arena.depopulate(now, 1).more {}
    arena.check();
    assert_eq!(arena.stats().empty_bytes, 0, "the page above goes too");
    (0..64).filter(|number| ![0, 28, 29, 30, 31, 60, 61].contains(number)).for_each(&mut free);
    depopulate_all(&arena);
}
