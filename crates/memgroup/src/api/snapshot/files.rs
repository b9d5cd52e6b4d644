//! Files: the settings and figures of a group as cgroup v2's files, read and written. One table
//! has them all.
//!
//! A new setting is a field of [`Limits`], a line in `Limits::of`, and a line in `TABLE`. Any
//! other new file is a line in `TABLE`.

mod error;

use core::fmt;
use core::fmt::Write as _;
use core::str::FromStr;

pub use error::{FileError, FileProblem};

use crate::api::bounds;
use crate::api::statistics;
use crate::base::limit::{BYTES_MAX, parse_bytes, start};
use crate::counter::events::Events;
use crate::state::stats::Reach;
use crate::stats::flush;
use crate::tree::entries::Bounds;
use crate::tree::handle::{Group, Hierarchy};
use crate::tree::listing::Listing;

/// Rounds of reclaim in a row that free nothing, while other threads reclaim too, after which a
/// write to `memory.reclaim` ends.
const FRUITLESS_MOST: u32 = 16;

/// The longest text that a file takes, in bytes.
const TEXT_MAX: usize = 4096;

/// Settings of a group. A limit in bytes is `None` without a limit, as `max` in its file.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Limits {
    /// The most bytes that the group may use.
    pub max_bytes: Option<u64>,
    /// Bytes above which its threads are slowed down.
    pub high_bytes: Option<u64>,
    /// Bytes that are reclaimed only when no unprotected ones are left. `None` for all its bytes.
    pub low_bytes: Option<u64>,
    /// Bytes that are never reclaimed. `None` for all its bytes.
    pub min_bytes: Option<u64>,
    /// Whether the group and all groups below it are killed together.
    pub oom_group: bool,
    /// Rank as a victim, -1000 to 1000. The highest is killed first.
    pub oom_score: i32,
    /// Rank among charges that wait, 1 to 10,000. The highest is served first.
    pub weight: u32,
    /// Factor of the fair shares of the groups right below; 0 where they have none.
    pub share: u32,
    /// Whether the `min` of each group right below is kept free for it.
    pub reserve_min: bool,
    /// Whether `max` refuses charges. If not, it only counts those that it would have refused.
    pub enforced: bool,
    /// The most groups below it, on all levels. `None` without a bound.
    pub max_descendants: Option<u32>,
    /// The most levels of groups below it. `None` without a bound.
    pub max_depth: Option<u32>,
}

/// The settings of a new group.
impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_bytes: None,
            high_bytes: None,
            low_bytes: Some(0),
            min_bytes: Some(0),
            oom_group: false,
            oom_score: 0,
            weight: 100,
            share: 0,
            reserve_min: false,
            enforced: true,
            max_descendants: None,
            max_depth: None,
        }
    }
}

impl Limits {
    pub(crate) fn of(group: &Group, bounds: Bounds) -> Limits {
        Limits {
            max_bytes: group.max(),
            high_bytes: group.high(),
            low_bytes: protection(group.low()),
            min_bytes: protection(group.min()),
            oom_group: group.oom_group(),
            oom_score: group.oom_score(),
            weight: group.weight(),
            share: group.share().unwrap_or(0),
            reserve_min: group.reserves_min(),
            enforced: group.is_enforced(),
            max_descendants: bounds::given(bounds.descendants),
            max_depth: bounds::given(bounds.depth),
        }
    }
}

/// Makes the text of a file.
type Read = fn(&Group) -> String;

/// Applies a text that is written to a file of a group.
type Write = fn(&Group, &str) -> Result<(), FileProblem>;

/// A file of a group.
#[derive(Clone, Copy)]
struct File {
    name: &'static str,
    /// `None` where it can only be written.
    read: Option<Read>,
    /// `None` where it can only be read.
    write: Option<Write>,
}

const fn setting(name: &'static str, read: Read, write: Write) -> File {
    File { name, read: Some(read), write: Some(write) }
}

const fn read_only(name: &'static str, read: Read) -> File {
    File { name, read: Some(read), write: None }
}

