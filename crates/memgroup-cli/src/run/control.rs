//! What its limits did to a tenant: events, delays, pressure.

use memgroup::{Group, PressureLine};
use serde::{Deserialize, Serialize};

/// What happened to a group, and to what is below it, because of limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Control {
    pub(crate) events: Events,
    pub(crate) pressure: Pressure,
    /// Charges that its own limit would have refused, had it been enforced.
    pub(crate) would_refuse: u64,
}

impl Control {
    /// Of `group`, after a run of so many `seconds`.
    pub(crate) fn of(group: &Group, seconds: f64) -> Control {
        Control {
            events: Events::of(group),
            pressure: Pressure::of(group, seconds),
            would_refuse: group.would_refuse(),
        }
    }
}

/// How often what happened to a group or one below it; the names are those of cgroup v2's `memory.events`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Events {
    /// Its caches had to give way although it was within its `low`.
    pub(crate) low: u64,
    /// A charge took it above its `high`.
    pub(crate) high: u64,
    /// A charge did not fit within its `max`.
    pub(crate) max: u64,
    /// Nothing could be reclaimed for such a charge.
    pub(crate) oom: u64,
    /// It was stopped because of that, whoever needed the memory.
    pub(crate) oom_kill: u64,
    /// All of it was stopped as a unit.
    pub(crate) oom_group_kill: u64,
}

impl Events {
    fn of(group: &Group) -> Events {
        let events = group.events();
        Events {
            low: events.low,
            high: events.high,
            max: events.max,
            oom: events.oom,
            oom_kill: events.oom_kill,
            oom_group_kill: events.oom_group_kill,
        }
    }

    /// With those of a later run.
    pub(crate) fn then(self, later: Events) -> Events {
        Events {
            low: self.low + later.low,
            high: self.high + later.high,
            max: self.max + later.max,
            oom: self.oom + later.oom,
            oom_kill: self.oom_kill + later.oom_kill,
            oom_group_kill: self.oom_group_kill + later.oom_group_kill,
        }
    }
}

/// Time in which threads were stalled for memory; the names are those of cgroup v2's `memory.pressure`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Pressure {
    /// At least one thread was stalled.
    pub(crate) some: Stalled,
    /// At least one was, and none that was at work got on.
    pub(crate) full: Stalled,
}

/// One line of it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Stalled {
    /// Of the last ten seconds, in percent.
    pub(crate) avg10: f64,
    /// Of the last minute, in percent.
    pub(crate) avg60: f64,
    /// Of the last five minutes, in percent.
    pub(crate) avg300: f64,
    pub(crate) total_us: u64,
    /// Of the whole run, a share of one.
    pub(crate) share: f64,
}

impl Pressure {
    fn of(group: &Group, seconds: f64) -> Pressure {
        let pressure = group.pressure();
        Pressure { some: Stalled::of(pressure.some, seconds), full: Stalled::of(pressure.full, seconds) }
    }

    /// With that of a later run; both together took so many `seconds`.
    pub(crate) fn then(self, later: Pressure, seconds: f64) -> Pressure {
        Pressure { some: self.some.then(later.some, seconds), full: self.full.then(later.full, seconds) }
    }
}

impl Stalled {
    fn of(line: PressureLine, seconds: f64) -> Stalled {
        let PressureLine { avg10, avg60, avg300, total } = line;
        Stalled { avg10, avg60, avg300, total_us: total, share: share(total, seconds) }
    }

    fn then(self, later: Stalled, seconds: f64) -> Stalled {
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

    use super::{Control, Events, Pressure, Stalled};

    #[test]
    fn a_group_has_the_events_and_stalls_of_what_is_below_it() {
        let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
        let parent = hierarchy.create("/parent").expect("a group");
        let child = parent.create("child").expect("a group");
        child.set_max(4_096).expect("nothing is charged");
        child.try_charge(5_000).expect_err("there is no room");
        let stall = child.stall();
        std::thread::sleep(std::time::Duration::from_millis(2));
        drop(stall);
        let found = Control::of(&parent, 10.0);
        assert_eq!(found.events.max, 1, "{found:?}");
        let some = found.pressure.some;
        assert!(some.total_us >= 2_000, "{some:?}");
        assert!((some.share - some.total_us as f64 / 1e7).abs() < 1e-9, "{some:?}");
    }

    #[test]
    fn runs_add_up_and_shares_are_of_all_their_time() {
        let run = |max, total_us, share| {
            let stalled = Stalled { avg10: share, total_us, share, ..Stalled::default() };
            (Events { max, ..Events::default() }, Pressure { some: stalled, full: stalled })
        };
        let ((before, stalled), (later, stalled_later)) = (run(2, 1_000_000, 0.1), run(3, 3_000_000, 0.3));
        assert_eq!(before.then(later), Events { max: 5, ..Events::default() });
        let both = stalled.then(stalled_later, 20.0);
        let expected = Stalled { avg10: 0.3, total_us: 4_000_000, share: 0.2, ..Stalled::default() };
        assert_eq!((both.some, both.full), (expected, expected));
    }
}
