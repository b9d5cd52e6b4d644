//! A [`Shrinker`](memgroup::Shrinker) over `quick_cache`: an idle tenant's cache gives memory back for a busy tenant's.
//!
//! ```text
//! cargo run --release -p memgroup --example quick_cache
//! ```
//!
//! A shrinker needs to evict so many bytes now, on any thread, without waiting for locks, and to drop the evicted entries outside of locks. Of
//! the caches in wide use `quick_cache` fits, by their sources. It evicts within an insertion, can try its locks (`try_insert`), and hands
//! evicted entries over (`Lifecycle`). In `moka` the maintenance evicts: in batches, after writes or `run_pending_tasks`, on one thread at a time,
//! down to a bound that is set once. `foyer` shrinks by `resize`, which starts a thread for each shard and waits for them all.
//!
//! Limits:
//!
//! - The tables of the cache (about `ENTRY_BYTES` an entry, estimated and charged with it) do not shrink with their entries.
//! - Reclaim asks caches by their size, not by their last use. So the busy tenant gives entries up as well, and makes them again. In the table
//!   that is why the common limit hits less often than the first look-ups of a turn alone would explain.
//! - An entry that a reader still holds is evicted, but its bytes stay charged until the reader drops it.
//! - A part of the cache that another thread uses is skipped.
//! - Two threads that miss the same key make the value twice. To wait for the other, as the cache's own `get_or_insert_with` does, would be to wait
//!   for a charge that reclaims.

mod cache;
#[cfg(test)]
mod tests;

use std::time::Instant;

use cache::{ENTRY_BYTES, TenantCache};
use memgroup::{Config, Group, Hierarchy};

const MIB: u64 = 1 << 20;
/// The limit of both tenants together, and the entries that each would have.
const MAX_BYTES: u64 = 16 * MIB;
const ENTRIES: u64 = 7_000;
const VALUE_BYTES: usize = 2_000;
/// Turns in all, and look-ups of a turn.
const TURNS: usize = 20;
const LOOK_UPS: u64 = 100_000;

type Error = Box<dyn std::error::Error>;

/// The figures of all turns.
struct Outcome {
    hits: u64,
    seconds: f64,
    given_bytes: u64,
    /// Microseconds and bytes of a call that gave back.
    call_us: f64,
    call_bytes: u64,
}

fn main() -> Result<(), Error> {
    let wanted = ENTRIES * (VALUE_BYTES as u64 + ENTRY_BYTES);
    println!(
        "two tenants take turns of {LOOK_UPS} look-ups among {ENTRIES} values of their own;\nthese take {:.1} MiB, and both may have {} MiB",
        wanted as f64 / MIB as f64,
        MAX_BYTES / MIB
    );
    println!(
        "{:<28} {:>7} {:>12} {:>11} {:>14}",
        "caches", "hits", "look-ups/s", "MiB given", "a call gives"
    );
    for (name, capacity) in [("half each, nothing given", MAX_BYTES / 2), ("a common limit", 2 * wanted)] {
        let outcome = run(capacity)?;
        let look_ups = (TURNS as u64 * LOOK_UPS) as f64;
        println!(
            "{name:<28} {:>6.1}% {:>12.0} {:>11.1} {:>14}",
            outcome.hits as f64 / look_ups * 100.0,
            look_ups / outcome.seconds,
            outcome.given_bytes as f64 / MIB as f64,
            match outcome.call_bytes {
                0 => "-".to_owned(),
                bytes => format!("{} KiB, {:.0} us", bytes / 1024, outcome.call_us),
            }
        );
    }
    println!("a missing value is made by filling it, which takes less than most misses elsewhere");
    Ok(())
}

fn tenant(parent: &Group, name: &str, capacity: u64) -> Result<TenantCache<u64, Vec<u8>>, Error> {
    let weigh = |_: &u64, value: &Vec<u8>| value.len() as u64;
    Ok(TenantCache::new(&parent.create(name)?, capacity, ENTRIES as usize, weigh)?)
}

fn run(capacity: u64) -> Result<Outcome, Error> {
    let hierarchy = Hierarchy::new(Config::new())?;
    let parent = hierarchy.create("/tenants")?;
    parent.set_max(MAX_BYTES)?;
    let tenants = [tenant(&parent, "one", capacity)?, tenant(&parent, "two", capacity)?];
    let (begin, mut hits, mut random) = (Instant::now(), 0, 0x9E37_79B9_7F4A_7C15_u64);
    for turn in 0..TURNS {
        let cache = &tenants[turn % 2];
        for _ in 0..LOOK_UPS {
            // Xorshift.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let mut is_made = false;
            let value = cache.get_or_insert_with(random % ENTRIES, |key| {
                is_made = true;
                vec![*key as u8; VALUE_BYTES]
            });
            if value[VALUE_BYTES - 1] != (random % ENTRIES) as u8 {
                return Err(format!("the value under {} is another's", random % ENTRIES).into());
            }
            hits += u64::from(!is_made);
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let held: u64 = tenants.iter().map(TenantCache::bytes).sum();
    if parent.usage_exact() != held || parent.peak() > MAX_BYTES {
        return Err(format!("{} bytes are charged, {held} are in the caches", parent.usage_exact()).into());
    }
    let calls = hierarchy.shrinkers();
    let scans: u64 = calls.iter().map(|shrinker| shrinker.scans).sum();
    let given_bytes: u64 = calls.iter().map(|shrinker| shrinker.freed_bytes).sum();
    let call_us = calls.iter().map(|shrinker| shrinker.time.as_secs_f64()).sum::<f64>() * 1e6;
    let each = scans.max(1);
    Ok(Outcome { hits, seconds, given_bytes, call_us: call_us / each as f64, call_bytes: given_bytes / each })
}
