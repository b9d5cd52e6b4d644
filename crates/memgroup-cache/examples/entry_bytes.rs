//! The bytes that a cache takes for an entry besides its value, for `CacheConfig::entry_bytes`.
//!
//! ```text
//! cargo run --release -p memgroup-cache --all-features --example entry_bytes
//! ```

#![allow(unsafe_code)] // an allocator that counts

use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error;
use std::sync::atomic::{AtomicI64, Ordering};

use memgroup::{Config, Hierarchy};
use memgroup_cache::{CacheConfig, MokaCache, QuickCache};

/// Counts the bytes that the process has allocated.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;
static ALLOCATED: AtomicI64 = AtomicI64::new(0);

// SAFETY: the system's allocator, with a count beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // ORDERING: Relaxed; a count.
        ALLOCATED.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // ORDERING: Relaxed; a count.
        ALLOCATED.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Bytes for each entry that `fill` leaves in a cache of keys and values of 8 bytes each.
fn measured<C>(
    make: impl FnOnce() -> Result<C, Box<dyn Error>>,
    fill: impl FnOnce(&C) -> u64,
) -> Result<i64, Box<dyn Error>> {
    // ORDERING: Relaxed; one thread.
    let before = ALLOCATED.load(Ordering::Relaxed);
    let cache = make()?;
    let entries = fill(&cache);
    // ORDERING: as above.
    Ok((ALLOCATED.load(Ordering::Relaxed) - before) / entries as i64 - 16)
}

fn main() -> Result<(), Box<dyn Error>> {
    let hierarchy = Hierarchy::new(Config::new())?;
    let group = hierarchy.create("/tenant")?;
    println!("{:>8} {:>12} {:>6}", "entries", "quick_cache", "moka");
    for entries in [1_000, 10_000, 100_000] {
        let config = || CacheConfig::new(1 << 30).entries(entries);
        let weigh = |_: &u64, _: &u64| 16;
        let quick = measured(
            || Ok(QuickCache::new(&group, config(), weigh)?),
            |cache| {
                (0..entries as u64).for_each(|key| drop(cache.insert(key, key)));
                cache.len()
            },
        )?;
        let moka = measured(
            || Ok(MokaCache::new(&group, config(), weigh)?),
            |cache| {
                (0..entries as u64).for_each(|key| drop(cache.insert(key, key)));
                cache.run_pending_tasks();
                cache.len()
            },
        )?;
        println!("{entries:>8} {quick:>12} {moka:>6}");
    }
    Ok(())
}
