//! Definition of a subsystem: its name, its statistics and their keys. Plain values.

use core::fmt;

use memgroup_percpu::ArenaError;

use crate::state::stats::SUBSYSTEMS_MAX;

/// The most statistics of one subsystem.
const STATS_MAX: usize = 4000;
/// The longest name of a subsystem or a statistic, in bytes.
const NAME_MAX: usize = 64;

/// Meaning of a statistic's values. Each is a signed 64-bit number that wraps beyond ±2^63.
///
/// A [`Time`](StatKind::Time) reaches that after 292 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StatKind {
    /// Number of things or bytes, which only grows.
    Count,
    /// Level in bytes or things, which rises and falls.
    ///
    /// The code that raises a group's gauge must lower it at the same group before that group is
    /// released. A remainder at the release stays in the groups above, and cannot be taken from
    /// there.
    Gauge,
    /// Time, which only grows: added in nanoseconds, read in microseconds, rounded down.
    Time,
}

/// One statistic of a subsystem: its name and its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stat {
    name: &'static str,
    kind: StatKind,
}

impl Stat {
    /// Defines a number that only grows.
    pub const fn count(name: &'static str) -> Stat {
        Stat { name, kind: StatKind::Count }
    }

    /// Defines a level in bytes or things; see [`StatKind::Gauge`] for the release of its group.
    pub const fn gauge(name: &'static str) -> Stat {
        Stat { name, kind: StatKind::Gauge }
    }

    /// Defines a time; by custom the name ends in `_usec`.
    pub const fn time(name: &'static str) -> Stat {
        Stat { name, kind: StatKind::Time }
    }

    /// Name of the statistic: the key of its line in the text form.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Kind of the statistic.
    pub const fn kind(&self) -> StatKind {
        self.kind
    }
}

/// Key of one statistic: which subsystem it belongs to, and its position there.
///
/// Those of the built-in subsystems are constants in [`stats`](crate::stats). [`Subsystem::key`]
/// makes others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StatKey {
    identity: u64,
    index: u16,
    // A copy, where an addition finds it at once.
    kind: StatKind,
    stat: &'static Stat,
    subsystem: &'static str,
}

impl StatKey {
    /// Name of the subsystem.
    pub const fn subsystem(&self) -> &'static str {
        self.subsystem
    }

    /// The statistic's name and kind.
    pub const fn stat(&self) -> Stat {
        *self.stat
    }

    pub(crate) const fn definition(&self) -> &'static Stat {
        self.stat
    }

    #[inline]
    pub(crate) const fn kind(&self) -> StatKind {
        self.kind
    }

    /// Position of the statistic in its subsystem, and so of its value among all values of a
    /// group.
    #[inline]
    pub const fn index(&self) -> usize {
        self.index as usize
    }

    /// Number that is the same for all keys of one subsystem, and differs between subsystems.
    #[inline]
    pub(crate) const fn identity(&self) -> u64 {
        self.identity
    }
}

/// Definition of a subsystem to [register](crate::Hierarchy::register): a name, and statistics
/// that are flushed together.
///
/// Names and statistics are `'static`. Definitions that are made at run time are leaked, once
/// each, because a subsystem stays registered for the rest of its hierarchy's life.
///
/// ```
/// use memgroup::{Config, Freshness, Hierarchy, Reach, Stat, StatKey, Subsystem};
///
/// const CACHE: Subsystem = Subsystem { name: "cache", stats: &[Stat::count("hits"), Stat::gauge("held")] };
/// const HITS: StatKey = CACHE.key("hits");
/// const HELD: StatKey = CACHE.key("held");
///
/// let hierarchy = Hierarchy::new(Config::new())?;
/// let tenant = hierarchy.create("/tenant")?;
/// let cache = hierarchy.register(CACHE)?;
/// cache.add(&tenant, HITS, 3);
/// cache.add(&tenant, HELD, 4096);
/// cache.add(&tenant, HELD, -96);
/// let mut values = [0; 2];
/// cache.read(&hierarchy.root(), Reach::Subtree, Freshness::Fresh, &mut values);
/// assert_eq!((values[HITS.index()], values[HELD.index()]), (3, 4000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subsystem {
    /// Letters, digits, `_`, `-`, `.` and `:`; at most 64 of them.
    pub name: &'static str,
    /// Its statistics, in the order of their positions; 1 to 4,000, each with a name of its own.
    pub stats: &'static [Stat],
}

impl Subsystem {
    /// Key of the statistic with this name. In a constant a wrong name does not compile.
    ///
    /// # Panics
    /// When there is no such statistic.
    pub const fn key(&self, name: &str) -> StatKey {
        let mut index = 0;
        while index < self.stats.len() {
            if is_same(self.stats[index].name, name) {
                return self.key_at(index, self.identity());
            }
            index += 1;
        }
        panic!("the subsystem has no statistic of this name")
    }

    pub(crate) const fn key_at(&self, index: usize, identity: u64) -> StatKey {
        let stat = &self.stats[index];
        StatKey { identity, index: index as u16, kind: stat.kind, stat, subsystem: self.name }
    }

    /// FNV-1a hash over all names and kinds.
    pub(crate) const fn identity(&self) -> u64 {
        let (mut hash, mut index) = (hash_name(0xcbf2_9ce4_8422_2325, self.name), 0);
        while index < self.stats.len() {
            hash = hash_name(hash, self.stats[index].name) ^ self.stats[index].kind as u64;
            index += 1;
        }
        hash
    }

