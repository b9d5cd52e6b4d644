//! Pressure: time in which threads were stalled for memory.

use memgroup::{GroupSnapshot, PressureLine};
use serde::{Deserialize, Serialize};

/// Time in which threads were stalled for memory, named as in cgroup v2's `memory.pressure`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Pressure {
    /// At least one thread was stalled.
    pub(crate) some: Stalled,
    /// At least one thread was stalled and no other was running.
    pub(crate) full: Stalled,
}

/// One line of the pressure.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Stalled {
    /// Percentage of the last ten seconds.
    pub(crate) avg10: f64,
    /// Percentage of the last minute.
    pub(crate) avg60: f64,
    /// Percentage of the last five minutes.
    pub(crate) avg300: f64,
    pub(crate) total_us: u64,
    /// Share of the whole run, up to 1.
    pub(crate) share: f64,
}

impl Pressure {
    /// The pressure of `group` after a run of that many `seconds`.
    pub(crate) fn of(group: &GroupSnapshot, seconds: f64) -> Pressure {
        let [some, full] = [group.pressure.some, group.pressure.full].map(|line| {
            let PressureLine { avg10, avg60, avg300, total: total_us } = line;
            Stalled { avg10, avg60, avg300, total_us, share: share(total_us, seconds) }
        });
        Pressure { some, full }
    }

    /// Adds the pressure of a `later` run; both together took that many `seconds`.
    pub(crate) fn add(self, later: Pressure, seconds: f64) -> Pressure {
        Pressure { some: self.some.add(later.some, seconds), full: self.full.add(later.full, seconds) }
    }
}

impl Stalled {
    fn add(self, later: Stalled, seconds: f64) -> Stalled {
        let total_us = self.total_us + later.total_us;
        Stalled { total_us, share: share(total_us, seconds), ..later }
    }
}

fn share(us: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { us as f64 / 1e6 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, Hierarchy};

    use super::{Pressure, Stalled};

    #[test]
    fn includes_stalls_of_the_groups_below() {
        let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
        let parent = hierarchy.create("/parent").expect("a group");
        let child = parent.create("child").expect("a group");
        let stall = child.stall();
        std::thread::sleep(std::time::Duration::from_millis(2));
        drop(stall);
        let some = Pressure::of(&parent.snapshot().groups[0], 10.0).some;
        assert!(some.total_us >= 2_000, "{some:?}");
        assert!((some.share - some.total_us as f64 / 1e7).abs() < 1e-9, "{some:?}");
    }

    #[test]
    fn adds_runs_and_takes_shares_of_their_total_time() {
        let run = |total_us, share| {
            let stalled = Stalled { avg10: share, total_us, share, ..Stalled::default() };
            Pressure { some: stalled, full: stalled }
        };
        let both = run(1_000_000, 0.1).add(run(3_000_000, 0.3), 20.0);
        let expected = Stalled { avg10: 0.3, total_us: 4_000_000, share: 0.2, ..Stalled::default() };
        assert_eq!((both.some, both.full), (expected, expected));
    }
}
