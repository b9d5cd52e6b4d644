//! Config: the settings of a hierarchy.

use core::fmt;
use core::time::Duration;

use memgroup_percpu::{ArenaConfig, ArenaError, PageSize, SlotSource};

use crate::base::limit::LARGEST_RESERVE;
#[cfg(not(memgroup_loom))]
use crate::state::stats::builtin;
use crate::state::stats::stat::Subsystem;
use crate::state::stock_word::LARGEST_CAP;

/// The number of nodes in a chunk.
#[cfg(not(memgroup_loom))]
pub(crate) const CHUNK: u32 = 64;
#[cfg(memgroup_loom)]
pub(crate) const CHUNK: u32 = 4;

/// Beyond `groups_max` there are spare places, in this number of parts. Each part is `groups_max`
/// over `SPARE_DIVISOR` (`topology::bounds`).
pub(crate) const SPARE_PARTS: u32 = 4;
pub(crate) const SPARE_DIVISOR: u32 = 256;

/// The deepest tree that a hierarchy may be configured for.
pub(crate) const DEPTH_LARGEST: u32 = 256;
/// The fewest places that a hierarchy has: those of 4,096 groups, with the spare ones. Multiplied
/// by 16^3, they are the places of `GROUPS_LARGEST` groups.
const PLACES_LEAST: u32 = 4096 + 64;
/// The most groups that a hierarchy may be configured for.
const GROUPS_LARGEST: u32 = 1 << 24;
/// The sparsest sampling of time: one stretch of time out of this many.
const SAMPLED_MOST: u32 = 1 << 16;
/// The range of `kill_patience` and of `reclaim_patience`.
const PATIENCES: core::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3600);

/// The configuration of a [`Hierarchy`](crate::Hierarchy), which `Hierarchy::new` checks. With the
/// feature `serde` it can be read from a file.
///
/// ```
/// use memgroup::{Config, Hierarchy, SlotSource};
///
/// let slots = SlotSource::virtual_slots(8)?;
/// let config = Config::new().groups_max(100).stock_cap_bytes(64 << 10).slots(slots);
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
    pub(crate) separate_trees: bool,
    /// One stretch of time out of this many is measured; with 0, none is.
    pub(crate) scope_time_of: u32,
    pub(crate) reclaim: bool,
    pub(crate) reclaim_patience: Duration,
    pub(crate) reclaim_reserve_bytes: u64,
    pub(crate) page_size: PageSize,
    pub(crate) float_bytes: u64,
    pub(crate) decay: Duration,
    pub(crate) relocate: bool,
    pub(crate) maintain_on_removal: bool,
    pub(crate) demote_after: Option<Duration>,
    pub(crate) protected_reserve_bytes: u64,
    pub(crate) oom: bool,
    pub(crate) kill_patience: Duration,
    pub(crate) pressure: bool,
    /// The built-in subsystems of a model's hierarchy: none, unless the model sets some.
    #[cfg(memgroup_loom)]
    pub(crate) builtin: &'static [Subsystem],
}

/// The part of a configuration that the memory of a hierarchy depends on. A hierarchy may use the
/// memory of an earlier one of the same shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shape {
    pub(crate) source: SlotSource,
    /// The places for nodes, in whole chunks: at least [`Config::groups_bound`].
    pub(crate) places: u32,
    pub(crate) separate_trees: bool,
    pub(crate) page_size: PageSize,
    #[cfg(memgroup_loom)]
    builtin: &'static [Subsystem],
}

impl Default for Config {
    fn default() -> Config {
        Config::new()
    }
}

impl Config {
    /// Returns the most groups that there can be: `groups_max` and the spare places beyond it
    /// (`topology::bounds`).
    pub(crate) fn groups_bound(&self) -> u32 {
        self.groups_max + SPARE_PARTS * (self.groups_max / SPARE_DIVISOR)
    }

