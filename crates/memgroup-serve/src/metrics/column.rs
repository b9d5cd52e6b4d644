//! Column: the names, units and meanings of the figures of groups, and their sums over the groups
//! that have no series.
//!
//! Names end in their unit and in `_total` where they only grow, as Prometheus has it.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use memgroup::{BYTES_MAX, GroupSnapshot, SnapshotReader, Stat, StatKind};
use prometheus_client::encoding::{
    CounterValueEncoder, EncodeCounterValue, EncodeGaugeValue, GaugeValueEncoder,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// A number of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    Whole(u64),
    Signed(i64),
    Seconds(f64),
}

impl Value {
    /// Microseconds as seconds.
    pub(super) fn micros(micros: u64) -> Value {
        Value::Seconds(micros as f64 / 1e6)
    }

    pub(super) fn plus(self, other: Value) -> Value {
        match (self, other) {
            (Value::Whole(one), Value::Whole(other)) => Value::Whole(one.saturating_add(other)),
            (Value::Signed(one), Value::Signed(other)) => Value::Signed(one.saturating_add(other)),
            (one, other) => Value::Seconds(one.as_f64() + other.as_f64()),
        }
    }

    pub(super) fn as_f64(self) -> f64 {
        match self {
            Value::Whole(number) => number as f64,
            Value::Signed(number) => number as f64,
            Value::Seconds(number) => number,
        }
    }
}

impl EncodeGaugeValue for Value {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> fmt::Result {
        match self {
            Value::Whole(number) => EncodeGaugeValue::encode(number, encoder),
            Value::Signed(number) => EncodeGaugeValue::encode(number, encoder),
            Value::Seconds(number) => EncodeGaugeValue::encode(number, encoder),
        }
    }
}

impl EncodeCounterValue for Value {
    fn encode(&self, encoder: &mut CounterValueEncoder<'_>) -> fmt::Result {
        match self {
            Value::Whole(number) => EncodeCounterValue::encode(number, encoder),
            // A sum that has wrapped.
            Value::Signed(number) => EncodeCounterValue::encode(&(*number).max(0).unsigned_abs(), encoder),
            Value::Seconds(number) => EncodeCounterValue::encode(number, encoder),
        }
    }
}

/// The groups that a figure covers. This determines how the figure of the groups without series is
/// made.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Of {
    /// The group and all groups below it: the sum over the highest groups without series.
    Subtree,
    /// The group without those below it: the sum over all groups.
    Group,
    /// A sum would mean nothing.
    Unsummed,
}

/// The source of a figure. A group may lack it.
#[derive(Debug)]
enum Figure {
    Of(fn(&GroupSnapshot) -> Option<Value>),
    /// The count of the kind of event at this position of [`event_counts`].
    Event(usize),
    Statistic {
        subsystem: usize,
        index: usize,
        kind: StatKind,
    },
}

/// A figure of groups: a family of series with one for each group, or a part of one.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: Cow<'static, str>,
    pub(super) help: Cow<'static, str>,
    pub(super) unit: Option<Unit>,
    pub(super) kind: MetricType,
    of: Of,
    /// The kind of event, if the family has a column for each kind.
    pub(super) event: Option<&'static str>,
    figure: Figure,
}

impl Column {
    /// Returns the figure of a group.
    pub(super) fn value(&self, group: &GroupSnapshot) -> Option<Value> {
        match self.figure {
            Figure::Of(value) => value(group),
            Figure::Event(kind) => event_counts(group).nth(kind).map(|(_, count)| Value::Whole(count)),
            Figure::Statistic { subsystem, index, kind } => {
                let value = *group.subsystems().nth(subsystem)?.hierarchical.get(index)?;
                let is_time = kind == StatKind::Time;
                Some(if is_time { Value::micros(value.max(0) as u64) } else { Value::Signed(value) })
            }
        }
    }
}

/// Returns the columns of all figures that a group has. Those of one family follow each other.
pub(super) fn columns(group: &GroupSnapshot) -> Vec<Column> {
    let event = |(kind, (event, _))| Column {
        name: "memory_events".into(),
        help: "Times that a limit was met, groups below included, as in memory.events.".into(),
        unit: None,
        kind: MetricType::Counter,
        of: Of::Subtree,
        event: Some(event),
        figure: Figure::Event(kind),
    };
    let events = event_counts(group).enumerate().map(event);
    families().into_iter().chain(events).chain(statistics(group)).collect()
}

