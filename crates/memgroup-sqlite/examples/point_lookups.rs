//! Point look-ups in SQLite with three allocators: memgroup, SQLite's own with its memory
//! statistics, and SQLite's own without.
//!
//! ```text
//! cargo run --release -p memgroup-sqlite --example point_lookups [-- --rounds N] [--lookups N]
//! ```
//!
//! SQLite can be configured once per process, so each measurement is a process of its own; the
//! variants take turns within every round, and the order turns too. Every connection is in
//! serialized mode and its pages are cached; every thread has its own connection and database file
//! (and, under memgroup, its own group under a common parent).
//!
//! Three kinds of look-up: a short row with the statement kept (`kept`), or prepared each time
//! (`prepared`), as a server does that is sent SQL; and a row with two kilobytes of text
//! (`document`). The first two find all they need in the connection's lookaside and never ask the
//! allocator: memgroup's cost there is entering the group, and SQLite's statistics cost nothing.
//! The third asks the allocator each time.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Barrier;
use std::time::Instant;

use memgroup::{Config, Group, Hierarchy};
use memgroup_sqlite::{TenantConnection, install};
use rusqlite::{Connection, OpenFlags, ffi};

const ROWS: u64 = 8_000;
const DOCUMENTS: u64 = 400;
const THREADS_MAX: usize = 2;
const VARIANTS: [&str; 3] = ["memgroup", "statistics on", "statistics off"];
const KINDS: [&str; 3] = ["kept", "prepared", "document"];
const SELECT: &str = "SELECT id, name, note FROM account WHERE id = ?1";
const SELECT_DOCUMENT: &str = "SELECT id, name, text FROM document WHERE id = ?1";

type Failure = Box<dyn std::error::Error>;

/// One measurement: the command line of a child process.
#[derive(Clone)]
struct Run {
    variant: String,
    kind: String,
    threads: usize,
    lookups: u64,
    dir: PathBuf,
}

fn main() -> Result<ExitCode, Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [child, variant, kind, threads, lookups, dir] = args.as_slice()
        && child == "--child"
    {
        let run = Run {
            variant: variant.clone(),
            kind: kind.clone(),
            threads: threads.parse()?,
            lookups: lookups.parse()?,
            dir: dir.into(),
        };
        let spent = measure(&run)?;
        println!("{} {}", spent.wall_ns, spent.cpu_ns);
        return Ok(ExitCode::SUCCESS);
    }
    let rounds = number(&args, "--rounds", 41)?;
    let lookups = number(&args, "--lookups", 20_000)?;
    compare(rounds, lookups)?;
    Ok(ExitCode::SUCCESS)
}

/// The number behind `name` on the command line.
fn number(args: &[String], name: &str, default: u64) -> Result<u64, Failure> {
    let Some(at) = args.iter().position(|arg| arg == name) else { return Ok(default) };
    let given = args.get(at + 1).map_or("nothing", String::as_str);
    match given.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("{name} takes a number above 0, not {given}").into()),
    }
}

/// Runs every variant in turn, round after round, and prints medians and ratios.
fn compare(rounds: u64, lookups: u64) -> Result<(), Failure> {
    let dir = tempfile::tempdir()?;
    for thread in 0..THREADS_MAX {
        fill(&database(dir.path(), thread))?;
    }
    println!("{rounds} rounds of {lookups} look-ups a thread, median (least) ns a look-up");
    println!(
        "{:<10}{:<9}{:<6}{:>20}{:>20}{:>20}{:>9}{:>9}",
        "kind", "threads", "clock", VARIANTS[0], VARIANTS[1], VARIANTS[2], "on", "off"
    );
    for kind in KINDS {
        for threads in 1..=THREADS_MAX {
            let mut samples = [const { Vec::new() }; VARIANTS.len()];
            for round in 0..rounds as usize {
                for turn in 0..VARIANTS.len() {
                    let at = (round + turn) % VARIANTS.len();
                    let variant = VARIANTS[at].to_owned();
                    let run =
                        Run { variant, kind: kind.to_owned(), threads, lookups, dir: dir.path().to_owned() };
                    samples[at].push(in_child(&run)?);
                }
            }
            let part =
                |part: fn(&Spent) -> f64| samples.each_ref().map(|sample| sample.iter().map(part).collect());
            print_row(kind, threads, "wall", &part(|spent| spent.wall_ns));
            print_row(kind, threads, "cpu", &part(|spent| spent.cpu_ns));
        }
    }
    println!(
        "on, off: memgroup over SQLite with its own memory statistics on and off, median of the rounds' ratios"
    );
    Ok(())
}

