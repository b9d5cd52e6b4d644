//! Files: a group as cgroup v2's files show it, byte for byte. One table of all files, read and written.

use core::fmt::Write as _;

use super::limits::LIMITS;
use super::model::GroupSnapshot;
use super::write::{self, Refused};
use crate::event::Events;
use crate::group::Group;

/// What writing a text to a file of a group does.
type Write = fn(&Group, &str) -> Result<(), Refused>;

/// A file of a group.
#[derive(Clone, Copy)]
pub(super) struct File {
    pub(super) name: &'static str,
    /// What it shows; `None` where it can only be written.
    pub(super) read: Option<fn(&GroupSnapshot) -> String>,
    /// What writing to it does; `None` where it can only be read.
    pub(super) write: Option<Write>,
}

const fn read_only(name: &'static str, read: fn(&GroupSnapshot) -> String) -> File {
    File { name, read: Some(read), write: None }
}

/// All but the limits.
const OTHERS: &[File] = &[
    read_only("memory.current", |group| line(group.usage_bytes)),
    read_only("memory.peak", |group| line(group.peak_bytes)),
    read_only("memory.events", |group| events(&group.events)),
    read_only("memory.events.local", |group| events(&group.events_local)),
    read_only("memory.pressure", |group| group.pressure.to_string()),
    File { name: "memory.reclaim", read: None, write: Some(write::reclaim) },
    read_only("cgroup.controllers", controllers),
    // Nothing is ever frozen here; the key belongs to the file.
    read_only("cgroup.events", |group| format!("populated {}\nfrozen 0\n", u8::from(group.is_populated()))),
    read_only("cgroup.stat", |group| {
        format!("nr_descendants {}\nnr_dying_descendants {}\n", group.descendants, group.dying_descendants)
    }),
    read_only("memory.stat", |group| stat(group, "memory")),
    read_only("cpu.stat", |group| stat(group, "cpu")),
    read_only("io.stat", |group| stat(group, "io")),
];

const COUNT: usize = LIMITS.len() + OTHERS.len();

const TABLE: [File; COUNT] = {
    let mut table = [OTHERS[0]; COUNT];
    let mut at = 0;
    while at < COUNT {
        table[at] = if at < LIMITS.len() { LIMITS[at] } else { OTHERS[at - LIMITS.len()] };
        at += 1;
    }
    table
};

/// The names of the files that every group has, `memory.max` first. A subsystem that was registered has `<name>.stat` besides.
pub const FILES: &[&str] = &{
    let mut names = [""; COUNT];
    let mut at = 0;
    while at < COUNT {
        names[at] = TABLE[at].name;
        at += 1;
    }
    names
};

/// The file of this name, if every group has it.
pub(super) fn find(name: &str) -> Option<File> {
    TABLE.into_iter().find(|file| file.name == name)
}

/// The names of the files that can be written.
pub(super) fn writable() -> impl Iterator<Item = &'static str> {
    TABLE.into_iter().filter(|file| file.write.is_some()).map(|file| file.name)
}

fn line(number: u64) -> String {
    format!("{number}\n")
}

fn events(events: &Events) -> String {
    let mut text = String::new();
    for (key, count) in events.pairs() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{key} {count}");
    }
    text
}

fn controllers(group: &GroupSnapshot) -> String {
    let names: Vec<&str> = group.subsystems().map(|subsystem| subsystem.name).collect();
    names.join(" ") + "\n"
}

fn stat(group: &GroupSnapshot, subsystem: &str) -> String {
    group.subsystem(subsystem).map(|subsystem| subsystem.text()).unwrap_or_default()
}

impl GroupSnapshot {
    /// What the file of this name shows, in the format of cgroup v2; `None` where there is no such file, or it can only be written. Those that
    /// every group has are [`FILES`]; a subsystem that was registered has `<name>.stat`.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let group = hierarchy.create("/tenant").unwrap();
    /// group.set_max(512 << 20).unwrap();
    /// let snapshot = group.snapshot();
    /// assert_eq!(snapshot.groups[0].file("memory.max").unwrap(), "536870912\n");
    /// assert_eq!(snapshot.groups[0].file("memory.swap.max"), None);
    /// ```
    #[must_use]
    pub fn file(&self, name: &str) -> Option<String> {
        if let Some(file) = find(name) {
            return file.read.map(|read| read(self));
        }
        self.subsystem(name.strip_suffix(".stat")?).map(|subsystem| subsystem.text())
    }

    /// The names of all files of the group, those that can only be written too.
    pub fn files(&self) -> impl Iterator<Item = String> + '_ {
        let own = self.subsystems().map(|subsystem| format!("{}.stat", subsystem.name));
        FILES.iter().map(|&name| name.to_owned()).chain(own.filter(|name| find(name).is_none()))
    }
}
