//! List: the server itself, all waits, the last kills.

use std::time::{Duration, Instant, SystemTime};

use memgroup::{GroupFile, KillOutcome, KillReport, WaitKind, WaitReport};
use serde::Serialize;

use super::Answer;
use crate::app::App;
use crate::problem::Problem;
use crate::route::Right;

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Microseconds since 1970.
pub(crate) fn unix_us(time: SystemTime) -> u64 {
    micros(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

#[derive(Serialize)]
struct About<'a> {
    version: &'static str,
    started_unix_us: u64,
    pid: u32,
    program: Option<String>,
    rights: &'a [&'static str],
    group: &'a str,
    metrics_groups: usize,
    history_groups: usize,
    connections: usize,
    connections_max: usize,
    groups: usize,
    groups_without_events: usize,
    files: Vec<File>,
}

/// A file that every group has.
#[derive(Serialize)]
struct File {
    name: String,
    readable: bool,
    writable: bool,
}

/// The server, and the rights of the client that asks.
pub(super) fn about(app: &App, right: Right) -> Result<Answer, Problem> {
    let rights: &[&str] = if right == Right::Control { &["read", "control"] } else { &["read"] };
    let program = std::env::current_exe().ok();
    let name = program.as_ref().and_then(|path| path.file_name());
    let files = app.hierarchy.files().into_iter();
    let files = files.map(|GroupFile { name, readable, writable, .. }| File { name, readable, writable });
    Answer::json(
        app,
        &About {
            version: env!("CARGO_PKG_VERSION"),
            started_unix_us: unix_us(app.started),
            pid: std::process::id(),
            program: name.map(|name| name.to_string_lossy().into_owned()),
            rights,
            group: &app.serve.group,
            metrics_groups: app.serve.metrics_groups,
            history_groups: app.serve.history_groups,
            connections: app.conns.len(),
            connections_max: app.serve.connections,
            groups: app.groups(),
            groups_without_events: app.untold(),
            files: files.collect(),
        },
    )
}

/// A wait, with times as durations: an instant means nothing to another process.
#[derive(Serialize)]
struct Wait<'w> {
    group: &'w str,
    at: &'w str,
    kind: &'static str,
    bytes: u64,
    waited_us: u64,
    left_us: u64,
    text: String,
}

impl Wait<'_> {
    fn of(wait: &WaitReport, now: Instant) -> Wait<'_> {
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

/// Every wait, the longest first.
pub(super) fn waits(app: &App) -> Result<Answer, Problem> {
    let (waits, now) = (app.hierarchy.waits(), Instant::now());
    Answer::json(app, &waits.iter().map(|wait| Wait::of(wait, now)).collect::<Vec<_>>())
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

/// The last kills, the oldest first.
pub(super) fn kills(app: &App) -> Result<Answer, Problem> {
    let (kills, now) = (app.hierarchy.kills(), unix_us(SystemTime::now()));
    Answer::json(app, &kills.iter().map(|kill| Kill::of(kill, now, None)).collect::<Vec<_>>())
}

/// The history of the groups that a query names; of all that have one if it names none.
pub(super) fn history(app: &App, paths: &[String]) -> Result<Answer, Problem> {
    let state = app.samples.history.state();
    let selected = state.of(paths);
    if selected.is_empty() && !paths.is_empty() {
        let detail = format!(
            "no history of {}: the server keeps that of the {} groups with the most usage, once a second",
            paths.join(", "),
            app.serve.history_groups
        );
        return Err(Problem::new(http::StatusCode::NOT_FOUND, "no_history", detail).group(paths.join(", ")));
    }
    Answer::json(app, &selected)
}