/// Prints one row. A ratio is the median of the ratios within the rounds, so a disturbance of a
/// whole round cancels.
fn print_row(kind: &str, threads: usize, clock: &str, samples: &[Vec<f64>; VARIANTS.len()]) {
    print!("{kind:<10}{threads:<9}{clock:<6}");
    for sample in samples {
        let least = sample.iter().copied().fold(f64::INFINITY, f64::min);
        print!("{:>20}", format!("{:.1} ({least:.1})", median(sample.clone())));
    }
    let over =
        |other: &[f64]| median(samples[0].iter().zip(other).map(|(ours, theirs)| ours / theirs).collect());
    println!("{:>9.3}{:>9.3}", over(&samples[1]), over(&samples[2]));
}

fn median(mut sample: Vec<f64>) -> f64 {
    sample.sort_by(f64::total_cmp);
    sample[sample.len() / 2]
}

fn in_child(run: &Run) -> Result<Spent, Failure> {
    let output = Command::new(std::env::current_exe()?)
        .args(["--child", &run.variant, &run.kind, &run.threads.to_string(), &run.lookups.to_string()])
        .arg(&run.dir)
        .output()?;
    if !output.status.success() {
        return Err(format!("{}: {}", run.variant, String::from_utf8_lossy(&output.stderr)).into());
    }
    let answer = String::from_utf8(output.stdout)?;
    let (wall, cpu) = answer.trim().split_once(' ').ok_or("a measurement is two numbers")?;
    Ok(Spent { wall_ns: wall.parse()?, cpu_ns: cpu.parse()? })
}

fn database(dir: &Path, thread: usize) -> PathBuf {
    dir.join(format!("{thread}.db"))
}

/// Creates the tables. Their rows have text.
fn fill(path: &Path) -> Result<(), Failure> {
    let conn = Connection::open(path)?;
    conn.execute_batch(&format!(
        "CREATE TABLE account (id INTEGER PRIMARY KEY, name TEXT NOT NULL, note TEXT NOT NULL);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS} - 1)
         INSERT INTO account SELECT i, 'account ' || i, hex(randomblob(40 + i % 60)) FROM n;
         CREATE TABLE document (id INTEGER PRIMARY KEY, name TEXT NOT NULL, text TEXT NOT NULL);
         INSERT INTO document SELECT id, name, hex(randomblob(1000)) FROM account WHERE id < {DOCUMENTS};"
    ))?;
    Ok(())
}

/// Keeps the file locked between look-ups, so that a look-up makes no system calls.
const EXCLUSIVE: &str = "PRAGMA locking_mode = EXCLUSIVE";

/// Nanoseconds of one look-up: wall time and CPU time. Other load hardly changes the second; only
/// the first includes waiting for a mutex.
#[derive(Clone, Copy)]
struct Spent {
    wall_ns: f64,
    cpu_ns: f64,
}

/// Nanoseconds of the processor that this thread has used.
fn thread_cpu_ns() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on every thread, and the place is ours.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(code, 0, "the thread's own clock is always there");
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// A connection of one thread, under memgroup or plain.
enum Lookups {
    Tenant(TenantConnection),
    Plain(Connection),
}

impl Lookups {
    fn open(parent: Option<&Group>, path: &Path, thread: usize) -> Result<Self, Failure> {
        let lookups = match parent {
            Some(parent) => {
                Lookups::Tenant(TenantConnection::open(&parent.create(&format!("tenant{thread}"))?, path)?)
            }
            None => {
                let flags = OpenFlags::default().difference(OpenFlags::SQLITE_OPEN_NO_MUTEX)
                    | OpenFlags::SQLITE_OPEN_FULL_MUTEX
                    | OpenFlags::SQLITE_OPEN_PRIVATE_CACHE;
                Lookups::Plain(Connection::open_with_flags(path, flags)?)
            }
        };
        lookups.run(|conn| conn.execute_batch(EXCLUSIVE))?;
        Ok(lookups)
    }

