//! Kills: which tenant was stopped to free memory for which other, and the results.
//!
//! The engine keeps the last calls of kill hooks. The run polls them and adds them up here.
//!
//! - I1. A finished call is counted once, and so is its time. The time of an overdue call is known later than its outcome.
//! - B1. If more calls end between two polls than the engine keeps, the rest are counted in the events only.

use std::collections::HashMap;
use std::time::Instant;

use memgroup::{Hierarchy, KillOutcome};
use serde::{Deserialize, Serialize};

use super::counts::Counts;

/// Keys of the counts.
const KEYS: [&str; 6] = ["died", "overdue", "idle", "idle_freed", "refused", "panicked"];

/// All calls with the same victim, requester and full group.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Kills {
    /// Name of the tenant to be stopped; a path if it is no tenant.
    pub(crate) victim: String,
    /// Tenant that needed the memory for a charge.
    pub(crate) requester: String,
    /// Path of the full group.
    pub(crate) full: String,
    /// Calls by outcome. The victim was stopped, and half of its bytes were free in time (`died`), or were not (`overdue`). No statement
    /// ran in it (`idle`), and it freed `idle_freed` bytes. The hook refused to stop it (`refused`), or panicked (`panicked`).
    #[serde(flatten)]
    pub(crate) counts: Counts,
    /// Time until half of the bytes were free, in microseconds, in any order; also of overdue calls that ended.
    pub(crate) took_us: Vec<u64>,
}

impl Kills {
    /// Times that the victim was stopped.
    pub(crate) fn stopped(&self) -> u64 {
        self.counts.get("died") + self.counts.get("overdue")
    }
}

/// Adds `more` to the sum with the same names.
pub(crate) fn add(sums: &mut Vec<Kills>, more: Kills) {
    let same = |sum: &&mut Kills| {
        (&sum.victim, &sum.requester, &sum.full) == (&more.victim, &more.requester, &more.full)
    };
    let Some(sum) = sums.iter_mut().find(same) else { return sums.push(more) };
    sum.counts = std::mem::take(&mut sum.counts).add(more.counts, &[]);
    sum.took_us.extend(more.took_us);
}

/// Kills counted so far.
#[derive(Debug, Default)]
pub(crate) struct KillLog {
    pub(crate) sums: Vec<Kills>,
    /// Counted calls that the engine may still list, and whether their times are counted.
    counted: HashMap<(Instant, String), bool>,
}

