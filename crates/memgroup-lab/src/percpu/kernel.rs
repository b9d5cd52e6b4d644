//! The seed's script against the running kernel: the same groups, made and removed as memory cgroups.
//!
//! `Percpu:` of `/proc/meminfo` is the whole system's, as in the cover letter; the rest of the machine should be at rest.
//!
//! - I1. Everything made lies below one directory, `memgroup-lab-PID`, at the root of the memory controller's hierarchy. It is
//!   removed when the script ends, fails, panics or is interrupted. Only directories of that name are ever removed.
//! - I2. A directory of a process that is gone was left by a run that was killed; the next run removes it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::script::Script;
use super::{Calls, meminfo_kb};
use crate::harness::prelude::*;

const PREFIX: &str = "memgroup-lab-";
/// A cgroup may be busy for a moment after the last one below it went.
const REMOVAL_TRIES: usize = 20;
/// The pause between two tries, and between two looks for an interruption.
const PAUSE: Duration = Duration::from_millis(50);

/// The script's figures; sizes in kB, of all per-CPU memory of the machine.
#[derive(Debug, Clone)]
pub(super) struct Kernel {
    /// "v1" or "v2".
    pub(super) interface: &'static str,
    pub(super) release: String,
    pub(super) start: f64,
    pub(super) created: f64,
    pub(super) removed: f64,
    /// After each wait: its seconds, and the size then.
    pub(super) waited: Vec<(u64, f64)>,
    pub(super) all_removed: f64,
    /// After the first of the waits, again.
    pub(super) at_rest: f64,
    pub(super) mkdir: Calls,
    pub(super) rmdir: Calls,
}

impl Kernel {
    /// The size after the last wait, in which the kernel gave back its empty pages.
    pub(super) fn maintained(&self) -> f64 {
        self.waited.last().map_or(self.removed, |&(_, kb)| kb)
    }
}

/// Runs the script, reading the size after each of `waits`, which count from the removal on; or says in one line why not.
///
/// # Errors
/// Only when it was interrupted and the process survived the signal.
pub(super) fn run(script: Script, waits: &[Duration]) -> Result<Result<Kernel, String>> {
    let watch = Watch::begin()?;
    let ended = attempt(script, waits, &watch);
    if let Some(signal) = watch.caught() {
        drop(watch);
        send_to_self(signal);
        let interrupted = io::ErrorKind::Interrupted.into();
        return Err(Error::system("finish the script against the kernel")(interrupted));
    }
    Ok(ended)
}

fn attempt(script: Script, waits: &[Duration], watch: &Watch) -> Result<Kernel, String> {
    let controller = Controller::find()?;
    if controller.sweep() {
        // The kernel frees the remains in its own time.
        wait_until(Instant::now() + waits.last().copied().unwrap_or_default(), watch)?;
    }
    let start = percpu_kb()?;
    let group = controller.own_group()?;
    let (mut mkdirs, mut rmdirs) = (Vec::new(), Vec::new());
    for (name, _) in script.names() {
        timed(&mut mkdirs, &group.0.join(name), watch, fs::create_dir)?;
    }
    let created = percpu_kb()?;
    let mut remove = |stay| {
        let mut names = script.names().filter(|(_, stays)| *stays == stay);
        names.try_for_each(|(name, _)| timed(&mut rmdirs, &group.0.join(name), watch, fs::remove_dir))
    };
    remove(false)?;
    let (removed, since) = (percpu_kb()?, Instant::now());
    let mut waited = Vec::new();
    for &wait in waits {
        wait_until(since + wait, watch)?;
        waited.push((wait.as_secs(), percpu_kb()?));
    }
    remove(true)?;
    remove_tree(&group.0).map_err(|why| format!("{} cannot be removed: {why}", group.0.display()))?;
    let all_removed = percpu_kb()?;
    wait_until(Instant::now() + waits.first().copied().unwrap_or_default(), watch)?;
    let at_rest = percpu_kb()?;
    let calls = |times: &[f64]| Calls::of(times).map_err(|why| why.to_string());
    let (mkdir, rmdir) = (calls(&mkdirs)?, calls(&rmdirs)?);
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    let interface = controller.version;
    Ok(Kernel { interface, release, start, created, removed, waited, all_removed, at_rest, mkdir, rmdir })
}

