//! Who was stopped for whom, and what came of it.
//!
//! The engine keeps the last calls of kill hooks; they are looked at while the run lasts, and added up here.
//!
//! - I1. A call that is over is counted once, however often it is seen, and so is its time, which of one that took too long is known later.
//! - B1. Calls that begin and end between two looks, more than the engine keeps, are in the events alone.

use std::collections::HashMap;
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

    /// None of those of a report.
    fn none(report: &KillReport, below: &str) -> Kills {
        let name = |path: &str| path.strip_prefix(below).unwrap_or(path).to_owned();
        Kills {
            victim: name(&report.victim),
            requester: name(&report.requester),
            full: report.full.clone(),
            ..Kills::default()
        }
    }

    fn of(report: &KillReport, outcome: KillOutcome, below: &str) -> Kills {
        let mut kills = Kills::none(report, below);
        match outcome {
            KillOutcome::Died => kills.died = 1,
            KillOutcome::Overdue => kills.overdue = 1,
            KillOutcome::Idle { freed } => (kills.idle, kills.idle_freed) = (1, freed),
            KillOutcome::Panicked => kills.panicked = 1,
            _ => kills.refused = 1,
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
    /// Those that are counted and may be seen again, and whether their times are.
    counted: HashMap<(Instant, String), bool>,
}

impl KillLog {
    /// Counts what is over and was not seen before; groups below the path `below`, which ends with a slash, are called by the rest of theirs.
    pub(crate) fn look(&mut self, hierarchy: &Hierarchy, below: &str) {
        let reports = hierarchy.kills();
        let before = std::mem::take(&mut self.counted);
        for report in &reports {
            let Some(outcome) = report.outcome else { continue };
            let key = (report.at, report.victim.clone());
            let mut more = match before.get(&key) {
                None => Kills::of(report, outcome, below),
                Some(_) => Kills::none(report, below),
            };
            let is_timed = before.get(&key).is_some_and(|&is_timed| is_timed);
            let is_told = matches!(outcome, KillOutcome::Died | KillOutcome::Overdue);
            let took = report.took.filter(|_| is_told && !is_timed);
            more.took_us.extend(took.map(microseconds));
            self.counted.insert(key, is_timed || took.is_some());
            add(&mut self.sums, more);
        }
    }

    pub(crate) fn sums(&self) -> Vec<Kills> {
        self.sums.clone()
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use memgroup::{Charge, Config, Hierarchy, Killed, Killing};

    use super::{KillLog, Kills};

    const PAGE: u64 = 4096;

    /// A full house, whose tenant `big` has all of it, and answers so.
    fn full(answer: Killed) -> (Hierarchy, Charge) {
        let hierarchy =
            Hierarchy::new(Config::new().kill_patience(Duration::from_millis(1))).expect("a house");
        let parent = hierarchy.create("/tenants").expect("a group");
        parent.set_max(100 * PAGE).expect("a limit");
        let big = parent.create("big").expect("a group");
        parent.create("small").expect("a group");
        let held = big.try_charge(100 * PAGE).expect("there is room");
        // It stays, as those of connections do.
        std::mem::forget(big.set_kill_hook(move |_: &Killing<'_>| answer).expect("the only one"));
        (hierarchy, held)
    }

    fn ask(hierarchy: &Hierarchy) {
        let small = hierarchy.lookup("/tenants/small").expect("it is there");
        small.try_charge(PAGE).expect_err("all is taken");
    }

    fn looked(log: &mut KillLog, hierarchy: &Hierarchy) -> Kills {
        for _ in 0..3 {
            log.look(hierarchy, "/tenants/");
        }
        let [kills] = &log.sums()[..] else { panic!("one victim and one requester: {log:?}") };
        assert_eq!((kills.victim.as_str(), kills.requester.as_str()), ("big", "small"));
        assert_eq!(kills.full, "/tenants");
        kills.clone()
    }

    #[test]
    fn who_took_too_long_is_counted_once_and_its_time_when_it_is_over() {
        let (hierarchy, held) = full(Killed::Dying);
        let mut log = KillLog::default();
        ask(&hierarchy);
        std::thread::sleep(Duration::from_millis(5));
        let kills = looked(&mut log, &hierarchy);
        assert_eq!((kills.died, kills.overdue, &kills.took_us[..]), (0, 1, &[][..]));
        drop(held);
        let kills = looked(&mut log, &hierarchy);
        assert_eq!((kills.died, kills.overdue, kills.took_us.len()), (0, 1, 1));
        assert!(kills.took_us[0] >= 5_000, "{kills:?}");
    }

    #[test]
    fn who_died_is_counted_once_with_its_time() {
        let (hierarchy, held) = full(Killed::Dying);
        let mut log = KillLog::default();
        ask(&hierarchy);
        log.look(&hierarchy, "/tenants/");
        drop(held);
        let kills = looked(&mut log, &hierarchy);
        // The patience is short: it may have been over.
        assert_eq!((kills.stopped(), kills.took_us.len()), (1, 1));
    }

    #[test]
    fn what_the_idle_gave_back_adds_up() {
        let (hierarchy, _held) = full(Killed::Idle { freed: 7 });
        let mut log = KillLog::default();
        ask(&hierarchy);
        let kills = looked(&mut log, &hierarchy);
        assert_eq!((kills.idle, kills.idle_freed, kills.stopped()), (1, 7, 0));
        ask(&hierarchy);
        let kills = looked(&mut log, &hierarchy);
        assert_eq!((kills.idle, kills.idle_freed, kills.took_us.len()), (2, 14, 0));
    }

    #[test]
    fn who_was_not_to_be_stopped_was_not() {
        let (hierarchy, _held) = full(Killed::Refused);
        let mut log = KillLog::default();
        ask(&hierarchy);
        let kills = looked(&mut log, &hierarchy);
        assert_eq!((kills.refused, kills.stopped(), kills.idle), (1, 0, 0));
    }
}