    /// Runs `work`. Under memgroup this enters and leaves the group, which is part of the
    /// measurement.
    fn run<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Failure> {
        match self {
            Lookups::Tenant(conn) => Ok(conn.run(work)?),
            Lookups::Plain(conn) => Ok(work(conn)?),
        }
    }
}

/// In the child: the mean time of one look-up on one thread, in nanoseconds.
fn measure(run: &Run) -> Result<Spent, Failure> {
    let hierarchy = configure(&run.variant)?;
    let parent = hierarchy.as_ref().map(|hierarchy| hierarchy.create("/tenants")).transpose()?;
    let begin = Barrier::new(run.threads);
    let spent = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..run.threads)
            .map(|thread| {
                let (parent, begin) = (parent.as_ref(), &begin);
                scope.spawn(move || {
                    let conn = Lookups::open(parent, &database(&run.dir, thread), thread);
                    conn.and_then(|conn| time(&conn, run, thread, begin)).map_err(|error| error.to_string())
                })
            })
            .collect();
        let ended =
            threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?);
        ended.collect::<Result<Vec<Spent>, String>>()
    })?;
    let mean = |part: fn(&Spent) -> f64| spent.iter().map(part).sum::<f64>() / spent.len() as f64;
    Ok(Spent { wall_ns: mean(|spent| spent.wall_ns), cpu_ns: mean(|spent| spent.cpu_ns) })
}

/// Configures SQLite for a variant; the hierarchy, for memgroup.
fn configure(variant: &str) -> Result<Option<Hierarchy>, Failure> {
    let statistics: c_int = match variant {
        "memgroup" => {
            let hierarchy = Hierarchy::new(Config::new())?;
            install(&hierarchy)?;
            return Ok(Some(hierarchy));
        }
        "statistics on" => 1,
        _ => 0,
    };
    // SAFETY: nothing has used SQLite in this process; the option takes one int.
    let code = unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_MEMSTATUS, statistics) };
    if code == ffi::SQLITE_OK {
        Ok(None)
    } else {
        Err(format!("SQLITE_CONFIG_MEMSTATUS: code {code}").into())
    }
}

/// Warms up, waits for the other threads, and takes the time of the look-ups of random rows.
fn time(conn: &Lookups, run: &Run, thread: usize, begin: &Barrier) -> Result<Spent, Failure> {
    let mut state = thread as u64 + 1;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % ROWS
    };
    for _ in 0..run.lookups / 4 + ROWS {
        conn.run(|conn| look_up(conn, &run.kind, next()))?;
    }
    begin.wait();
    let (started, started_cpu_ns) = (Instant::now(), thread_cpu_ns());
    let mut bytes = 0;
    for _ in 0..run.lookups {
        bytes += conn.run(|conn| look_up(conn, &run.kind, next()))?;
    }
    let cpu_ns = (thread_cpu_ns() - started_cpu_ns) / run.lookups as f64;
    let wall_ns = started.elapsed().as_nanos() as f64 / run.lookups as f64;
    if bytes == 0 {
        return Err("the rows are empty".into());
    }
    Ok(Spent { wall_ns, cpu_ns })
}

/// One row by its key; answers with the length of its text.
fn look_up(conn: &Connection, kind: &str, id: u64) -> rusqlite::Result<usize> {
    let read = |row: &rusqlite::Row<'_>| {
        let (name, note) = (row.get_ref(1)?, row.get_ref(2)?);
        Ok(name.as_str()?.len() + note.as_str()?.len())
    };
    match kind {
        "kept" => conn.prepare_cached(SELECT)?.query_row([id as i64], read),
        "prepared" => conn.query_row(SELECT, [id as i64], read),
        _ => conn.prepare_cached(SELECT_DOCUMENT)?.query_row([(id % DOCUMENTS) as i64], read),
    }
}
