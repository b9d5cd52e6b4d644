//! List: the server itself, all waits, the last kills.

use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};

use memgroup::{GroupFile, WaitReport};
use serde::{Serialize, Serializer};

use super::Answer;
use crate::account::uncounted;
use crate::app::App;
use crate::problem::Problem;
use crate::report::{Kill, Wait, unix_us};
use crate::route::Right;

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

/// Bytes of a wait and of the temporary values for it, with paths of usual lengths.
const WAIT: u64 = 2 * size_of::<WaitReport>() as u64 + 256;

/// Every wait, the longest first. The engine counts waits for memory; of the others there are about as many as at the last request.
pub(super) fn waits(app: &App) -> Result<Answer, Problem> {
    // ORDERING: Relaxed; the number alone is handed over, and it is an estimate.
    let count = app.hierarchy.root().waiters().now.max(app.waits.load(Ordering::Relaxed));
    let mut charge = app.account.charge(count as u64 * WAIT)?;
    let (waits, now) = (uncounted(|| app.hierarchy.waits()), Instant::now());
    // ORDERING: Relaxed, as above.
    app.waits.store(waits.len(), Ordering::Relaxed);
    let texts: usize = waits.iter().map(|wait| wait.group.capacity() + wait.at.capacity()).sum();
    app.account.resize(&mut charge, (waits.capacity() * size_of::<WaitReport>() + texts) as u64)?;
    Answer::json(app, &Waits { waits: &waits, now })
}

/// Waits, each made when it is written.
struct Waits<'w> {
    waits: &'w [WaitReport],
    now: Instant,
}

impl Serialize for Waits<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.waits.iter().map(|wait| Wait::of(wait, self.now)))
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
