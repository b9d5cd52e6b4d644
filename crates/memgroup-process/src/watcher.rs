//! Watcher: compares the charged bytes with those that the process uses, and lowers the root's
//! limit while both together do not fit in the process's limit.
//!
//! ```text
//!   limit ──────────────────────────────────────────────────────────────────────
//!   15/16    used is above, or would be if groups charged up to the root's max:
//!              purge the allocator; what then is not charged is the margin that the root's max leaves
//!            used is above: caches must free the excess as well
//!   7/8
//!            used is below for eight checks: the root's max rises by half of the room, up to the user's and to 15/16 less the margin
//! ```
//!
//! - I1. The root's limit is never raised above the one that the user set. If the user sets another
//!   limit in the meantime, that one counts.
//! - I2. The lowered limit is 15/16 of the process's limit minus the margin. The margin is the
//!   bytes that are used and not charged, and those that the allocator recently kept between two
//!   purges. So charges alone never take the process above its limit, and further checks of the
//!   same state do not lower the limit again.
//! - B1. Bytes that are not charged may grow by a 64th of the limit before the root's limit
//!   follows. Otherwise it would change at each check.
//! - B2. Between two checks of [`Watcher::run_while`], each processor may fill [`FILL`] bytes a
//!   second, and the next check comes before they could use up the remaining memory. A process that
//!   grows faster, or whose watcher does not get to run, is above its limit for longer.

use std::fmt;
use std::num::NonZeroUsize;
use std::thread;
use std::time::{Duration, Instant};

use memgroup::{Group, Hierarchy, Stat, StatKey, Statistics, Subsystem};

use crate::files::{Files, ProcessError};
use crate::limit::{ProcessLimit, apply};
use crate::meter::Meter;
use crate::system;

/// In sixteenths of the limit: the part above which the process uses too much, and the part below
/// which the root's limit rises again.
const UPPER: u64 = 15;
const LOWER: u64 = 14;
const WHOLE: u64 = 16;

/// Checks below the lower mark, one after the other, before the root's limit rises.
const CALM_CHECKS: u32 = 8;

/// Bytes that are not charged may grow by one part in this many of the limit before they are
/// purged, or the root's limit follows (B1).
const STEP_PART: u64 = 64;

/// The time after which the allocator is purged again even if nothing shows that it keeps more than
/// before.
const PURGE: Duration = Duration::from_secs(1);

/// At each regular check, one part in this many of the bytes kept between two purges is forgotten.
/// Half is forgotten after 44 checks.
const FORGET_PART: u64 = 64;

/// The most bytes a second that a processor can fill with new memory (B2). The kernel clears each
/// page first.
const FILL: u64 = 4 << 30;

/// The least time between two checks.
const LEAST: Duration = Duration::from_millis(1);

/// The root's limit is not lowered below one part in this many of the process's limit.
const FLOOR_PART: u64 = 16;

/// Under pressure, caches are asked to free one part in this many of the limit.
const PRESSED_PART: u64 = 64;

/// The watcher acts if threads waited for memory of the system for at least this percentage of ten
/// seconds.
const PRESSED: f32 = 20.0;

/// The longest time that one check asks caches to free memory.
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
    /// The limit stayed the same.
    None,
    /// The limit was lowered to this many bytes.
    Lowered(u64),
    /// The limit was raised to this many bytes.
    Raised(u64),
}

/// The figures and the actions of a check. All figures are in bytes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Check {
    /// Memory that the process uses: the bytes of its cgroup that the kernel cannot reclaim at
    /// once, or its resident memory.
    pub used: u64,
    /// Bytes charged to the root, prepaid ones included.
    pub charged: u64,
    /// The share of the last ten seconds, in percent, in which threads waited for memory of the
    /// system, if the kernel reports it.
    pub pressure: Option<f32>,
    /// By how many bytes the process's use fell when the allocator was purged, or `None` if it was
    /// not purged.
    pub purged: Option<u64>,
    /// Bytes that caches freed.
    pub reclaimed: u64,
    /// The change of the root's limit.
    pub action: Action,
    /// The time within which the next check should come, before the processors could use up the
    /// remaining memory. At least a millisecond.
    pub next_within: Duration,
    /// The error because of which [`run_while`](Watcher::run_while) could not check this time. If
    /// there is one, nothing was done, and the figures are those of the last check.
    pub error: Option<String>,
}

