//! JSON: serialisation of the parts of a snapshot. The module's page has the names that readers rely on.

use std::time::{Duration, SystemTime};

use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};

use crate::api::group::Overdraft;
use crate::api::snapshot::{Row, SubsystemSnapshot};
use crate::base::id::GroupId;
use crate::counter::events::Events;
use crate::lifecycle::ended::EndedGroup;
use crate::observe::pressure::{Pressure, PressureLine};
use crate::observe::wait::Waiters;
use crate::reclaim::ShrinkerReport;
use crate::state::stats::stat::Stat;

/// Labels by name.
pub(super) fn labels<S: Serializer>(labels: &[(String, u64)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(labels.iter().map(|(name, bytes)| (name, bytes)))
}

/// Times are in microseconds.
impl Serialize for EndedGroup {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut ended = to.serialize_struct("EndedGroup", 8)?;
        ended.serialize_field("path", &self.path)?;
        ended.serialize_field("id", &self.id.as_u64())?;
        ended.serialize_field("lifetime_us", &micros(self.lifetime))?;
        ended.serialize_field("peak_bytes", &self.peak_bytes)?;
        ended.serialize_field("usage_bytes", &self.usage_bytes)?;
        ended.serialize_field("refusals", &self.refusals)?;
        ended.serialize_field("events", &self.events)?;
        ended.serialize_field("stalled_us", &micros(self.stalled))?;
        ended.end()
    }
}

impl Serialize for Waiters {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map([
            ("now", self.now as u64),
            ("longest_us", micros(self.longest)),
            ("bytes", self.bytes),
        ])
    }
}

pub(super) fn id<S: Serializer>(id: &GroupId, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(id.as_u64())
}

pub(super) fn us<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(micros(*time))
}

/// Microseconds since 1970; 0 if the clock is set to an earlier time.
pub(super) fn unix_us<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
    us(&time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(), to)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Statistics by subsystem and name.
pub(super) fn statistics<S: Serializer>(row: &Row, to: S) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(None)?;
    for subsystem in row.tables.iter().map(|table| row.of(table)) {
        map.serialize_entry(subsystem.name, &subsystem)?;
    }
    map.end()
}

impl Serialize for SubsystemSnapshot<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut subsystem = to.serialize_struct("SubsystemSnapshot", 2)?;
        subsystem.serialize_field("hierarchical", &Values(self.stats, self.hierarchical))?;
        subsystem.serialize_field("local", &Values(self.stats, self.local))?;
        subsystem.end()
    }
}

struct Values<'v>(&'static [Stat], &'v [i64]);

impl Serialize for Values<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(Stat::name).zip(self.1))
    }
}

impl Serialize for Events {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.pairs().into_iter().chain([("would_refuse", self.would_refuse)]))
    }
}

impl Serialize for Pressure {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map([("some", Stalled(&self.some)), ("full", Stalled(&self.full))])
    }
}

struct Stalled<'p>(&'p PressureLine);

impl Serialize for Stalled<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut line = to.serialize_struct("PressureLine", 4)?;
        line.serialize_field("avg10_percent", &self.0.avg10)?;
        line.serialize_field("avg60_percent", &self.0.avg60)?;
        line.serialize_field("avg300_percent", &self.0.avg300)?;
        line.serialize_field("total_us", &self.0.total)?;
        line.end()
    }
}

impl Serialize for Overdraft {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map([("charges", self.charges), ("bytes", self.bytes)])
    }
}

pub(super) fn shrinkers<S: Serializer>(reports: &[ShrinkerReport], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(reports.iter().map(Report))
}

struct Report<'r>(&'r ShrinkerReport);

impl Serialize for Report<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let report = self.0;
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("id", &report.id.0)?;
        map.serialize_entry("name", &report.name)?;
        map.serialize_entry("quarantine", &report.quarantine.map(|why| why.to_string()))?;
        for (name, figure) in [
            ("scans", report.scans),
            ("asked_bytes", report.asked_bytes),
            ("claimed_bytes", report.claimed_bytes),
            ("freed_bytes", report.freed_bytes),
            ("last_freed_bytes", report.last_freed_bytes),
            ("time_us", micros(report.time)),
            ("stopped", report.stopped),
            ("panics", report.panics),
            ("overruns", report.overruns),
        ] {
            map.serialize_entry(name, &figure)?;
        }
        let callers: Vec<Caller<'_>> = report.callers.iter().map(Caller::of).collect();
        map.serialize_entry("callers", &callers)?;
        map.end()
    }
}

/// A thread in a call.
#[derive(serde::Serialize)]
struct Caller<'r> {
    thread: u32,
    name: Option<&'r str>,
    held_us: u64,
}

impl Caller<'_> {
    fn of((thread, name, held): &(u32, Option<String>, Duration)) -> Caller<'_> {
        Caller { thread: *thread, name: name.as_deref(), held_us: micros(*held) }
    }
}
