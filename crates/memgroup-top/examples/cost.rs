//! Measures `memgroup-top` with 1,000 groups:
//! `cargo build --release -p memgroup-top && cargo run --release -p memgroup-top --example cost`.
//!
//! A server in this process has groups in 20 parents. Ten times a second a part of the groups
//! charge and hold other bytes, and some are refused. The program runs on a terminal of 120 columns
//! and 50 rows for 20 s, and its CPU time is read from /proc. Another one records for 301 s at the
//! same time, and the size is scaled from its snapshots to 3,600.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{fs, thread};

use memgroup::{Config, Group, Hierarchy};
use memgroup_serve::Serve;

const GROUPS: usize = 1_000;
const PARENTS: usize = 20;
const SHOWN_SECONDS: u64 = 20;
const RECORDED_SECONDS: u64 = 301;

type Failed = Box<dyn std::error::Error>;

/// Groups that work each tenth of a second.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);

fn main() -> Result<(), Failed> {
    let hierarchy = Hierarchy::new(Config::new())?;
    let mut groups = Vec::new();
    for number in 0..PARENTS {
        hierarchy.create(&format!("/tenants-{number:02}"))?;
    }
    for number in 0..GROUPS - PARENTS {
        let group = hierarchy.create(&format!("/tenants-{:02}/tenant-{number:04}", number % PARENTS))?;
        group.set_max(1 << 20)?;
        groups.push(group);
    }
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("m.sock");
    let _server = memgroup_serve::start(&hierarchy, Serve::unix(&socket))?;
    thread::spawn(move || work(&groups));
    let own = std::env::current_exe()?;
    let program = own.ancestors().nth(2).ok_or("no directory")?.join("memgroup-top");
    for active in [GROUPS / 10, GROUPS] {
        // ORDERING: Relaxed; a number alone.
        ACTIVE.store(active, Ordering::Relaxed);
        let file = folder.path().join(format!("{active}.memrec"));
        let seconds = RECORDED_SECONDS.to_string();
        let mut record = Command::new(&program);
        record.args(["record"]).arg(&file).arg(&socket).args(["--seconds", &seconds]);
        let mut record = record.spawn()?;
        let line = format!("stty cols 120 rows 50; exec {} {}", program.display(), socket.display());
        let mut script = Command::new("script");
        script.args(["-q", "-c", &line, "/dev/null"]).env("TERM", "xterm").stdin(Stdio::piped());
        let mut script = script.stdout(Stdio::null()).spawn()?;
        thread::sleep(Duration::from_secs(2));
        let id = script.id();
        let child = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
        let before = cpu_seconds(child.trim())?;
        thread::sleep(Duration::from_secs(SHOWN_SECONDS));
        let used = cpu_seconds(child.trim())? - before;
        drop(script.stdin.take());
        script.kill()?;
        script.wait()?;
        println!("{active} of {GROUPS} groups at work");
        println!("  top: {:.2} % of a core", 100.0 * used / SHOWN_SECONDS as f64);
        record.wait()?;
        let replay = Command::new(&program).args(["replay", "--json"]).arg(&file).output()?;
        let snapshots = replay.stdout.iter().filter(|byte| **byte == b'\n').count();
        let bytes = fs::metadata(&file)?.len();
        let hour = bytes as f64 / snapshots as f64 * 3_600.0 / 1e6;
        println!(
            "  recording: {bytes} bytes in {snapshots} snapshots of {} bytes, {hour:.1} MB an hour",
            replay.stdout.len() / snapshots
        );
    }
    Ok(())
}

/// CPU time of a process, in seconds.
fn cpu_seconds(process: &str) -> Result<f64, Failed> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, figures) = stat.rsplit_once(") ").ok_or("no name")?;
    let ticks: Vec<f64> = figures.split(' ').skip(11).take(2).flat_map(str::parse).collect();
    Ok(ticks.iter().sum::<f64>() / 100.0)
}

/// Each active group holds up to four charges of different sizes. One in ten of its charges is
/// refused at the limit.
fn work(groups: &[Group]) {
    let mut held: Vec<_> = groups.iter().map(|_| Vec::new()).collect();
    let mut state = 1_u64;
    loop {
        // ORDERING: Relaxed; a number alone.
        let active = ACTIVE.load(Ordering::Relaxed);
        for (group, held) in groups.iter().zip(&mut held).take(active) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bytes = if state >> 33 & 15 == 0 { 2 << 20 } else { state >> 46 };
            if held.len() == 4 {
                held.clear();
            }
            held.extend(group.try_charge(bytes));
        }
        thread::sleep(Duration::from_millis(100));
    }
}