const TABLE: &[File] = &[
    setting("memory.max", |g| limit(g.max()), |g, text| set(g.set_max(bytes(text)?))),
    setting("memory.high", |g| limit(g.high()), |g, text| set(g.set_high(bytes(text)?))),
    setting(
        "memory.low",
        |g| limit(protection(g.low())),
        |g, text| set(g.set_low(bytes(text)?.unwrap_or(BYTES_MAX))),
    ),
    setting(
        "memory.min",
        |g| limit(protection(g.min())),
        |g, text| set(g.set_min(bytes(text)?.unwrap_or(BYTES_MAX))),
    ),
    setting(
        "memory.oom.group",
        |g| flag(g.oom_group()),
        |g, text| yes_or_no(text).map(|as_a_whole| g.set_oom_group(as_a_whole)),
    ),
    setting(
        "memory.share",
        |g| line(g.share().unwrap_or(0)),
        |g, text| set(g.set_share(Some(number(text, "from 0 to 1024")?).filter(|&factor| factor > 0))),
    ),
    setting(
        "memgroup.reserve_min",
        |g| flag(g.reserves_min()),
        |g, text| set(g.set_reserve_min(yes_or_no(text)?)),
    ),
    setting(
        "memgroup.oom_score",
        |g| line(g.oom_score()),
        |g, text| set(g.set_oom_score(number(text, "from -1000 to 1000")?)),
    ),
    setting(
        "memgroup.weight",
        |g| line(g.weight()),
        |g, text| set(g.set_weight(number(text, "from 1 to 10000")?)),
    ),
    setting(
        "memgroup.enforced",
        |g| flag(g.is_enforced()),
        |g, text| yes_or_no(text).map(|enforced| g.set_enforced(enforced)),
    ),
    read_only("memory.current", |g| line(g.usage())),
    read_only("memory.peak", |g| line(g.peak())),
    read_only("memory.events", |g| events(&g.events())),
    read_only("memory.events.local", |g| events(&g.events_local())),
    read_only("memory.pressure", |g| g.pressure().to_string()),
    File { name: "memory.reclaim", read: None, write: Some(reclaim) },
    read_only("cgroup.controllers", controllers),
    // All subsystems are on in every group.
    setting("cgroup.subtree_control", controllers, turn_on),
    setting(
        "cgroup.type",
        |_| line("domain"),
        |_, text| match text.trim() {
            "threaded" => Err(FileProblem::Unsupported("a group has no threads, so it cannot be threaded")),
            _ => Err(FileProblem::Text(format!(
                "{:?} is no type that can be set; every group is a domain",
                start(text)
            ))),
        },
    ),
    setting(
        "cgroup.max.descendants",
        |g| limit(bounds::given(g.bounds().descendants)),
        |g, text| number_or_max(text).map(|max| g.set_max_descendants(max)),
    ),
    setting(
        "cgroup.max.depth",
        |g| limit(bounds::given(g.bounds().depth)),
        |g, text| number_or_max(text).map(|max| g.set_max_depth(max)),
    ),
    setting("cgroup.procs", |_| String::new(), no_members),
    setting("cgroup.threads", |_| String::new(), no_members),
    // The key `frozen` belongs to the file, although no group is ever frozen.
    read_only("cgroup.events", |g| format!("populated {}\nfrozen 0\n", u8::from(g.usage_exact() > 0))),
    read_only("cgroup.stat", |g| {
        let listing = Listing::of(g);
        let dying = listing.groups.iter().skip(1).filter(|listed| listed.removed.is_some()).count();
        let online = listing.groups.len() - 1 - dying;
        format!("nr_descendants {online}\nnr_dying_descendants {dying}\n")
    }),
    read_only("memory.stat", |g| stat(g, "memory").unwrap_or_default()),
    read_only("cpu.stat", |g| stat(g, "cpu").unwrap_or_default()),
    read_only("io.stat", |g| stat(g, "io").unwrap_or_default()),
];

/// Names of the files that every group has, `memory.max` first. A registered subsystem adds
/// `<name>.stat`.
pub const FILES: &[&str] = &{
    let mut names = [""; TABLE.len()];
    let mut at = 0;
    while at < TABLE.len() {
        names[at] = TABLE[at].name;
        at += 1;
    }
    names
};

fn find(name: &str) -> Option<&'static File> {
    TABLE.iter().find(|file| file.name == name)
}

fn line(number: impl fmt::Display) -> String {
    format!("{number}\n")
}

fn limit(most: Option<impl fmt::Display>) -> String {
    most.map_or_else(|| line("max"), line)
}

fn flag(is_set: bool) -> String {
    line(u8::from(is_set))
}

