//! The cost of a read of `memory.current` through the mount, beside a read of a file of the kernel's own cgroups.
//!
//! ```text
//! cargo run --release -p memgroup-fuse --example read_cost
//! ```

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::fs::File;
    use std::io::{self, Read};
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::time::Instant;

    use memgroup::{Config, Hierarchy};
    use memgroup_fuse::{Options, mount};

    const READS: usize = 20_000;

    /// The median and the 99th percentile of the time of a call, in microseconds.
    fn measure(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<(f64, f64)> {
        let mut micros = Vec::with_capacity(READS);
        for _ in 0..READS {
            let began = Instant::now();
            let bytes = call()?;
            micros.push(began.elapsed().as_nanos() as f64 / 1000.0);
            assert!(bytes > 0, "a read of nothing costs less");
        }
        micros.sort_by(f64::total_cmp);
        Ok((micros[READS / 2], micros[READS * 99 / 100]))
    }

    fn print_row(name: &str, path: &Path) -> io::Result<()> {
        let mut buffer = [0; 256];
        let opened = measure(|| File::open(path)?.read(&mut buffer))?;
        let file = File::open(path)?;
        let read = measure(|| file.read_at(&mut buffer, 0))?;
        let micros = |(median, p99): (f64, f64)| format!("{median:>9.1} us {p99:>9.1} us");
        println!("{name:<46} {} {}", micros(opened), micros(read));
        Ok(())
    }

    let hierarchy = Hierarchy::new(Config::new())?;
    let alice = hierarchy.get_or_create("/tenants/alice")?;
    let _held = (hierarchy.root().try_charge(1 << 20)?, alice.try_charge(1 << 20)?);
    let folder = tempfile::tempdir()?;
    let mounted = mount(&hierarchy, folder.path(), Options::new())?;

    println!("{:<46} {:^25} {:^25}", "", "open, read, close", "pread of an open file");
    println!("{:<46} {:>12} {:>12} {:>12} {:>12}", "", "median", "p99", "median", "p99");
    for group in [".", "tenants", "tenants/alice"] {
        let name = format!("{group}/memory.current in the mount");
        print_row(&name, &mounted.path().join(group).join("memory.current"))?;
    }
    // With the controller of memory in either version of cgroups, and without it.
    let kernel = [
        "/sys/fs/cgroup/memory.current",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory.pressure",
        "/sys/fs/cgroup/unified/memory.pressure",
    ];
    for path in kernel.map(Path::new).into_iter().filter(|path| path.is_file()) {
        print_row(&path.display().to_string(), path)?;
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() {}
