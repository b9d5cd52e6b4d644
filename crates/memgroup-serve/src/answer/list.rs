//! List: the server itself, all waits, the last kills.

use std::time::{Instant, SystemTime};

use memgroup::{GroupFile, WaitReport};
use serde::ser::{Serialize, SerializeMap as _, Serializer};

use super::Answer;
use crate::account::uncounted;
use crate::app::App;
use crate::problem::Problem;
use crate::report::{Kill, Wait, unix_us};
use crate::route::Right;

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
