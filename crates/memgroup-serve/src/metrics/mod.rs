//! Metrics: the figures of the tree as OpenMetrics text, or in the older text format of Prometheus for clients that ask for `text/plain`.
//!
//! - I1. The number of series is bounded: the groups with the most usage have series each, so many that there are at most [`SERIES`]. The others are
//!   summed as `other`.
//! - I2. No byte is in two series of one family but those of a group and the groups above it. `other` has groups that no shown group but an ancestor
//!   includes: a group is shown before the groups below it.

mod family;
mod select;
mod value;

use std::sync::Arc;

use http::StatusCode;
use http::header::ACCEPT;
use http::request::Parts as Head;
use memgroup::Snapshot;
use prometheus_client::encoding::{DescriptorEncoder, prometheus_text, text};
use prometheus_client::registry::Registry;

use crate::app::App;
use crate::chunks::Chunks;
use crate::problem::Problem;
use crate::snapshots::Held;

/// The most series of groups.
const SERIES: usize = 200_000;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Encodes a snapshot when the registry asks for it.
#[derive(Debug)]
struct Collector {
    app: Arc<App>,
    held: Arc<Held>,
}

impl prometheus_client::collector::Collector for Collector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let snapshot: &Snapshot = &self.held.snapshot;
        let statistics = family::statistics(snapshot);
        let each = family::FIXED + statistics.len();
        let shown = self.app.serve.metrics_groups.min(SERIES / each).max(1);
        let groups = select::select(&snapshot.groups, shown);
        family::groups(&mut encoder, &groups, &statistics)?;
        family::whole_tree(&mut encoder, &self.app, snapshot, &groups)
    }
}

/// Whether the client wants the older format: it names `text/plain` and not OpenMetrics.
fn wants_plain(head: &Head) -> bool {
    let accepted: Vec<&str> =
        head.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let has = |kind: &str| accepted.iter().any(|value| value.contains(kind));
    has("text/plain") && !has("openmetrics")
}

/// All figures of the tree as text, and its type.
pub(crate) fn text(app: &Arc<App>, head: &Head) -> Result<(&'static str, Chunks), Problem> {
    let held = app.snapshots.tree(&app.hierarchy, &app.account, &app.pace, app.groups())?;
    let _parted = app.account.charge((held.snapshot.groups.len() * select::EACH) as u64)?;
    let mut registry = Registry::with_prefix("memgroup");
    registry.register_collector(Box::new(Collector { app: Arc::clone(app), held }));
    let mut text = Chunks::new(&app.account)?;
    let (kind, encoded) = if wants_plain(head) {
        (PROMETHEUS, prometheus_text::encode(&mut app.pace.writer(&mut text), &registry))
    } else {
        (OPENMETRICS, text::encode(&mut app.pace.writer(&mut text), &registry))
    };
    match encoded {
        Ok(()) => Ok((kind, text)),
        Err(error) => Err(match text.refusal() {
            Some(refused) => refused.into(),
            None => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "not_encoded", error.to_string()),
        }),
    }
}
