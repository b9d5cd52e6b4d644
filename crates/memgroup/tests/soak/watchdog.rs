//! Watchdog: when no actor has made a step for a minute, it prints every waiter with its reason, and ends the process.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memgroup::Hierarchy;

use crate::ledger::lock;

/// A run without a step for this long counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// The current step of each actor.
pub(crate) struct Doings {
    steps: AtomicU64,
    now: Vec<Mutex<(Instant, String)>>,
}

impl Doings {
    pub(crate) fn new(actors: usize) -> Doings {
        let idle = || Mutex::new((Instant::now(), "nothing yet".to_owned()));
        Doings { steps: AtomicU64::new(0), now: (0..actors).map(|_| idle()).collect() }
    }

    pub(crate) fn begin(&self, actor: usize, what: String) {
        *lock(&self.now[actor]) = (Instant::now(), what);
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }
}

/// Text with the current step of each actor, every wait, every kill, and every shrinker in a call.
pub(crate) fn report(hierarchy: &Hierarchy, doings: &Doings, seed: u64) -> String {
    let mut text = format!("no step for long after {} steps, seed {seed}\n", doings.steps());
    for (actor, doing) in doings.now.iter().enumerate() {
        let (since, what) = &*lock(doing);
        _ = writeln!(text, "actor {actor}: for {:.3?}: {what}", since.elapsed());
    }
    for wait in hierarchy.waits() {
        _ = writeln!(text, "wait: {wait}");
    }
    for kill in hierarchy.kills() {
        _ = writeln!(text, "kill: {kill:?}");
    }
    for shrinker in hierarchy.shrinkers() {
        if shrinker.quarantine.is_some() || !shrinker.callers.is_empty() {
            _ = writeln!(text, "shrinker: {shrinker:?}");
        }
    }
    text
}

/// A thread that watches the actors until this is dropped.
pub(crate) struct Watchdog {
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watchdog {
    pub(crate) fn new(hierarchy: &Hierarchy, doings: &Arc<Doings>, seed: u64) -> Watchdog {
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, hierarchy, doings) = (Arc::clone(&is_over), hierarchy.clone(), Arc::clone(doings));
        let thread = std::thread::spawn(move || {
            let mut last = (doings.steps(), Instant::now());
            while !over.load(Ordering::Relaxed) {
                std::thread::park_timeout(Duration::from_secs(1));
                let steps = doings.steps();
                if steps != last.0 {
                    last = (steps, Instant::now());
                } else if last.1.elapsed() > PATIENCE {
                    // Written directly, because the test harness captures `eprintln!`.
                    _ = std::io::stderr().write_all(report(&hierarchy, &doings, seed).as_bytes());
                    std::process::abort();
                }
            }
        });
        Watchdog { is_over, thread: Some(thread) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            _ = thread.join();
        }
    }
}
