//! JSON: parts of a snapshot that serde cannot derive. The module's page has the names that
//! readers rely on.
//!
//! - I1. Names that are unknown here are skipped, and missing ones have the values of a group
//!   without anything. So snapshots of other versions can be read.
//! - I2. In a snapshot that was read, each parent stands before its children, one level above
//!   them.
//! - I3. Reading leaks each definition of statistics once, and at most [`READ_BYTES_MAX`] in a
//!   process.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};

use crate::api::group::Overdraft;
use crate::api::snapshot::{GroupSnapshot, Limits, Row, SubsystemSnapshot, Table};
use crate::base::json::id;
use crate::base::limit::start;
use crate::counter::events::Events;
use crate::observe::pressure::Pressure;
use crate::observe::wait::report::Waiters;
use crate::state::stats::builtin::{cpu, io, memory};
use crate::state::stats::stat::{Stat, Subsystem};
use crate::stats::stock_stats::StockStats;

/// The most bytes of definitions that were read.
const READ_BYTES_MAX: usize = 1 << 20;

const BUILT_IN: [Subsystem; 3] = [memory::SUBSYSTEM, cpu::SUBSYSTEM, io::SUBSYSTEM];

/// Definitions that were read and are not built in, and their bytes.
static READ: Mutex<(Vec<Subsystem>, usize)> = Mutex::new((Vec::new(), 0));

pub(super) fn epoch() -> SystemTime {
    SystemTime::UNIX_EPOCH
}

impl GroupSnapshot {
    /// A group without anything, whose values stand for names that are missing (I1).
    pub(super) fn empty() -> GroupSnapshot {
        GroupSnapshot {
            path: String::new(),
            name: String::new(),
            id: id::read(0),
            depth: 0,
            parent: None,
            online: true,
            dying: None,
            descendants: 0,
            dying_descendants: 0,
            limits: Limits::default(),
            fair_share: None,
            usage_bytes: 0,
            usage_exact_bytes: 0,
            peak_bytes: 0,
            refusals: 0,
            overdraft: Overdraft::default(),
            owed_bytes: 0,
            over_bytes_max: 0,
            pressure: Pressure::default(),
            waiters: Waiters::default(),
            events: Events::default(),
            events_local: Events::default(),
            stock: StockStats::default(),
            statistics: Row::default(),
        }
    }
}

/// Reads the groups, and checks their parents (I2).
pub(super) fn groups<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<GroupSnapshot>, D::Error> {
    let mut groups = Vec::<GroupSnapshot>::deserialize(from)?;
    for at in 0..groups.len() {
        let Some(parent) = groups[at].parent else { continue };
        let Some(above) = groups[..at].get(parent).map(|above| above.depth) else {
            let text = format_args!("group {at} has the parent {parent}, which is not before it");
            return Err(D::Error::custom(text));
        };
        groups[at].depth = above.saturating_add(1);
    }
    Ok(groups)
}

/// The entries of a map in their order.
struct Map<K, V>(Vec<(K, V)>);

impl<'de, K: Deserialize<'de>, V: Deserialize<'de>> Map<K, V> {
    fn read<D: Deserializer<'de>>(from: D) -> Result<Vec<(K, V)>, D::Error> {
        Map::deserialize(from).map(|Map(entries)| entries)
    }
}

impl<'de, K: Deserialize<'de>, V: Deserialize<'de>> Deserialize<'de> for Map<K, V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Map<K, V>, D::Error> {
        struct Entries<K, V>(Vec<(K, V)>);

        impl<'de, K: Deserialize<'de>, V: Deserialize<'de>> Visitor<'de> for Entries<K, V> {
            type Value = Map<K, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Map<K, V>, A::Error> {
                while let Some(entry) = map.next_entry()? {
                    self.0.push(entry);
                }
                Ok(Map(self.0))
            }
        }
        from.deserialize_map(Entries(Vec::new()))
    }
}

/// A name that is borrowed from the text where possible.
#[derive(serde::Deserialize)]
struct Name<'n>(#[serde(borrow)] Cow<'n, str>);

/// The statistics of one subsystem, as they are read.
#[derive(serde::Deserialize)]
struct Read<'n> {
    #[serde(borrow)]
    hierarchical: Map<Name<'n>, i64>,
    #[serde(borrow)]
    local: Map<Name<'n>, i64>,
}

/// Statistics by subsystem and name.
impl Serialize for Row {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        for subsystem in self.tables.iter().map(|table| self.of(table)) {
            map.serialize_entry(subsystem.name, &subsystem)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Row, D::Error> {
        let subsystems = Map::<Name<'de>, Read<'de>>::read(from)?;
        let table = |(Name(name), read): (Name<'de>, Read<'de>)| {
            let (Map(local), Map(hierarchical)) = (read.local, read.hierarchical);
            let stats: Vec<&str> = local.iter().map(|(Name(stat), _)| &**stat).collect();
            if !hierarchical.iter().map(|(Name(stat), _)| &**stat).eq(stats.iter().copied()) {
                let text = "has other names in `hierarchical` than in `local`";
                return Err(D::Error::custom(format_args!("the statistics of {:?} {text}", start(&name))));
            }
            let subsystem = definition(&name, &stats).map_err(|error| {
                D::Error::custom(format_args!("the statistics of {:?} {error}", start(&name)))
            })?;
            let values = local.iter().chain(&hierarchical).map(|&(_, value)| value).collect();
            Ok(Table { subsystem, values, is_read: true })
        };
        let tables = subsystems.into_iter().map(table).collect::<Result<Arc<[Table]>, _>>()?;
        Ok(Row { tables, row: 0 })
    }
}

/// Returns the definition with these names: a built-in one, or one that is leaked once (I3). The
/// text does not have the kinds of statistics, so all of that one are counts.
fn definition(name: &str, stats: &[&str]) -> Result<Subsystem, String> {
    let is_it =
        |one: &&Subsystem| one.name == name && one.stats.iter().map(Stat::name).eq(stats.iter().copied());
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = BUILT_IN.iter().chain(&read.0).find(is_it) {
        return Ok(*found);
    }
    let mut seen = HashSet::new();
    if let Some(twice) = stats.iter().find(|stat| !seen.insert(**stat)) {
        return Err(format!("have the name {:?} twice", start(twice)));
    }
    let bytes = size_of::<Subsystem>() + name.len();
    let bytes = stats.iter().map(|stat| size_of::<Stat>() + stat.len()).sum::<usize>() + bytes;
    if read.1 + bytes > READ_BYTES_MAX {
        return Err(format!("exceed the {READ_BYTES_MAX} bytes of definitions that a process reads"));
    }
    read.1 += bytes;
    let leaked = |text: &str| &*String::from(text).leak();
    let stats: Vec<Stat> = stats.iter().map(|stat| Stat::count(leaked(stat))).collect();
    let subsystem = Subsystem { name: leaked(name), stats: stats.leak() };
    read.0.push(subsystem);
    Ok(subsystem)
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
