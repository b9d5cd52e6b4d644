//! Watcher: compares the charged bytes with those that the process uses, and lowers the root's limit while they do not fit together.
//!
//! ```text
//!   used    ───────────── limit ──────────────────────────────────────────────
//!            ▲ above 15/16:  purge the allocator; lower the root's max by the excess; have caches give back as much
//!           15/16
//!              between: nothing
//!           7/8
//!            ▼ below, eight checks in a row:  raise the root's max by half of the room, up to the user's
//! ```
//!
//! - I1. The root's limit is never raised above the one that the user set. A limit that the user sets meanwhile is the new one.
//! - I2. The lowered limit is the charged bytes less the excess. So further checks of the same excess do not lower it again.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use memgroup::{Group, Hierarchy, Stat, StatKey, Statistics, Subsystem};
use procfs_core::MemoryPressure;
use procfs_core::process::StatM;

use crate::cgroup::Cgroup;
use crate::error::ProcessError;
use crate::files::Files;
use crate::limit::{LimitSource, ProcessLimit, apply};
use crate::system;

/// The part of the limit above which the process uses too much, in sixteenths; and that below which the root's limit rises again.
const UPPER: u64 = 15;
const LOWER: u64 = 14;
const WHOLE: u64 = 16;

/// Checks below the lower mark, one after the other, before the root's limit rises.
const CALM_CHECKS: u32 = 8;

/// The root's limit is not lowered below one over this of the process's.
const FLOOR_PART: u64 = 16;

/// Under pressure caches are asked for one over this of the limit.
const PRESSED_PART: u64 = 64;

/// The share of ten seconds, in percent, in which threads waited for memory of the system, from which the watcher acts.
const PRESSED: f32 = 20.0;

/// The longest that caches are asked by one check.
const RECLAIM: Duration = Duration::from_millis(200);

const SUBSYSTEM: Subsystem = Subsystem {
    name: "process",
    stats: &[
        Stat::gauge("used"),
        Stat::gauge("uncharged"),
        Stat::count("purges"),
        Stat::count("purged"),
        Stat::count("lowered"),
        Stat::count("raised"),
        Stat::count("reclaimed"),
    ],
};
const USED: StatKey = SUBSYSTEM.key("used");
const UNCHARGED: StatKey = SUBSYSTEM.key("uncharged");
const PURGES: StatKey = SUBSYSTEM.key("purges");
const PURGED: StatKey = SUBSYSTEM.key("purged");
const LOWERED: StatKey = SUBSYSTEM.key("lowered");
const RAISED: StatKey = SUBSYSTEM.key("raised");
const RECLAIMED: StatKey = SUBSYSTEM.key("reclaimed");

/// The change that a check made to the root's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// It stayed.
    None,
    /// It was lowered to so many bytes.
    Lowered(u64),
    /// It was raised to so many bytes.
    Raised(u64),
}

/// The figures and the actions of a check. All figures are in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Check {
    /// Memory that the process uses: of its cgroup the bytes that the kernel cannot take back at once, or else its resident memory.
    pub used: u64,
    /// Bytes charged to the root, prepaid ones included.
    pub charged: u64,
    /// The share of the last ten seconds, in percent, in which threads waited for memory of the system, where the kernel tells.
    pub pressure: Option<f32>,
    /// Bytes that the process used less after the allocator was purged; `None` if it was not.
    pub purged: Option<u64>,
    /// Bytes that caches gave back.
    pub reclaimed: u64,
    /// The change of the root's limit.
    pub action: Action,
}

