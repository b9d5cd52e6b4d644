//! Report: the engine's kills and waits in the form that clients get.

use std::time::{Duration, Instant, SystemTime};

use memgroup::{KillOutcome, KillReport, WaitKind, WaitReport};
use serde::ser::{Serialize, SerializeMap as _, Serializer};

/// Microseconds of a time.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Microseconds since 1970.
pub(crate) fn unix_us(time: SystemTime) -> u64 {
    micros(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// A wait, and the present time. Times become durations, because an instant means nothing to
/// another process.
pub(crate) struct Wait<'w>(pub(crate) &'w WaitReport, pub(crate) Instant);

impl Serialize for Wait<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Wait(wait, now) = self;
        let kind = match wait.kind {
            WaitKind::Charge => "charge",
            WaitKind::Throttle => "throttle",
            WaitKind::Shrinker => "shrinker",
            WaitKind::Event => "event",
            WaitKind::Pressure => "pressure",
            _ => "other",
        };
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("group", &wait.group)?;
        map.serialize_entry("at", &wait.at)?;
        map.serialize_entry("kind", kind)?;
        map.serialize_entry("bytes", &wait.bytes)?;
        map.serialize_entry("waited_us", &micros(now.saturating_duration_since(wait.since)))?;
        map.serialize_entry("left_us", &micros(wait.deadline.saturating_duration_since(*now)))?;
        map.serialize_entry("text", &wait.to_string())?;
        map.end()
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
