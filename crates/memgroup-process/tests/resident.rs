//! The container's limit holds: resident memory of a server whose requests fill its tenant's limit
//! again and again.
//!
//! The control is the same server without a watcher. It shows that the program would need one. Each
//! is a child process of its own.
#![cfg_attr(not(all(target_os = "linux", target_env = "gnu")), allow(dead_code))]
#![allow(unsafe_code)]

#[path = "../examples/resident/server.rs"]
mod server;

use std::process::Command;

use server::{ALLOCATOR_VARIABLE, LIMIT, MIB, SETTINGS, Watched, serve};

/// The variable of the environment with the number of the case that a child runs.
const CASE: &str = "RESIDENT_CASE";
const REQUESTS: u64 = 6;

fn main() {
    if let Ok(case) = std::env::var(CASE) {
        let case: usize = case.parse().expect("a number");
        let [resident, charged, served, refused] = serve(Watched::ALL[case].0, REQUESTS);
        println!("{resident} {charged} {served} {refused}");
        return;
    }
    // With `--ignored` only the long tests run, and this is not one of them.
    let is_wanted = std::env::args().all(|argument| argument != "--ignored");
    if is_wanted && cfg!(all(target_os = "linux", target_env = "gnu")) {
        resident_memory_stays_below_the_containers_limit();
    }
}

fn run(watched: Watched) -> [u64; 4] {
    let case = Watched::ALL.iter().position(|(one, _)| *one == watched).expect("a case");
    let output = Command::new(std::env::current_exe().expect("this program"))
        .env(ALLOCATOR_VARIABLE, "System")
        .env(CASE, case.to_string())
        .envs(SETTINGS)
        .output()
        .expect("a child");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let figures: Vec<u64> = text.split_whitespace().map(|figure| figure.parse().expect("a number")).collect();
    figures.try_into().expect("four figures")
}

fn resident_memory_stays_below_the_containers_limit() {
    let [resident, charged, served, refused] = run(Watched::Advised);
    assert!(resident <= LIMIT, "{} MiB were resident, {} charged", resident / MIB, charged / MIB);
    // The allocator kept nothing large. Code, stacks and small blocks are a few mebibytes.
    assert!(resident < charged + 40 * MIB, "{} MiB were resident, {} charged", resident / MIB, charged / MIB);
    assert!(charged > LIMIT / 2, "the limit was far: {} MiB charged", charged / MIB);
    assert!(refused > 0, "no request was refused, and {served} were served");
    // How much the allocator keeps differs from run to run.
    let controls = (0..4).map(|_| run(Watched::Not)[0]);
    let control = controls.into_iter().find(|&control| control > resident + 32 * MIB);
    let control = control.expect("the control keeps as little without a watcher, so this test shows nothing");
    println!("resident at most: {} MiB with a watcher, {} without", resident / MIB, control / MIB);
}
