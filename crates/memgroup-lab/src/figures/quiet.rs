//! Whether a machine is quiet enough for figures that are published.

use std::io::Write;
use std::time::{Duration, Instant};

use std::sync::atomic::{AtomicU64, Ordering};

use super::say;
use crate::harness::prelude::*;

const STOLEN_PERCENT_MOST: f64 = 1.0;
/// The median window of compare-and-swaps over the best one.
const OVER_BEST_MOST: f64 = 1.1;
/// The ninetieth percentile of the windows over the median.
const SPREAD_MOST: f64 = 1.05;
const WINDOWS: usize = 100;
const WINDOW: Duration = Duration::from_millis(20);
/// Minutes until the run begins all the same.
const MINUTES: u32 = 60;

/// Waits for a quiet machine, and says each minute what is wrong. Returns the last reason if an
/// hour was not enough, or the first if noise is accepted.
pub(super) fn wait(out: &mut dyn Write, accept_noise: bool) -> Result<Option<String>> {
    let (clock, workers) =
        (Clock::calibrate(Duration::from_millis(50)), Workers::start(os::allowed_cpus()?.len())?);
    let minutes = if accept_noise { 1 } else { MINUTES };
    wait_for(out, minutes, Duration::from_secs(60), || check(&clock, &workers))
}

fn wait_for(
    out: &mut dyn Write,
    tries: u32,
    pause: Duration,
    check: impl Fn() -> Option<String>,
) -> Result<Option<String>> {
    let mut last = None;
    for minute in 1..=tries {
        let begin = Instant::now();
        last = check();
        let Some(why) = &last else {
            say(out, "the machine is quiet")?;
            break;
        };
        say(out, &format!("minute {minute} of {tries}: not quiet: {why}"))?;
        if minute < tries {
            std::thread::sleep(pause.saturating_sub(begin.elapsed()));
        }
    }
    Ok(last)
}

/// What is wrong with the machine now.
fn check(clock: &Clock, workers: &Workers) -> Option<String> {
    let stolen = Stolen::now();
    let windows =
        workers.run(workers.threads(), |_| (0..WINDOWS).map(|_| swap_ns(clock)).collect::<Vec<_>>());
    let reasons = windows.iter().filter_map(|windows| unsteady(windows));
    let reasons: Vec<String> = stolen.since().into_iter().chain(reasons).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// Nanoseconds of a compare-and-swap in one window.
fn swap_ns(clock: &Clock) -> f64 {
    let (word, begin, mut done) = (AtomicU64::new(0), clock::now(), 0_u64);
    let end = begin + clock.ticks(WINDOW.as_nanos() as f64) as u64;
    let mut now = begin;
    while now < end {
        for _ in 0..1000 {
            // ORDERING: Relaxed; only the time matters.
            _ = word.compare_exchange(done, done + 1, Ordering::Relaxed, Ordering::Relaxed);
            done += 1;
        }
        now = clock::now();
    }
    clock.ns((now - begin) as f64) / done as f64
}

/// What is wrong with the windows of one CPU.
fn unsteady(windows: &[f64]) -> Option<String> {
    let of = Summary::of(windows)?;
    let (over_best, spread) = (of.median / of.min, of.p90 / of.median);
    if over_best > OVER_BEST_MOST {
        let percent = (over_best - 1.0) * 100.0;
        return Some(format!(
            "a compare-and-swap takes {percent:.0} % longer than in the best of {WINDOWS} windows"
        ));
    }
    (spread > SPREAD_MOST).then(|| format!("windows spread by {:.0} %", (spread - 1.0) * 100.0))
}

/// The time of all CPUs so far, and the part that the hypervisor gave to others.
pub(super) struct Stolen {
    all: f64,
    stolen: f64,
}

impl Stolen {
    pub(super) fn now() -> Stolen {
        Stolen::parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(text: &str) -> Stolen {
        let first = text.lines().next().unwrap_or_default();
        let ticks: Vec<f64> = first.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        // Guests' time is part of the first two.
        Stolen { all: ticks.iter().take(8).sum(), stolen: ticks.get(7).copied().unwrap_or(0.0) }
    }

    /// What is wrong with the time since then.
    pub(super) fn since(&self) -> Option<String> {
        self.until(&Stolen::now())
    }

    fn until(&self, now: &Stolen) -> Option<String> {
        let percent = (now.stolen - self.stolen) / (now.all - self.all).max(1.0) * 100.0;
        (percent >= STOLEN_PERCENT_MOST).then(|| format!("{percent:.1} % of the CPUs' time was stolen"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stolen_time_from_one_percent_on() {
        let at = |user: u32, stolen: u32| {
            Stolen::parse(&format!("cpu  {user} 0 0 0 0 0 0 {stolen} 500 0\ncpu0 1 2\n"))
        };
        assert_eq!(at(1000, 50).until(&at(1991, 59)), None);
        assert_eq!(at(1000, 50).until(&at(1990, 60)).unwrap(), "1.0 % of the CPUs' time was stolen");
    }

    #[test]
    fn names_windows_that_are_slow_or_spread() {
        let windows = |slow: usize, by: f64| [vec![5.0; 100 - slow], vec![5.0 * by; slow]].concat();
        assert_eq!(unsteady(&windows(5, 3.0)), None, "a few windows may be long");
        assert!(unsteady(&windows(60, 1.2)).unwrap().contains("20 % longer than in the best"));
        assert_eq!(unsteady(&windows(20, 1.08)).unwrap(), "windows spread by 8 %");
    }

    #[test]
    fn tries_until_it_is_quiet_or_the_hour_is_over() {
        let (mut out, left) = (Vec::new(), std::cell::Cell::new(3));
        let busy_twice = || {
            left.set(left.get() - 1);
            (left.get() > 0).then(|| "windows spread by 9 %".to_owned())
        };
        assert_eq!(wait_for(&mut out, 5, Duration::ZERO, busy_twice).unwrap(), None);
        let said = String::from_utf8(out).unwrap();
        assert_eq!(said.lines().count(), 3, "{said}");
        assert!(
            said.starts_with("minute 1 of 5: not quiet: windows spread") && said.ends_with("is quiet\n"),
            "{said}"
        );
        let busy = || Some("steal".to_owned());
        assert_eq!(wait_for(&mut Vec::new(), 2, Duration::ZERO, busy).unwrap(), Some("steal".to_owned()));
    }
}
