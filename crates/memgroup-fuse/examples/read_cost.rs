//! The cost of a read of `memory.current` through the mount: in a row, and alone, after a pause.
//! Beside it: a read of a file of the kernel's own cgroups, a byte that a thread sends back, and
//! the CPU that the thread of the mount takes for readers with short pauses.
//!
//! ```text
//! cargo run --release -p memgroup-fuse --example read_cost
//! taskset -c 0 cargo run --release -p memgroup-fuse --example read_cost
//! ```
//!
//! The second command runs all threads on one CPU. Then no wakeup waits for a CPU that sleeps,
//! which takes long on a virtual machine.

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::fs::File;
    use std::io::{self, Read, Write};
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use memgroup::{Config, Hierarchy};
    use memgroup_fuse::{Options, mount};

    const READS: usize = 20_000;
    const READS_ALONE: usize = 2000;
    const PAUSE: Duration = Duration::from_millis(1);

    /// The median and the 99th percentile of the time of a call after a pause, in microseconds.
    fn measure(
        calls: usize,
        pause: Duration,
        mut call: impl FnMut() -> io::Result<usize>,
    ) -> io::Result<(f64, f64)> {
        let mut micros = Vec::with_capacity(calls);
        for _ in 0..calls {
            std::thread::sleep(pause);
            let began = Instant::now();
            let bytes = call()?;
            micros.push(began.elapsed().as_nanos() as f64 / 1000.0);
            assert!(bytes > 0, "a read of nothing costs less");
        }
        micros.sort_by(f64::total_cmp);
        Ok((micros[calls / 2], micros[calls * 99 / 100]))
    }

    fn micros((median, p99): (f64, f64)) -> String {
        format!("{median:>9.1} us {p99:>9.1} us")
    }

    fn print_row(name: &str, path: &Path) -> io::Result<()> {
        let mut buffer = [0; 256];
        let opened = measure(READS, Duration::ZERO, || File::open(path)?.read(&mut buffer))?;
        let file = File::open(path)?;
        let mut read = || file.read_at(&mut buffer, 0);
        let in_row = measure(READS, Duration::ZERO, &mut read)?;
        let alone = measure(READS_ALONE, PAUSE, read)?;
        println!("{name:<46} {} {} {}", micros(opened), micros(in_row), micros(alone));
        Ok(())
    }

    /// Sends a byte to a thread, which sends it back: the two wakeups of each request to the mount,
    /// and nothing else.
    fn print_wakeups() -> io::Result<()> {
        let (mut asked, mut ask) = io::pipe()?;
        let (mut answer, mut answered) = io::pipe()?;
        let thread = std::thread::spawn(move || {
            let mut byte = [0];
            while asked.read(&mut byte).is_ok_and(|bytes| bytes > 0) {
                answered.write_all(&byte).expect("the other end reads");
            }
        });
        let mut byte = [0];
        let mut send = || ask.write_all(&[1]).and_then(|()| answer.read(&mut byte));
        let in_row = measure(READS, Duration::ZERO, &mut send)?;
        let alone = measure(READS_ALONE, PAUSE, send)?;
        drop(ask);
        thread.join().expect("the thread ends with the pipe");
        println!("{:<46} {:25} {} {}", "a byte to a thread and back", "", micros(in_row), micros(alone));
        Ok(())
    }

    /// The CPU time of the thread that answers.
    fn cpu_time() -> io::Result<Duration> {
        for task in std::fs::read_dir("/proc/self/task")? {
            let task = task?.path();
            if std::fs::read_to_string(task.join("comm"))?.starts_with("fuser-") {
                let times = std::fs::read_to_string(task.join("schedstat"))?;
                let nanos = times.split(' ').next().and_then(|nanos| nanos.parse().ok());
                return nanos
                    .map(Duration::from_nanos)
                    .ok_or_else(|| io::Error::other("no time in schedstat"));
            }
        }
        Err(io::Error::other("no thread answers"))
    }

    /// Reads for a second with pauses, and prints how much of a CPU the thread takes that answers.
    fn print_cpu(path: &Path) -> io::Result<()> {
        // Else the system makes each pause 50 us longer.
        std::fs::write("/proc/self/timerslack_ns", "1")?;
        let (file, mut buffer) = (File::open(path)?, [0; 256]);
        for pause in [0, 30, 60, 95].map(Duration::from_micros) {
            let (before, began, mut reads) = (cpu_time()?, Instant::now(), 0);
            while began.elapsed() < Duration::from_secs(1) {
                reads += u32::from(file.read_at(&mut buffer, 0)? > 0);
                std::thread::sleep(pause);
            }
            let share = (cpu_time()? - before).as_secs_f64() / began.elapsed().as_secs_f64();
            println!(
                "pauses of {:>2} us: {reads:>6} reads in a second, the mount takes {:.0} % of a CPU",
                pause.as_micros(),
                share * 100.0
            );
        }
        Ok(())
    }

    let hierarchy = Hierarchy::new(Config::new())?;
    let alice = hierarchy.get_or_create("/tenants/alice")?;
    let _held = (hierarchy.root().try_charge(1 << 20)?, alice.try_charge(1 << 20)?);
    let folder = tempfile::tempdir()?;
    let mounted = mount(&hierarchy, folder.path(), Options::new())?;

    println!(
        "{:<46} {:^25} {:^25} {:^25}",
        "", "open, read, close", "pread of an open file", "after a pause of 1 ms"
    );
    println!("{:<46}{}", "", format!(" {:>12} {:>12}", "median", "p99").repeat(3));
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
    print_wakeups()?;
    print_cpu(&mounted.path().join("tenants/alice/memory.current"))?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() {}