/// Holds the root's limit of a hierarchy against the memory that the process really uses.
///
/// Charges are promises of the program. Code, stacks, libraries that charge nothing and an allocator that keeps freed memory take memory too. When
/// the process comes near its limit, a check purges the allocator, lowers the root's limit by the excess, and has caches give back as much. When
/// the process uses less again, the limit rises step by step.
///
/// The user calls [`check`](Watcher::check) on a thread or a task, about ten times a second; [`run_while`](Watcher::run_while) is such a loop. Its
/// actions are among the statistics of the root, and so in each snapshot:
///
/// | `process` | is |
/// |---|---|
/// | `used`, `uncharged` | bytes that the process used at the last check, and those of them that no charge covers |
/// | `purges`, `purged` | calls of the allocator's purge, and the bytes that the process used less after them |
/// | `lowered`, `raised` | changes of the root's limit |
/// | `reclaimed` | bytes that caches gave back for it |
///
/// When it is dropped, the root has the limit back that the user set.
///
/// ```
/// # #[cfg(target_os = "linux")] {
/// use memgroup::{Config, Hierarchy};
/// use memgroup_process::{ProcessLimit, Watcher, limit_from_cgroup};
///
/// let hierarchy = Hierarchy::new(Config::new())?;
/// let limit = limit_from_cgroup(&hierarchy, None)?.limit;
/// let mut watcher = Watcher::new(&hierarchy, limit)?;
/// let check = watcher.check()?;
/// println!("{} bytes used, {} charged", check.used, check.charged);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Watcher {
    root: Group,
    statistics: Statistics,
    files: Files,
    cgroup: Option<(Cgroup, PathBuf)>,
    page: u64,
    limit: u64,
    /// The limit that the user set.
    most: u64,
    /// The limit that this watcher set.
    current: u64,
    calm: u32,
    purge: Box<dyn FnMut() + Send>,
    /// The gauges as reported.
    reported: [u64; 2],
}

impl Watcher {
    /// Makes a watcher of the process that `limit` is of. A root without a limit gets that of the process less an eighth.
    ///
    /// # Errors
    /// The files of the system cannot be read, the root is not accounted, or the statistics cannot be registered (`Hierarchy::register`).
    pub fn new(hierarchy: &Hierarchy, limit: ProcessLimit) -> Result<Watcher, ProcessError> {
        Watcher::new_below(Files::of_system(), hierarchy, limit)
    }

    fn new_below(files: Files, hierarchy: &Hierarchy, limit: ProcessLimit) -> Result<Watcher, ProcessError> {
        let cgroup = match &limit.source {
            LimitSource::Cgroup(level) => Cgroup::of_process(&files)?.map(|cgroup| (cgroup, level.clone())),
            LimitSource::Machine | LimitSource::Program => None,
        };
        let (root, bytes) = (hierarchy.root(), limit.bytes);
        let most = match root.max() {
            Some(max) if hierarchy.config().accounts_root() => max,
            _ => apply(hierarchy, limit, None)?.max,
        };
        let mut watcher = Watcher {
            root,
            statistics: hierarchy.register(SUBSYSTEM)?,
            files,
            cgroup,
            page: system::page_bytes(),
            limit: bytes,
            most,
            current: most,
            calm: 0,
            purge: Box::new(|| {
                system::trim_malloc();
            }),
            reported: [0; 2],
        };
        watcher.used()?;
        watcher.report(0, 0);
        Ok(watcher)
    }

    /// Purges the program's allocator by `purge`. Without this call it is [`trim_malloc`](crate::trim_malloc), for the system's allocator.
    ///
    /// For mimalloc it is `mi_collect(true)`, for jemalloc a write to `arena.4096.purge`.
    #[must_use]
    pub fn with_purge(mut self, purge: impl FnMut() + Send + 'static) -> Watcher {
        self.purge = Box::new(purge);
        self
    }

    /// Compares, and acts. It reads up to five small files, and takes some tens of microseconds while the process is within its limit. Otherwise it
    /// runs the purge, and calls shrinkers for up to 200 ms.
    ///
    /// # Errors
    /// A file of the system cannot be read, or no longer has its form. Nothing is changed then.
    pub fn check(&mut self) -> Result<Check, ProcessError> {
        self.adopt_limit();
        let (mut used, pressure) = (self.used()?, self.pressure());
        let charged = self.root.usage();
        let [upper, lower] = [UPPER, LOWER].map(|part| self.limit / WHOLE * part);
        let is_pressed = pressure.is_some_and(|pressure| pressure >= PRESSED);
        let (mut purged, mut reclaimed, mut action) = (None, 0, Action::None);
        if used > upper || is_pressed {
            self.calm = 0;
            let freed = self.purge(used)?;
            used -= freed;
            purged = Some(freed);
            let least = if is_pressed { self.limit / PRESSED_PART } else { 0 };
            let excess = used.saturating_sub(upper).max(least);
            if used > upper {
                action = self.lower(charged.saturating_sub(excess))?;
            }
            reclaimed = self.reclaim(excess);
        } else if used < lower && self.current < self.most {
            self.calm += 1;
            if self.calm >= CALM_CHECKS {
                self.calm = 0;
                action = self.raise(self.current.max(charged) + (lower - used) / 2)?;
            }
        } else {
            self.calm = 0;
        }
        self.report(used, charged);
        Ok(Check { used, charged, pressure, purged, reclaimed, action })
    }