/// Returns the kinds of events with their counts.
fn event_counts(group: &GroupSnapshot) -> impl Iterator<Item = (&'static str, u64)> {
    group.events.pairs().into_iter().chain([("would_refuse", group.events.would_refuse)])
}

fn whole(number: u64) -> Option<Value> {
    Some(Value::Whole(number))
}

/// Returns protected bytes. If all bytes of a group are protected, that is as many as a hierarchy
/// can account.
fn protected(bytes: Option<u64>) -> Option<Value> {
    Some(bytes.unwrap_or(BYTES_MAX)).filter(|&bytes| bytes > 0).map(Value::Whole)
}

pub(super) const BYTES: Option<Unit> = Some(Unit::Bytes);
pub(super) const SECONDS: Option<Unit> = Some(Unit::Seconds);
pub(super) const COUNT: Option<Unit> = None;

macro_rules! families {
    ($($kind:ident $name:literal $unit:ident $of:ident $g:ident => $value:expr, $help:literal;)*) => {
        vec![$(Column {
            name: $name.into(), help: $help.into(), unit: $unit, kind: MetricType::$kind, of: Of::$of,
            event: None, figure: Figure::Of(|$g| $value)
        }),*]
    };
}

/// Returns the columns of figures that every group has. A row has the type, the name, the unit, the
/// groups, the value and the help of one.
fn families() -> Vec<Column> {
    families! {
        Gauge "memory_usage" BYTES Subtree g => whole(g.usage_bytes),
            "Bytes charged to the group and below it, prepaid bytes included.";
        Gauge "memory_charged" BYTES Subtree g => whole(g.usage_exact_bytes), "The same without prepaid bytes.";
        Gauge "memory_peak" BYTES Unsummed g => whole(g.peak_bytes), "The highest usage so far.";
        Gauge "memory_max" BYTES Unsummed g => g.limits.max_bytes.map(Value::Whole),
            "The most bytes that the group may use; missing without a limit.";
        Gauge "memory_high" BYTES Unsummed g => g.limits.high_bytes.map(Value::Whole),
            "Usage above which threads are slowed down; missing without a limit.";
        Gauge "memory_low" BYTES Unsummed g => protected(g.limits.low_bytes),
            "Bytes that are reclaimed last; missing where there are none.";
        Gauge "memory_min" BYTES Unsummed g => protected(g.limits.min_bytes),
            "Bytes that are never reclaimed; missing where there are none.";
        Gauge "memory_fair_share" BYTES Unsummed g => g.fair_share.map(|share| Value::Whole(share.bytes)),
            "Bytes that its parent's factor allows now; missing without one.";
        Gauge "memory_enforced" COUNT Unsummed g => whole(u64::from(g.limits.enforced)),
            "1 where max refuses charges, 0 where it only counts.";
        Gauge "memory_owed" BYTES Group g => whole(g.owed_bytes),
            "Bytes above a high that no thread has paid for by waiting.";
        Counter "memory_refusals" COUNT Group g => whole(g.refusals), "Charges that the group itself refused.";
        Counter "memory_overdraft_charges" COUNT Group g => whole(g.overdraft.charges),
            "Forced charges beyond its limit.";
        Counter "memory_overdraft" BYTES Group g => whole(g.overdraft.bytes),
            "Bytes that forced charges took beyond its limit.";
        Counter "pressure_memory_waiting" SECONDS Unsummed g => Some(Value::micros(g.pressure.some.total)),
            "Time in which some thread was stalled for memory.";
        Counter "pressure_memory_stalled" SECONDS Unsummed g => Some(Value::micros(g.pressure.full.total)),
            "Time in which no thread worked and some was stalled.";
        Gauge "waiters" COUNT Subtree g => whole(g.waiters.now as u64),
            "Charges in the group and below it that wait now.";
        Gauge "waiters_requested" BYTES Subtree g => whole(g.waiters.bytes), "Bytes that those charges need.";
        Gauge "waiters_longest" SECONDS Unsummed g => Some(Value::Seconds(g.waiters.longest.as_secs_f64())),
            "How long the longest of them has waited.";
        Gauge "stock_prepaid" BYTES Group g => whole(g.stock.prepaid_bytes),
            "Bytes that the group's own stocks have prepaid.";
    }
}

