//! A server near its container's limit: its resident memory at most, with three allocators, with
//! and without a watcher.
//!
//! `cargo run --release -p memgroup-process --example resident` has the system's allocator, and
//! `RUSTFLAGS="--cfg memgroup_allocators" cargo run --release -p memgroup-process --example
//! resident` mimalloc and jemalloc, too. Arguments: runs of each (5), requests on each of the 32
//! connections (20); then the names of the allocators, if not all.
#![allow(unsafe_code)]

mod server;

use std::process::Command;
use std::time::Instant;

use server::{ALLOCATOR_VARIABLE, ALLOCATORS, LIMIT, MIB, SETTINGS, Watched};

/// The variable of the environment with the number of the case that a child runs.
const CASE: &str = "RESIDENT_CASE";

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |otherwise| arguments.next().map_or(otherwise, |text| text.parse().expect("a number"));
    let (runs, requests) = (number(5), number(20));
    let names: Vec<String> = arguments.collect();
    if let Some(case) = std::env::var(CASE).ok().and_then(|case| case.parse::<usize>().ok()) {
        let figures = server::serve(Watched::ALL[case].0, requests);
        println!("{}", figures.map(|figure| figure.to_string()).join(" "));
        return;
    }
    println!("resident MiB at most, of a limit of {}", LIMIT / MIB);
    let is_wanted = |name: &str| names.is_empty() || names.iter().any(|one| one == name);
    for allocator in ALLOCATORS.iter().filter(|name| is_wanted(name)) {
        for (case, (_, name)) in Watched::ALL.iter().enumerate() {
            print!("{allocator:<9} {name:<43}");
            let (mut charged_max, mut refused_sum, begun) = (0, 0, Instant::now());
            for _ in 0..runs {
                let [resident, charged, _, refused] = run(allocator, case, runs, requests);
                print!("{:>6}", resident / MIB);
                (charged_max, refused_sum) = (charged.max(charged_max), refused_sum + refused);
            }
            println!(
                "   charged {}, {refused_sum} refused, {:.1} s",
                charged_max / MIB,
                begun.elapsed().as_secs_f64()
            );
        }
    }
}

fn run(allocator: &str, case: usize, runs: u64, requests: u64) -> [u64; 4] {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args([runs, requests].map(|number| number.to_string()))
        .env(ALLOCATOR_VARIABLE, allocator)
        .env(CASE, case.to_string())
        .envs(SETTINGS.into_iter().filter(|_| Watched::ALL[case].0 == Watched::Advised))
        .output()
        .expect("a child");
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<u64> = text.split_whitespace().map(|figure| figure.parse().expect("a number")).collect();
    figures.try_into().expect("four figures")
}
