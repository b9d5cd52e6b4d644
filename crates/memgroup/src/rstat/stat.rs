//! What a subsystem is made of: names and kinds. Plain values.

use core::fmt;

use memgroup_percpu::ArenaError;

use super::SUBSYSTEMS_MAX;

/// The most statistics of one subsystem.
const STATS_MAX: usize = 4000;
/// The longest name of a subsystem or a statistic, in bytes.
const NAME_MAX: usize = 64;

/// How a statistic's values are to be read. All are of 64 bits with a sign, and wrap beyond ±2^63; for a [`Time`](StatKind::Time) that is
/// after 292 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StatKind {
    /// A number of things, or of bytes, that only grows.
    Count,
    /// A level, in bytes or in things, which rises and falls.
    ///
    /// Whoever raises a group's gauge lowers it again at the same group, before that goes: what is left when the group is released stays in
    /// the groups above, and nobody can take it from there.
    Gauge,
    /// Time that only grows: fed in nanoseconds, read in microseconds, rounded down.
    Time,
}

/// One statistic of a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stat {
    name: &'static str,
    kind: StatKind,
}

impl Stat {
    /// A number that only grows.
    pub const fn count(name: &'static str) -> Stat {
        Stat { name, kind: StatKind::Count }
    }

    /// A level, in bytes or in things; see [`StatKind::Gauge`] for what becomes of it when a group goes.
    pub const fn gauge(name: &'static str) -> Stat {
        Stat { name, kind: StatKind::Gauge }
    }

    /// Time spent; by custom the name ends in `_usec`.
    pub const fn time(name: &'static str) -> Stat {
        Stat { name, kind: StatKind::Time }
    }

    /// Its name, the key of its line in the text form.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Its kind.
    pub const fn kind(&self) -> StatKind {
        self.kind
    }
}

/// A subsystem to be [registered](crate::Hierarchy::register): a name, and statistics that are flushed together.
///
/// Names and statistics are `'static`, as those of a constant are; what is put together at run time is leaked, once, as it is registered for
/// good.
///
/// ```
/// use memgroup::{Config, Freshness, Hierarchy, Reach, Stat, Subsystem};
///
/// const HITS: usize = 0;
/// const HELD: usize = 1;
/// const CACHE: Subsystem = Subsystem { name: "cache", stats: &[Stat::count("hits"), Stat::gauge("held")] };
///
/// let hierarchy = Hierarchy::new(Config::new())?;
/// let tenant = hierarchy.create("/tenant")?;
/// let cache = hierarchy.register(CACHE)?;
/// cache.add(&tenant, HITS, 3);
/// cache.add(&tenant, HELD, 4096);
/// cache.add(&tenant, HELD, -96);
/// let mut values = [0; 2];
/// cache.read(&hierarchy.root(), Reach::Subtree, Freshness::Fresh, &mut values);
/// assert_eq!(values, [3, 4000]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subsystem {
    /// Letters, digits, `_`, `-`, `.` and `:`; at most 64 of them.
    pub name: &'static str,
    /// Its statistics, numbered from 0 in this order; 1 to 4,000, each with a name of its own.
    pub stats: &'static [Stat],
}

impl Subsystem {
    pub(super) fn check(&self) -> Result<(), RegisterError> {
        let wrong = |reason| Err(RegisterError { name: self.name, reason });
        let bad =
            [self.name].into_iter().chain(self.stats.iter().map(Stat::name)).find(|name| !is_name(name));
        if let Some(name) = bad {
            return wrong(Reason::Name(name));
        }
        if !(1..=STATS_MAX).contains(&self.stats.len()) {
            return wrong(Reason::Stats(self.stats.len()));
        }
        let mut names: Vec<_> = self.stats.iter().map(Stat::name).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(twice) => wrong(Reason::Twice(twice[0])),
            None => Ok(()),
        }
    }

    pub(super) fn refuse(&self, reason: Reason) -> RegisterError {
        RegisterError { name: self.name, reason }
    }
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(allowed)
}

/// Why a subsystem was not registered; nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterError {
    name: &'static str,
    reason: Reason,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Name(&'static str),
    Stats(usize),
    Twice(&'static str),
    Exists,
    TooMany,
    Arena(ArenaError),
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name;
        write!(f, "failed to register the subsystem {name:?}: ")?;
        match &self.reason {
            Reason::Name(bad) => write!(
                f,
                "the name {bad:?} must be 1 to {NAME_MAX} letters, digits, underscores, hyphens, dots or colons"
            ),
            Reason::Stats(0) => write!(f, "it has no statistic; 1 to {STATS_MAX} are allowed"),
            Reason::Stats(count) => write!(f, "it has {count} statistics; 1 to {STATS_MAX} are allowed"),
            Reason::Twice(stat) => write!(f, "two of its statistics have the name {stat:?}"),
            Reason::Exists => f.write_str("one of this name is there already, with other statistics"),
            Reason::TooMany => write!(
                f,
                "the hierarchy has all the {SUBSYSTEMS_MAX} subsystems there can be, the built-in ones included"
            ),
            Reason::Arena(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RegisterError {}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::{Stat, Subsystem};

    fn refused(name: &'static str, stats: &'static [Stat]) -> String {
        Subsystem { name, stats }.check().unwrap_err().to_string()
    }

    #[test]
    fn what_would_spoil_the_text_form_is_no_name() {
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
    fn a_subsystem_has_statistics_and_not_too_many_and_none_twice() {
        assert!(refused("s", &[]).ends_with("it has no statistic; 1 to 4000 are allowed"));
        const TWICE: &[Stat] = &[Stat::count("a"), Stat::count("b"), Stat::gauge("a")];
        let many: &'static [Stat] = vec![Stat::count("a"); 4001].leak();
        assert!(refused("s", many).ends_with("it has 4001 statistics; 1 to 4000 are allowed"));
        assert!(refused("s", TWICE).ends_with("two of its statistics have the name \"a\""));
    }
}
