//! Table: the figures of all groups that the page shows, a column each.
//!
//! The whole tree takes some 1.5 KiB a group as JSON. A client that asks each second asks for this instead, and gets names only when they changed.

use std::hash::{DefaultHasher, Hash, Hasher};

use memgroup::GroupSnapshot;
use serde::ser::{Serialize, Serializer};

use super::Answer;
use crate::app::App;
use crate::problem::Problem;
use crate::report::unix_us;

/// Figures of all groups, in the order of the snapshot.
#[derive(serde::Serialize)]
struct Table<'s> {
    taken_unix_us: u64,
    /// Another text if groups came or went.
    order: String,
    /// Groups that are not in the columns.
    left_out: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<Groups<'s>>,
    usage_bytes: Column<'s, u64>,
    peak_bytes: Column<'s, u64>,
    max_bytes: Column<'s, Option<u64>>,
    high_bytes: Column<'s, Option<u64>>,
    low_bytes: Column<'s, Option<u64>>,
    min_bytes: Column<'s, Option<u64>>,
    share: Column<'s, u32>,
    refusals: Column<'s, u64>,
    kills: Column<'s, u64>,
    some_percent: Column<'s, f64>,
    full_percent: Column<'s, f64>,
    waits: Column<'s, usize>,
}

#[derive(serde::Serialize)]
struct Groups<'s> {
    name: Column<'s, &'s str>,
    /// The position of the group above.
    parent: Column<'s, Option<usize>>,
    online: Column<'s, bool>,
}

/// A value for each group; one value alone if all are equal.
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

/// The figures of all groups; their names too, unless the client knows their `order`.
pub(super) fn table(app: &App, known: Option<&str>, most: Option<usize>) -> Result<Answer, Problem> {
    let held = app.snapshots.tree(&app.hierarchy, &app.account, &app.pace, app.groups(), most)?;
    let groups = &held.snapshot.groups[..];
    let order = order(groups);
    let names = Groups {
        name: Column(groups, |group| &group.name),
        parent: Column(groups, |group| group.parent),
        online: Column(groups, |group| group.online),
    };
    Answer::json(
        app,
        &Table {
            taken_unix_us: unix_us(held.snapshot.taken),
            groups: (known != Some(&order)).then_some(names),
            order,
            left_out: held.snapshot.left_out,
            usage_bytes: Column(groups, |group| group.usage_bytes),
            peak_bytes: Column(groups, |group| group.peak_bytes),
            max_bytes: Column(groups, |group| group.limits.max_bytes),
            high_bytes: Column(groups, |group| group.limits.high_bytes),
            low_bytes: Column(groups, |group| group.limits.low_bytes),
            min_bytes: Column(groups, |group| group.limits.min_bytes),
            share: Column(groups, |group| group.limits.share),
            refusals: Column(groups, |group| group.refusals),
            kills: Column(groups, |group| group.events.oom_kill),
            some_percent: Column(groups, |group| group.pressure.some.avg10),
            full_percent: Column(groups, |group| group.pressure.full.avg10),
            waits: Column(groups, |group| group.waiters.now),
        },
    )
}

fn order(groups: &[GroupSnapshot]) -> String {
    let mut hasher = DefaultHasher::new();
    for group in groups {
        (group.id, group.parent, &group.name, group.online).hash(&mut hasher);
    }
    format!("{:016x}", hasher.finish())
}