impl KillLog {
    /// Counts the calls that ended since the last poll. Names omit the path `below`, which ends with a slash.
    pub(crate) fn poll(&mut self, hierarchy: &Hierarchy, below: &str) {
        let name = |path: &str| path.strip_prefix(below).unwrap_or(path).to_owned();
        let before = std::mem::take(&mut self.counted);
        for report in hierarchy.kills() {
            let Some(outcome) = report.outcome else { continue };
            let key = (report.at, report.victim.clone());
            let seen = before.get(&key).copied();
            let (kind, freed) = match outcome {
                KillOutcome::Died => ("died", 0),
                KillOutcome::Overdue => ("overdue", 0),
                KillOutcome::Idle { freed } => ("idle", freed),
                KillOutcome::Panicked => ("panicked", 0),
                _ => ("refused", 0),
            };
            let mut counts = Counts::of(KEYS.map(|key| (key, 0)));
            if seen.is_none() {
                counts.set(kind, 1);
                counts.set("idle_freed", freed);
            }
            let is_stopped = matches!(outcome, KillOutcome::Died | KillOutcome::Overdue);
            let is_timed = seen == Some(true);
            let took = report.took.filter(|_| is_stopped && !is_timed);
            self.counted.insert(key, is_timed || took.is_some());
            let more = Kills {
                victim: name(&report.victim),
                requester: name(&report.requester),
                full: report.full,
                counts,
                took_us: took.map(|time| time.as_micros() as u64).into_iter().collect(),
            };
            add(&mut self.sums, more);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use memgroup::{Charge, Config, Hierarchy, KillAnswer, KillRequest};

    use super::{KillLog, Kills};

    const PAGE: u64 = 4096;
    /// The engine forgets an overdue victim after ten times this. A busy machine must not take that long.
    const PATIENCE: Duration = Duration::from_millis(50);

    /// A full parent: its child `big` has all bytes, and its kill hook returns `answer`.
    fn full(answer: KillAnswer) -> (Hierarchy, Charge) {
        let hierarchy = Hierarchy::new(Config::new().kill_patience(PATIENCE)).expect("a hierarchy");
        let parent = hierarchy.create("/tenants").expect("a group");
        parent.set_max(100 * PAGE).expect("a limit");
        let big = parent.create("big").expect("a group");
        parent.create("small").expect("a group");
        let held = big.try_charge(100 * PAGE).expect("room");
        // Leaked: it stays for the whole test.
        std::mem::forget(big.set_kill_hook(move |_: &KillRequest<'_>| answer).expect("the only hook"));
        (hierarchy, held)
    }

    fn ask(hierarchy: &Hierarchy) {
        let small = hierarchy.lookup("/tenants/small").expect("a group");
        small.try_charge(PAGE).expect_err("no room");
    }

    fn polled(log: &mut KillLog, hierarchy: &Hierarchy) -> Kills {
        for _ in 0..3 {
            log.poll(hierarchy, "/tenants/");
        }
        let [kills] = &log.sums[..] else { panic!("one victim and one requester: {log:?}") };
        assert_eq!((kills.victim.as_str(), kills.requester.as_str()), ("big", "small"));
        assert_eq!(kills.full, "/tenants");
        kills.clone()
    }

    #[test]
    fn counts_an_overdue_victim_once_and_its_time_later() {
        let (hierarchy, held) = full(KillAnswer::Dying);
        let mut log = KillLog::default();
        ask(&hierarchy);
        std::thread::sleep(PATIENCE);
        let kills = polled(&mut log, &hierarchy);
        assert_eq!(
            (kills.counts.get("died"), kills.counts.get("overdue"), &kills.took_us[..]),
            (0, 1, &[][..])
        );
        drop(held);
        let kills = polled(&mut log, &hierarchy);
        assert_eq!((kills.counts.get("died"), kills.counts.get("overdue"), kills.took_us.len()), (0, 1, 1));
        assert!(u128::from(kills.took_us[0]) >= PATIENCE.as_micros(), "{kills:?}");
    }

    #[test]
    fn counts_a_stopped_victim_once_with_its_time() {
        let (hierarchy, held) = full(KillAnswer::Dying);
        let mut log = KillLog::default();
        ask(&hierarchy);
        log.poll(&hierarchy, "/tenants/");
        drop(held);
        let kills = polled(&mut log, &hierarchy);
        // On a busy machine the call may be overdue.
        assert_eq!((kills.stopped(), kills.took_us.len()), (1, 1));
    }

    #[test]
    fn adds_the_bytes_of_idle_victims() {
        let (hierarchy, _held) = full(KillAnswer::Idle { freed: 7 });
        let mut log = KillLog::default();
        ask(&hierarchy);
        let kills = polled(&mut log, &hierarchy);
        assert_eq!((kills.counts.get("idle"), kills.counts.get("idle_freed"), kills.stopped()), (1, 7, 0));
        ask(&hierarchy);
        let kills = polled(&mut log, &hierarchy);
        assert_eq!(
            (kills.counts.get("idle"), kills.counts.get("idle_freed"), kills.took_us.len()),
            (2, 14, 0)
        );
    }

    #[test]
    fn counts_a_refusal_of_the_hook() {
        let (hierarchy, _held) = full(KillAnswer::Refused);
        let mut log = KillLog::default();
        ask(&hierarchy);
        let kills = polled(&mut log, &hierarchy);
        assert_eq!((kills.counts.get("refused"), kills.stopped(), kills.counts.get("idle")), (1, 0, 0));
    }
}
