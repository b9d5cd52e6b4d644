//! The configuration of a hierarchy from serde: a key for each setting of [`Config`], named as its
//! method.

use core::fmt;

use memgroup_percpu::SlotSource;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use crate::api::settings::table::{self, Key, Seen, Value};
use crate::state::config::Config;

const INTEGER: &str = "an integer from 1 up";
const TRUTH: &str = "true or false";
const SAMPLED: &str = "an integer from 1 to 65536";
const BYTES: &str = "bytes, as an integer, or as a text of digits with K, M, G or T, such as \"64K\"";
const TIME: &str = "1ms to 1h, as a text of digits with us, ms, s, min or h, such as \"500ms\"";
const NEVER: &str = "a text of digits with us, ms, s, min or h, such as \"10s\", or \"never\"";
const SLOTS: &str = "\"detect\"; \"mm_cid\", \"cpu_id\" or \"getcpu\" where the system has it; \"thread_hash:N\" or \"virtual:N\" \
                     with 1 to 4096 slots";
const OWNER: &str = "the configuration";

macro_rules! key {
    ($name:ident, $allowed:ident, $read:ident) => {
        Key {
            name: stringify!($name),
            allowed: $allowed,
            set: |config: &mut Config, value| value.$read().map(|value| config.$name = value),
        }
    };
}

const KEYS: &[Key<Config>] = &[
    Key {
        name: "slots",
        allowed: SLOTS,
        set: |config, value| slots(value).map(|source| config.source = source),
    },
    key!(groups_max, INTEGER, number),
    key!(depth_max, INTEGER, number),
    key!(stock_cap_bytes, BYTES, bytes),
    key!(stock_budget_bytes, BYTES, bytes),
    key!(account_root, TRUTH, truth),
    Key {
        name: "scope_time",
        allowed: TRUTH,
        set: |config, value| value.truth().map(|counted| *config = config.scope_time(counted)),
    },
    Key {
        name: "scope_time_sampled",
        allowed: SAMPLED,
        set: |config, value| value.number().map(|one_in| config.scope_time_of = one_in),
    },
    key!(reclaim, TRUTH, truth),
    key!(reclaim_patience, TIME, time),
    key!(reclaim_reserve_bytes, BYTES, bytes),
    key!(maintain_on_removal, TRUTH, truth),
    Key { name: "demote_after", allowed: NEVER, set: demote_after },
    key!(protected_reserve_bytes, BYTES, bytes),
    key!(oom, TRUTH, truth),
    key!(kill_patience, TIME, time),
    key!(pressure, TRUTH, truth),
];

fn demote_after(config: &mut Config, value: &Value) -> Option<()> {
    config.demote_after = if value.text() == Some("never") { None } else { Some(value.time()?) };
    Some(())
}

fn slots(value: &Value) -> Option<SlotSource> {
    let text = value.text()?;
    let found = match text.split_once(':') {
        None if text == "detect" => Ok(SlotSource::detect()),
        None if text == "mm_cid" => SlotSource::mm_cid(),
        None if text == "cpu_id" => SlotSource::cpu_id(),
        None if text == "getcpu" => SlotSource::getcpu(),
        Some(("thread_hash", count)) => SlotSource::thread_hash(count.parse().ok()?),
        Some(("virtual", count)) => SlotSource::virtual_slots(count.parse().ok()?),
        _ => return None,
    };
    found.ok()
}

struct ConfigTable;

impl<'de> Visitor<'de> for ConfigTable {
    type Value = Config;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table of the settings of a hierarchy")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Config, A::Error> {
        let (mut config, mut seen) = (Config::new(), Seen::new());
        while let Some(key) = seen.next(&mut table, OWNER)? {
            table::set(KEYS, &[], &key, &mut table, OWNER, &mut config)?;
        }
        config.checked().map_err(|error| Error::custom(format!("{OWNER}: {error}")))
    }
}

/// With the feature `serde`. The keys are named as the methods, and each may be missing. Bytes are
/// an integer, or a text such as `"64K"`; times are a text such as `"500ms"`. A wrong key or value
/// is an error that names it and the allowed ones.
impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Config, D::Error> {
        from.deserialize_map(ConfigTable)
    }
}
