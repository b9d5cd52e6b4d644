//! What a hierarchy is made with.

use core::fmt;

use memgroup_percpu::SlotSource;

use crate::stock::word::LARGEST_CAP;

/// The deepest tree a hierarchy may be configured for; a charge climbs it by recursion.
const DEPTH_LARGEST: u32 = 256;
/// The most groups a hierarchy may be configured for.
const GROUPS_LARGEST: u32 = 1 << 24;

/// How to make a [`Hierarchy`](crate::Hierarchy); checked by `Hierarchy::new`.
///
/// ```
/// use memgroup::{Config, Hierarchy, SlotSource};
///
/// let config = Config::new().groups_max(100).stock_cap_bytes(64 << 10).slots(SlotSource::virtual_slots(8)?);
/// let hierarchy = Hierarchy::new(config)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    pub(crate) source: SlotSource,
    pub(crate) groups_max: u32,
    pub(crate) depth_max: u32,
    pub(crate) stock_cap_bytes: u64,
    pub(crate) stock_budget_bytes: u64,
    pub(crate) account_root: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config::new()
    }
}

impl Config {
    /// The defaults: the slot source that the start-up self-test chose, 65,536 groups, 16 levels, at most 256 KiB
    /// prepaid for each group and slot and 8 MiB for each slot, the root accounted.
    pub fn new() -> Config {
        Config::with_slots(SlotSource::detect())
    }

    /// The defaults with a slot source that the caller chose.
    pub fn with_slots(source: SlotSource) -> Config {
        Config {
            source,
            groups_max: 65_536,
            depth_max: 16,
            stock_cap_bytes: 256 << 10,
            stock_budget_bytes: 8 << 20,
            account_root: true,
        }
    }

    /// Which slot a thread's charges use; virtual slots make a small machine behave as a large one.
    #[must_use]
    pub fn slots(self, source: SlotSource) -> Config {
        Config { source, ..self }
    }

    /// The most groups at one time, the root and removed groups that still hold bytes or have
    /// handles included; 1 to 16,777,216.
    #[must_use]
    pub fn groups_max(self, groups_max: u32) -> Config {
        Config { groups_max, ..self }
    }

    /// The deepest group, in levels below the root; 1 to 256.
    #[must_use]
    pub fn depth_max(self, depth_max: u32) -> Config {
        Config { depth_max, ..self }
    }

    /// The most one group prepays in one slot, in bytes; rounded down to a power of two, at most 8 MiB. 0 turns the
    /// stock off: every charge then goes to the counters of every level.
    #[must_use]
    pub fn stock_cap_bytes(self, stock_cap_bytes: u64) -> Config {
        Config { stock_cap_bytes, ..self }
    }

    /// The most all groups together prepay in one slot, in bytes. `usage()` exceeds what is charged by at most
    /// this for each slot.
    #[must_use]
    pub fn stock_budget_bytes(self, stock_budget_bytes: u64) -> Config {
        Config { stock_budget_bytes, ..self }
    }

    /// Whether charges to groups count in the root's usage and against its limit. Without, the root counts only
    /// what is charged to it directly, and every miss saves one level (seed `004`'s first remark).
    #[must_use]
    pub fn account_root(self, account_root: bool) -> Config {
        Config { account_root, ..self }
    }

    pub(crate) fn checked(self) -> Result<Config, ConfigError> {
        let out_of_range = |setting, value, allowed| Err(ConfigError { setting, value, allowed });
        if !(1..=GROUPS_LARGEST).contains(&self.groups_max) {
            return out_of_range("groups_max", self.groups_max.into(), "1 to 16,777,216");
        }
        if !(1..=DEPTH_LARGEST).contains(&self.depth_max) {
            return out_of_range("depth_max", self.depth_max.into(), "1 to 256");
        }
        if self.stock_cap_bytes > LARGEST_CAP {
            return out_of_range("stock_cap_bytes", self.stock_cap_bytes, "0 to 8 MiB");
        }
        Ok(self)
    }

    /// The cap as the stock words can say it: 0 or a power of two.
    pub(crate) fn stock_cap(&self) -> u64 {
        if self.stock_cap_bytes < 2 { 0 } else { 1 << self.stock_cap_bytes.ilog2() }
    }
}

/// A setting of [`Config`] that is out of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigError {
    setting: &'static str,
    value: u64,
    allowed: &'static str,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}; allowed: {}", self.setting, self.value, self.allowed)
    }
}

impl std::error::Error for ConfigError {}
