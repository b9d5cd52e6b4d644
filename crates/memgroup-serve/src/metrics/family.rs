//! Family: the names, units and meanings of all figures.
//!
//! Names end in their unit and in `_total` where they only grow, as Prometheus has it. The label
//! `id` is the path of a group, as in cAdvisor.

use std::collections::{HashMap, HashSet};
use std::fmt;

use memgroup::{BYTES_MAX, GroupSnapshot, Snapshot, Stat, StatKind};
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Unit;

use super::View;
use super::rest::Value;
use crate::app::App;
use crate::sample::{BOUNDS, Totals};

/// The approximate number of series of a group, without those of statistics.
pub(super) const FIXED: usize = 28;

/// The value of `id` for the sum of the groups that have no series.
pub(super) const OTHER: &str = "other";

/// The groups that a figure covers. This determines how the figure of the groups without series is
/// made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Of {
    /// The group and all groups below it: the sum over the highest groups without series.
    Subtree,
    /// The group without those below it: the sum over all groups.
    Group,
    /// A sum would mean nothing.
    Unsummed,
}

/// A family of series, one for each group.
pub(super) struct Family {
    pub(super) name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    kind: MetricType,
    pub(super) of: Of,
    /// `None` where the group has no such figure.
    pub(super) value: fn(&GroupSnapshot) -> Option<Value>,
}

fn whole(number: u64) -> Option<Value> {
    Some(Value::Whole(number))
}

/// Returns protected bytes. If all bytes of a group are protected, that is as many as a hierarchy
/// can account.
fn protected(bytes: Option<u64>) -> Option<Value> {
    Some(bytes.unwrap_or(BYTES_MAX)).filter(|&bytes| bytes > 0).map(Value::Whole)
}

const BYTES: Option<Unit> = Some(Unit::Bytes);
const SECONDS: Option<Unit> = Some(Unit::Seconds);
const COUNT: Option<Unit> = None;

macro_rules! families {
    ($($kind:ident $name:literal $unit:ident $of:ident $g:ident => $value:expr, $help:literal;)*) => {
        &[$(Family {
            name: $name, help: $help, unit: $unit, kind: MetricType::$kind, of: Of::$of, value: |$g| $value
        }),*]
    };
}

/// A row has the type, the name, the unit, the groups, the value and the help of a family.
pub(super) static FAMILIES: &[Family] = families! {
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
};

type Labels<'l, const N: usize> = [(&'static str, &'l str); N];

