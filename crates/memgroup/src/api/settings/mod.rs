//! Settings from serde: of a hierarchy, of groups, and of whole trees.
//!
//! - I1. A [`GroupSpec`] and a [`TreeSpec`] have valid settings: each was checked when it was
//!   read. So applying one fails only where a group was removed meanwhile, or where no group can
//!   be created.
//! - I2. A new setting of a group is a variant of `Setting`, a line in `KEYS`, and a line in
//!   `Group::apply`.

mod config;
mod table;
mod tree;

use core::fmt;
use core::ops::RangeInclusive;

use serde::de::{Deserializer, Error, MapAccess, Visitor};

use crate::api::settings::table::{Key, Seen, Value};
pub use crate::api::settings::tree::TreeSpec;
use crate::base::error::GroupError;
use crate::base::limit::{BYTES_MAX, LimitError};
use crate::control::oom::OomScoreError;
use crate::control::share::{SHARE_MAX, ShareError};
use crate::control::waiters::WeightError;
use crate::counter::protect::ProtectionError;
use crate::tree::handle::Group;

/// Settings of a group, read by serde. A setting that is not given stays as it is.
///
/// | key | file | values |
/// |---|---|---|
/// | `max` | `memory.max` | bytes, or `"max"` for no limit |
/// | `high` | `memory.high` | bytes, or `"max"` for none |
/// | `low` | `memory.low` | bytes, or `"max"` for all that the group has |
/// | `min` | `memory.min` | bytes, or `"max"` for all that the group has |
/// | `oom_group` | `memory.oom.group` | `true` or `false` |
/// | `oom_score` | `memgroup.oom_score` | -1000 to 1000 |
/// | `weight` | `memgroup.weight` | 1 to 10000 |
/// | `share` | `memory.share` | 0 to 1024; 0 for no shares |
/// | `reserve_min` | `memgroup.reserve_min` | `true` or `false` |
/// | `enforced` | `memgroup.enforced` | `true` or `false` |
/// | `max_descendants` | `cgroup.max.descendants` | a whole number, or `"max"` for no bound |
/// | `max_depth` | `cgroup.max.depth` | a whole number, or `"max"` for no bound |
///
/// Bytes are an integer, or a text such as `"64M"` ([`parse_bytes`](crate::parse_bytes)). `high`,
/// `low` and `min` above a `max` of the same table are an error. Errors name the key, the group
/// and the allowed values.
///
/// ```
/// # use memgroup::{Config, GroupSpec, Hierarchy};
/// let request: GroupSpec = toml::from_str("max = '64M'\nhigh = '48M'").unwrap();
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let group = hierarchy.create("/request").unwrap();
/// group.apply(&request).unwrap();
/// assert_eq!((group.max(), group.high(), group.weight()), (Some(64 << 20), Some(48 << 20), 100));
/// let error = toml::from_str::<GroupSpec>("max = '64Q'").unwrap_err();
/// assert!(error.to_string().contains("key `max` of the group is \"64Q\"; allowed: 0 to less than 256T"));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupSpec {
    /// In their order, each at most once.
    settings: Vec<Setting>,
}

/// One setting. Settings are applied in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Setting {
    Max(Option<u64>),
    High(Option<u64>),
    Low(u64),
    Min(u64),
    OomGroup(bool),
    OomScore(i32),
    Weight(u32),
    Share(u32),
    ReserveMin(bool),
    Enforced(bool),
    MaxDescendants(Option<u32>),
    MaxDepth(Option<u32>),
}

const LIMIT: &str = "0 to less than 256T, or \"max\" for no limit; bytes are an integer, or a text of digits with K, M, G or T, such as \
                     \"64M\"";
const PROTECTION: &str = "0 to less than 256T, or \"max\" for all that it holds; bytes are an integer, or a text of digits with K, M, G or T, \
                          such as \"16M\"";
const BOUND: &str = "an integer from 0 to 4294967295, or \"max\" for no bound";
const TRUTH: &str = "true or false";

const SCORE: &str = "an integer from -1000 to 1000";
const WEIGHT: &str = "an integer from 1 to 10000";
const SHARE: &str = "an integer from 0 to 1024; 0 turns shares off";

/// A key whose value `read` turns into a setting, if it is allowed.
macro_rules! key {
    ($name:literal, $allowed:ident, $setting:ident, $read:expr) => {
        Key {
            name: $name,
            allowed: $allowed,
            set: |spec: &mut GroupSpec, value| {
                $read(value).map(|value| spec.settings.push(Setting::$setting(value)))
            },
        }
    };
}

const KEYS: &[Key<GroupSpec>] = &[
    key!("max", LIMIT, Max, Value::limit),
    key!("high", LIMIT, High, Value::limit),
    key!("low", PROTECTION, Low, protection),
    key!("min", PROTECTION, Min, protection),
    key!("oom_group", TRUTH, OomGroup, Value::truth),
    key!("oom_score", SCORE, OomScore, |value| within(value, -1000..=1000)),
    key!("weight", WEIGHT, Weight, |value| within(value, 1..=10_000)),
    key!("share", SHARE, Share, |value| within(value, 0..=SHARE_MAX)),
    key!("reserve_min", TRUTH, ReserveMin, Value::truth),
    key!("enforced", TRUTH, Enforced, Value::truth),
    key!("max_descendants", BOUND, MaxDescendants, bound),
    key!("max_depth", BOUND, MaxDepth, bound),
];

/// A protection in bytes; [`BYTES_MAX`] for `"max"`.
fn protection(value: &Value) -> Option<u64> {
    value.limit().map(|bytes| bytes.unwrap_or(BYTES_MAX))
}

