//! Threads that allocate, free, move and depopulate at once. The seed is printed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use xtask::Watchdog;

use super::{GROUP, Marked, Random, depopulate_all};
use crate::arena::alloc::Arena;
use crate::arena::config::ArenaConfig;
use crate::arena::page::PageSize;

const ROUNDS: usize = if cfg!(miri) { 60 } else { 5_000 };
/// Owners of one thread: their numbers are the thread's times this, and on.
const OWNERS: usize = 64;

/// Blocks by owner. A mover holds the owner's lock while it copies, as it would hold a group's.
type Table = Vec<Mutex<Option<Marked>>>;

fn work(arena: &Arena, table: &Table, thread: usize, seed: u64) {
    let mut random = Random(seed + thread as u64);
    for _ in 0..ROUNDS {
        let admitted: Vec<usize> = arena.slots.iter().collect();
        let owner = thread * OWNERS + random.below(OWNERS);
        let mut place = table[owner].lock().unwrap();
        match place.take() {
            Some(block) => {
                block.check(arena, &admitted);
                block.free(arena);
            }
            // Now and then without a chunk for it.
            None if random.below(8) == 0 => {
                let block = arena.alloc(owner as u32);
                *place = block.map(|block| Marked::mark(arena, block, owner as u32 + 1));
            }
            None => *place = Some(Marked::new(arena, owner as u32)),
        }
    }
}

/// Makes the moves that are offered, under the owner's lock, as the owner of records does.
fn move_some(arena: &Arena, table: &Table) {
    for _ in 0..50 {
        let Some(offer) = arena.begin_move() else { return };
        let mut place = table[offer.owner as usize].lock().unwrap();
        match place.as_mut() {
            Some(block) if block.block == offer.from => {
                *block = Marked::mark(arena, offer.to, block.mark);
                arena.free(offer.from);
            }
            // Its owner has freed it meanwhile.
            _ => arena.free(offer.to),
        }
    }
}

fn soak(page: PageSize, slots: usize, words: usize, seed: u64) {
    println!("seed {seed}, {page:?}, {slots} slots, {words} words");
    let _watchdog = Watchdog::over("a soak of the arena");
    let config = ArenaConfig::new(slots).page(page).float_bytes(64 << 10);
    let arena = Arena::new(config, words).expect("right");
    (0..slots.min(3)).for_each(|slot| _ = arena.slots.insert(slot));
    const THREADS: usize = 3;
    let table: Table = (0..THREADS * OWNERS).map(|_| Mutex::new(None)).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (arena, table) = (&arena, &table);
                scope.spawn(move || work(arena, table, thread, seed))
            })
            .collect();
        scope.spawn(|| {
            let mut turn = 0;
            // ORDERING: Relaxed; a flag that ends the loops.
            while !over.load(Ordering::Relaxed) {
                turn += 1;
                arena.depopulate_now(40);
                arena.depopulate(std::time::Instant::now(), 20);
                arena.provide(12).expect("the system has memory");
                if turn % 16 == 0 {
                    arena.check();
                }
                std::thread::yield_now();
            }
        });
        scope.spawn(|| {
            // ORDERING: Relaxed; a flag that ends the loops.
            while !over.load(Ordering::Relaxed) {
                move_some(&arena, &table);
                std::thread::yield_now();
            }
        });
        let joined: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        // ORDERING: Relaxed; a flag that ends the loops.
        over.store(true, Ordering::Relaxed);
        joined.into_iter().for_each(|joined| joined.expect("no worker panicked"));
    });
    arena.check();
    for place in &table {
        if let Some(block) = place.lock().unwrap().take() {
            block.free(&arena);
        }
    }
    depopulate_all(&arena);
    arena.check();
    let stats = arena.stats();
    assert_eq!((stats.live_bytes, stats.leaving_bytes, stats.empty_bytes), (0, 0, 0), "{stats:?}");
    if cfg!(all(target_os = "linux", not(miri))) {
        assert_eq!(stats.populated_bytes, 0, "{stats:?}");
    }
}

#[test]
fn threads_that_allocate_free_move_and_depopulate_lose_nothing() {
    let seed = std::env::var("MEMGROUP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(11);
    soak(PageSize::of_system(), 2, GROUP, seed);
    soak(PageSize::of_system(), 2, 3, seed);
    soak(PageSize::Kib64, 5, 600, seed);
}