/// Writes one series.
fn series<S: EncodeLabelSet>(
    encoder: &mut prometheus_client::encoding::MetricEncoder<'_>,
    kind: MetricType,
    labels: &S,
    value: Value,
) -> fmt::Result {
    let mut one = encoder.encode_family(labels)?;
    match kind {
        MetricType::Counter => one.encode_counter(&value, None::<&Exemplar<Labels<'_, 0>, f64>>),
        _ => one.encode_gauge(&value),
    }
}

/// A statistic of a subsystem, with the name of its family.
#[derive(Debug)]
pub(super) struct Statistic {
    subsystem: usize,
    index: usize,
    kind: StatKind,
    name: String,
    unit: Option<Unit>,
    help: String,
}

/// Built-in statistics that are bytes. Others may be bytes or things.
const IN_BYTES: [&str; 8] =
    ["file", "schema", "statements", "sort", "hash", "stock_drained", "reclaimed", "gained"];

/// The statistics of all subsystems. If two names become the same, the second one gets a number at
/// its end.
pub(super) fn statistics(snapshot: &Snapshot) -> Vec<Statistic> {
    let mut names = HashSet::new();
    let mut all = Vec::new();
    for (subsystem, table) in
        snapshot.groups.first().into_iter().flat_map(|group| group.subsystems()).enumerate()
    {
        for (index, stat) in table.stats.iter().enumerate() {
            let (base, unit) = base_and_unit(table.name, stat);
            let plain = format!("stat_{}_{}", metric_name(table.name), metric_name(base));
            let numbered = (2..).map(|number| format!("{plain}_{number}"));
            let name = std::iter::once(plain.clone()).chain(numbered).find(|name| !names.contains(name));
            let name = name.unwrap_or(plain);
            names.insert(name.clone());
            let help =
                format!("Statistic {} of the subsystem {}, groups below included.", stat.name(), table.name);
            all.push(Statistic { subsystem, index, kind: stat.kind(), name, unit, help });
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

impl Statistic {
    pub(super) fn value(&self, group: &GroupSnapshot) -> Option<Value> {
        let value = *group.subsystems().nth(self.subsystem)?.hierarchical.get(self.index)?;
        Some(if self.kind == StatKind::Time {
            Value::micros(value.max(0) as u64)
        } else {
            Value::Signed(value)
        })
    }
}

/// The series of groups.
pub(super) fn groups(encoder: &mut DescriptorEncoder<'_>, view: &View) -> fmt::Result {
    for (Family { name, help, unit, kind, value, .. }, rest) in FAMILIES.iter().zip(&view.rest.families) {
        let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), *kind)?;
        each(&mut metric, *kind, view, value, *rest)?;
    }
    events(encoder, view)?;
    for (statistic, rest) in view.statistics.iter().zip(&view.rest.statistics) {
        let kind = if statistic.kind == StatKind::Gauge { MetricType::Gauge } else { MetricType::Counter };
        let Statistic { name, help, unit, .. } = statistic;
        let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
        each(&mut metric, kind, view, |group| statistic.value(group), *rest)?;
    }
    Ok(())
}

/// The series of one figure: those of the shown groups, and the sum over the rest.
fn each(
    metric: &mut prometheus_client::encoding::MetricEncoder<'_>,
    kind: MetricType,
    view: &View,
    value: impl Fn(&GroupSnapshot) -> Option<Value>,
    rest: Option<Value>,
) -> fmt::Result {
    for group in &view.shown.groups {
        if let Some(value) = value(group) {
            series(metric, kind, &[("id", group.path.as_str())], value)?;
        }
    }
    rest.map_or(Ok(()), |sum| series(metric, kind, &[("id", OTHER)], sum))
}

/// Returns the kinds of events with their counts.
pub(super) fn event_counts(group: &GroupSnapshot) -> impl Iterator<Item = (&'static str, u64)> {
    group.events.pairs().into_iter().chain([("would_refuse", group.events.would_refuse)])
}

fn events(encoder: &mut DescriptorEncoder<'_>, view: &View) -> fmt::Result {
    let help = "Times that a limit was met, groups below included, as in memory.events.";
    let mut metric = encoder.encode_descriptor("memory_events", help, None, MetricType::Counter)?;
    let mut write = |id: &str, event: &str, count| {
        series(&mut metric, MetricType::Counter, &[("id", id), ("event", event)], Value::Whole(count))
    };
    for group in &view.shown.groups {
        event_counts(group).try_for_each(|(event, count)| write(&group.path, event, count))?;
    }
    let kinds = view.shown.groups.first().into_iter().flat_map(event_counts).map(|(event, _)| event);
    let sums = view.rest.events.iter().flatten();
    kinds.zip(sums).try_for_each(|(event, sum)| write(OTHER, event, *sum))
}

/// A family with a few series of its own.
fn one<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    kind: MetricType,
    (name, unit, help): (&str, Option<Unit>, &str),
    values: &[(Labels<'_, N>, Value)],
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
    values.iter().try_for_each(|(labels, value)| series(&mut metric, kind, labels, *value))
}

/// The series of the whole tree and of the server.
pub(super) fn whole_tree(encoder: &mut DescriptorEncoder<'_>, app: &App, view: &View) -> fmt::Result {
    use MetricType::Gauge;
    let (shown, rest) = (view.shown.groups.len(), view.rest.groups);
    let (dying, held) = view.dying;
    let state = |state, groups: usize| ([("state", state)], Value::Whole(groups as u64));
    let help = "Groups of the tree; a dying one was removed and is still held.";
    one(encoder, Gauge, ("groups", None, help), &[state("online", shown + rest), state("dying", dying)])?;
    let help = format!(
        "Groups in this answer: the {} with the most usage have series each, the sum of the others has the id {OTHER}.",
        shown
    );
    let shown = [state("each", shown), state(OTHER, rest)];
    let shown = shown.map(|([(_, value)], number)| ([("shown", value)], number));
    one(encoder, Gauge, ("groups_shown", None, &help), &shown)?;
    let mut single = |name, unit, help, value| one(encoder, Gauge, (name, unit, help), &[([], value)]);
    let help = "Bytes that dying groups hold. They are a part of the usage of the groups above.";
    single("dying", BYTES, help, Value::Whole(held))?;
    let took = Value::Seconds(view.shown.took.as_secs_f64());
    single("snapshot_duration", SECONDS, "Time that the snapshot took, rests included.", took)?;
    let reserved = app.hierarchy.stock_reserved_bytes().iter().sum();
    single(
        "stock_reserved",
        BYTES,
        "Bytes that stocks of all groups may prepay now.",
        Value::Whole(reserved),
    )?;
    let percpu = app.hierarchy.percpu();
    let state = |state, bytes| ([("state", state)], Value::Whole(bytes));
    let states = [
        state("populated", percpu.populated_bytes),
        state("live", percpu.live_bytes),
        state("limbo", percpu.limbo_bytes),
        state("reserved", percpu.reserved_bytes),
    ];
    one(encoder, Gauge, ("percpu", BYTES, "Per-CPU memory of the engine."), &states)?;
    shrinkers(encoder, &view.shown)?;
    kills(encoder, &app.samples.kills.lock())?;
    let open = Value::Whole(app.conns.len() as u64);
    one(encoder, Gauge, ("serve_connections", None, "Connections of this server."), &[([], open)])?;
    let answers: Vec<(String, u64)> =
        app.answers.lock().iter().map(|(status, count)| (status.to_string(), *count)).collect();
    let answers: Vec<_> =
        answers.iter().map(|(status, count)| ([("status", status.as_str())], Value::Whole(*count))).collect();
    let help = "Answers of this server before this one.";
    one(encoder, MetricType::Counter, ("serve_answers", COUNT, help), &answers)?;
    let mut build =
        encoder.encode_descriptor("build", "The version of memgroup-serve.", None, MetricType::Info)?;
    build.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])
}

/// The most shrinkers with series each.
const SHRINKERS: usize = 200;

fn shrinkers(encoder: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> fmt::Result {
    use MetricType::{Counter, Gauge};
    use Value::{Seconds, Whole};
    type Figure = fn(&memgroup::ShrinkerReport) -> Value;
    let families: [(MetricType, &str, Option<Unit>, &str, Figure); 7] = [
        (Counter, "scans", COUNT, "Calls that asked a shrinker to free memory.", |s| Whole(s.scans)),
        (Counter, "asked", BYTES, "Bytes that those calls asked for.", |s| Whole(s.asked_bytes)),
        (Counter, "freed", BYTES, "Bytes that were freed in those calls.", |s| Whole(s.freed_bytes)),
        (Counter, "time", SECONDS, "Time that those calls took.", |s| Seconds(s.time.as_secs_f64())),
        (Counter, "panics", COUNT, "Calls that panicked.", |s| Whole(s.panics)),
        (Counter, "overruns", COUNT, "Calls that took too long.", |s| Whole(s.overruns)),
        (Gauge, "quarantined", COUNT, "1 where a shrinker is not asked any more.", |s| {
            Whole(u64::from(s.quarantine.is_some()))
        }),
    ];
    for (kind, name, unit, help, figure) in families {
        let name = format!("shrinker_{name}");
        let mut metric = encoder.encode_descriptor(&name, help, unit.as_ref(), kind)?;
        for (number, report) in snapshot.shrinkers.iter().take(SHRINKERS).enumerate() {
            let number = number.to_string();
            let labels = [("shrinker", report.name.as_str()), ("number", number.as_str())];
            series(&mut metric, kind, &labels, figure(report))?;
        }
    }
    Ok(())
}

/// Calls of kill hooks since the server was started.
fn kills(encoder: &mut DescriptorEncoder<'_>, totals: &Totals) -> fmt::Result {
    let kinds = ["died", "overdue", "idle", "refused", "panicked"];
    let count = |kind| Value::Whole(totals.outcomes.get(kind).copied().unwrap_or(0));
    let values = kinds.map(|kind| ([("outcome", kind)], count(kind)));
    let help = "Calls of kill hooks since the server was started, by their outcome.";
    one(encoder, MetricType::Counter, ("kills", None, help), &values)?;
    let help = "Time from the call of a kill hook until half of the bytes were freed.";
    let unit = Some(&Unit::Seconds);
    let mut metric = encoder.encode_descriptor("kill_duration", help, unit, MetricType::Histogram)?;
    let buckets: Vec<(f64, u64)> = BOUNDS.into_iter().zip(totals.buckets).collect();
    let (count, sum) = totals.died;
    metric.encode_histogram(sum, count, &buckets, None::<&HashMap<usize, Exemplar<Labels<'_, 0>, f64>>>)
}