    /// Returns the part of the configuration that cannot change while a hierarchy exists.
    pub(crate) fn shape(&self) -> Shape {
        let bound = self.groups_bound();
        let places = if cfg!(memgroup_loom) {
            bound.next_multiple_of(CHUNK)
        } else {
            // There are only a few different numbers of places, and a table of each is small
            // compared with that many groups.
            let times_16 = bound.div_ceil(PLACES_LEAST).next_power_of_two().ilog2().div_ceil(4);
            PLACES_LEAST << (4 * times_16)
        };
        Shape {
            source: self.source,
            places,
            separate_trees: self.separate_trees,
            page_size: self.page_size,
            #[cfg(memgroup_loom)]
            builtin: self.builtin,
        }
    }

    /// Returns the default configuration: the slot source that the self-test at start-up chose,
    /// 65,536 groups, 16 levels, and the root accounted. At most 256 KiB are prepaid for each
    /// group and slot, and 8 MiB for each slot.
    pub fn new() -> Config {
        Config::with_slots(SlotSource::detect())
    }

    /// Returns the default configuration with the given slot source.
    pub fn with_slots(source: SlotSource) -> Config {
        Config {
            source,
            groups_max: 65_536,
            depth_max: 16,
            stock_cap_bytes: 256 << 10,
            stock_budget_bytes: 8 << 20,
            account_root: true,
            separate_trees: true,
            scope_time_of: 1,
            reclaim: true,
            reclaim_patience: Duration::from_secs(1),
            reclaim_reserve_bytes: 256 << 10,
            page_size: PageSize::of_system(),
            float_bytes: 1 << 20,
            decay: Duration::from_secs(10),
            relocate: true,
            maintain_on_removal: true,
            demote_after: None,
            protected_reserve_bytes: 1 << 20,
            oom: true,
            kill_patience: Duration::from_secs(1),
            pressure: true,
            #[cfg(memgroup_loom)]
            builtin: &[],
        }
    }

    /// Sets the source that decides which slot a thread's charges use. Virtual slots make a small
    /// machine behave like a large one.
    #[must_use]
    pub fn slots(self, source: SlotSource) -> Config {
        Config { source, ..self }
    }

    /// Sets the most groups at one time: 1 to 16,777,216. The root counts, and so do removed
    /// groups that still hold bytes or have handles.
    /// [`Group::set_max_descendants`](crate::Group::set_max_descendants) limits the part that one
    /// tenant may take.
    ///
    /// A further 64th is reserved for tenants with few groups, so that a tenant which creates as
    /// many as it can does not keep the others from creating theirs.
    #[must_use]
    pub fn groups_max(self, groups_max: u32) -> Config {
        Config { groups_max, ..self }
    }

    /// Sets the most levels below the root: 1 to 256.
    #[must_use]
    pub fn depth_max(self, depth_max: u32) -> Config {
        Config { depth_max, ..self }
    }

    /// Sets the most bytes that one group prepays in one slot, rounded down to a power of two: at
    /// most 8 MiB. A group that makes larger charges prepays up to twice such a charge if its
    /// limits leave much headroom, but at most a quarter of the
    /// [budget](Config::stock_budget_bytes). With 0 there are no stocks, and every charge goes to
    /// the counters of every level.
    #[must_use]
    pub fn stock_cap_bytes(self, stock_cap_bytes: u64) -> Config {
        Config { stock_cap_bytes, ..self }
    }

    /// Sets the most bytes that all groups together prepay in one slot. `usage()` exceeds the live
    /// charges by at most this number for each slot.
    #[must_use]
    pub fn stock_budget_bytes(self, stock_budget_bytes: u64) -> Config {
        Config { stock_budget_bytes, ..self }
    }

    /// Sets whether charges to groups count in the root's usage and against its limit. If they
    /// don't, the root counts only charges made to it directly, and every miss saves one level.
    #[must_use]
    pub fn account_root(self, account_root: bool) -> Config {
        Config { account_root, ..self }
    }

    /// Returns whether charges to groups count in the root: the setting of
    /// [`account_root`](Config::account_root).
    #[must_use]
    pub fn accounts_root(&self) -> bool {
        self.account_root
    }

