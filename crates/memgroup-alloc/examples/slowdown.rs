//! How much slower programs are with each global allocator: three programs, on one thread and on two.
//!
//! ```text
//! cargo run --release -p memgroup-alloc --example slowdown [rounds]
//! ```
//!
//! A binary has one global allocator. So this program builds itself once for each, by `cargo rustc` with a `cfg`, and runs the binaries in turns. The
//! figure of a cell is the median of the rounds' processor times, each the best of four,, over that of the bare allocator.
#![cfg(not(memgroup_loom))]
#![allow(unexpected_cfgs, unsafe_code)]

use std::hint::black_box;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

#[cfg(any(slowdown = "system-cap", slowdown = "mimalloc-cap"))]
use cap::Cap;
use memgroup::{Config, Hierarchy, scope};
#[cfg(any(slowdown = "system-ours", slowdown = "mimalloc-ours"))]
use memgroup_alloc::Allocator;

#[cfg(slowdown = "mimalloc-bare")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[cfg(slowdown = "system-cap")]
#[global_allocator]
static ALLOCATOR: Cap<std::alloc::System> = Cap::new(std::alloc::System, usize::MAX);

#[cfg(slowdown = "mimalloc-cap")]
#[global_allocator]
static ALLOCATOR: Cap<mimalloc::MiMalloc> = Cap::new(mimalloc::MiMalloc, usize::MAX);

#[cfg(slowdown = "system-ours")]
#[global_allocator]
static ALLOCATOR: Allocator = Allocator::system();

#[cfg(slowdown = "mimalloc-ours")]
#[global_allocator]
static ALLOCATOR: Allocator<mimalloc::MiMalloc> = Allocator::over(mimalloc::MiMalloc);

const INNER: [&str; 2] = ["system", "mimalloc"];
const KINDS: [&str; 3] = ["bare", "cap", "ours"];
const PROGRAMS: [&str; 3] = ["regex", "json", "sort"];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["run", program, threads] => run(program, threads.parse().unwrap()),
        [] => measure(11),
        [rounds] => measure(rounds.parse().expect("the number of rounds")),
        _ => eprintln!("slowdown [rounds]"),
    }
}

/// Runs one program on so many threads, all in one group, and prints the mean of the threads' best seconds.
fn run(program: &str, threads: usize) {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let tenant = hierarchy.create("/tenants").unwrap().create("tenant").unwrap();
    tenant.set_max(8 << 30).unwrap();
    let input = input(program);
    let seconds = thread::scope(|scope| {
        let work = || {
            let _scope = scope::enter(&tenant);
            let once = || {
                let before = thread_seconds();
                match program {
                    "json" => json(&input),
                    "regex" => find(&input),
                    _ => sort(&input),
                }
                thread_seconds() - before
            };
            // The first repetition warms up.
            (0..5).map(|_| once()).skip(1).fold(f64::INFINITY, f64::min)
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<f64>()
    });
    println!("{} {}", seconds / threads as f64, resident());
}

/// The processor time of this thread.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is written.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "the system has no clock of a thread");
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % bound
    }

    fn word(&mut self) -> String {
        let letters = 3 + self.below(12);
        (0..letters).map(|_| (b'a' + self.below(26) as u8) as char).collect()
    }
}

/// The text that a program reads: 8 MB of JSON, or lines of words.
fn input(program: &str) -> String {
    let mut random = Random(7);
    let mut text = String::new();
    if program == "json" {
        text.push('[');
        while text.len() < 8_000_000 {
            if text.len() > 1 {
                text.push(',');
            }
            let (number, price) = (random.below(1 << 30), random.below(100_000));
            let (name, city, first, second) = (random.word(), random.word(), random.word(), random.word());
            text += &format!(
                r#"{{"id":{number},"name":"{name}","tags":["{first}","{second}"],"price":{price}.5,"address":{{"city":"{city}","zip":"{number}"}}}}"#
            );
        }
        text.push(']');
    } else {
        while text.len() < 3_000_000 {
            text += &random.word();
            text.push(if random.below(8) == 0 { '\n' } else { ' ' });
        }
    }
    text
}

