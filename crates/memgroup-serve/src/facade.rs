//! Facade: the figures of the largest groups through the crate `metrics`, for programs that have a
//! recorder. The names are those of `/metrics`.
//!
//! - I1. The facade cannot remove a series, and a recorder may keep each one for ever. So the
//!   gauges of a group that is no longer among the largest become NaN, and its counters stop.
//! - I2. Only the first [`PATHS`] paths get series, so that a program that makes a group for each
//!   request does not fill its recorder.

use std::collections::{HashMap, HashSet};

use memgroup::{Group, GroupId};
use metrics::{counter, gauge};

/// The most paths that get series while the server is running.
const PATHS: usize = 10_000;

const GAUGES: [&str; 5] = [
    "memgroup_memory_usage_bytes",
    "memgroup_memory_peak_bytes",
    "memgroup_memory_max_bytes",
    "memgroup_pressure_memory_waiting_seconds",
    "memgroup_pressure_memory_stalled_seconds",
];

/// The groups that have values.
#[derive(Debug, Default)]
pub(crate) struct Facade {
    shown: HashMap<GroupId, String>,
    /// All paths that have series.
    paths: HashSet<String>,
}

impl Facade {
    /// Sets the values of these groups, and ends the gauges of those that are no longer among them.
    pub(crate) fn sample<'g>(&mut self, groups: impl Iterator<Item = &'g Group>) {
        let mut before = std::mem::take(&mut self.shown);
        let mut without = 0;
        for group in groups {
            let path = before.remove(&group.id()).unwrap_or_else(|| group.path());
            if !self.has_series(&path) {
                without += 1;
                continue;
            }
            set(group, &path);
            self.shown.insert(group.id(), path);
        }
        gauge!("memgroup_groups_without_series").set(f64::from(without));
        let shown: HashSet<&String> = self.shown.values().collect();
        for path in before.into_values().filter(|path| !shown.contains(path)) {
            GAUGES.into_iter().for_each(|name| gauge!(name, "id" => path.clone()).set(f64::NAN));
        }
    }

    /// Returns whether a path has series, and gives it series if there is room.
    fn has_series(&mut self, path: &str) -> bool {
        self.paths.contains(path) || self.paths.len() < PATHS && self.paths.insert(path.to_owned())
    }
}

fn set(group: &Group, path: &str) {
    let id = || path.to_owned();
    let (usage, max) = group.usage_and_max();
    let pressure = group.pressure();
    let values = [
        usage as f64,
        group.peak() as f64,
        max.map_or(f64::INFINITY, |bytes| bytes as f64),
        pressure.some.total as f64 / 1e6,
        pressure.full.total as f64 / 1e6,
    ];
    GAUGES.into_iter().zip(values).for_each(|(name, value)| gauge!(name, "id" => id()).set(value));
    counter!("memgroup_memory_refusals_total", "id" => id()).absolute(group.refusals());
    let events = group.events();
    for (event, count) in events.pairs().into_iter().chain([("would_refuse", events.would_refuse)]) {
        counter!("memgroup_memory_events_total", "id" => id(), "event" => event).absolute(count);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use memgroup::{Config, Hierarchy};
    use metrics::{Counter, CounterFn, Gauge, GaugeFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};

    use super::*;

    /// Keeps the last value of each metric as a line.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<HashMap<String, f64>>>);

    struct One(Kept, String);

    impl One {
        fn put(&self, value: f64) {
            self.0.0.lock().unwrap().insert(self.1.clone(), value);
        }
    }

    impl CounterFn for One {
        fn increment(&self, _: u64) {
            panic!("counts are absolute");
        }

        fn absolute(&self, value: u64) {
            self.put(value as f64);
        }
    }

    impl GaugeFn for One {
        fn increment(&self, _: f64) {
            panic!("values are set");
        }

        fn decrement(&self, _: f64) {
            panic!("values are set");
        }

        fn set(&self, value: f64) {
            self.put(value);
        }
    }

    impl Kept {
        fn one(&self, key: &Key) -> Arc<One> {
            let labels: Vec<&str> = key.labels().map(|label| label.value()).collect();
            Arc::new(One(self.clone(), format!("{} {}", key.name(), labels.join(" "))))
        }

        fn get(&self, line: &str) -> Option<f64> {
            self.0.lock().unwrap().get(line).copied()
        }
    }

    impl Recorder for Kept {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.one(key))
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.one(key))
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> metrics::Histogram {
            metrics::Histogram::noop()
        }
    }

    #[test]
    fn sets_the_values_of_groups_and_ends_those_of_groups_that_are_gone() {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let (a, b) = (hierarchy.create("/a").unwrap(), hierarchy.create("/b").unwrap());
        a.set_max(100).unwrap();
        let _charge = a.try_charge(60).unwrap();
        a.try_charge(60).unwrap_err();
        let (kept, mut facade) = (Kept::default(), Facade::default());
        metrics::with_local_recorder(&kept, || {
            facade.sample([&a, &b].into_iter());
            assert_eq!(kept.get("memgroup_memory_usage_bytes /a"), Some(60.0));
            assert_eq!(kept.get("memgroup_memory_max_bytes /b"), Some(f64::INFINITY));
            assert_eq!(kept.get("memgroup_memory_refusals_total /a"), Some(1.0));
            assert_eq!(kept.get("memgroup_memory_events_total /a max"), Some(1.0));
            facade.sample([&b].into_iter());
            for name in GAUGES {
                assert!(kept.get(&format!("{name} /a")).unwrap().is_nan(), "{name}");
                assert!(!kept.get(&format!("{name} /b")).unwrap().is_nan(), "{name}");
            }
            assert_eq!(kept.get("memgroup_memory_usage_bytes /b"), Some(0.0));
        });
    }
    #[test]
    fn gives_series_to_a_bounded_number_of_paths() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let first = hierarchy.create("/first").unwrap();
        let (kept, mut facade) = (Kept::default(), Facade::default());
        facade.paths = (1..PATHS).map(|number| format!("/{number}")).collect();
        metrics::with_local_recorder(&kept, || {
            facade.sample([&first].into_iter());
            for number in 0..100 {
                let group = hierarchy.create(&format!("/new-{number}")).unwrap();
                facade.sample([&first, &group].into_iter());
                assert_eq!(kept.get("memgroup_groups_without_series "), Some(1.0));
                group.remove().unwrap();
            }
            assert_eq!(kept.get("memgroup_memory_usage_bytes /first"), Some(0.0));
            assert_eq!(kept.get("memgroup_memory_usage_bytes /new-0"), None);
            assert_eq!((facade.paths.len(), facade.shown.len()), (PATHS, 1));
        });
    }
}