    /// Sets whether the time that threads spend in [`scope`](crate::scope)s is counted, in the
    /// subsystem `cpu`. If it is, the clock is read at the beginning and at the end of each scope.
    #[must_use]
    pub fn scope_time(self, counted: bool) -> Config {
        Config { scope_time_of: u32::from(counted), ..self }
    }

    /// Counts the time that threads spend in [`scope`](crate::scope)s by samples. A stretch of
    /// time between two changes of scope is measured with a probability of 1 in `one_in`, and
    /// then counts `one_in` times. Use it for scopes that last less than a microsecond, such
    /// as the polls of a task. With 1, the default, the count is exact; with 0 no time is
    /// counted. The largest value is 65,536.
    ///
    /// Sums come close to the exact ones only after many stretches. The statistic `nr_scopes` is
    /// sampled in the same way.
    #[must_use]
    pub fn scope_time_sampled(self, one_in: u32) -> Config {
        Config { scope_time_of: one_in, ..self }
    }

    /// Sets whether [shrinkers](crate::Shrinker) make room for a charge that does not fit, before
    /// it is refused. If they don't, they give back memory only when
    /// [`Group::reclaim`](crate::Group::reclaim) is called.
    #[must_use]
    pub fn reclaim(self, reclaim: bool) -> Config {
        Config { reclaim, ..self }
    }

    /// Sets the longest time for which [shrinkers](crate::Shrinker) make room for one charge,
    /// including all its rounds, retries, levels and waits for caches: 1 ms to 1 h, 1 s by
    /// default. When it is over, the charge tries a last time, and is refused. If the charging
    /// thread is inside a shrinker's call by then, that call finishes first.
    #[must_use]
    pub fn reclaim_patience(self, patience: Duration) -> Config {
        Config { reclaim_patience: patience, ..self }
    }

    /// Sets the working memory of a shrinker: the bytes by which its own charges may exceed a
    /// limit while it gives back memory. The default is 256 KiB. Such a charge counts as an
    /// [`overdraft`](crate::Group::overdraft).
    #[must_use]
    pub fn reclaim_reserve_bytes(self, bytes: u64) -> Config {
        Config { reclaim_reserve_bytes: bytes, ..self }
    }

    /// Sets whether removals and creations do the work of [`maintain`](crate::Hierarchy::maintain)
    /// in steps, once the idle records amount to half of the live ones. Each step takes about 50
    /// us, and waits for no flush and no grace period. When the last handle of the hierarchy is
    /// dropped, a whole pass is made, which waits for a grace period, mostly 10 to 20 ms.
    ///
    /// A step may interrupt every CPU that runs the process for some microseconds: by `madvise`
    /// and `munmap`, and by an expedited `membarrier` for each 256 KiB or more. With `false`
    /// only `maintain` gives memory back, on a thread that the user chooses.
    #[must_use]
    pub fn maintain_on_removal(self, on_removal: bool) -> Config {
        Config { maintain_on_removal: on_removal, ..self }
    }

    /// Sets how long a group must have been without a charge, an uncharge or a count before it
    /// gives up its per-CPU memory, until it is used again. With `None` it never does. Only
    /// `maintain` checks this, so it takes at least two of its passes.
    #[must_use]
    pub fn demote_after(self, idle: Option<Duration>) -> Config {
        Config { demote_after: idle, ..self }
    }

    /// Sets the most bytes that are left free below a group's `max` for children within their
    /// [`min`](crate::Group::set_min) or [`low`](crate::Group::set_low). The default is 1 MiB, the
    /// largest value 512 GiB. The reserve is never more than an eighth of `max`, nor more than
    /// what those children have not used of their protection. With 0, a child that was idle
    /// finds no room if nothing can be reclaimed.
    #[must_use]
    pub fn protected_reserve_bytes(self, bytes: u64) -> Config {
        Config { protected_reserve_bytes: bytes, ..self }
    }

    /// Sets whether a group is [killed](crate::KillHook) before a charge for which nothing can be
    /// reclaimed is refused. Only groups with a hook can be killed.
    #[must_use]
    pub fn oom(self, kills: bool) -> Config {
        Config { oom: kills, ..self }
    }

