//! Table: the figures of all groups that the page shows, a column each.
//!
//! The whole tree takes about 1.5 KiB of JSON for each group. A client that asks each second asks
//! for this table instead, and gets names only when they changed.

use std::hash::{DefaultHasher, Hash, Hasher};

use memgroup::{GroupSnapshot, Snapshot};
use serde::ser::{Serialize, SerializeMap as _, Serializer};

use super::Answer;
use crate::app::App;
use crate::problem::Problem;
use crate::report::unix_us;

/// Figures of all groups, in the order of the snapshot.
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