    /// Converts times from nanoseconds, as they are added, to microseconds. `values` are those of
    /// one group, or of several in turn.
    pub(crate) fn to_units(self, values: &mut [i64]) {
        for (at, _) in self.stats.iter().enumerate().filter(|(_, stat)| stat.kind == StatKind::Time) {
            values.iter_mut().skip(at).step_by(self.stats.len()).for_each(|value| *value /= 1000);
        }
    }

    pub(crate) fn check(&self) -> Result<(), RegisterError> {
        let mut names: Vec<_> = self.stats.iter().map(Stat::name).collect();
        if let Some(name) = [self.name].iter().chain(&names).find(|name| !is_name(name)) {
            return Err(self.refuse(Reason::Name(name)));
        }
        if !(1..=STATS_MAX).contains(&names.len()) {
            return Err(self.refuse(Reason::Stats(names.len())));
        }
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(twice) => Err(self.refuse(Reason::Twice(twice[0]))),
            None => Ok(()),
        }
    }

    pub(crate) fn refuse(&self, reason: Reason) -> RegisterError {
        RegisterError { name: self.name, reason }
    }
}

const fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// Hashes a name and a byte that no name has, which ends it.
const fn hash_name(mut hash: u64, name: &str) -> u64 {
    let mut at = 0;
    while at <= name.len() {
        let byte = if at < name.len() { name.as_bytes()[at] } else { 0xff };
        hash = (hash ^ byte as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(allowed)
}

/// Why a subsystem was not registered. The hierarchy is unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterError {
    name: &'static str,
    reason: Reason,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Name(&'static str),
    Stats(usize),
    Twice(&'static str),
    Exists,
    TooMany,
    OutOfMemory,
    Arena(ArenaError),
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed to register the subsystem {:?}: ", self.name)?;
        match &self.reason {
            Reason::Name(bad) => write!(
                f,
                "the name {bad:?} must be 1 to {NAME_MAX} letters, digits, underscores, hyphens, dots or colons"
            ),
            Reason::Stats(0) => write!(f, "it has no statistic; 1 to {STATS_MAX} are allowed"),
            Reason::Stats(count) => write!(f, "it has {count} statistics; 1 to {STATS_MAX} are allowed"),
            Reason::Twice(stat) => write!(f, "two of its statistics have the name {stat:?}"),
            Reason::Exists => f.write_str("a subsystem of this name has other statistics"),
            Reason::TooMany => write!(
                f,
                "the hierarchy has all the {SUBSYSTEMS_MAX} subsystems it can have, the built-in ones included"
            ),
            Reason::OutOfMemory => f.write_str("the system has no memory for the groups' values"),
            Reason::Arena(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RegisterError {}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::state::stats::stat::{Stat, Subsystem};

    fn refused(name: &'static str, stats: &'static [Stat]) -> String {
        Subsystem { name, stats }.check().unwrap_err().to_string()
    }

    #[test]
    fn refuses_names_that_would_spoil_the_text_form() {
        const ONE: &[Stat] = &[Stat::count("hits")];
        const BAD: &[Stat] = &[Stat::gauge("a\tb")];
        let long: &'static str = "x".repeat(65).leak();
        for name in ["", "a b", "a\nb", "a=b", "ä", long] {
            let text = refused(name, ONE);
            assert!(text.contains(&format!("the name {name:?} must be")), "{text}");
        }
        assert!(Subsystem { name: "cache.l2:a-b_c", stats: ONE }.check().is_ok());
        let text = refused("cache", BAD);
        assert_eq!(
            text,
            "failed to register the subsystem \"cache\": the name \"a\\tb\" must be 1 to 64 letters, digits, \
             underscores, hyphens, dots or colons"
        );
    }

    #[test]
    fn refuses_none_too_many_and_repeated_statistics() {
        assert!(refused("s", &[]).ends_with("it has no statistic; 1 to 4000 are allowed"));
        const TWICE: &[Stat] = &[Stat::count("a"), Stat::count("b"), Stat::gauge("a")];
        let many: &'static [Stat] = vec![Stat::count("a"); 4001].leak();
        assert!(refused("s", many).ends_with("it has 4001 statistics; 1 to 4000 are allowed"));
        assert!(refused("s", TWICE).ends_with("two of its statistics have the name \"a\""));
    }

    #[test]
    fn tells_the_keys_of_similar_subsystems_apart() {
        const COUNTS: &[Stat] = &[Stat::count("a"), Stat::count("b")];
        const ONE: Subsystem = Subsystem { name: "one", stats: COUNTS };
        const OTHERS: [Subsystem; 5] = [
            Subsystem { name: "two", ..ONE },
            Subsystem { name: "one", stats: &[Stat::count("b"), Stat::count("a")] },
            Subsystem { name: "one", stats: &[Stat::count("a"), Stat::gauge("b")] },
            Subsystem { name: "one", stats: &[Stat::count("ab")] },
            Subsystem { name: "onea", stats: &[Stat::count("b")] },
        ];
        assert!(OTHERS.iter().all(|other| other.identity() != ONE.identity()));
        assert_eq!((ONE.key("b").index(), ONE.key("b").stat()), (1, COUNTS[1]));
        assert_eq!(ONE.key("b").identity(), ONE.identity());
    }
}
