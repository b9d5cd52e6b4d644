//! The seed's script against the running kernel: the same groups, made and removed as memory cgroups.
//!
//! `Percpu:` of `/proc/meminfo` is the whole system's, as in the letters; the rest of the machine had better be at rest.
//!
//! - I1. The groups lie below one of our own, which is removed when the script ends, fails, panics or is interrupted.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::calls::Calls;
use super::cgroup::{Controller, OwnGroup};
use super::script::Script;
use crate::Error;
use crate::harness::interrupt::Watch;

/// How often a wait looks whether it was interrupted.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What the kernel's script showed; sizes in kB, of all per-CPU memory of the machine.
#[derive(Debug, Clone)]
pub(super) struct Anchor {
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

impl Anchor {
    /// The size after the last wait, in which the kernel gave back what it would.
    pub(super) fn maintained(&self) -> f64 {
        self.waited.last().map_or(self.removed, |&(_, kb)| kb)
    }

    pub(super) fn kept_percent(&self) -> f64 {
        100.0 * self.maintained() / self.created
    }
}

/// How it ended.
pub(super) enum Outcome {
    Measured(Box<Anchor>),
    /// Why not, in one line.
    NotHere(String),
}

/// Runs the script, reading the size after each of `waits`, which count from the removal on.
///
/// # Errors
/// Only when it was interrupted and the process survived the signal.
pub(super) fn run(script: Script, waits: &[Duration]) -> Result<Outcome, Error> {
    let watch = Watch::begin()?;
    let ended = attempt(script, waits, &watch);
    if let Some(interruption) = watch.interruption() {
        drop(watch);
        interruption.die();
        let source = std::io::ErrorKind::Interrupted.into();
        return Err(Error::System { what: "finish the script against the kernel".to_owned(), source });
    }
    Ok(ended.map_or_else(Outcome::NotHere, |anchor| Outcome::Measured(Box::new(anchor))))
}

fn attempt(script: Script, waits: &[Duration], watch: &Watch) -> Result<Anchor, String> {
    let controller = Controller::find()?;
    if controller.sweep() {
        // The kernel frees what was left in its own time.
        wait_until(Instant::now() + waits.last().copied().unwrap_or_default(), watch)?;
    }
    let start = percpu_kb()?;
    let group = controller.own_group()?;
    let (mut mkdirs, mut rmdirs) = (Vec::new(), Vec::new());
    for name in script.in_order() {
        timed(&mut mkdirs, &group, &name, watch, |path| fs::create_dir(path))?;
    }
    let created = percpu_kb()?;
    for name in script.short_lived() {
        timed(&mut rmdirs, &group, &name, watch, |path| fs::remove_dir(path))?;
    }
    let (removed, since) = (percpu_kb()?, Instant::now());
    let mut waited = Vec::new();
    for &wait in waits {
        wait_until(since + wait, watch)?;
        waited.push((wait.as_secs(), percpu_kb()?));
    }
    for name in script.long_lived() {
        timed(&mut rmdirs, &group, &name, watch, |path| fs::remove_dir(path))?;
    }
    group.remove()?;
    let all_removed = percpu_kb()?;
    wait_until(Instant::now() + waits.first().copied().unwrap_or_default(), watch)?;
    let at_rest = percpu_kb()?;
    let (Some(mkdir), Some(rmdir)) = (Calls::of(&mkdirs), Calls::of(&rmdirs)) else {
        return Err("the script has no groups".to_owned());
    };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    let interface = controller.version.name();
    Ok(Anchor { interface, release, start, created, removed, waited, all_removed, at_rest, mkdir, rmdir })
}

fn timed(
    times_us: &mut Vec<f64>,
    group: &OwnGroup,
    name: &str,
    watch: &Watch,
    change: impl Fn(&Path) -> std::io::Result<()>,
) -> Result<(), String> {
    stop_if_interrupted(watch)?;
    let path = group.child(name);
    let begin = Instant::now();
    let done = change(&path);
    times_us.push(begin.elapsed().as_nanos() as f64 / 1e3);
    done.map_err(|why| format!("group {} of the script: {}: {why}", times_us.len(), path.display()))
}

fn wait_until(end: Instant, watch: &Watch) -> Result<(), String> {
    while Instant::now() < end {
        thread::sleep(LOOK_EVERY);
        stop_if_interrupted(watch)?;
    }
    Ok(())
}

fn stop_if_interrupted(watch: &Watch) -> Result<(), String> {
    match watch.interruption() {
        Some(_) => Err("interrupted".to_owned()),
        None => Ok(()),
    }
}

fn percpu_kb() -> Result<f64, String> {
    let text =
        fs::read_to_string("/proc/meminfo").map_err(|why| format!("/proc/meminfo cannot be read: {why}"))?;
    percpu_of(&text).ok_or_else(|| "/proc/meminfo has no line Percpu:".to_owned())
}

fn percpu_of(meminfo: &str) -> Option<f64> {
    meminfo
        .lines()
        .find_map(|line| line.strip_prefix("Percpu:"))?
        .split_ascii_whitespace()
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percpu_is_read_from_meminfo() {
        assert_eq!(percpu_of("MemTotal: 1 kB\nPercpu:             7488 kB\nHugetlb: 0 kB\n"), Some(7488.0));
        assert_eq!(percpu_of("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn the_script_runs_against_this_kernel_or_says_why_not() {
        let script = Script { outer: 3, inner: 2 };
        match run(script, &[Duration::ZERO]).unwrap() {
            Outcome::Measured(anchor) => {
                assert_eq!((anchor.mkdir.us.count, anchor.rmdir.us.count), (9, 9));
                assert!(anchor.start > 0.0 && anchor.waited.len() == 1);
                let root = Controller::find().unwrap().root;
                assert!(!root.join(format!("memgroup-lab-{}", std::process::id())).exists());
            }
            Outcome::NotHere(why) => {
                eprintln!("skipped: {why}");
                assert!(!why.is_empty() && !why.contains('\n'), "{why}");
            }
        }
    }
}