fn timed(
    times_us: &mut Vec<f64>,
    path: &Path,
    watch: &Watch,
    change: fn(PathBuf) -> io::Result<()>,
) -> Result<(), String> {
    stop_if_interrupted(watch)?;
    let (owned, begin) = (path.to_owned(), Instant::now());
    let done = change(owned);
    times_us.push(begin.elapsed().as_nanos() as f64 / 1e3);
    done.map_err(|why| format!("group {} of the script: {}: {why}", times_us.len(), path.display()))
}

fn wait_until(end: Instant, watch: &Watch) -> Result<(), String> {
    while Instant::now() < end {
        thread::sleep(PAUSE);
        stop_if_interrupted(watch)?;
    }
    Ok(())
}

fn stop_if_interrupted(watch: &Watch) -> Result<(), String> {
    watch.caught().map_or(Ok(()), |_| Err("interrupted".to_owned()))
}

fn percpu_kb() -> Result<f64, String> {
    let kb = percpu_of(&read("/proc/meminfo")?);
    kb.ok_or_else(|| "/proc/meminfo has no line Percpu:".to_owned())
}

fn percpu_of(meminfo: &str) -> Option<f64> {
    meminfo_kb(meminfo, "Percpu:").map(|kb| kb as f64)
}

fn read(file: &str) -> Result<String, String> {
    fs::read_to_string(file).map_err(|why| format!("{file} cannot be read: {why}"))
}

/// A mounted hierarchy with the memory controller.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Controller {
    root: PathBuf,
    /// In "v1" each controller has a hierarchy. In "v2" children get a controller only if their parent says so.
    version: &'static str,
}

impl Controller {
    /// Finds the memory controller of this machine, or says in one line why there is none to use.
    fn find() -> Result<Controller, String> {
        Controller::of(&read("/proc/mounts")?, |root| {
            let offered = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            offered.split_ascii_whitespace().any(|controller| controller == "memory")
        })
    }

    /// The same from the text of `/proc/mounts`; `offers_memory` tells whether a mount of v2 has the controller.
    fn of(mounts: &str, offers_memory: impl Fn(&Path) -> bool) -> Result<Controller, String> {
        for line in mounts.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [_, place, kind, options, ..] = words[..] else { continue };
            let root = PathBuf::from(place.replace("\\040", " "));
            let has = |option| options.split(',').any(|one| one == option);
            let version = match kind {
                "cgroup" if has("memory") => "v1",
                "cgroup2" if offers_memory(&root) => "v2",
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
    fn own_group(&self) -> Result<OwnGroup, String> {
        let path = self.root.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path).map_err(|why| format!("{} cannot be made: {why}", path.display()))?;
        let group = OwnGroup(path);
        if self.version == "v2" {
            let control = group.0.join("cgroup.subtree_control");
            fs::write(&control, "+memory")
                .map_err(|why| format!("{} does not take +memory: {why}", control.display()))?;
        }
        Ok(group)
    }

    /// Removes the remains of runs that were killed (I2); whether there were any. A directory that cannot be removed stays.
    fn sweep(&self) -> bool {
        let mut swept = false;
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let maker = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse().ok());
            if maker.is_some_and(is_gone) {
                // The group may be another user's.
                swept |= remove_tree(&entry.path()).is_ok();
            }
        }
        swept
    }
}

/// This process has made no group when it sweeps, so one of its number is an older process's.
fn is_gone(process: u32) -> bool {
    let stat = || fs::read_to_string(Path::new("/proc").join(process.to_string()).join("stat"));
    process == std::process::id() || stat().map_or(true, |stat| has_ended(&stat))
}

