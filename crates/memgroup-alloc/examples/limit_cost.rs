//! The cost of a small block where a limit is in the way: a text that is formatted and dropped.
//!
//! ```text
//! cargo run --release -p memgroup-alloc --example limit_cost
//! ```
//!
//! It prints processor time, in nanoseconds and over that of a thread without a group: medians of
//! rounds that alternate.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::thread;

use memgroup::{Charge, Config, Deadline, Group, Hierarchy, scope};
use memgroup_alloc::Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::system();

const ROUNDS: usize = 9;
const TEXTS: u32 = 200_000;
const LIMIT: u64 = 1 << 20;

/// Processor time of this thread, in nanoseconds.
fn cpu_ns() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is written.
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(answer, 0, "the system has a clock for each thread");
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Processor time of one text.
fn cost_of_a_text() -> f64 {
    let began = cpu_ns();
    for number in 0..TEXTS {
        drop(black_box(format!("a text with the number {number} in it")));
    }
    (cpu_ns() - began) / f64::from(TEXTS)
}

/// A group whose usage is `filled`, with a limit.
fn group(hierarchy: &Hierarchy, name: &str, filled: u64) -> (Group, Charge) {
    let group = hierarchy.create(name).expect("a new group");
    group.set_max(LIMIT).expect("a limit that counters hold");
    let charge = group.charge_forced(filled).expect("an online group");
    (group, charge)
}

fn main() {
    let hierarchy = Hierarchy::new(Config::new()).expect("the default configuration");
    let (within, _charge) = group(&hierarchy, "/within", 0);
    let (above, _above) = group(&hierarchy, "/above", 2 * LIMIT);
    let (beside, held) = group(&hierarchy, "/beside", LIMIT - LIMIT / 16);
    let cases = [
        ("no group", None),
        ("within the limit", Some(&within)),
        ("above the limit", Some(&above)),
        ("beside a charge that waits", Some(&beside)),
    ];
    let mut costs = [const { Vec::new() }; 4];
    thread::scope(|threads| {
        threads.spawn(|| beside.charge_until(LIMIT / 2, Deadline::NEVER).map(drop));
        while hierarchy.waits().is_empty() {
            thread::yield_now();
        }
        for _ in 0..ROUNDS {
            for (costs, (_, group)) in costs.iter_mut().zip(cases) {
                let _scope = group.map(scope::enter);
                costs.push(cost_of_a_text());
            }
        }
        drop(held);
    });
    let medians = costs.map(|mut costs| {
        costs.sort_by(f64::total_cmp);
        costs[ROUNDS / 2]
    });
    for ((name, _), median) in cases.iter().zip(medians) {
        println!("{name:<28} {median:>6.1} ns  {:.2}", median / medians[0]);
    }
}
