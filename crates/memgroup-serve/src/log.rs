//! Log: lines by `tracing` for control actions, refusals, throttles and kills.
//!
//! - B1. A group has at most one line about its limits in [`QUIET`]. A line has the counts since
//!   the previous line, so none is lost while the group lives.
//! - B2. At most [`GROUPS`] groups have lines of their own within that time. The counts of the
//!   others are summed in one line.
//! - B3. Requests to control without the right have at most ten lines a second. A line says how
//!   many requests before it have no line.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use http::StatusCode;
use memgroup::stats::memory::{THROTTLED_USEC, THROTTLES};
use memgroup::{Freshness, Group, GroupId, Hierarchy, KillReport, Reach, Statistics, WeakGroup};
use parking_lot::Mutex;

use crate::problem::Problem;
use crate::sample::{Counts, Met, micros, outcome};

/// Logs a control action: the client, the act, and its result.
pub(crate) fn control(client: &impl fmt::Display, act: &str, result: &Result<StatusCode, Problem>) {
    match result {
        Ok(_) => tracing::info!(target: "memgroup::control", %client, act, "carried out"),
        Err(problem) => {
            tracing::warn!(target: "memgroup::control", %client, act, reason = problem.detail, "refused");
        }
    }
}

/// Logs a kill when it begins, and again when its outcome is known.
pub(crate) fn kill(kill: &KillReport) {
    let KillReport { victim, requester, full, usage_bytes, .. } = kill;
    match kill.outcome.map(outcome) {
        None => {
            tracing::warn!(target: "memgroup::kills", victim, requester, full, usage_bytes, "kill begun");
        }
        Some(outcome) => {
            let took_us = kill.took.map(micros);
            tracing::warn!(target: "memgroup::kills", victim, requester, full, outcome, took_us, "kill");
        }
    }
}

/// Logs a request to control by a client without the right, unless there were many such lines in
/// this second.
pub(crate) fn denied(limiter: &Limiter, client: &impl fmt::Display, act: &str, problem: &Problem) {
    let Some(more) = limiter.pass(Instant::now()) else { return };
    tracing::warn!(target: "memgroup::control", %client, act, reason = problem.detail, more, "denied");
}

/// Lets [`Limiter::LINES`] lines a second pass, because a client without a right must not fill the
/// log.
#[derive(Debug, Default)]
pub(crate) struct Limiter(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    began: Option<Instant>,
    passed: u32,
    /// Lines that were suppressed since the last one that passed.
    more: u64,
}

impl Limiter {
    const LINES: u32 = 10;

    /// Returns how many lines before this one were suppressed, or `None` if this one is.
    fn pass(&self, now: Instant) -> Option<u64> {
        let mut window = self.0.lock();
        if window.began.is_none_or(|began| now.duration_since(began) >= Duration::from_secs(1)) {
            (window.began, window.passed) = (Some(now), 0);
        }
        if window.passed == Limiter::LINES {
            window.more += 1;
            return None;
        }
        window.passed += 1;
        Some(std::mem::take(&mut window.more))
    }
}

/// Time between two lines about the limits of one group.
const QUIET: Duration = Duration::from_secs(10);
/// The most groups with lines of their own within that time.
const GROUPS: usize = 1000;

/// A group that has had a line recently.
struct Line {
    // Not a handle: it would keep the place of a removed group.
    group: WeakGroup,
    logged: Instant,
    /// Not yet logged.
    counts: Counts,
}

/// The groups that have met limits.
pub(crate) struct Log {
    lines: HashMap<GroupId, Line>,
    memory: Statistics,
    /// Counts of groups without a line of their own.
    others: Counts,
    others_logged: Instant,
}

impl Log {
    pub(crate) fn new(hierarchy: &Hierarchy) -> Log {
        let (lines, others) = (HashMap::new(), Counts::default());
        Log { lines, memory: hierarchy.memory(), others, others_logged: Instant::now() }
    }

    /// Notes that a group has met its limits, and logs it unless the group had a line recently.
    pub(crate) fn met(&mut self, group: &Group, met: &Met<'_>) {
        let now = Instant::now();
        if let Some(line) = self.lines.get_mut(&group.id()) {
            line.counts.add(met.counts);
            return;
        }
        if self.lines.len() >= GROUPS {
            self.others.add(met.counts);
            return;
        }
        log(&self.memory, group, &met.counts);
        let line = Line { group: group.downgrade(), logged: now, counts: Counts::default() };
        self.lines.insert(group.id(), line);
    }

    /// Logs the lines that are due.
    pub(crate) fn tick(&mut self) {
        let now = Instant::now();
        let Log { lines, memory, others, others_logged } = self;
        lines.retain(|_, line| {
            if now.duration_since(line.logged) < QUIET {
                return true;
            }
            let Some(group) = line.group.upgrade().filter(|_| line.counts != Counts::default()) else {
                return false;
            };
            log(memory, &group, &std::mem::take(&mut line.counts));
            line.logged = now;
            true
        });
        if *others != Counts::default() && now.duration_since(*others_logged) >= QUIET {
            let counts = std::mem::take(others);
            tracing::warn!(target: "memgroup::limits", refused = counts.refused, max = counts.max, high = counts.high, "other groups met their limits");
            *others_logged = now;
        }
    }
}

/// Writes the lines about a group, one for each kind of count.
fn log(memory: &Statistics, group: &Group, counts: &Counts) {
    let path = group.path();
    let (usage_bytes, max_bytes) = group.usage_and_max();
    if counts.refused > 0 {
        tracing::warn!(target: "memgroup::refusals", group = path, refused = counts.refused, usage_bytes, max_bytes, "charges refused");
    }
    if counts.would_refuse > 0 {
        tracing::info!(target: "memgroup::refusals", group = path, would_refuse = counts.would_refuse, usage_bytes, max_bytes, "charges would be refused");
    }
    if counts.high > 0 {
        let of = |key| memory.get(group, key, Reach::Local, Freshness::Fresh);
        let (throttles, throttled_us) = (of(THROTTLES), of(THROTTLED_USEC));
        tracing::info!(
            target: "memgroup::throttles",
            group = path,
            above_high = counts.high,
            throttles_in_all = throttles,
            throttled_us_in_all = throttled_us,
            usage_bytes,
            "above high"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_lines_pass_in_a_second_and_the_others_are_counted() {
        let (limiter, now) = (Limiter::default(), Instant::now());
        let passed: Vec<_> = (0..25).map(|_| limiter.pass(now)).collect();
        assert!(passed[..10].iter().all(|more| *more == Some(0)) && passed[10..].iter().all(Option::is_none));
        let later = now + Duration::from_secs(1);
        assert_eq!([limiter.pass(later), limiter.pass(later)], [Some(15), Some(0)]);
    }
}