/// Built-in statistics that are bytes. Others may be bytes or things.
const IN_BYTES: [&str; 8] =
    ["file", "schema", "statements", "sort", "hash", "stock_drained", "reclaimed", "gained"];

/// Returns the columns of the statistics of all subsystems. If two names become the same, the
/// second one gets a number at its end.
fn statistics(group: &GroupSnapshot) -> Vec<Column> {
    let mut names = HashSet::new();
    let mut all = Vec::new();
    for (subsystem, table) in group.subsystems().enumerate() {
        for (index, stat) in table.stats.iter().enumerate() {
            let (base, unit) = base_and_unit(table.name, stat);
            let plain = format!("stat_{}_{}", metric_name(table.name), metric_name(base));
            let numbered = (2..).map(|number| format!("{plain}_{number}"));
            let name = std::iter::once(plain.clone()).chain(numbered).find(|name| !names.contains(name));
            let name = name.unwrap_or(plain);
            names.insert(name.clone());
            let help =
                format!("Statistic {} of the subsystem {}, groups below included.", stat.name(), table.name);
            all.push(Column {
                name: name.into(),
                help: help.into(),
                unit,
                kind: if stat.kind() == StatKind::Gauge { MetricType::Gauge } else { MetricType::Counter },
                of: Of::Subtree,
                event: None,
                figure: Figure::Statistic { subsystem, index, kind: stat.kind() },
            });
        }
    }
    all
}

fn base_and_unit<'s>(subsystem: &str, stat: &'s Stat) -> (&'s str, Option<Unit>) {
    let name = stat.name();
    match stat.kind() {
        StatKind::Time => (name.strip_suffix("_usec").unwrap_or(name), SECONDS),
        _ if subsystem == "memory" && IN_BYTES.contains(&name) => (name, BYTES),
        _ => (name, None),
    }
}

/// A text of letters, digits and underscores.
fn metric_name(text: &str) -> String {
    text.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect()
}

/// Groups that are read at once.
pub(super) const PIECE: usize = 2048;

/// The sums over all online groups but those with series.
#[derive(Debug, PartialEq)]
pub(super) struct Rest {
    /// How many there are.
    pub(super) groups: usize,
    /// One for each column. `None` if no group has a value, or if a sum would mean nothing.
    pub(super) sums: Vec<Option<Value>>,
}

impl Rest {
    /// Reads the online groups of a tree that are not at the positions `shown`, piece by piece.
    /// Each shown group is listed after the shown one above it.
    pub(super) fn read(
        reader: &mut SnapshotReader,
        shown: &[usize],
        columns: &[Column],
        mut rest: impl FnMut(),
    ) -> Rest {
        let is_shown = |at: usize| shown.binary_search(&at).is_ok();
        let all = 0..reader.groups().len();
        let others: Vec<usize> = all.filter(|&at| reader.is_online(at) && !is_shown(at)).collect();
        let mut sums = vec![None; columns.len()];
        for piece in others.chunks(PIECE) {
            for (group, &at) in reader.read(piece, &mut rest).iter().zip(piece) {
                // Its figures include the groups below it, and none of those is shown.
                let is_top = reader.parent(at).is_none_or(is_shown);
                for (sum, column) in sums.iter_mut().zip(columns) {
                    if column.of == Of::Group || column.of == Of::Subtree && is_top {
                        *sum = plus(*sum, column.value(group));
                    }
                }
            }
        }
        Rest { groups: others.len(), sums }
    }
}

