//! A library that charges nothing takes more and more memory. The watcher makes a cache give memory
//! back, so the process stays below its limit.
//!
//! `cargo run --release -p memgroup-process --example uncharged`

use std::error::Error;
use std::sync::{Arc, Mutex};

use memgroup::{Ask, Charge, Config, Count, Hierarchy, Scan, Shrinker, ShrinkerConfig};
use memgroup_process::{ProcessLimit, Watcher};

const MIB: usize = 1 << 20;
const LIMIT: u64 = 512 << 20;

struct Cache(Mutex<Vec<(Charge, Vec<u8>)>>);

impl Shrinker for Cache {
    fn count(&self, _token: u64) -> Count {
        let Ok(entries) = self.0.try_lock() else { return Count::Unknown };
        Count::of((entries.len() * MIB) as u64, entries.len() as u64)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        let Ok(mut entries) = self.0.try_lock() else { return Scan::Stopped { bytes: 0 } };
        let count = entries.len().min(ask.bytes().div_ceil(MIB as u64) as usize);
        Scan::Freed { bytes: entries.drain(..count).map(|(charge, _)| charge.bytes()).sum() }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let hierarchy = Hierarchy::new(Config::new())?;
    let mut watcher = Watcher::new(&hierarchy, ProcessLimit::of_bytes(LIMIT))?;

    let group = hierarchy.create("/cache")?;
    let cache = Arc::new(Cache(Mutex::default()));
    let registered = group.add_shrinker(ShrinkerConfig::new("cache"), Arc::clone(&cache))?;
    for _ in 0..320 {
        let charge = group.try_charge(MIB as u64)?;
        let block = vec![1; MIB];
        let mut entries = cache.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        entries.push((charge, block));
        if entries.len() == 1 {
            // Under the lock, or others could fill a cache that reclaim doesn't see.
            registered.mark();
        }
    }

    println!("{:>10}{:>10}{:>10}{:>10}   of a limit of 512M", "library", "used", "charged", "max");
    let mut library = Vec::new();
    for _ in 0..8 {
        library.extend((0..40).map(|_| vec![1_u8; MIB]));
        let check = watcher.check()?;
        let after = watcher.check()?;
        let max = hierarchy.root().max().unwrap_or(0);
        let of_library = (library.len() * MIB) as u64;
        let [library, used, charged, max] =
            [of_library, after.used, after.charged, max].map(|bytes| bytes >> 20);
        println!(
            "{library:>9}M{used:>9}M{charged:>9}M{max:>9}M   {:?}, {}M reclaimed",
            check.action,
            check.reclaimed >> 20
        );
    }
    registered.remove()?;
    Ok(())
}