fn events(events: &Events) -> String {
    let mut text = String::new();
    for (key, count) in events.pairs() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{key} {count}");
    }
    text
}

/// Bytes of a protection; `None` for all bytes of the group.
fn protection(bytes: u64) -> Option<u64> {
    Some(bytes).filter(|&bytes| bytes < BYTES_MAX)
}

/// The names of the subsystems.
fn subsystems(group: &Group) -> Vec<&'static str> {
    group.node().shared().statistics.registered().map(|(subsystem, _)| subsystem.name).collect()
}

fn controllers(group: &Group) -> String {
    subsystems(group).join(" ") + "\n"
}

/// The text of the statistics of one subsystem.
fn stat(group: &Group, name: &str) -> Option<String> {
    let mut registered = group.node().shared().statistics.registered();
    let (subsystem, store) = registered.find(|(subsystem, _)| subsystem.name == name)?;
    let mut values = vec![0; subsystem.stats.len()];
    flush::refresh(store, group.node());
    group.node().entry(store).flushed().copy(Reach::Subtree, &mut values);
    subsystem.to_units(&mut values);
    Some(statistics::text(subsystem, &values))
}

/// A file that all groups of a hierarchy have; from [`Hierarchy::files`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupFile {
    /// Its name.
    pub name: String,
    /// Whether it can be read.
    pub readable: bool,
    /// Whether it can be written.
    pub writable: bool,
}

/// Files of cgroup v2.
impl Hierarchy {
    /// The files that each group has now: [`FILES`] in their order, and then those of registered
    /// subsystems. A subsystem is never taken away, so a file keeps its position.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let files = hierarchy.files();
    /// assert!(files.iter().any(|file| file.name == "memory.max" && file.readable && file.writable));
    /// assert!(files.iter().any(|file| file.name == "memory.reclaim" && !file.readable));
    /// ```
    pub fn files(&self) -> Vec<GroupFile> {
        let of = |file: &File| GroupFile {
            name: file.name.to_owned(),
            readable: file.read.is_some(),
            writable: file.write.is_some(),
        };
        let own = self.subsystems().into_iter().map(|name| format!("{name}.stat"));
        let own = own.filter(|name| find(name).is_none());
        let own = own.map(|name| GroupFile { name, readable: true, writable: false });
        TABLE.iter().map(of).chain(own).collect()
    }
}

fn bytes(text: &str) -> Result<Option<u64>, FileProblem> {
    set(parse_bytes(text))
}

fn yes_or_no(text: &str) -> Result<bool, FileProblem> {
    match text.trim() {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(FileProblem::Text(format!(
            "{:?} is neither 0 nor 1; write 1 for yes, or 0 for no",
            start(text)
        ))),
    }
}

fn number<T: FromStr>(text: &str, range: &str) -> Result<T, FileProblem> {
    text.trim()
        .parse()
        .map_err(|_| FileProblem::Text(format!("{:?} is no whole number {range}", start(text))))
}

fn number_or_max(text: &str) -> Result<Option<u32>, FileProblem> {
    match text.trim() {
        "max" => Ok(None),
        _ => number(text, "from 0 to 4294967295, or max for no bound").map(Some),
    }
}

fn set<T, E: fmt::Display>(result: Result<T, E>) -> Result<T, FileProblem> {
    result.map_err(|error| FileProblem::Text(error.to_string()))
}

/// `cgroup.subtree_control`: takes the names of subsystems, which are on already, as `+memory`.
fn turn_on(group: &Group, text: &str) -> Result<(), FileProblem> {
    let known = subsystems(group);
    for word in text.split_whitespace() {
        let is_known = |name| known.contains(&name);
        if word.strip_prefix('-').is_some_and(is_known) {
            return Err(FileProblem::Unsupported("the subsystems of a hierarchy are on in every group"));
        }
        if !word.strip_prefix('+').is_some_and(is_known) {
            let known = known.join(", +");
            return Err(FileProblem::Text(format!(
                "{:?} turns no subsystem on; can be written: +{known}",
                start(word)
            )));
        }
    }
    Ok(())
}

/// `cgroup.procs` and `cgroup.threads`.
fn no_members(_: &Group, _: &str) -> Result<(), FileProblem> {
    Err(FileProblem::Unsupported(
        "a group has no processes and no threads; the program charges memory to it, or enters its scope",
    ))
}

