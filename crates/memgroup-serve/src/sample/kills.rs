//! Kills: finds the calls of kill hooks that are new or have ended since the last check of the
//! engine's list, and their form for clients.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use memgroup::{KillOutcome, KillReport};
use serde::ser::{Serialize, SerializeMap as _, Serializer};

use super::micros;

/// Upper bounds of the histogram of kills, in seconds.
pub(crate) const BOUNDS: [f64; 8] = [0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 30.0, f64::INFINITY];

/// A report without its paths, which change when a group is released.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Known {
    at: Instant,
    asked_bytes: u64,
    usage_bytes: u64,
    number: u64,
    told: (Option<KillOutcome>, Option<Duration>),
}

/// The calls that were seen.
#[derive(Debug, Default)]
pub(crate) struct Kills {
    last: Vec<Known>,
    next: u64,
    pub(crate) totals: Totals,
}

/// Sums over all calls that were seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    /// Calls that ended, by outcome.
    pub(crate) outcomes: BTreeMap<&'static str, u64>,
    /// The number and the sum in seconds of the times until victims died.
    pub(crate) died: (u64, f64),
    /// Those times, by bound.
    pub(crate) buckets: [u64; BOUNDS.len()],
}

impl Kills {
    /// Records the calls in the list as old.
    pub(crate) fn begin(&mut self, reports: &[KillReport]) {
        self.look(reports);
        self.totals = Totals::default();
    }

    /// Returns the reports that are new or have changed, each by its number and its position.
    pub(crate) fn look(&mut self, reports: &[KillReport]) -> Vec<(u64, usize)> {
        let mut old = std::mem::take(&mut self.last);
        let mut news = Vec::new();
        for (position, report) in reports.iter().enumerate() {
            let is_same = |known: &Known| {
                (known.at, known.asked_bytes, known.usage_bytes)
                    == (report.at, report.asked_bytes, report.usage_bytes)
            };
            let known = old.iter().position(is_same).map(|at| old.remove(at));
            let told = (report.outcome, report.took);
            let before = known.map_or((None, None), |known| known.told);
            let number = known.map_or(self.next, |known| known.number);
            if known.is_none() {
                self.next += 1;
            }
            if known.is_none() || before != told {
                news.push((number, position));
            }
            self.totals.add(before, told);
            let (at, asked_bytes, usage_bytes) = (report.at, report.asked_bytes, report.usage_bytes);
            self.last.push(Known { at, asked_bytes, usage_bytes, number, told });
        }
        news
    }
}

impl Totals {
    fn add(
        &mut self,
        before: (Option<KillOutcome>, Option<Duration>),
        now: (Option<KillOutcome>, Option<Duration>),
    ) {
        if let (None, Some(outcome)) = (before.0, now.0) {
            *self.outcomes.entry(self::outcome(outcome)).or_default() += 1;
        }
        if let (None, Some(took)) = (before.1, now.1) {
            let seconds = took.as_secs_f64();
            self.died.0 += 1;
            self.died.1 += seconds;
            let bucket = BOUNDS.iter().position(|&bound| seconds <= bound).unwrap_or(BOUNDS.len() - 1);
            self.buckets[bucket] += 1;
        }
    }
}

/// The name of an outcome.
pub(crate) fn outcome(outcome: KillOutcome) -> &'static str {
    match outcome {
        KillOutcome::Died => "died",
        KillOutcome::Overdue => "overdue",
        KillOutcome::Idle { .. } => "idle",
        KillOutcome::Refused => "refused",
        KillOutcome::Panicked => "panicked",
        _ => "other",
    }
}

/// A call of a kill hook, with the present time in microseconds since 1970.
pub(crate) struct Kill<'k> {
    pub(crate) report: &'k KillReport,
    pub(crate) now_unix_us: u64,
    /// Its number among those that the server saw, in events.
    pub(crate) number: Option<u64>,
}

impl Serialize for Kill<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let kill = self.report;
        let freed = match kill.outcome {
            Some(KillOutcome::Idle { freed }) => Some(freed),
            _ => None,
        };
        let mut map = to.serialize_map(None)?;
        // When the hook was called.
        map.serialize_entry("unix_us", &self.now_unix_us.saturating_sub(micros(kill.at.elapsed())))?;
        if let Some(number) = self.number {
            map.serialize_entry("kill", &number)?;
        }
        map.serialize_entry("victim", &kill.victim)?;
        map.serialize_entry("requester", &kill.requester)?;
        map.serialize_entry("full", &kill.full)?;
        map.serialize_entry("unit", &kill.unit)?;
        map.serialize_entry("asked_bytes", &kill.asked_bytes)?;
        map.serialize_entry("usage_bytes", &kill.usage_bytes)?;
        map.serialize_entry("took_us", &kill.took.map(micros))?;
        map.serialize_entry("outcome", &kill.outcome.map(outcome))?;
        map.serialize_entry("freed_bytes", &freed)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, Hierarchy, KillAnswer, KillRequest};

    use super::*;

    #[test]
    fn tells_each_call_once_and_once_more_at_its_end() {
        let hierarchy = Hierarchy::new(Config::new().kill_patience(Duration::from_millis(1))).unwrap();
        let tenant = hierarchy.create("/tenant").unwrap();
        tenant.set_max(4096).unwrap();
        let mut held = Some(tenant.try_charge(4096).unwrap());
        let hook = tenant.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Dying).unwrap();
        let mut kills = Kills::default();
        kills.begin(&hierarchy.kills());
        tenant.try_charge(1).unwrap_err();
        let reports = hierarchy.kills();
        assert_eq!(kills.look(&reports), [(0, 0)]);
        assert_eq!(kills.look(&reports), []);
        assert_eq!(kills.totals.outcomes.values().sum::<u64>(), u64::from(reports[0].outcome.is_some()));
        drop(held.take());
        let _room = tenant.try_charge(1).unwrap();
        let reports = hierarchy.kills();
        assert!(reports[0].took.is_some(), "{reports:?}");
        assert_eq!(kills.look(&reports), [(0, 0)], "it has ended");
        assert_eq!((kills.totals.died.0, kills.totals.buckets.iter().sum::<u64>()), (1, 1));
        assert_eq!(kills.look(&reports), []);
        drop(hook);
    }
}
