//! List: the server itself, the figures of all groups, all waits, the last kills, the history.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Instant, SystemTime};

use memgroup::{GroupFile, GroupSnapshot, Snapshot, WaitKind, WaitReport};
use serde::ser::{Serialize, SerializeMap as _, Serializer};

use super::Answer;
use crate::account::uncounted;
use crate::app::App;
use crate::problem::Problem;
use crate::route::Right;
use crate::sample::{Kill, micros, unix_us};

/// A file that every group has.
#[derive(serde::Serialize)]
struct File {
    name: String,
    readable: bool,
    writable: bool,
}

/// The server, and the rights of the client that asks.
struct About<'a>(&'a App, Right);

impl Serialize for About<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let About(app, right) = self;
        let program = std::env::current_exe().ok();
        let program = program.as_ref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy());
        let rights: &[&str] = if *right == Right::Control { &["read", "control"] } else { &["read"] };
        let file = |GroupFile { name, readable, writable, .. }| File { name, readable, writable };
        let files: Vec<File> = app.hierarchy.files().into_iter().map(file).collect();
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("version", env!("CARGO_PKG_VERSION"))?;
        map.serialize_entry("started_unix_us", &unix_us(app.started))?;
        map.serialize_entry("pid", &std::process::id())?;
        map.serialize_entry("program", &program)?;
        map.serialize_entry("rights", rights)?;
        map.serialize_entry("group", &app.serve.group)?;
        map.serialize_entry("metrics_groups", &app.serve.metrics_groups)?;
        map.serialize_entry("history_groups", &app.serve.history_groups)?;
        map.serialize_entry("connections", &app.conns.len())?;
        map.serialize_entry("connections_max", &app.serve.connections)?;
        map.serialize_entry("groups", &app.groups.get())?;
        map.serialize_entry("groups_without_events", &app.untold.get())?;
        map.serialize_entry("files", &files)?;
        map.end()
    }
}

/// The server, and the rights of the client that asks.
pub(super) fn about(app: &App, right: Right) -> Result<Answer, Problem> {
    Answer::json(app, &About(app, right))
}

/// Figures of all groups that the page shows, in the order of the snapshot, a column each.
///
/// The whole tree takes about 1.5 KiB of JSON for each group. A client that asks each second asks
/// for this table instead, and gets names only when they changed.
struct Table<'s> {
    snapshot: &'s Snapshot,
    /// Another text if groups were added or removed.
    order: String,
    /// The `order` that the client knows.
    known: Option<&'s str>,
}

impl Serialize for Table<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let groups = &self.snapshot.groups[..];
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("taken_unix_us", &unix_us(self.snapshot.taken))?;
        map.serialize_entry("order", &self.order)?;
        map.serialize_entry("left_out", &self.snapshot.left_out)?;
        if self.known != Some(&self.order) {
            map.serialize_entry("groups", &Names(groups))?;
        }
        map.serialize_entry("usage_bytes", &Column(groups, |group| group.usage_bytes))?;
        map.serialize_entry("peak_bytes", &Column(groups, |group| group.peak_bytes))?;
        map.serialize_entry("max_bytes", &Column(groups, |group| group.limits.max_bytes))?;
        map.serialize_entry("high_bytes", &Column(groups, |group| group.limits.high_bytes))?;
        map.serialize_entry("low_bytes", &Column(groups, |group| group.limits.low_bytes))?;
        map.serialize_entry("min_bytes", &Column(groups, |group| group.limits.min_bytes))?;
        map.serialize_entry("share", &Column(groups, |group| group.limits.share))?;
        map.serialize_entry("refusals", &Column(groups, |group| group.refusals))?;
        map.serialize_entry("kills", &Column(groups, |group| group.events.oom_kill))?;
        map.serialize_entry("some_percent", &Column(groups, |group| group.pressure.some.avg10))?;
        map.serialize_entry("full_percent", &Column(groups, |group| group.pressure.full.avg10))?;
        map.serialize_entry("waits", &Column(groups, |group| group.waiters.now))?;
        map.end()
    }
}

