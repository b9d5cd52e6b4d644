//! Metrics: the figures of the tree as OpenMetrics text, or in the older text format of Prometheus
//! for clients that ask for `text/plain`.
//!
//! - I1. The number of series is at most [`SERIES`]. Only the groups with the most usage have
//!   series of their own; the others are summed as `other`.
//! - I2. No byte is counted in two series of one family, except in those of a group and the groups
//!   above it. `other` covers the groups that are included in no shown group except an ancestor,
//!   because a group is shown before the groups below it.
//! - I3. The groups with series are chosen by their usage before any other figure is read. The
//!   other groups are read in pieces, and only their sums are stored. So an answer fits in memory,
//!   whatever the number of groups.

mod family;
mod rest;

use std::sync::Arc;

use http::header::ACCEPT;
use http::request::Parts as Head;
use memgroup::{Charge, Snapshot};
use prometheus_client::encoding::{DescriptorEncoder, prometheus_text, text};
use prometheus_client::registry::Registry;

use self::family::Statistic;
use self::rest::Rest;
use crate::account::{Chunks, uncounted};
use crate::app::App;
use crate::problem::Problem;
use crate::snapshots::{Found, bytes_of_group, statistics};

/// The most series of groups.
const SERIES: usize = 200_000;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The figures of an answer.
#[derive(Debug)]
struct View {
    /// The groups with series of their own. The root is the first.
    shown: Snapshot,
    /// The other online groups.
    rest: Rest,
    statistics: Vec<Statistic>,
    /// Groups that were removed, and their bytes.
    dying: (usize, u64),
    _charge: Charge,
}

impl View {
    /// Reads the figures. Dying groups have no series: another group may have the path of one.
    fn read(app: &App) -> Result<View, Problem> {
        let mut found = Found::below(&app.hierarchy.root(), &app.account, app.groups.get())?;
        let series = family::FIXED + statistics(&app.hierarchy);
        let most = app.serve.metrics_groups.min(SERIES / series).max(1);
        let all = found.reader.groups().len();
        let each = bytes_of_group(&app.hierarchy);
        // For the answer, and for one piece of the rest.
        let mut charge = app.account.charge(all.min(most + rest::PIECE) as u64 * each)?;
        let (shown, rest, statistics, dying) = uncounted(|| {
            let chosen = found.largest(most, |at| found.reader.is_online(at));
            let shown = found.reader.snapshot(&chosen, || _ = app.pace.settle());
            let statistics = family::statistics(&shown);
            let rest = Rest::read(&mut found.reader, &chosen, &statistics, || _ = app.pace.settle());
            let removed = (0..all).zip(found.reader.groups()).filter(|&(at, _)| !found.reader.is_online(at));
            let dying =
                removed.fold((0, 0), |(groups, bytes), (_, group)| (groups + 1, bytes + group.usage()));
            (shown, rest, statistics, dying)
        });
        app.account.resize(&mut charge, shown.groups.len() as u64 * each)?;
        Ok(View { shown, rest, statistics, dying, _charge: charge })
    }
}

/// Encodes a view when the registry asks for it.
#[derive(Debug)]
struct Collector {
    app: Arc<App>,
    view: View,
}

impl prometheus_client::collector::Collector for Collector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        family::groups(&mut encoder, &self.view)?;
        family::whole_tree(&mut encoder, &self.app, &self.view)
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
    let view = View::read(app)?;
    let mut registry = Registry::with_prefix("memgroup");
    registry.register_collector(Box::new(Collector { app: Arc::clone(app), view }));
    let mut text = Chunks::new(&app.account)?;
    let (kind, encoded) = if wants_plain(head) {
        (PROMETHEUS, prometheus_text::encode(&mut app.pace.writer(&mut text), &registry))
    } else {
        (OPENMETRICS, text::encode(&mut app.pace.writer(&mut text), &registry))
    };
    Ok((kind, text.written(encoded, "not_encoded")?))
}