    /// Sets the time that a group has to end after its kill hook was called: 1 ms to 1 h, 1 s by
    /// default. Until then no other group is killed for the same limit. Charges that find no room
    /// there are refused, or wait if they have a deadline. Afterwards the next group is chosen.
    #[must_use]
    pub fn kill_patience(self, patience: Duration) -> Config {
        Config { kill_patience: patience, ..self }
    }

    /// Sets whether the time is counted for which threads are stalled for memory:
    /// [`Group::pressure`](crate::Group::pressure). It costs a change of [`scope`](crate::scope)
    /// two stores and a load. Without it, all pressure is zero.
    #[must_use]
    pub fn pressure(self, counted: bool) -> Config {
        Config { pressure: counted, ..self }
    }

    /// Returns the subsystems that a hierarchy begins with, in the order of their numbers.
    pub(crate) fn builtin(&self) -> &'static [Subsystem] {
        #[cfg(memgroup_loom)]
        return self.builtin;
        #[cfg(not(memgroup_loom))]
        return &builtin::ALL;
    }

    pub(crate) fn checked(self) -> Result<Config, ConfigError> {
        let out_of_range = |setting, value, allowed| {
            Err(ConfigError { reason: Reason::OutOfRange { setting, value, allowed } })
        };
        if !(1..=GROUPS_LARGEST).contains(&self.groups_max) {
            return out_of_range("groups_max", self.groups_max.into(), "1 to 16777216");
        }
        if !(1..=DEPTH_LARGEST).contains(&self.depth_max) {
            return out_of_range("depth_max", self.depth_max.into(), "1 to 256");
        }
        if self.scope_time_of > SAMPLED_MOST {
            return out_of_range("scope_time_sampled", self.scope_time_of.into(), "0 to 65536");
        }
        if self.stock_cap_bytes > LARGEST_CAP {
            return out_of_range("stock_cap_bytes", self.stock_cap_bytes, "0 to 8 MiB");
        }
        if self.protected_reserve_bytes > LARGEST_RESERVE {
            return out_of_range("protected_reserve_bytes", self.protected_reserve_bytes, "0 to 512 GiB");
        }
        for (setting, patience) in [
            ("kill_patience, in us,", self.kill_patience),
            ("reclaim_patience, in us,", self.reclaim_patience),
        ] {
            if !PATIENCES.contains(&patience) {
                let micros = u64::try_from(patience.as_micros()).unwrap_or(u64::MAX);
                return out_of_range(setting, micros, "1000 to 3600000000");
            }
        }
        Ok(self)
    }

    /// Returns the configuration of the per-CPU memory for this number of slots.
    pub(crate) fn arena(&self, slots: usize) -> ArenaConfig {
        ArenaConfig::new(slots).page(self.page_size).float_bytes(self.float_bytes).decay(self.decay)
    }

    /// Returns the cap as a stock word can hold it: 0 or a power of two.
    pub(crate) fn stock_cap(&self) -> u64 {
        if self.stock_cap_bytes < 2 { 0 } else { 1 << self.stock_cap_bytes.ilog2() }
    }
}

/// The reason why a hierarchy was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    reason: Reason,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Reason {
    OutOfRange {
        setting: &'static str,
        value: u64,
        allowed: &'static str,
    },
    Arena(ArenaError),
    /// The system refused address space for nodes.
    Nodes,
}

impl From<ArenaError> for ConfigError {
    fn from(error: ArenaError) -> ConfigError {
        ConfigError { reason: Reason::Arena(error) }
    }
}

impl ConfigError {
    /// Makes the error for a hierarchy whose root finds no memory.
    pub(crate) fn no_nodes() -> ConfigError {
        ConfigError { reason: Reason::Nodes }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Reason::OutOfRange { setting, value, allowed } => {
                write!(f, "{setting} is {value}; allowed: {allowed}")
            }
            Reason::Arena(error) => error.fmt(f),
            Reason::Nodes => write!(
                f,
                "make the hierarchy: the system refused address space for its groups; raise RLIMIT_AS or vm.max_map_count"
            ),
        }
    }
}

impl std::error::Error for ConfigError {}