/// Adapts the limit of a hierarchy's root to the memory that the process really uses.
///
/// Charges count only what the program declares. Code, stacks, libraries that charge nothing, and
/// an allocator that keeps freed memory take memory too. When that memory and the root's limit
/// together come near the process's limit, a check purges the allocator, and lowers the root's
/// limit by what remains. When the process itself comes near its limit, caches must free the
/// excess. When the process uses less again, the limit rises step by step.
///
/// The user calls [`check`](Watcher::check) on a thread or a task, about ten times a second, and
/// sooner if the last check says so ([`Check::next_within`]). [`run_while`](Watcher::run_while) is
/// such a loop. The first check also makes glibc return large blocks when they are freed, unless
/// [`leave_malloc`](Watcher::leave_malloc) was called. What the watcher did is in the statistics of
/// the root, and so in each snapshot:
///
/// | `process` | is |
/// |---|---|
/// | `used`, `uncharged` | bytes that the process used at the last check, and those of them that no charge covers |
/// | `purges`, `purged` | calls of the allocator's purge, and by how many bytes the process's use fell |
/// | `lowered`, `raised` | changes of the root's limit |
/// | `reclaimed` | bytes that caches freed for it |
///
/// Dropping it restores the limit that the user set.
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
    meter: Meter,
    processors: usize,
    limit: u64,
    /// The limit that the user set.
    most: u64,
    /// The limit that this watcher set.
    current: u64,
    calm: u32,
    purge: Box<dyn FnMut() + Send>,
    /// The bytes that are not charged and that no purge frees, as far as known.
    unpurged: u64,
    /// The time of the last purge.
    purged: Option<Instant>,
    /// The most bytes freed by a purge that came soon after another one, which is what the
    /// allocator keeps between two. This is forgotten gradually.
    recurring: u64,
    /// Whether the allocator of the C library must still be told to return large blocks.
    tunes_malloc: bool,
    last: Check,
    /// The gauges as reported.
    reported: [u64; 2],
}

impl Watcher {
    /// Makes a watcher for `limit`. A root without a limit gets the process's limit minus an
    /// eighth.
    ///
    /// # Errors
    /// The files of the system cannot be read, the root is not accounted, or the statistics cannot
    /// be registered (`Hierarchy::register`).
    pub fn new(hierarchy: &Hierarchy, limit: ProcessLimit) -> Result<Watcher, ProcessError> {
        Watcher::new_below(&Files::of_system(), hierarchy, limit)
    }

    fn new_below(files: &Files, hierarchy: &Hierarchy, limit: ProcessLimit) -> Result<Watcher, ProcessError> {
        let mut meter = Meter::new(files, &limit.source)?;
        let used = meter.used()?;
        let (root, bytes) = (hierarchy.root(), limit.bytes);
        let most = match root.max() {
            Some(max) if hierarchy.config().accounts_root() => max,
            _ => apply(hierarchy, limit, None)?.max,
        };
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let last = Check {
            used,
            charged: root.usage(),
            pressure: None,
            purged: None,
            reclaimed: 0,
            action: Action::None,
            next_within: next_within(bytes.saturating_sub(used), processors),
            error: None,
        };
        let mut watcher = Watcher {
            root,
            statistics: hierarchy.register(SUBSYSTEM)?,
            meter,
            processors,
            limit: bytes,
            most,
            current: most,
            calm: 0,
            purge: Box::new(|| {
                system::trim_malloc();
            }),
            unpurged: 0,
            purged: None,
            recurring: 0,
            tunes_malloc: true,
            last,
            reported: [0; 2],
        };
        watcher.report(0, 0);
        Ok(watcher)
    }

    /// Sets the function that purges the program's allocator. The default is
    /// [`trim_malloc`](crate::trim_malloc), for the system's allocator.
    ///
    /// For mimalloc it is `mi_collect(true)`, for jemalloc a write to `arena.4096.purge`.
    #[must_use]
    pub fn with_purge(mut self, purge: impl FnMut() + Send + 'static) -> Watcher {
        self.purge = Box::new(purge);
        self
    }

    /// Leaves the settings of the C library's allocator as they are.
    ///
    /// Without this call, the first check makes glibc return each block to the system when it is
    /// freed, if the block is larger than a 65,536th of the process's limit and than 128 KiB
    /// (`mallopt` of `M_MMAP_THRESHOLD` and `M_TRIM_THRESHOLD`). The setting lasts as long as the
    /// process. If a program's environment sets `MALLOC_MMAP_THRESHOLD_` or `GLIBC_TUNABLES`, that
    /// setting always stays. Without the watcher's setting, glibc keeps up to 32 MiB of each size,
    /// in up to eight arenas for each processor, which is often more than the margin left for it. A
    /// program that allocates and frees large blocks in quick succession is slower with the
    /// setting, because the kernel clears their pages each time.
    #[must_use]
    pub fn leave_malloc(mut self) -> Watcher {
        self.tunes_malloc = false;
        self
    }

    /// Compares, and acts. It reads up to three small files that stay open, and takes some tens of
    /// microseconds while the process is within its limit. Otherwise it runs the purge and calls
    /// shrinkers for up to 200 ms.
    ///
    /// # Errors
    /// A file of the system cannot be read, or no longer has its form. Nothing is changed in this
    /// case. See [`ProcessError::is_passing`].
    pub fn check(&mut self) -> Result<Check, ProcessError> {
        self.check_as(true)
    }

