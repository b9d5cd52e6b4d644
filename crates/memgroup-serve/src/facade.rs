//! Facade: the figures of the largest groups by the crate `metrics`, for programs that have a recorder. Names are those of `/metrics`.

use std::collections::HashMap;

use memgroup::{Group, GroupId};
use metrics::{counter, gauge};

/// The groups that have values.
#[derive(Debug, Default)]
pub(crate) struct Facade {
    shown: HashMap<GroupId, String>,
}

impl Facade {
    /// Sets the values of these groups. The usage of one that is no longer among them becomes no number, because the facade cannot take a value away.
    pub(crate) fn sample<'g>(&mut self, groups: impl Iterator<Item = &'g Group>) {
        let mut before = std::mem::take(&mut self.shown);
        for group in groups {
            let path = before.remove(&group.id()).unwrap_or_else(|| group.path());
            set(group, &path);
            self.shown.insert(group.id(), path);
        }
        let mut gone: Vec<String> = before.into_values().collect();
        gone.retain(|path| !self.shown.values().any(|shown| shown == path));
        for path in gone {
            gauge!("memgroup_memory_usage_bytes", "id" => path).set(f64::NAN);
        }
    }
}

fn set(group: &Group, path: &str) {
    let id = || path.to_owned();
    let (usage, max) = group.usage_and_max();
    gauge!("memgroup_memory_usage_bytes", "id" => id()).set(usage as f64);
    gauge!("memgroup_memory_peak_bytes", "id" => id()).set(group.peak() as f64);
    gauge!("memgroup_memory_max_bytes", "id" => id()).set(max.map_or(f64::INFINITY, |bytes| bytes as f64));
    counter!("memgroup_memory_refusals_total", "id" => id()).absolute(group.refusals());
    let pressure = group.pressure();
    gauge!("memgroup_pressure_memory_waiting_seconds", "id" => id()).set(pressure.some.total as f64 / 1e6);
    gauge!("memgroup_pressure_memory_stalled_seconds", "id" => id()).set(pressure.full.total as f64 / 1e6);
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
            assert!(kept.get("memgroup_memory_usage_bytes /a").unwrap().is_nan());
            assert_eq!(kept.get("memgroup_memory_usage_bytes /b"), Some(0.0));
        });
    }
}
