//! Memory cgroups of the running kernel: where they are, and one of our own that goes away whatever happens.
//!
//! - I1. Everything made lies below one directory, `memgroup-lab-PID`, at the root of the memory controller's hierarchy. Only
//!   directories of that name are ever removed.
//! - I2. A directory whose process is gone was left by a run that was killed; the next run removes it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

const PREFIX: &str = "memgroup-lab-";
/// A cgroup may be busy for a moment after the last one below it went.
const REMOVAL_TRIES: usize = 20;
const REMOVAL_PAUSE: Duration = Duration::from_millis(50);

/// A mounted hierarchy with the memory controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Controller {
    pub(super) root: PathBuf,
    pub(super) version: Version,
}

/// The two interfaces of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// One hierarchy for each controller.
    V1,
    /// One hierarchy for all; children get a controller only if their parent says so.
    V2,
}

impl Version {
    pub(super) fn name(self) -> &'static str {
        match self {
            Version::V1 => "v1",
            Version::V2 => "v2",
        }
    }
}

impl Controller {
    /// Finds the memory controller of this machine, or says in one line why there is none to use.
    pub(super) fn find() -> Result<Controller, String> {
        let mounts = fs::read_to_string("/proc/mounts")
            .map_err(|why| format!("/proc/mounts cannot be read: {why}"))?;
        Controller::of(&mounts, |root| {
            let offered = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            offered.split_ascii_whitespace().any(|controller| controller == "memory")
        })
    }

    /// The same from the text of `/proc/mounts`; `offers_memory` tells whether a mount of v2 has the controller.
    fn of(mounts: &str, offers_memory: impl Fn(&Path) -> bool) -> Result<Controller, String> {
        for line in mounts.lines() {
            let mut words = line.split(' ').skip(1);
            let (Some(place), Some(kind), Some(options)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let root = PathBuf::from(place.replace("\\040", " "));
            let has = |option| options.split(',').any(|one| one == option);
            let version = match kind {
                "cgroup" if has("memory") => Version::V1,
                "cgroup2" if offers_memory(&root) => Version::V2,
                _ => continue,
            };
            if has("ro") {
                return Err(format!("the memory controller at {} is mounted read-only", root.display()));
            }
            return Ok(Controller { root, version });
        }
        Err("no memory cgroup controller is mounted".to_owned())
    }

    /// Makes this process's own group and lets its children have the memory controller.
    pub(super) fn own_group(&self) -> Result<OwnGroup, String> {
        let path = self.root.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path).map_err(|why| format!("{} cannot be made: {why}", path.display()))?;
        let group = OwnGroup { path };
        if self.version == Version::V2 {
            let control = group.path.join("cgroup.subtree_control");
            fs::write(&control, "+memory")
                .map_err(|why| format!("{} does not take +memory: {why}", control.display()))?;
        }
        Ok(group)
    }

    /// Removes what runs that were killed left behind (I2); whether there was any. What cannot be removed stays.
    pub(super) fn sweep(&self) -> bool {
        let mut swept = false;
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            if entry.file_name().to_str().and_then(maker).is_some_and(is_gone) {
                // The group may be another user's.
                swept |= remove_tree(&entry.path()).is_ok();
            }
        }
        swept
    }
}