struct Names<'s>(&'s [GroupSnapshot]);

impl Serialize for Names<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("name", &Column(self.0, |group| &group.name))?;
        // The position of the group above.
        map.serialize_entry("parent", &Column(self.0, |group| group.parent))?;
        map.serialize_entry("online", &Column(self.0, |group| group.online))?;
        map.end()
    }
}

/// A value for each group, or a single value if all are equal.
struct Column<'s, T>(&'s [GroupSnapshot], fn(&'s GroupSnapshot) -> T);

impl<T: Serialize + PartialEq> Serialize for Column<'_, T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut values = self.0.iter().map(self.1);
        match values.next() {
            Some(first) if values.all(|value| value == first) => first.serialize(to),
            _ => to.collect_seq(self.0.iter().map(self.1)),
        }
    }
}

/// Answers with the figures of all groups, and with their names unless the client knows their
/// `order`.
pub(super) fn table(app: &App, known: Option<&str>, most: Option<usize>) -> Result<Answer, Problem> {
    let held = app.snapshots.tree(&app.hierarchy, &app.account, &app.pace, app.groups.get(), most)?;
    let order = order(&held.snapshot.groups);
    Answer::json(app, &Table { snapshot: &held.snapshot, order, known })
}

fn order(groups: &[GroupSnapshot]) -> String {
    let mut hasher = DefaultHasher::new();
    for group in groups {
        (group.id, group.parent, &group.name, group.online).hash(&mut hasher);
    }
    format!("{:016x}", hasher.finish())
}

/// Bytes of a wait and of the temporary values for it, with paths of usual lengths.
const WAIT: u64 = 2 * size_of::<WaitReport>() as u64 + 256;

/// Answers with every wait, the longest first. The engine counts waits for memory; the number of
/// the others is estimated by the last request's.
pub(super) fn waits(app: &App) -> Result<Answer, Problem> {
    let count = app.hierarchy.root().waiters().now.max(app.waits.get());
    let mut charge = app.account.charge(count as u64 * WAIT)?;
    let (waits, now) = (uncounted(|| app.hierarchy.waits()), Instant::now());
    app.waits.set(waits.len());
    let texts: usize = waits.iter().map(|wait| wait.group.capacity() + wait.at.capacity()).sum();
    app.account.resize(&mut charge, (waits.capacity() * size_of::<WaitReport>() + texts) as u64)?;
    Answer::json(app, &Waits { waits: &waits, now })
}

/// Waits, each serialised on its own.
struct Waits<'w> {
    waits: &'w [WaitReport],
    now: Instant,
}

impl Serialize for Waits<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.waits.iter().map(|wait| Wait(wait, self.now)))
    }
}

/// A wait, and the present time. Times become durations, because an instant means nothing to
/// another process.
struct Wait<'w>(&'w WaitReport, Instant);

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

/// Answers with the last kills, the oldest first.
pub(super) fn kills(app: &App) -> Result<Answer, Problem> {
    let (kills, now_unix_us) = (app.hierarchy.kills(), unix_us(SystemTime::now()));
    let kill = |report| Kill { report, now_unix_us, number: None };
    Answer::json(app, &kills.iter().map(kill).collect::<Vec<_>>())
}

/// Answers with the history of the groups that a query names, or of all groups that have one if it
/// names none.
pub(super) fn history(app: &App, paths: &[String]) -> Result<Answer, Problem> {
    let state = app.samples.history.state.lock();
    let selected = state.of(paths);
    if selected.series.is_empty() && !paths.is_empty() {
        paths.iter().try_for_each(|path| app.hierarchy.lookup(path).map(drop))?;
        let detail = format!(
            "no history of {}: the server keeps that of the {} groups with the most usage, once a second",
            paths.join(", "),
            app.serve.history_groups
        );
        return Err(Problem::new(http::StatusCode::NOT_FOUND, "no_history", detail).group(paths.join(", ")));
    }
    Answer::json(app, &selected)
}