fn plus(sum: Option<Value>, value: Option<Value>) -> Option<Value> {
    match (sum, value) {
        (Some(sum), Some(value)) => Some(sum.plus(value)),
        (sum, value) => sum.or(value),
    }
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, Hierarchy};
    use proptest::prelude::*;

    use super::*;
    use crate::account::Account;
    use crate::snapshots::Found;

    /// The `most` largest online groups as they are read, and the sums over the others.
    fn part(hierarchy: &Hierarchy, most: usize) -> (Vec<GroupSnapshot>, Rest) {
        let other = Hierarchy::new(Config::new()).unwrap();
        let mut found = Found::below(&hierarchy.root(), &Account { group: other.root() }, 0).unwrap();
        let chosen = found.largest(most, |at| found.reader.is_online(at));
        let shown = found.reader.snapshot(&chosen, || ());
        let rest = Rest::read(&mut found.reader, &chosen, &columns(&shown.groups[0]), || ());
        (shown.groups, rest)
    }

    fn paths(groups: &[GroupSnapshot]) -> Vec<&str> {
        groups.iter().map(|group| group.path.as_str()).collect()
    }

    /// The sum of a family over the rest.
    fn sum(rest: &Rest, name: &str) -> Option<Value> {
        rest.sums[families().iter().position(|column| column.name == name).unwrap()]
    }

    #[test]
    fn sums_the_highest_groups_or_all_of_them() {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let mut charges = Vec::new();
        for (path, bytes) in [("/a", 0), ("/a/x", 50), ("/a/y", 10), ("/b", 20), ("/b/z", 5), ("/c", 0)] {
            let group = hierarchy.create(path).unwrap();
            charges.push(group.try_charge(bytes).unwrap());
        }
        let groups = hierarchy.groups();
        groups[1..].iter().for_each(|group| group.set_max(group.usage()).unwrap());
        groups[1..].iter().for_each(|group| _ = group.try_charge(1).unwrap_err());
        let (shown, rest) = part(&hierarchy, 3);
        assert_eq!((paths(&shown), rest.groups), (vec!["/", "/a", "/a/x"], 4));
        assert_eq!(sum(&rest, "memory_usage"), Some(Value::Whole(10 + 25)), "of /a/y, /b and /c");
        assert_eq!(sum(&rest, "memory_refusals"), Some(Value::Whole(4)), "of all four");
        assert_eq!(sum(&rest, "memory_max"), None);
        let of_max = columns(&shown[0]).iter().position(|column| column.event == Some("max")).unwrap();
        assert_eq!(rest.sums[of_max], Some(Value::Whole(4)), "those of /b include /b/z");
        let (shown, rest) = part(&hierarchy, 99);
        assert_eq!((shown.len(), rest.groups), (7, 0));
        assert!(rest.sums.iter().all(Option::is_none));
        assert_eq!(paths(&part(&hierarchy, 1).0), ["/"]);
    }

    #[test]
    fn a_removed_group_has_no_series() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let first = hierarchy.create("/a").unwrap();
        let _charge = first.try_charge(100).unwrap();
        first.remove().unwrap();
        hierarchy.create("/a").unwrap();
        let (shown, rest) = part(&hierarchy, 9);
        assert_eq!((paths(&shown), rest.groups), (vec!["/", "/a"], 0));
        assert_eq!((shown[1].usage_bytes, part(&hierarchy, 1).1.groups), (0, 1));
    }

    #[test]
    fn pieces_add_up() {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let groups = 2 * PIECE + 100;
        let charges: Vec<_> = (0..groups)
            .map(|number| hierarchy.create(&format!("/{number}")).unwrap().try_charge(3).unwrap())
            .collect();
        let (shown, rest) = part(&hierarchy, 11);
        assert_eq!((shown.len(), rest.groups), (11, groups - 10));
        assert_eq!(sum(&rest, "memory_charged"), Some(Value::Whole(3 * (groups as u64 - 10))));
        drop(charges);
    }

    proptest! {
        #[test]
        fn every_byte_is_in_one_of_the_parts(sizes in prop::collection::vec((0_usize..12, 0_u64..1000), 1..12), most in 1_usize..16) {
            let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
            let mut all = vec![hierarchy.root()];
            let mut charges = Vec::new();
            for (number, (parent, bytes)) in sizes.into_iter().enumerate() {
                let group = all[parent % all.len()].create(&format!("g{number}")).unwrap();
                charges.push(group.try_charge(bytes).unwrap());
                all.push(group);
            }
            let snapshot = hierarchy.snapshot();
            let (shown, rest) = part(&hierarchy, most);
            prop_assert_eq!(shown.len() + rest.groups, snapshot.groups.len());
            prop_assert!(shown.len() <= most);
            // The bytes that shown groups have themselves, and those of the rest, are all bytes.
            let own = |group: &GroupSnapshot| {
                let at = snapshot.groups.iter().position(|one| one.path == group.path).unwrap();
                group.usage_bytes - snapshot.children(at).map(|child| child.usage_bytes).sum::<u64>()
            };
            let shown: u64 = shown.iter().map(own).sum();
            let rest = sum(&rest, "memory_usage").map_or(0.0, Value::as_f64);
            prop_assert_eq!(shown as f64 + rest, snapshot.groups[0].usage_bytes as f64);
        }
    }
}
