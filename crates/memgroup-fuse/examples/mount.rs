//! Two tenants that charge and free, in a tree that is mounted: look at them with `ls`, `cat` and `echo`.
//!
//! ```text
//! cargo run --release -p memgroup-fuse --example mount -- /tmp/groups
//! ```

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::time::Duration;

    use memgroup::{Charge, Config, Group, Hierarchy};
    use memgroup_fuse::{Options, mount};

    /// Charges a block every few milliseconds, and frees all of them when the group refuses.
    fn work(tenant: &Group, block_bytes: u64) {
        let mut held: Vec<Charge> = Vec::new();
        loop {
            match tenant.try_charge(block_bytes) {
                Ok(charge) => held.push(charge),
                Err(_) => held.clear(),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    let path = std::env::args().nth(1).ok_or("usage: mount DIRECTORY")?;
    let hierarchy = Hierarchy::new(Config::new())?;
    let tenants = hierarchy.create("/tenants")?;
    tenants.set_max(256 << 20)?;
    for (name, max, block_bytes) in [("alice", 64 << 20, 1 << 20), ("bob", 16 << 20, 100_000)] {
        let tenant = tenants.create(name)?;
        tenant.set_max(max)?;
        std::thread::spawn(move || work(&tenant, block_bytes));
    }
    std::fs::create_dir_all(&path)?;
    let mounted = mount(&hierarchy, &path, Options::new())?;
    println!("mounted at {}; `umount` ends the program", mounted.path().display());
    while mounted.is_mounted() {
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() {}
