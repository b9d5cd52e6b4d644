//! Tree: a snapshot as JSON, in the engine's form, written group by group as the client reads.

use std::sync::Arc;

use bytes::Bytes;
use memgroup::Charge;

use super::{Answer, Content, JSON};
use crate::account::uncounted;
use crate::app::App;
use crate::chunks::CHUNK;
use crate::problem::Problem;
use crate::snapshots::Held;

/// A snapshot that is being written.
#[derive(Debug)]
pub(crate) struct Tree {
    held: Arc<Held>,
    is_begun: bool,
    is_ended: bool,
    /// The position of the next group.
    next: usize,
    /// A piece that is made, and one that is sent.
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
            // A vector takes every byte, and a snapshot has no value that JSON lacks.
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

/// The whole tree, or its `most` largest groups.
pub(super) fn whole(app: &App, most: Option<usize>) -> Result<Answer, Problem> {
    let held = app.snapshots.tree(&app.hierarchy, &app.account, &app.pace, app.groups(), most)?;
    Ok(Answer::new(JSON, Content::Tree(Tree::new(app, held)?)))
}
