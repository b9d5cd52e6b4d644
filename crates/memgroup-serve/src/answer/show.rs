//! Show: a group as JSON, and a file of it as text.
//!
//! The last part of a path is a file if a file of every group has that name, or a registered subsystem (`NAME.stat`). A group of such a name is
//! reached with a slash at the end: `/v1/groups/tenants/memory.max/`.

use std::sync::Arc;

use http::StatusCode;

use super::tree::Tree;
use super::{Answer, Content, JSON};
use crate::app::App;
use crate::path::Parts;
use crate::problem::Problem;
use crate::snapshots::{count, take};

pub(super) fn show(app: &App, parts: &Parts, most: Option<usize>) -> Result<Answer, Problem> {
    if let Some((path, name)) = parts.group_and_file()
        && let Some(file) = app.hierarchy.files().into_iter().find(|file| file.name == name)
    {
        let text = app.hierarchy.lookup(&path)?.read_file(name);
        return text.map_or_else(
            || {
                let detail = format!("failed to read {} of group {path}: it can only be written", file.name);
                let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "file_is_write_only", detail);
                Err(problem.group(&path).file(name).allowed(["PUT"]))
            },
            |text| Answer::text(app, &text),
        );
    }
    let top = app.hierarchy.lookup(&parts.group()).map_err(|error| missing(app, parts, error.into()))?;
    let groups = count(&top, app.groups());
    let held = take(&app.hierarchy, &top, &app.account, &app.pace, groups, most)?;
    Ok(Answer::new(JSON, Content::Tree(Tree::new(app, Arc::new(held))?)))
}

/// The error of a path that names no group: its last part may be meant as a file.
fn missing(app: &App, parts: &Parts, problem: Problem) -> Problem {
    let meant = parts
        .group_and_file()
        .filter(|(path, _)| problem.status == StatusCode::NOT_FOUND && app.hierarchy.lookup(path).is_ok());
    let Some((_, name)) = meant else { return problem };
    let detail = format!("{}, and a group has no file {name:?}", problem.detail);
    let files = app.hierarchy.files().into_iter().filter(|file| file.readable).map(|file| file.name);
    Problem { detail: detail.into(), ..problem }.allowed(files)
}
