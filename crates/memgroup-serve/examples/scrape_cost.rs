//! The cost of a scrape, for the server and for the tenants: `cargo run --release -p memgroup-serve
//! --example scrape_cost -- 10000`.
//!
//! 1. CPU time of the server's thread for one answer to `/metrics` and to `/v1/tree`, with the
//!    given number of groups. A statistic of each group changed since the answer before.
//! 2. How long calls of another thread take that need the lock of the tree, or the turn to flush
//!    statistics: without requests, and with ten requests a second for each path. A thousand tasks
//!    wait at the same time. Time within a call in which the system had no CPU for the thread is
//!    taken off. Where the system stops the server with a lock held, the wait counts.
//! 3. CPU time of a charge and its uncharge on another thread: without a server, with one, and with
//!    a scrape every second.

use std::fs::File;
use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use memgroup::{Config, Freshness, Group, Hierarchy, Reach, stats};
use memgroup_serve::{Serve, Server};

const SCRAPES: u32 = 30;
const WINDOW: Duration = Duration::from_secs(2);
const ROUNDS: usize = 7;
const LOOKS: Duration = Duration::from_secs(3);

/// Tasks that wait while calls are measured.
const WAITS: usize = 1000;

/// A call, and its name.
type Call = (&'static str, fn(&Hierarchy, &Group));
const CALLS: &[Call] = &[
    ("look-ups", |hierarchy, _| drop(black_box(hierarchy.lookup("/group-1")))),
    ("creations and removals", |_, group| {
        let _removed = group.create("made").and_then(|made| made.remove());
    }),
    ("fresh reads of statistics", |hierarchy, group| {
        hierarchy.io().add(group, stats::io::WIOS, 1);
        black_box(hierarchy.io().get(group, stats::io::WIOS, Reach::Local, Freshness::Fresh));
    }),
];

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let groups: usize = std::env::args().nth(1).map_or(Ok(10_000), |text| text.parse())?;
    let hierarchy = Hierarchy::new(Config::new().groups_max(u32::try_from(groups + 10)?))?;
    let all = fill(&hierarchy, groups)?;
    let folder = std::env::temp_dir().join(format!("memgroup-scrape-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let socket = folder.join("s");

    let server = start(&hierarchy, &socket)?;
    for path in ["/metrics", "/v1/tree"] {
        cost(&hierarchy, &all, &socket, path)?;
    }
    waiting(&hierarchy, &all[1..=WAITS], || {
        println!("calls of another thread in {} seconds, beside {WAITS} waits:", LOOKS.as_secs());
        for call in CALLS {
            for path in ["", "/metrics", "/v1/tree", "/v1/waits"] {
                calls(&hierarchy, &all[1], call, &socket, path)?;
            }
        }
        Ok(())
    })?;
    drop(server);

    pairs(&hierarchy, &all[1], &socket)?;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

fn start(hierarchy: &Hierarchy, socket: &Path) -> Result<Server> {
    // So that the server's own bound does not stretch the measurement.
    Ok(memgroup_serve::start(hierarchy, Serve::unix(socket).cpu_percent(100))?)
}

/// A tree in which each group has up to a hundred children.
fn fill(hierarchy: &Hierarchy, groups: usize) -> Result<Vec<Group>> {
    let mut all = vec![hierarchy.root()];
    while all.len() <= groups {
        let parent = &all[(all.len() - 1) / 100];
        all.push(parent.create(&format!("group-{}", all.len()))?);
    }
    // Charges that stay.
    for (number, group) in all.iter().enumerate() {
        group.try_charge(4096 + number as u64)?.into_parts();
    }
    Ok(all)
}

/// Asks for a path, and returns the number of bytes of the answer.
fn get(socket: &Path, path: &str) -> Result<usize> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").as_bytes(),
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    if !answer.starts_with(b"HTTP/1.1 200 ") {
        return Err(String::from_utf8_lossy(&answer).into_owned().into());
    }
    Ok(answer.len())
}

/// CPU time of the server's thread so far, as the scheduler counts it.
fn server_time() -> Result<Duration> {
    for task in std::fs::read_dir("/proc/self/task")? {
        let task: PathBuf = task?.path();
        if std::fs::read_to_string(task.join("comm"))?.trim() == "memgroup-serve" {
            return Ok(thread_time(&task)?);
        }
    }
    Err("the server has no thread".into())
}

/// CPU time of the thread with this folder in `/proc`.
fn thread_time(task: &Path) -> std::io::Result<Duration> {
    thread_times(task).map(|[busy, _]| busy)
}

/// The time that the thread ran, and the time that it waited for a CPU.
fn thread_times(task: &Path) -> std::io::Result<[Duration; 2]> {
    times_now(&File::open(task.join("schedstat"))?)
}

/// The same, from the file of the thread, as it is now.
fn times_now(file: &File) -> std::io::Result<[Duration; 2]> {
    let mut bytes = [0; 128];
    let length = file.read_at(&mut bytes, 0)?;
    let mut nanos = std::str::from_utf8(&bytes[..length])
        .unwrap_or_default()
        .split(' ')
        .map(|nanos| nanos.parse().map(Duration::from_nanos));
    let mut next = || {
        nanos
            .next()
            .and_then(std::result::Result::ok)
            .ok_or_else(|| std::io::Error::other("no time in schedstat"))
    };
    Ok([next()?, next()?])
}

/// Prints the CPU time of one answer.
fn cost(hierarchy: &Hierarchy, all: &[Group], socket: &Path, path: &str) -> Result<()> {
    // The server's other work, in as long a time.
    let (io, mut bytes) = (hierarchy.io(), get(socket, path)?);
    let (began, before) = (Instant::now(), server_time()?);
    for _ in 0..SCRAPES {
        all.iter().for_each(|group| io.add(group, stats::io::RIOS, 1));
        bytes = get(socket, path)?;
    }
    let (took, busy) = (began.elapsed(), server_time()? - before);
    let before = server_time()?;
    std::thread::sleep(took);
    let idle = server_time()? - before;
    let each = (busy.saturating_sub(idle)).as_secs_f64() * 1e3 / f64::from(SCRAPES);
    let own = idle.as_secs_f64() / took.as_secs_f64() * 100.0;
    println!(
        "{} groups, {path}: {each:.1} ms of CPU an answer of {:.1} MB; without requests the server takes {own:.2} % of a CPU",
        all.len(),
        bytes as f64 / 1e6,
    );
    Ok(())
}

/// Calls `act` while a task waits for events of each of these groups.
fn waiting(hierarchy: &Hierarchy, groups: &[Group], act: impl FnOnce() -> Result<()>) -> Result<()> {
    let reclaimer = hierarchy.reclaimer();
    let stop = reclaimer.stop_handle();
    std::thread::scope(|scope| {
        scope.spawn(|| reclaimer.run());
        let mut tasks: Vec<_> = groups.iter().map(|group| group.events_after(&group.events())).collect();
        let mut context = Context::from_waker(Waker::noop());
        let has_begun = tasks.iter_mut().all(|task| Pin::new(task).poll(&mut context).is_pending());
        let acted = if has_begun { act() } else { Err("a task does not wait".into()) };
        stop.stop();
        acted
    })
}

/// Prints how long calls took.
fn calls(hierarchy: &Hierarchy, group: &Group, (name, call): &Call, socket: &Path, path: &str) -> Result<()> {
    let is_over = AtomicBool::new(false);
    let (mut times, requests) = std::thread::scope(|scope| -> Result<_> {
        let calling = scope.spawn(|| {
            let own = Path::new("/proc/thread-self");
            let mut times = Vec::with_capacity(1 << 24);
            let file = File::open(own.join("schedstat"))?;
            while !is_over.load(Ordering::Relaxed) && times.len() < times.capacity() {
                // Read before each call: a delay between two calls is no part of the second one.
                let before = times_now(&file)?[1];
                let began = Instant::now();
                call(hierarchy, group);
                let mut took = began.elapsed();
                if took > Duration::from_micros(10) {
                    took = took.saturating_sub(times_now(&file)?[1] - before);
                }
                times.push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
            }
            std::io::Result::Ok(times)
        });
        let (began, mut steps) = (Instant::now(), 0_u32);
        while began.elapsed() < LOOKS {
            if !path.is_empty() {
                get(socket, path)?;
            }
            steps += 1;
            std::thread::sleep((Duration::from_millis(100) * steps).saturating_sub(began.elapsed()));
        }
        is_over.store(true, Ordering::Relaxed);
        let times = calling.join().map_err(|_| "the calling thread panicked")??;
        Ok((times, if path.is_empty() { 0 } else { steps }))
    })?;
    times.sort_unstable();
    let micros = |part: f64| f64::from(times[((times.len() - 1) as f64 * part) as usize]) / 1e3;
    println!(
        "  {name}, {requests:>2} of {path:9}: {:>8} calls, p50 {:.2} us, p99.9 {:.1} us, p99.99 {:.1} us, most {:.0} us; {} above 100 us",
        times.len(),
        micros(0.5),
        micros(0.999),
        micros(0.9999),
        micros(1.0),
        times.iter().filter(|&&nanos| nanos > 100_000).count(),
    );
    Ok(())
}

/// Prints the time of a charge and its uncharge.
fn pairs(hierarchy: &Hierarchy, group: &Group, socket: &Path) -> Result<()> {
    let mut nanos = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        nanos[0].push(window(group, || Ok(()))?);
        let server = start(hierarchy, socket)?;
        nanos[1].push(window(group, || Ok(()))?);
        nanos[2].push(window(group, || get(socket, "/metrics").map(|_| ()))?);
        drop(server);
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_unstable_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let [none, server, scrapes] = nanos.each_mut().map(median);
    println!(
        "a charge and its uncharge: {none:.2} ns without a server, {:.3} times with one, {:.3} times with a scrape a second",
        server / none,
        scrapes / none
    );
    Ok(())
}

/// Nanoseconds of CPU of a pair in a window of some seconds, at each of which `act` is called on
/// another thread.
fn window(group: &Group, act: impl Fn() -> Result<()> + Sync) -> Result<f64> {
    std::thread::scope(|scope| {
        let acting = scope.spawn(|| -> std::result::Result<(), String> {
            for _ in 0..WINDOW.as_secs() {
                let began = Instant::now();
                act().map_err(|error| error.to_string())?;
                std::thread::sleep(Duration::from_secs(1).saturating_sub(began.elapsed()));
            }
            Ok(())
        });
        let own = Path::new("/proc/thread-self");
        let (began, before, mut pairs) = (Instant::now(), thread_time(own)?, 0_u64);
        while began.elapsed() < WINDOW {
            for _ in 0..1000 {
                drop(black_box(group.try_charge(black_box(64))));
            }
            pairs += 1000;
        }
        let nanos = (thread_time(own)? - before).as_nanos() as f64 / pairs as f64;
        acting.join().map_err(|_| "the acting thread panicked")??;
        Ok(nanos)
    })
}
