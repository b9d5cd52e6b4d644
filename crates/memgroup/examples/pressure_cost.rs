//! The cost of pressure: a stall at depth 3, and a scope with and without it.
//!
//! ```text
//! cargo run --release -p memgroup --example pressure_cost
//! ```
//!
//! Each figure is the median of rounds in which all are measured one after the other. Compare a
//! figure only with its control of the same run.
#![cfg(not(memgroup_loom))]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use memgroup::{Config, Group, Hierarchy, scope};

const ROUNDS: usize = 15;
const TURNS: u32 = 100_000;

/// Nanoseconds a turn.
fn nanos(mut turn: impl FnMut()) -> f64 {
    let begin = Instant::now();
    (0..TURNS).for_each(|_| turn());
    begin.elapsed().as_nanos() as f64 / f64::from(TURNS)
}

fn stall_pair(group: &Group) -> f64 {
    nanos(|| drop(black_box(group.stall())))
}

fn scope_pair(group: &Group) -> f64 {
    nanos(|| drop(black_box(scope::enter(group))))
}

/// A group three levels below the root.
fn deep(hierarchy: &Hierarchy, name: &str) -> Group {
    let top = hierarchy.create(&format!("/{name}")).expect("a new group");
    top.create("b").and_then(|below| below.create("c")).expect("a new group")
}

/// The result of `measure` while other threads repeat `act`.
fn beside(threads: usize, act: impl Fn(usize) + Sync, measure: impl FnOnce() -> f64) -> f64 {
    let over = AtomicBool::new(false);
    let (begun, begins) = mpsc::channel();
    thread::scope(|scope| {
        for number in 0..threads {
            let (over, act, begun) = (&over, &act, begun.clone());
            scope.spawn(move || {
                begun.send(()).expect("the measuring thread waits");
                while !over.load(Ordering::Relaxed) {
                    act(number);
                }
            });
        }
        begins.iter().take(threads).for_each(drop);
        let found = measure();
        over.store(true, Ordering::Relaxed);
        found
    })
}

/// The result of `measure` while another thread is stalled in a group.
fn during_stall(group: &Group, measure: impl FnOnce() -> f64) -> f64 {
    let (held, hold) = mpsc::channel::<()>();
    thread::scope(|threads| {
        let (stalled, is_stalled) = mpsc::channel();
        threads.spawn(move || {
            let _stall = group.stall();
            stalled.send(()).expect("the measuring thread waits");
            let _ = hold.recv();
        });
        is_stalled.recv().expect("a stall");
        let found = measure();
        drop(held);
        found
    })
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn main() {
    let bare = Config::new().scope_time(false);
    let counted = Hierarchy::new(bare).expect("a hierarchy");
    let uncounted = Hierarchy::new(bare.pressure(false)).expect("a hierarchy");
    let (group, other, without) = (deep(&counted, "a"), deep(&counted, "other"), deep(&uncounted, "a"));
    let apart = deep(&Hierarchy::new(bare).expect("a hierarchy"), "a");
    let cases: [(&str, &dyn Fn() -> f64); 8] = [
        ("scope, pressure not counted", &|| scope_pair(&without)),
        ("scope, pressure counted", &|| scope_pair(&group)),
        ("scope, while a stall lasts elsewhere", &|| during_stall(&other, || scope_pair(&group))),
        ("scope, while a stall lasts in another hierarchy", &|| during_stall(&apart, || scope_pair(&group))),
        ("stall, pressure not counted", &|| stall_pair(&without)),
        ("stall, depth 3", &|| stall_pair(&group)),
        ("stall, depth 3, in a scope", &|| {
            let _scope = scope::enter(&group);
            stall_pair(&group)
        }),
        ("stall, depth 3, another thread stalls elsewhere", &|| {
            beside(1, |_| drop(black_box(other.stall())), || stall_pair(&group))
        }),
    ];
    let mut figures = vec![Vec::with_capacity(ROUNDS); cases.len()];
    for _ in 0..ROUNDS {
        for (figures, (_, measure)) in figures.iter_mut().zip(cases) {
            figures.push(measure());
        }
    }
    for ((what, _), figures) in cases.into_iter().zip(figures) {
        println!("{:>8.1} ns  {what}", median(figures));
    }
}