/// The process that made a directory of this name, if one of ours did.
fn maker(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// This process has made no group when it sweeps, so one of its number is an older process's.
fn is_gone(process: u32) -> bool {
    let stat = || fs::read_to_string(Path::new("/proc").join(process.to_string()).join("stat"));
    process == std::process::id() || stat().map_or(true, |stat| has_ended(&stat))
}

/// Whether a process with this `/proc/PID/stat` has ended, and only its parent has not asked how.
fn has_ended(stat: &str) -> bool {
    // The name before the state may hold anything, brackets too.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().next());
    matches!(state, Some("Z" | "X" | "x"))
}

/// A group that is removed with all groups below it, at the latest on drop.
#[derive(Debug)]
pub(super) struct OwnGroup {
    path: PathBuf,
}

impl OwnGroup {
    pub(super) fn child(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Removes the group now, and says in one line what is left if it cannot.
    pub(super) fn remove(self) -> Result<(), String> {
        remove_tree(&self.path).map_err(|why| format!("{} cannot be removed: {why}", self.path.display()))
    }
}

impl Drop for OwnGroup {
    fn drop(&mut self) {
        // Removed already, or `remove` has said why not; the next run tries again (I2).
        let _ = remove_tree(&self.path);
    }
}

fn remove_tree(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    for _ in 1..REMOVAL_TRIES {
        match fs::remove_dir(path) {
            Err(why) if why.kind() == io::ErrorKind::ResourceBusy => thread::sleep(REMOVAL_PAUSE),
            done => return done,
        }
    }
    fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(mounts: &str, v2_has_memory: bool) -> Result<(String, Version), String> {
        let controller = Controller::of(mounts, |_| v2_has_memory)?;
        Ok((controller.root.display().to_string(), controller.version))
    }

    #[test]
    fn the_memory_controller_is_found_among_the_mounts() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
                      cgroup /my\\040groups/memory cgroup rw,relatime,memory 0 0\ncgroup2 /unified cgroup2 rw 0 0\n";
        assert_eq!(found(mounts, false), Ok(("/my groups/memory".to_owned(), Version::V1)));
        let unified = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        assert_eq!(found(unified, true), Ok(("/sys/fs/cgroup".to_owned(), Version::V2)));
    }

    #[test]
    fn a_machine_without_the_controller_says_so() {
        assert_eq!(
            found("cgroup2 /unified cgroup2 rw 0 0\n", false).unwrap_err(),
            "no memory cgroup controller is mounted"
        );
        assert_eq!(
            found("cgroup /c/memory cgroup ro,memory 0 0\n", false).unwrap_err(),
            "the memory controller at /c/memory is mounted read-only"
        );
    }

    /// A plain folder behaves as a hierarchy does, as far as directories go.
    fn folder() -> (tempfile::TempDir, Controller) {
        let dir = tempfile::tempdir().unwrap();
        let controller = Controller { root: dir.path().to_owned(), version: Version::V1 };
        (dir, controller)
    }

    #[test]
    fn a_group_goes_with_all_below_it_when_it_is_dropped_also_in_a_panic() {
        let (dir, controller) = folder();
        let panicked = std::panic::catch_unwind(|| {
            let group = controller.own_group().unwrap();
            fs::create_dir_all(group.child("cg_1").join("deeper")).unwrap();
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        assert!(panicked.is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_killed_run_left_goes_and_nothing_else_does() {
        let (dir, controller) = folder();
        let beyond_any_pid = format!("{PREFIX}4294967295");
        let running = format!("{PREFIX}1");
        for name in [beyond_any_pid.as_str(), running.as_str(), "memgroup-lab-notes", "somebody"] {
            fs::create_dir_all(dir.path().join(name).join("cg_1")).unwrap();
        }
        assert!(controller.sweep());
        assert!(!controller.sweep(), "nothing is left to sweep");
        let mut left: Vec<String> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, [running.as_str(), "memgroup-lab-notes", "somebody"]);
    }

    #[test]
    fn a_process_that_nobody_has_buried_is_gone() {
        assert!(has_ended("7 (memgroup) Z 1 7"));
        assert!(!has_ended("7 (a) Z (b) S 1 7"));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while !is_gone(child.id()) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }

    #[test]
    fn a_hierarchy_that_takes_no_group_is_named() {
        let controller = Controller { root: "/nowhere/at/all".into(), version: Version::V1 };
        let why = controller.own_group().unwrap_err();
        assert!(why.starts_with("/nowhere/at/all/memgroup-lab-"), "{why}");
    }
}