/// `memory.reclaim`: has caches free this many bytes. Stocks do not count, because a drain frees
/// no memory.
fn reclaim(group: &Group, text: &str) -> Result<(), FileProblem> {
    let mut words = text.split_whitespace();
    let asked_bytes = bytes(words.next().unwrap_or_default())?;
    let wrong = if let Some(more) = words.next() {
        format!(
            "{:?} says {:?} after the number of bytes: nothing is swapped here, so write the number alone",
            start(text),
            start(more)
        )
    } else if let Some(asked_bytes) = asked_bytes {
        return reclaim_bytes(group, asked_bytes);
    } else {
        "\"max\" is no number of bytes that could be freed; write digits with an optional K, M, G or T (powers of two)"
            .to_owned()
    };
    Err(FileProblem::Text(wrong))
}

fn reclaim_bytes(group: &Group, asked_bytes: u64) -> Result<(), FileProblem> {
    let (mut freed_bytes, mut fruitless) = (0, 0);
    while freed_bytes < asked_bytes && fruitless < FRUITLESS_MOST {
        let round = group.reclaim(asked_bytes - freed_bytes, None);
        freed_bytes += round.bytes;
        if round.bytes > 0 {
            fruitless = 0;
        } else if round.busy > 0 {
            fruitless += 1;
            std::thread::yield_now();
        } else {
            break;
        }
        // A removed group keeps its caches for their owners.
        if !group.is_online() {
            break;
        }
    }
    if freed_bytes < asked_bytes { Err(FileProblem::Short { asked_bytes, freed_bytes }) } else { Ok(()) }
}

/// Files of cgroup v2.
impl Group {
    /// Returns the text of the file with this name as it is now, in the format of cgroup v2;
    /// `None` if there is no such file, or it can only be written.
    ///
    /// [`FILES`] are the names that every group has. A registered subsystem adds `<name>.stat`.
    /// Settings, usage and events are a few loads. A `.stat` file flushes the statistics of its
    /// subsystem. `cgroup.stat` and `cgroup.events` visit the groups below. A removed group can
    /// be read.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let group = hierarchy.create("/tenant").unwrap();
    /// group.set_max(512 << 20).unwrap();
    /// assert_eq!(group.read_file("memory.max").unwrap(), "536870912\n");
    /// assert_eq!(group.read_file("memory.reclaim"), None);
    /// ```
    #[must_use]
    pub fn read_file(&self, name: &str) -> Option<String> {
        match find(name) {
            Some(file) => file.read.map(|read| read(self)),
            None => stat(self, name.strip_suffix(".stat")?),
        }
    }

    /// Applies `text` as writing it to the cgroup v2 file of this name does.
    ///
    /// `memory.max` takes bytes (`512M`) or `max`, as [`set_max`](Group::set_max) does.
    /// `memory.reclaim` takes bytes, makes caches free so many, as [`reclaim`](Group::reclaim)
    /// does, and waits for their callbacks. Blanks around the text are allowed, as `echo`
    /// leaves a newline. A text that is refused changes nothing.
    ///
    /// # Errors
    /// There is no such file, or it can only be read; the text is invalid; or the group was
    /// removed. `memory.reclaim` also fails if fewer bytes were reclaimed than requested, where
    /// the kernel answers `EAGAIN`.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let group = hierarchy.create("/tenant").unwrap();
    /// group.write_file("memory.max", "512M\n").unwrap();
    /// assert_eq!(group.max(), Some(512 << 20));
    /// let error = group.write_file("memory.max", "lots").unwrap_err();
    /// assert!(error.to_string().starts_with("write memory.max of group /tenant: \"lots\" is not a number"));
    /// ```
    pub fn write_file(&self, name: &str, text: &str) -> Result<(), FileError> {
        let written = match find(name).map(|file| file.write) {
            None => Err(FileProblem::Unknown),
            Some(None) => Err(FileProblem::ReadOnly),
            Some(Some(_)) if !self.is_online() => Err(FileProblem::Offline),
            Some(Some(_)) if text.len() > TEXT_MAX => Err(FileProblem::Text(format!(
                "a text of {} bytes, {:?}, is no setting; at most {TEXT_MAX} bytes can be",
                text.len(),
                start(text)
            ))),
            Some(Some(write)) => write(self, text),
        };
        written.map_err(|problem| FileError { path: self.path(), file: start(name), problem })
    }
}
