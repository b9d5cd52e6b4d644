//! Report: kills and waits of the engine in the form that clients get.

use std::time::{Duration, Instant, SystemTime};

use memgroup::{KillOutcome, KillReport, WaitKind, WaitReport};
use serde::Serialize;

/// Microseconds of a time.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Microseconds since 1970.
pub(crate) fn unix_us(time: SystemTime) -> u64 {
    micros(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// A wait, with times as durations: an instant means nothing to another process.
#[derive(Serialize)]
pub(crate) struct Wait<'w> {
    group: &'w str,
    at: &'w str,
    kind: &'static str,
    bytes: u64,
    waited_us: u64,
    left_us: u64,
    text: String,
}

impl Wait<'_> {
    pub(crate) fn of(wait: &WaitReport, now: Instant) -> Wait<'_> {
        Wait {
            group: &wait.group,
            at: &wait.at,
            kind: match wait.kind {
                WaitKind::Charge => "charge",
                WaitKind::Throttle => "throttle",
                WaitKind::Shrinker => "shrinker",
                WaitKind::Event => "event",
                WaitKind::Pressure => "pressure",
                _ => "other",
            },
            bytes: wait.bytes,
            waited_us: micros(now.saturating_duration_since(wait.since)),
            left_us: micros(wait.deadline.saturating_duration_since(now)),
            text: wait.to_string(),
        }
    }
}

/// A call of a kill hook.
#[derive(Debug, Serialize)]
pub(crate) struct Kill<'k> {
    /// When the hook was called.
    unix_us: u64,
    /// Its number among those that the server saw, in events.
    #[serde(skip_serializing_if = "Option::is_none")]
    kill: Option<u64>,
    pub(crate) victim: &'k str,
    pub(crate) requester: &'k str,
    pub(crate) full: &'k str,
    unit: Option<&'k str>,
    asked_bytes: u64,
    pub(crate) usage_bytes: u64,
    pub(crate) took_us: Option<u64>,
    pub(crate) outcome: Option<&'static str>,
    freed_bytes: Option<u64>,
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

impl Kill<'_> {
    pub(crate) fn of(kill: &KillReport, now_unix_us: u64, number: Option<u64>) -> Kill<'_> {
        Kill {
            unix_us: now_unix_us.saturating_sub(micros(kill.at.elapsed())),
            kill: number,
            victim: &kill.victim,
            requester: &kill.requester,
            full: &kill.full,
            unit: kill.unit.as_deref(),
            asked_bytes: kill.asked_bytes,
            usage_bytes: kill.usage_bytes,
            took_us: kill.took.map(micros),
            outcome: kill.outcome.map(outcome),
            freed_bytes: match kill.outcome {
                Some(KillOutcome::Idle { freed }) => Some(freed),
                _ => None,
            },
        }
    }
}
