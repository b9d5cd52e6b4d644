//! Watchdog: when no actor has made a step for a minute, it prints every waiter with its reason,
//! and ends the process.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use memgroup::Hierarchy;
use xtask::Watchdog;

use crate::ledger::lock;
use crate::sleepers::Sleepers;

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
    let mut text = format!("{} steps, seed {seed}\n", doings.steps());
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

/// Watches the actors until the result is dropped.
pub(crate) fn watch(
    hierarchy: &Hierarchy,
    doings: &Arc<Doings>,
    sleepers: &Arc<Sleepers>,
    seed: u64,
) -> Watchdog {
    let sleepers = Arc::clone(sleepers);
    let (hierarchy, seen, doings) = (hierarchy.clone(), Arc::clone(doings), Arc::clone(doings));
    Watchdog::new(move || seen.steps(), move || report(&hierarchy, &doings, seed) + &sleepers.report())
}
