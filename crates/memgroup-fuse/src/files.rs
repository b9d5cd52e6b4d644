//! Files of a group, by name and by number. The engine defines them; this module adds their modes,
//! and the special behaviour of some descriptors.

use std::sync::Arc;

use memgroup::{GroupFile, Hierarchy};
use parking_lot::RwLock;

/// What a file does beyond being a text of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Nothing.
    Plain,
    /// A poll waits for events of the group and the groups below it.
    Events,
    /// A poll waits for events of the group itself.
    EventsLocal,
    /// A poll waits until the group becomes populated with memory, or empty.
    Populated,
    /// A write resets the peak for its descriptor.
    Peak,
    /// A write sets a trigger for its descriptor, and a poll waits for that.
    Pressure,
    /// A write may take long.
    Reclaim,
    /// A bound on the groups below its group. The file belongs to the owner of the directory above.
    Bound,
}

/// A file that every group has.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// The permissions of a new group's file.
    pub(crate) mode: u16,
}

impl File {
    fn new(file: GroupFile) -> File {
        let kind = match file.name.as_str() {
            "memory.events" => Kind::Events,
            "memory.events.local" => Kind::EventsLocal,
            "cgroup.events" => Kind::Populated,
            "memory.peak" => Kind::Peak,
            "memory.pressure" => Kind::Pressure,
            "memory.reclaim" => Kind::Reclaim,
            "cgroup.max.descendants" | "cgroup.max.depth" => Kind::Bound,
            _ => Kind::Plain,
        };
        let is_writable = file.writable || matches!(kind, Kind::Peak | Kind::Pressure);
        let mode = if file.readable { 0o444 } else { 0 } | if is_writable { 0o200 } else { 0 };
        File { name: file.name, kind, mode }
    }
}

/// The files of all groups of one hierarchy. Registered subsystems add files while it is mounted.
pub(crate) struct Files {
    hierarchy: Hierarchy,
    known: RwLock<Vec<Arc<File>>>,
}

impl Files {
    pub(crate) fn of(hierarchy: &Hierarchy) -> Files {
        let files = Files { hierarchy: hierarchy.clone(), known: RwLock::default() };
        files.refresh();
        files
    }

    /// Adds the files of subsystems that were registered since the last call. Files keep their
    /// positions.
    fn refresh(&self) {
        let now = self.hierarchy.files();
        let mut known = self.known.write();
        let new = now.into_iter().skip(known.len()).map(|file| Arc::new(File::new(file)));
        known.extend(new);
    }

    /// Returns the file with this number, which is 1 or more.
    pub(crate) fn get(&self, number: u8) -> Option<Arc<File>> {
        let known = self.known.read();
        known.get(usize::from(number).checked_sub(1)?).cloned()
    }

    /// Returns the file with this name, and its number.
    pub(crate) fn find(&self, name: &str) -> Option<(u8, Arc<File>)> {
        let look = || {
            let known = self.known.read();
            let at = known.iter().position(|file| file.name == name)?;
            Some((u8::try_from(at + 1).ok()?, Arc::clone(&known[at])))
        };
        look().or_else(|| {
            // Subsystems have only files with this ending.
            name.ends_with(".stat").then(|| self.refresh());
            look()
        })
    }

    /// Returns all files with their numbers.
    pub(crate) fn list(&self) -> impl Iterator<Item = (u8, Arc<File>)> {
        self.refresh();
        let known = self.known.read().clone();
        (1..=u8::MAX).zip(known)
    }
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, Stat, Subsystem};

    use super::*;

    #[test]
    fn have_the_modes_of_the_kernel() {
        let files = Files::of(&Hierarchy::new(Config::new()).unwrap());
        for (name, mode) in [
            ("memory.current", 0o444),
            ("memory.max", 0o644),
            ("memory.peak", 0o644),
            ("memory.pressure", 0o644),
            ("memory.reclaim", 0o200),
            ("memory.events", 0o444),
            ("memory.stat", 0o444),
            ("cgroup.procs", 0o644),
            ("cgroup.controllers", 0o444),
            ("cgroup.subtree_control", 0o644),
            ("cgroup.type", 0o644),
            ("cgroup.max.descendants", 0o644),
            ("cgroup.max.depth", 0o644),
        ] {
            assert_eq!(files.find(name).unwrap().1.mode, mode, "{name}");
        }
    }

    #[test]
    fn find_a_subsystem_that_is_registered_later() {
        const LATE: Subsystem = Subsystem { name: "late", stats: &[Stat::count("hits")] };
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let files = Files::of(&hierarchy);
        let before = files.list().count();
        assert!(files.find("late.stat").is_none());
        hierarchy.register(LATE).unwrap();
        let (number, file) = files.find("late.stat").unwrap();
        assert_eq!((usize::from(number), file.mode, files.list().count()), (before + 1, 0o444, before + 1));
        assert_eq!(files.get(number).unwrap().name, "late.stat");
        assert!(files.get(0).is_none() && files.get(255).is_none());
    }
}
