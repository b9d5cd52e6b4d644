//! Two tenants in a tree that is mounted: look at them with `ls`, `cat` and `echo`. Alice has a
//! cache that gives memory back when asked; Bob is refused at his limit.
//!
//! ```text
//! cargo run --release -p memgroup-fuse --example mount -- /tmp/groups
//! ```

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::sync::{Arc, Mutex};
    use std::thread;
    use std::time::Duration;

    use memgroup::{Ask, Charge, Config, Count, Hierarchy, Scan, Shrinker, ShrinkerConfig};
    use memgroup_fuse::{Options, mount};

    const BLOCK_BYTES: u64 = 1 << 20;

    /// A cache that frees its oldest blocks.
    struct Cache(Mutex<Vec<Charge>>);

    impl Shrinker for Cache {
        fn count(&self, _: u64) -> Count {
            let Ok(blocks) = self.0.try_lock() else { return Count::Unknown };
            Count::of(BLOCK_BYTES * blocks.len() as u64, blocks.len() as u64)
        }

        fn scan(&self, ask: &Ask<'_>) -> Scan {
            let Ok(mut blocks) = self.0.try_lock() else { return Scan::Stopped { bytes: 0 } };
            let count = blocks.len().min(ask.bytes().div_ceil(BLOCK_BYTES) as usize);
            Scan::Freed { bytes: blocks.drain(..count).map(|charge| charge.bytes()).sum() }
        }
    }

    let path = std::env::args().nth(1).ok_or("usage: mount DIRECTORY")?;
    let hierarchy = Hierarchy::new(Config::new())?;
    let (alice, bob) = (hierarchy.get_or_create("/tenants/alice")?, hierarchy.get_or_create("/tenants/bob")?);
    alice.set_max(64 << 20)?;
    bob.set_max(16 << 20)?;

    let cache = Arc::new(Cache(Mutex::default()));
    let registered = alice.add_shrinker(ShrinkerConfig::new("cache"), Arc::clone(&cache))?;
    thread::spawn(move || {
        loop {
            if let Ok(charge) = alice.try_charge(BLOCK_BYTES) {
                let mut blocks = cache.0.lock().expect("no thread panics with it");
                blocks.push(charge);
                if blocks.len() == 1 {
                    // Under the lock, or others could fill a cache that reclaim doesn't see.
                    registered.mark();
                }
            }
            thread::sleep(Duration::from_millis(100));
        }
    });
    thread::spawn(move || {
        let mut held = Vec::new();
        loop {
            match bob.try_charge(BLOCK_BYTES) {
                Ok(charge) => held.push(charge),
                Err(_) => held.clear(),
            }
            thread::sleep(Duration::from_millis(50));
        }
    });

    match std::fs::create_dir_all(&path) {
        // The tree of a program that was killed may be there. `mount` clears it, and names any
        // other file.
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(format!("failed to make the directory {path}: {error}").into());
        }
        _ => {}
    }
    let mounted = mount(&hierarchy, &path, Options::new()).map_err(|error| format!("failed to {error}"))?;
    println!("mounted at {}; `umount` ends the program", mounted.path().display());
    while mounted.is_mounted() {
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() {}