/// Whether a process with this `/proc/PID/stat` has ended, and its parent has yet to ask how.
fn has_ended(stat: &str) -> bool {
    // The name before the state may hold any character, brackets too.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().next());
    matches!(state, Some("Z" | "X" | "x"))
}

/// A group that is removed with all groups below it, at the latest on drop.
#[derive(Debug)]
struct OwnGroup(PathBuf);

impl Drop for OwnGroup {
    fn drop(&mut self) {
        // Removed already, or the script has said why not; the next run tries again (I2).
        let _ = remove_tree(&self.0);
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
            Err(why) if why.kind() == io::ErrorKind::ResourceBusy => thread::sleep(PAUSE),
            done => return done,
        }
    }
    fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_percpu_from_meminfo() {
        assert_eq!(percpu_of("MemTotal: 1 kB\nPercpu:             7488 kB\nHugetlb: 0 kB\n"), Some(7488.0));
        assert_eq!(percpu_of("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn runs_the_script_against_this_kernel_or_says_why_not() {
        let script = Script { outer: 3, inner: 2 };
        match run(script, &[Duration::ZERO]).unwrap() {
            Ok(kernel) => {
                assert_eq!((kernel.mkdir.us.count, kernel.rmdir.us.count), (9, 9));
                assert!(kernel.start > 0.0 && kernel.waited.len() == 1);
                let root = Controller::find().unwrap().root;
                assert!(!root.join(format!("memgroup-lab-{}", std::process::id())).exists());
            }
            Err(why) => {
                eprintln!("skipped: {why}");
                assert!(!why.is_empty() && !why.contains('\n'), "{why}");
            }
        }
    }

    fn found(mounts: &str, v2_has_memory: bool) -> Result<(String, &'static str), String> {
        let controller = Controller::of(mounts, |_| v2_has_memory)?;
        Ok((controller.root.display().to_string(), controller.version))
    }

    #[test]
    fn finds_the_memory_controller_among_the_mounts() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
                      cgroup /my\\040groups/memory cgroup rw,relatime,memory 0 0\ncgroup2 /unified cgroup2 rw 0 0\n";
        assert_eq!(found(mounts, false), Ok(("/my groups/memory".to_owned(), "v1")));
        let unified = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        assert_eq!(found(unified, true), Ok(("/sys/fs/cgroup".to_owned(), "v2")));
    }

    #[test]
    fn says_why_a_machine_has_no_controller() {
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
        let controller = Controller { root: dir.path().to_owned(), version: "v1" };
        (dir, controller)
    }

    #[test]
    fn removes_a_group_with_all_below_it_also_in_a_panic() {
        let (dir, controller) = folder();
        let panicked = std::panic::catch_unwind(|| {
            let group = controller.own_group().unwrap();
            fs::create_dir_all(group.0.join("cg_1").join("deeper")).unwrap();
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        assert!(panicked.is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn removes_the_remains_of_a_killed_run_and_nothing_else() {
        let (dir, controller) = folder();
        let beyond_any_pid = format!("{PREFIX}4294967295");
        let running = format!("{PREFIX}1");
        for name in [beyond_any_pid.as_str(), running.as_str(), "memgroup-lab-notes", "other"] {
            fs::create_dir_all(dir.path().join(name).join("cg_1")).unwrap();
        }
        assert!(controller.sweep());
        assert!(!controller.sweep(), "nothing is left to sweep");
        let mut left: Vec<String> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, [running.as_str(), "memgroup-lab-notes", "other"]);
    }

    #[test]
    fn takes_a_process_that_is_not_waited_for_as_gone() {
        assert!(has_ended("7 (memgroup) Z 1 7"));
        assert!(!has_ended("7 (a) Z (b) S 1 7"));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while !is_gone(child.id()) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }

    #[test]
    fn names_a_hierarchy_that_takes_no_group() {
        let controller = Controller { root: "/nowhere/at/all".into(), version: "v1" };
        let why = controller.own_group().unwrap_err();
        assert!(why.starts_with("/nowhere/at/all/memgroup-lab-"), "{why}");
    }
}
