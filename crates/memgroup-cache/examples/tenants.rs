//! An idle tenant's cache gives memory back for a busy tenant's: hit rates with half the memory for
//! each, and with a common limit.
//!
//! ```text
//! cargo run --release -p memgroup-cache --all-features --example tenants
//! ```
//!
//! Reclaim asks caches by their size, not by their last use. So the busy tenant loses entries as
//! well, and has to make them again. That is why the common limit hits less often than the first
//! look-ups of a turn alone would explain.

use std::time::{Duration, Instant};

use memgroup::{Config, Group, Hierarchy};
use memgroup_cache::CacheConfig;

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
    let wanted = ENTRIES * (VALUE_BYTES as u64 + 128);
    println!(
        "two tenants take turns of {LOOK_UPS} look-ups among {ENTRIES} values of their own;\nthese take {:.1} MiB, and both may have {} MiB",
        wanted as f64 / MIB as f64,
        MAX_BYTES / MIB
    );
    println!(
        "{:<46} {:>7} {:>12} {:>11} {:>14}",
        "caches", "hits", "look-ups/s", "MiB given", "a call gives"
    );
    let half = CacheConfig::new(MAX_BYTES / 2).entries(ENTRIES as usize).entry_bytes(128);
    let common = CacheConfig::new(2 * wanted).entries(ENTRIES as usize).entry_bytes(128);
    let settings = [
        ("half each, nothing given", half),
        ("a common limit", common.clone()),
        ("a common limit, 100 ms to settle", common.settle(Duration::from_millis(100))),
    ];
    for (name, config) in &settings {
        print(&format!("quick_cache, {name}"), &quick_cache::run(config)?);
        #[cfg(feature = "moka")]
        print(&format!("moka, {name}"), &moka::run(config)?);
    }
    println!("a missing value is made by filling it, which takes less than most misses elsewhere");
    Ok(())
}

fn print(name: &str, outcome: &Outcome) {
    let look_ups = (TURNS as u64 * LOOK_UPS) as f64;
    println!(
        "{name:<46} {:>6.1}% {:>12.0} {:>11.1} {:>14}",
        outcome.hits as f64 / look_ups * 100.0,
        look_ups / outcome.seconds,
        outcome.given_bytes as f64 / MIB as f64,
        match outcome.call_bytes {
            0 => "-".to_owned(),
            bytes => format!("{} KiB, {:.0} us", bytes / 1024, outcome.call_us),
        }
    );
}

/// The turns with one kind of cache.
macro_rules! turns {
    ($name:ident, $cache:ident) => {
        mod $name {
            use memgroup_cache::$cache;

            use super::*;

            fn tenant(
                parent: &Group,
                name: &str,
                config: &CacheConfig,
            ) -> Result<$cache<u64, Vec<u8>>, Error> {
                let weigh = |_: &u64, value: &Vec<u8>| value.len() as u64;
                Ok($cache::new(&parent.create(name)?, config.clone(), weigh)?)
            }

            pub(super) fn run(config: &CacheConfig) -> Result<Outcome, Error> {
                let hierarchy = Hierarchy::new(Config::new())?;
                let parent = hierarchy.create("/tenants")?;
                parent.set_max(MAX_BYTES)?;
                let tenants = [tenant(&parent, "one", config)?, tenant(&parent, "two", config)?];
                let (begin, mut hits, mut random) = (Instant::now(), 0, 0x9E37_79B9_7F4A_7C15_u64);
                for turn in 0..TURNS {
                    let cache = &tenants[turn % 2];
                    for _ in 0..LOOK_UPS {
                        let key = xorshift(&mut random) % ENTRIES;
                        let mut is_made = false;
                        let value = cache.get_or_insert_with(key, |key| {
                            is_made = true;
                            vec![*key as u8; VALUE_BYTES]
                        });
                        if value.is_ok_and(|value| value[VALUE_BYTES - 1] != key as u8) {
                            return Err(format!("the value under {key} is another's").into());
                        }
                        hits += u64::from(!is_made);
                    }
                }
                let seconds = begin.elapsed().as_secs_f64();
                let held: u64 = tenants.iter().map(|cache| cache.bytes()).sum();
                if parent.usage_exact() != held || parent.peak() > MAX_BYTES {
                    return Err(
                        format!("{} bytes are charged, {held} in the caches", parent.usage_exact()).into()
                    );
                }
                Ok(outcome(&hierarchy, hits, seconds))
            }
        }
    };
}

turns!(quick_cache, QuickCache);
#[cfg(feature = "moka")]
turns!(moka, MokaCache);

fn xorshift(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

fn outcome(hierarchy: &Hierarchy, hits: u64, seconds: f64) -> Outcome {
    let calls = hierarchy.shrinkers();
    let scans: u64 = calls.iter().map(|shrinker| shrinker.scans).sum();
    let given_bytes: u64 = calls.iter().map(|shrinker| shrinker.freed_bytes).sum();
    let call_us = calls.iter().map(|shrinker| shrinker.time.as_secs_f64()).sum::<f64>() * 1e6;
    let each = scans.max(1);
    Outcome { hits, seconds, given_bytes, call_us: call_us / each as f64, call_bytes: given_bytes / each }
}
