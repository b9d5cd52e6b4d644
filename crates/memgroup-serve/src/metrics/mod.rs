//! Metrics: the figures of the tree as OpenMetrics text, or in the older text format of Prometheus
//! for clients that ask for `text/plain`. The label `id` is the path of a group, as in cAdvisor.
//!
//! - I1. The number of series is at most [`SERIES`]. Only the groups with the most usage have
//!   series of their own; the others are summed as `other`.
//! - I2. No byte is counted in two series of one family, except in those of a group and the groups
//!   above it. `other` covers the groups that are included in no shown group except an ancestor,
//!   because a group is shown before the groups below it.
//! - I3. The groups with series are chosen by their usage before any other figure is read. The
//!   other groups are read in pieces, and only their sums are stored. So an answer fits in memory,
//!   whatever the number of groups.

mod column;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use http::header::ACCEPT;
use http::request::Parts as Head;
use memgroup::{Charge, Snapshot};
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Registry, Unit};

use self::column::{BYTES, COUNT, Column, Rest, SECONDS, Value};
use crate::account::{Chunks, uncounted};
use crate::app::App;
use crate::problem::Problem;
use crate::sample::{BOUNDS, Totals};
use crate::snapshots::{Found, bytes_of_group, statistics};

/// The most series of groups.
const SERIES: usize = 200_000;

/// The approximate number of series of a group, without those of statistics.
const FIXED: usize = 28;

/// The value of `id` for the sum of the groups that have no series.
const OTHER: &str = "other";

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The figures of an answer, which the registry asks for.
#[derive(Debug)]
struct View {
    app: Arc<App>,
    /// The groups with series of their own. The root is the first.
    shown: Snapshot,
    /// The other online groups.
    rest: Rest,
    columns: Vec<Column>,
    /// Groups that were removed, and their bytes.
    dying: (usize, u64),
    _charge: Charge,
}

impl View {
    /// Reads the figures. Dying groups have no series: another group may have the path of one.
    fn read(app: &Arc<App>) -> Result<View, Problem> {
        let mut found = Found::below(&app.hierarchy.root(), &app.account, app.groups.get())?;
        let series = FIXED + statistics(&app.hierarchy);
        let most = app.serve.metrics_groups.min(SERIES / series).max(1);
        let all = found.reader.groups().len();
        let each = bytes_of_group(&app.hierarchy);
        // For the answer, and for one piece of the rest.
        let mut charge = app.account.charge(all.min(most + column::PIECE) as u64 * each)?;
        let (shown, rest, columns, dying) = uncounted(|| {
            let chosen = found.largest(most, |at| found.reader.is_online(at));
            let shown = found.reader.snapshot(&chosen, || _ = app.pace.settle());
            let columns = shown.groups.first().map(column::columns).unwrap_or_default();
            let rest = Rest::read(&mut found.reader, &chosen, &columns, || _ = app.pace.settle());
            let removed = (0..all).zip(found.reader.groups()).filter(|&(at, _)| !found.reader.is_online(at));
            let dying =
                removed.fold((0, 0), |(groups, bytes), (_, group)| (groups + 1, bytes + group.usage()));
            (shown, rest, columns, dying)
        });
        app.account.resize(&mut charge, shown.groups.len() as u64 * each)?;
        Ok(View { app: Arc::clone(app), shown, rest, columns, dying, _charge: charge })
    }
}

impl prometheus_client::collector::Collector for View {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        groups(&mut encoder, self)?;
        whole_tree(&mut encoder, self)
    }
}

/// Returns whether the client wants the older format: it accepts `text/plain` and not OpenMetrics.
fn wants_plain(head: &Head) -> bool {
    let accepted: Vec<&str> =
        head.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let has = |kind: &str| accepted.iter().any(|value| value.contains(kind));
    has("text/plain") && !has("openmetrics")
}

/// Returns all figures of the tree as text, and its type.
pub(crate) fn text(app: &Arc<App>, head: &Head) -> Result<(&'static str, Chunks), Problem> {
    let mut registry = Registry::with_prefix("memgroup");
    registry.register_collector(Box::new(View::read(app)?));
    let mut text = Chunks::new(&app.account, &app.pace)?;
    let (kind, encoded) = if wants_plain(head) {
        (PROMETHEUS, prometheus_text::encode(&mut text, &registry))
    } else {
        (OPENMETRICS, text::encode(&mut text, &registry))
    };
    Ok((kind, text.written(encoded, "not_encoded")?))
}

type Labels<'l, const N: usize> = [(&'static str, &'l str); N];

/// Writes one series.
fn series<S: EncodeLabelSet>(
    encoder: &mut MetricEncoder<'_>,
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

/// The series of groups: those of the shown ones, and the sum over the rest.
fn groups(encoder: &mut DescriptorEncoder<'_>, view: &View) -> fmt::Result {
    let mut sums = view.rest.sums.iter();
    for family in view.columns.chunk_by(|one, next| one.name == next.name) {
        let Column { name, help, unit, kind, .. } = &family[0];
        let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), *kind)?;
        let mut write = |id: &str, column: &Column, value: Option<Value>| match (value, column.event) {
            (None, _) => Ok(()),
            (Some(value), None) => series(&mut metric, *kind, &[("id", id)], value),
            (Some(value), Some(event)) => series(&mut metric, *kind, &[("id", id), ("event", event)], value),
        };
        for group in &view.shown.groups {
            family.iter().try_for_each(|column| write(&group.path, column, column.value(group)))?;
        }
        family.iter().zip(&mut sums).try_for_each(|(column, sum)| write(OTHER, column, *sum))?;
    }
    Ok(())
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
fn whole_tree(encoder: &mut DescriptorEncoder<'_>, view: &View) -> fmt::Result {
    let app = &view.app;
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