/// A number in a range.
fn within<N: TryFrom<i128> + PartialOrd>(value: &Value, range: RangeInclusive<N>) -> Option<N> {
    value.number().filter(|number| range.contains(number))
}

/// A number of groups or levels; `Some(None)` for `"max"`.
fn bound(value: &Value) -> Option<Option<u32>> {
    if value.text() == Some("max") { Some(None) } else { value.number().map(Some) }
}

impl GroupSpec {
    /// Returns whether the group gives shares, or no longer does.
    fn sets_share(&self) -> bool {
        self.settings.iter().any(|setting| matches!(setting, Setting::Share(_)))
    }

    /// Returns the first setting that is above `max`: its key, its bytes, and `max`.
    fn above_max(&self) -> Option<(&'static str, u64, u64)> {
        let max = self.settings.iter().find_map(|setting| match *setting {
            Setting::Max(max) => max,
            _ => None,
        })?;
        self.settings.iter().find_map(|setting| match *setting {
            Setting::High(Some(high)) if high > max => Some(("high", high, max)),
            Setting::Low(low) if low < BYTES_MAX && low > max => Some(("low", low, max)),
            Setting::Min(min) if min < BYTES_MAX && min > max => Some(("min", min, max)),
            _ => None,
        })
    }

    fn check<E: Error>(&self, owner: &str) -> Result<(), E> {
        self.above_max().map_or(Ok(()), |(key, bytes, max)| {
            Err(E::custom(format!(
                "key `{key}` of {owner} is {bytes} bytes, above its `max` of {max}; allowed: up to its `max`"
            )))
        })
    }
}

/// Reads the table of one group. `read_other` reads the value of a key of `others`.
fn read_group<'de, A: MapAccess<'de>>(
    table: &mut A,
    owner: &str,
    others: &[&'static str],
    mut read_other: impl FnMut(&mut A) -> Result<(), A::Error>,
) -> Result<GroupSpec, A::Error> {
    let (mut spec, mut seen) = (GroupSpec::default(), Seen::new());
    while let Some(key) = seen.next(table, owner)? {
        if others.contains(&key.as_str()) {
            read_other(table)?;
        } else {
            table::set(KEYS, others, &key, table, owner, &mut spec)?;
        }
    }
    spec.settings.sort_unstable();
    spec.check(owner)?;
    Ok(spec)
}

struct GroupTable;

impl<'de> Visitor<'de> for GroupTable {
    type Value = GroupSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the settings of a group by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<GroupSpec, A::Error> {
        read_group(&mut table, "the group", &[], |_| Ok(()))
    }
}

impl<'de> serde::Deserialize<'de> for GroupSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<GroupSpec, D::Error> {
        from.deserialize_map(GroupTable)
    }
}

/// Why settings were not applied. Printed, it completes the phrase "failed to ...", and names the
/// group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ApplyError {
    /// A group was not created. Nothing was changed.
    Group(GroupError),
    /// `max` or `high` was refused.
    Limit(LimitError),
    /// `min`, `low` or `reserve_min` was refused: the group was removed meanwhile.
    Protection(ProtectionError),
    /// The share factor was refused: the group was removed meanwhile, or its hierarchy does not
    /// account the root.
    Share(ShareError),
    /// The weight was refused.
    Weight(WeightError),
    /// The oom score was refused.
    OomScore(OomScoreError),
}

macro_rules! reasons {
    ($($variant:ident $error:ident,)*) => {
        $(impl From<$error> for ApplyError {
            fn from(error: $error) -> ApplyError {
                ApplyError::$variant(error)
            }
        })*

        impl fmt::Display for ApplyError {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    ApplyError::Group(error) => write!(f, "create the groups of a tree: {error}"),
                    $(ApplyError::$variant(error) => error.fmt(f),)*
                }
            }
        }
    };
}

reasons! {
    Limit LimitError,
    Protection ProtectionError,
    Share ShareError,
    Weight WeightError,
    OomScore OomScoreError,
}

impl From<GroupError> for ApplyError {
    fn from(error: GroupError) -> ApplyError {
        ApplyError::Group(error)
    }
}

impl std::error::Error for ApplyError {}

/// Settings from serde.
impl Group {
    /// Applies the settings that `spec` has, and leaves all others. Each is in force as after its
    /// own method, such as [`set_max`](Group::set_max).
    ///
    /// # Errors
    /// The group was removed, or it is a root that is not accounted and `spec` has a share.
    /// Settings that stand earlier in the table of [`GroupSpec`] are applied then.
    pub fn apply(&self, spec: &GroupSpec) -> Result<(), ApplyError> {
        for setting in &spec.settings {
            match *setting {
                Setting::Max(max) => self.set_max(max)?,
                Setting::High(high) => self.set_high(high)?,
                Setting::Low(low) => self.set_low(low)?,
                Setting::Min(min) => self.set_min(min)?,
                Setting::OomGroup(as_a_whole) => self.set_oom_group(as_a_whole),
                Setting::OomScore(score) => self.set_oom_score(score)?,
                Setting::Weight(weight) => self.set_weight(weight)?,
                Setting::Share(factor) => self.set_share(Some(factor).filter(|&factor| factor > 0))?,
                Setting::ReserveMin(is_on) => self.set_reserve_min(is_on)?,
                Setting::Enforced(enforced) => self.set_enforced(enforced),
                Setting::MaxDescendants(max) => self.set_max_descendants(max),
                Setting::MaxDepth(max) => self.set_max_depth(max),
            }
        }
        Ok(())
    }
}
