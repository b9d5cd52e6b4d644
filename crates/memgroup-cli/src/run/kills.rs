//! Who was stopped for whom, and what came of it.
//!
//! The engine keeps the last calls of kill hooks; they are looked at while the run lasts, and added up here.
//!
//! - I1. A call that is over is counted once, however often it is seen.
//! - B1. Calls that begin and end between two looks, more than the engine keeps, are in the events alone.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use memgroup::{Hierarchy, KillOutcome, KillReport};
use serde::{Deserialize, Serialize};

/// All times that one group was to be stopped for another.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Kills {
    /// The tenant that was to be stopped; a path if it is none.
    pub(crate) victim: String,
    /// Whose charge needed the memory.
    pub(crate) requester: String,
    /// Path of the group that was full.
    pub(crate) full: String,
    /// It was told to stop, and half of its bytes were free in time.
    pub(crate) died: u64,
    /// They were not.
    pub(crate) overdue: u64,
    /// Nothing ran there.
    pub(crate) idle: u64,
    /// Bytes that it gave back then.
    pub(crate) idle_freed: u64,
    /// It was not to be stopped then.
    pub(crate) refused: u64,
    /// Its hook panicked.
    pub(crate) panicked: u64,
    /// How long it took until its bytes were free, in microseconds, in no order; also of those that took too long, if they ended.
    pub(crate) took_us: Vec<u64>,
}

impl Kills {
    /// Times that it was told to stop.
    pub(crate) fn stopped(&self) -> u64 {
        self.died + self.overdue
    }

    fn is_of(&self, other: &Kills) -> bool {
        (&self.victim, &self.requester, &self.full) == (&other.victim, &other.requester, &other.full)
    }

    fn of(report: &KillReport, outcome: KillOutcome, below: &str) -> Kills {
        let name = |path: &str| path.strip_prefix(below).unwrap_or(path).to_owned();
        let mut kills = Kills {
            victim: name(&report.victim),
            requester: name(&report.requester),
            full: report.full.clone(),
            ..Kills::default()
        };
        match outcome {
            KillOutcome::Died => kills.died = 1,
            KillOutcome::Overdue => kills.overdue = 1,
            KillOutcome::Idle { freed } => (kills.idle, kills.idle_freed) = (1, freed),
            KillOutcome::Panicked => kills.panicked = 1,
            _ => kills.refused = 1,
        }
        if kills.stopped() > 0 {
            kills.took_us.extend(report.took.map(microseconds));
        }
        kills
    }
}

/// Adds `more` to the sum that it belongs to.
pub(crate) fn add(sums: &mut Vec<Kills>, more: Kills) {
    let Some(sum) = sums.iter_mut().find(|sum| sum.is_of(&more)) else { return sums.push(more) };
    sum.died += more.died;
    sum.overdue += more.overdue;
    sum.idle += more.idle;
    sum.idle_freed += more.idle_freed;
    sum.refused += more.refused;
    sum.panicked += more.panicked;
    sum.took_us.extend(more.took_us);
}

/// What was seen up to now.
#[derive(Debug, Default)]
pub(crate) struct KillLog {
    sums: Vec<Kills>,
    /// Those that are counted and may be seen again.
    counted: HashSet<(Instant, String)>,
}

impl KillLog {
    /// Counts what is over and was not seen before; groups below the path `below`, which ends with a slash, are called by the rest of theirs.
    pub(crate) fn look(&mut self, hierarchy: &Hierarchy, below: &str) {
        let reports = hierarchy.kills();
        let before = std::mem::take(&mut self.counted);
        for report in &reports {
            let Some(outcome) = report.outcome else { continue };
            let key = (report.at, report.victim.clone());
            if !before.contains(&key) {
                add(&mut self.sums, Kills::of(report, outcome, below));
            }
            self.counted.insert(key);
        }
    }

    pub(crate) fn sums(&self) -> Vec<Kills> {
        self.sums.clone()
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