/// Parses the text into a tree of maps and strings, and drops it.
fn json(text: &str) {
    let value: serde_json::Value = serde_json::from_str(text).unwrap();
    black_box(value.as_array().unwrap().len());
}

/// Scans the lines for words, and keeps a copy of each match.
fn find(text: &str) {
    let pattern = regex::Regex::new(r"\b([a-m]+)([n-z]+)\w*\b").unwrap();
    for line in text.lines() {
        let found: Vec<String> = pattern.captures_iter(line).map(|found| found[1].to_owned()).collect();
        black_box(found);
    }
}

/// Sorts copies of all words.
fn sort(text: &str) {
    let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    words.sort();
    black_box(words.len());
}

/// Builds the binaries, runs them in turns, and prints the ratios.
fn measure(rounds: usize) {
    let binaries: Vec<(String, PathBuf)> = INNER
        .iter()
        .flat_map(|inner| KINDS.iter().map(move |kind| format!("{inner}-{kind}")))
        .map(|name| (name.clone(), build(&name)))
        .collect();
    println!(
        "seconds over those of the bare allocator, medians of {rounds} rounds; most memory resident over the same"
    );
    println!(
        "{:<10} {:<6} {:>7} {:>9} {:>7} {:>7} {:>9} {:>9}",
        "inner", "what", "threads", "bare", "cap", "ours", "cap rss", "ours rss"
    );
    for program in PROGRAMS {
        for threads in [1, 2] {
            let mut seconds = vec![Vec::new(); binaries.len()];
            let mut resident = vec![Vec::new(); binaries.len()];
            for round in 0..rounds {
                for at in 0..binaries.len() {
                    // Another begins in each round.
                    let at = (at + round) % binaries.len();
                    let (time, memory) = once(&binaries[at].1, program, threads);
                    seconds[at].push(time);
                    resident[at].push(memory);
                }
            }
            for (number, inner) in INNER.iter().enumerate() {
                let of = |all: &mut [Vec<f64>], kind: usize| median(&mut all[number * KINDS.len() + kind]);
                let (bare, memory) = (of(&mut seconds, 0), of(&mut resident, 0));
                println!(
                    "{inner:<10} {program:<6} {threads:>7} {:>7.0}ms {:>7.3} {:>7.3} {:>9.3} {:>9.3}",
                    bare * 1e3,
                    of(&mut seconds, 1) / bare,
                    of(&mut seconds, 2) / bare,
                    of(&mut resident, 1) / memory,
                    of(&mut resident, 2) / memory,
                );
            }
        }
    }
}

fn median(all: &mut [f64]) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// One run: its seconds, and the most KiB resident.
fn once(binary: &PathBuf, program: &str, threads: usize) -> (f64, f64) {
    let output = Command::new(binary).args(["run", program, &threads.to_string()]).output().unwrap();
    assert!(output.status.success(), "{}: {}", binary.display(), String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut numbers = text.split_whitespace().map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// Builds this example with the allocator `name`, and returns a copy of the binary.
fn build(name: &str) -> PathBuf {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let this = std::env::current_exe().unwrap();
    let status = Command::new(cargo)
        .args(["rustc", "-q", "--release", "-p", "memgroup-alloc", "--example", "slowdown"])
        .arg("--target-dir")
        .arg(this.ancestors().nth(3).unwrap())
        .args(["--", "--cfg", &format!("slowdown=\"{name}\"")])
        .status()
        .unwrap();
    assert!(status.success(), "the build of {name} failed");
    let copy = this.with_file_name(format!("slowdown-{name}"));
    std::fs::copy(this.with_file_name("slowdown"), &copy).unwrap();
    copy
}
