//! Show: a group as JSON, and a file of it as text.
//!
//! The last part of a path is a file if a file of every group has that name, or a registered subsystem (`NAME.stat`). A group of such a name is
//! reached with a slash at the end: `/v1/groups/tenants/memory.max/`.

use std::sync::Arc;

use http::StatusCode;
use memgroup::{FILES, Group};

use super::tree::Tree;
use super::{Answer, Content, JSON};
use crate::app::App;
use crate::path::Parts;
use crate::problem::Problem;
use crate::snapshots::{count, take};

/// Whether every group of the hierarchy has a file of this name.
fn is_file(app: &App, name: &str) -> bool {
    let is_subsystem = |name: &str| app.hierarchy.statistics(name).is_some();
    FILES.contains(&name) || name.strip_suffix(".stat").is_some_and(is_subsystem)
}

/// Names of the files of every group.
pub(super) fn files(app: &App) -> impl Iterator<Item = String> {
    let own = app.hierarchy.subsystems().into_iter().map(|name| format!("{name}.stat"));
    let own = own.filter(|name| !FILES.contains(&name.as_str()));
    FILES.iter().map(|&name| name.to_owned()).chain(own)
}

pub(super) fn show(app: &App, parts: &Parts) -> Result<Answer, Problem> {
    if let Some((path, file)) = parts.group_and_file().filter(|(_, file)| is_file(app, file)) {
        return show_file(app, &app.hierarchy.lookup(&path)?, &path, file);
    }
    let top = app.hierarchy.lookup(&parts.group())?;
    let held = take(&app.hierarchy, &top, &app.account, count(&top, app.groups()))?;
    Ok(Answer::new(JSON, Content::Tree(Tree::new(app, Arc::new(held))?)))
}

fn show_file(app: &App, group: &Group, path: &str, file: &str) -> Result<Answer, Problem> {
    let held = take(&app.hierarchy, group, &app.account, count(group, app.groups()))?;
    let text = held.snapshot.groups.first().and_then(|group| group.file(file));
    match text {
        Some(text) => Answer::text(app, &text),
        None => {
            let detail = format!("read {file} of group {path}: it can only be written");
            let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "file_is_write_only", detail);
            Err(problem.group(path).file(file).allowed(["PUT"]))
        }
    }
}