    /// Makes a check. `is_regular` says whether it counts for the time in which the process was
    /// calm.
    fn check_as(&mut self, is_regular: bool) -> Result<Check, ProcessError> {
        if std::mem::take(&mut self.tunes_malloc) {
            system::return_large_blocks(self.limit);
        }
        self.adopt_limit();
        let (mut used, mut charged) = (self.meter.used()?, self.root.usage());
        let pressure = self.meter.pressure();
        let [upper, lower] = [UPPER, LOWER].map(|part| self.limit / WHOLE * part);
        let step = self.limit / STEP_PART;
        let is_pressed = pressure.is_some_and(|pressure| pressure >= PRESSED);
        let (mut purged, mut reclaimed, mut action) = (None, 0, Action::None);
        let is_tight = |uncharged: u64, current: u64| uncharged > upper.saturating_sub(current) + step;
        let mut uncharged = used.saturating_sub(charged);
        self.unpurged = self.unpurged.min(uncharged);
        if is_regular {
            self.recurring -= self.recurring.div_ceil(FORGET_PART);
        }
        if used > upper || is_pressed || is_tight(uncharged, self.current) {
            self.calm = 0;
            let is_first = self.purged.is_none_or(|at| at.elapsed() >= PURGE);
            if is_first || uncharged >= self.unpurged + step {
                let freed = self.purge(used)?;
                if !is_first {
                    self.recurring = self.recurring.max(freed);
                }
                (used, charged) = (used - freed, self.root.usage());
                uncharged = used.saturating_sub(charged);
                (self.unpurged, self.purged) = (uncharged, Some(Instant::now()));
                purged = Some(freed);
            }
            let margin = uncharged + self.recurring;
            if used > upper || is_tight(margin, self.current) {
                action = self.lower(upper.saturating_sub(margin))?;
            }
            let least = if is_pressed { self.limit / PRESSED_PART } else { 0 };
            reclaimed = self.reclaim(used.saturating_sub(upper).max(least));
        } else if used < lower && self.current < self.most {
            self.calm += u32::from(is_regular);
            if self.calm >= CALM_CHECKS {
                self.calm = 0;
                let half = self.current.max(charged) + (lower - used) / 2;
                action = self.raise(half.min(upper.saturating_sub(uncharged + self.recurring)))?;
            }
        } else {
            self.calm = 0;
        }
        self.report(used, charged);
        let next_within = next_within(self.limit.saturating_sub(used), self.processors);
        self.last = Check { used, charged, pressure, purged, reclaimed, action, next_within, error: None };
        Ok(self.last.clone())
    }

    /// Checks on this thread for as long as `goes_on` returns `true`. It is called after each
    /// check. A check comes `interval` after the previous one, and sooner if the process could use
    /// up the remaining memory earlier ([`Check::next_within`]).
    ///
    /// A check that fails for a [passing](ProcessError::is_passing) reason is tried again. In this
    /// case `goes_on` gets the figures of the last check, with the [`error`](Check::error). Any
    /// other error ends the loop. Nothing enforces the limit from then on, so the caller must
    /// handle the error.
    ///
    /// # Errors
    /// Those of [`check`](Watcher::check), if the error is not passing.
    pub fn run_while(
        &mut self,
        interval: Duration,
        mut goes_on: impl FnMut(&Check) -> bool,
    ) -> Result<(), ProcessError> {
        let mut regular: Option<Instant> = None;
        loop {
            let begun = Instant::now();
            let is_regular = regular.is_none_or(|at| begun.duration_since(at) >= interval);
            if is_regular {
                regular = Some(begun);
            }
            let check = match self.check_as(is_regular) {
                Ok(check) => check,
                Err(error) if error.is_passing() => {
                    let action = Action::None;
                    let error = Some(error.to_string());
                    Check { purged: None, reclaimed: 0, action, error, ..self.last.clone() }
                }
                Err(error) => return Err(error),
            };
            if !goes_on(&check) {
                return Ok(());
            }
            // A check that has much to do takes at most half of the time.
            thread::sleep(check.next_within.max(begun.elapsed()).min(interval));
        }
    }

    /// Adopts a limit that the user set since the last check. The root's limit may rise up to it
    /// (I1).
    fn adopt_limit(&mut self) {
        let max = self.root.max().unwrap_or(self.limit);
        if max != self.current {
            (self.most, self.current) = (max, max);
        }
    }

    /// Purges the allocator. Returns by how much the use is below `used` afterwards.
    fn purge(&mut self, used: u64) -> Result<u64, ProcessError> {
        (self.purge)();
        let freed = used.saturating_sub(self.meter.used()?);
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
        if max <= self.current {
            return Ok(Action::None);
        }
        self.set_max(max)?;
        self.add(RAISED, 1);
        Ok(Action::Raised(max))
    }

    fn set_max(&mut self, max: u64) -> Result<(), ProcessError> {
        self.root.set_max(max)?;
        self.current = max;
        Ok(())
    }

    /// Makes caches free bytes, and the allocator return that memory to the system.
    fn reclaim(&mut self, bytes: u64) -> u64 {
        if bytes == 0 {
            return 0;
        }
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

/// Returns a time in which `processors` cannot fill `room` bytes (B2).
fn next_within(room: u64, processors: usize) -> Duration {
    let seconds = room as f64 / (FILL as f64 * processors as f64);
    Duration::from_secs_f64(seconds).max(LEAST)
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.report(0, 0);
        self.adopt_limit();
        if self.current < self.most {
            // This cannot fail, because the limit was in force before.
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