    /// Checks every `interval` on this thread while `goes_on` returns `true`, which is asked after each check. The first error ends it.
    ///
    /// # Errors
    /// As [`check`](Watcher::check).
    pub fn run_while(
        &mut self,
        interval: Duration,
        mut goes_on: impl FnMut(&Check) -> bool,
    ) -> Result<(), ProcessError> {
        while goes_on(&self.check()?) {
            std::thread::sleep(interval);
        }
        Ok(())
    }

    /// A limit that the user set since the last check is the one up to which the root's may rise (I1).
    fn adopt_limit(&mut self) {
        let max = self.root.max().unwrap_or(self.limit);
        if max != self.current {
            (self.most, self.current) = (max, max);
        }
    }

    fn used(&self) -> Result<u64, ProcessError> {
        match &self.cgroup {
            Some((cgroup, level)) => cgroup.used(level),
            None => Ok(self.files.parse::<StatM>("/proc/self/statm")?.resident * self.page),
        }
    }

    fn pressure(&self) -> Option<f32> {
        match &self.cgroup {
            Some((cgroup, level)) => cgroup.pressure(level),
            None => Some(self.files.parse::<MemoryPressure>("/proc/pressure/memory").ok()?.some.avg10),
        }
    }

    /// Purges the allocator. Returns how much less than `used` is used then.
    fn purge(&mut self, used: u64) -> Result<u64, ProcessError> {
        (self.purge)();
        let freed = used.saturating_sub(self.used()?);
        self.add(PURGES, 1);
        self.add(PURGED, freed);
        Ok(freed)
    }

    fn lower(&mut self, max: u64) -> Result<Action, ProcessError> {
        let max = max.max(self.limit / FLOOR_PART);
        if max >= self.current {
            return Ok(Action::None);
        }
        self.set_max(max)?;
        self.add(LOWERED, 1);
        Ok(Action::Lowered(max))
    }

    fn raise(&mut self, max: u64) -> Result<Action, ProcessError> {
        let max = max.min(self.most);
        self.set_max(max)?;
        self.add(RAISED, 1);
        Ok(Action::Raised(max))
    }

    fn set_max(&mut self, max: u64) -> Result<(), ProcessError> {
        self.root.set_max(max)?;
        self.current = max;
        Ok(())
    }

    /// Has caches give back, and the allocator give to the system that memory.
    fn reclaim(&mut self, bytes: u64) -> u64 {
        let before = self.root.usage();
        self.root.reclaim(bytes, Instant::now() + RECLAIM);
        let freed = before.saturating_sub(self.root.usage());
        if freed > 0 {
            (self.purge)();
            self.add(RECLAIMED, freed);
        }
        freed
    }

    fn report(&mut self, used: u64, charged: u64) {
        for (place, (key, now)) in
            [(USED, used), (UNCHARGED, used.saturating_sub(charged))].into_iter().enumerate()
        {
            let before = std::mem::replace(&mut self.reported[place], now);
            self.statistics.add(&self.root, key, now.wrapping_sub(before) as i64);
        }
    }

    fn add(&self, key: StatKey, number: u64) {
        self.statistics.add(&self.root, key, number as i64);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.report(0, 0);
        self.adopt_limit();
        if self.current < self.most {
            // It was in force before, so a counter holds it.
            _ = self.root.set_max(self.most);
        }
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut watcher = f.debug_struct("Watcher");
        watcher.field("limit", &self.limit).field("most", &self.most).field("current", &self.current);
        watcher.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
