//! Tree: a snapshot as JSON, in the engine's form, written group by group as the client reads. A
//! file of a group as text.
//!
//! The last part of a path is a file if every group has a file of that name. The name may also be
//! that of a registered subsystem (`NAME.stat`). A group with such a name is reached with a slash
//! at the end: `/v1/groups/tenants/memory.max/`.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use memgroup::Charge;

use super::{Answer, Content, JSON};
use crate::account::{CHUNK, uncounted};
use crate::app::App;
use crate::problem::Problem;
use crate::route::Parts;
use crate::snapshots::{Held, count, take};

/// A snapshot that is being sent.
#[derive(Debug)]
pub(crate) struct Tree {
    held: Arc<Held>,
    is_begun: bool,
    is_ended: bool,
    /// The position of the next group.
    next: usize,
    /// For the piece being made and the one being sent.
    _charge: Charge,
}

impl Tree {
    pub(super) fn new(app: &App, held: Arc<Held>) -> Result<Tree, Problem> {
        let charge = app.account.charge(2 * CHUNK as u64)?;
        Ok(Tree { held, is_begun: false, is_ended: false, next: 0, _charge: charge })
    }

    /// The next piece of the text.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        if self.is_ended {
            return None;
        }
        let mut piece = uncounted(|| Vec::with_capacity(CHUNK));
        let (head, tail) = &self.held.frame;
        if !std::mem::replace(&mut self.is_begun, true) {
            piece.extend_from_slice(head.as_bytes());
        }
        let groups = &self.held.snapshot.groups;
        while let Some(group) = groups.get(self.next).filter(|_| piece.len() < CHUNK * 7 / 8) {
            if self.next > 0 {
                piece.push(b',');
            }
            self.next += 1;
            // This cannot fail: a vector accepts every byte, and JSON can represent every value of
            // a snapshot.
            let written = uncounted(|| serde_json::to_writer(&mut piece, group));
            debug_assert!(written.is_ok(), "{written:?}");
        }
        if self.next == groups.len() {
            self.is_ended = true;
            piece.extend_from_slice(tail.as_bytes());
        }
        Some(Bytes::from(piece))
    }
}

/// Answers with the whole tree, or its `most` largest groups.
pub(super) fn whole(app: &App, most: Option<usize>) -> Result<Answer, Problem> {
    let held = app.snapshots.tree(&app.hierarchy, &app.account, &app.pace, app.groups.get(), most)?;
    Ok(Answer::new(JSON, Content::Tree(Tree::new(app, held)?)))
}

/// Answers with a group and all groups below it, or with a file of a group.
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
    let groups = count(&top, app.groups.get());
    let held = take(&app.hierarchy, &top, &app.account, &app.pace, groups, most)?;
    Ok(Answer::new(JSON, Content::Tree(Tree::new(app, Arc::new(held))?)))
}

/// Returns the error of a path that names no group. Its last part may be meant as a file.
fn missing(app: &App, parts: &Parts, problem: Problem) -> Problem {
    let meant = parts
        .group_and_file()
        .filter(|(path, _)| problem.status == StatusCode::NOT_FOUND && app.hierarchy.lookup(path).is_ok());
    let Some((_, name)) = meant else { return problem };
    let detail = format!("{}, and a group has no file {name:?}", problem.detail);
    let files = app.hierarchy.files().into_iter().filter(|file| file.readable).map(|file| file.name);
    Problem { detail: detail.into(), ..problem }.allowed(files)
}
