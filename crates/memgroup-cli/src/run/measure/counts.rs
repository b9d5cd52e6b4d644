//! Counts by name, as in cgroup v2's flat keyed files. The names are the keys of the JSON.

use std::collections::BTreeMap;

use memgroup::{Events, GroupSnapshot, Reach, StatKey};
use serde::{Deserialize, Serialize};

/// Counts and bytes by name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Counts(BTreeMap<String, u64>);

impl Counts {
    pub(crate) fn of<const N: usize>(pairs: [(&str, u64); N]) -> Counts {
        Counts(pairs.map(|(key, count)| (key.to_owned(), count)).into())
    }

    /// Events of a group and the groups below it, with the keys of `memory.events`.
    pub(crate) fn of_events(events: &Events) -> Counts {
        Counts::of(events.pairs())
    }

    /// Statistics of a group and the groups below it.
    pub(crate) fn of_statistics<const N: usize>(group: &GroupSnapshot, keys: [(&str, StatKey); N]) -> Counts {
        // SQLite's gauges are estimates, so a sum may be below zero for a moment.
        let read = |key| group.statistic(key, Reach::Subtree).map_or(0, |value| value.max(0) as u64);
        Counts::of(keys.map(|(name, key)| (name, read(key))))
    }

    /// The count of `key`; 0 for a key that is not counted.
    pub(crate) fn get(&self, key: &str) -> u64 {
        self.0.get(key).copied().unwrap_or(0)
    }

    pub(crate) fn set(&mut self, key: &str, count: u64) {
        self.0.insert(key.to_owned(), count);
    }

    /// Adds a `later` run. Counts under the keys `state` are of the end of a run: those of the later one stay.
    pub(crate) fn add(self, mut later: Counts, state: &[&str]) -> Counts {
        for (key, count) in self.0.into_iter().filter(|(key, _)| !state.contains(&key.as_str())) {
            *later.0.entry(key).or_default() += count;
        }
        later
    }
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, Hierarchy};

    use super::Counts;

    #[test]
    fn includes_the_events_of_the_groups_below() {
        let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
        let parent = hierarchy.create("/parent").expect("a group");
        let child = parent.create("child").expect("a group");
        child.set_max(4_096).expect("nothing is charged");
        child.try_charge(5_000).expect_err("no room");
        assert_eq!(Counts::of_events(&parent.events()).get("max"), 1);
    }

    #[test]
    fn adds_runs_and_keeps_the_last_state() {
        let run = |max, file| Counts::of([("max", max), ("file", file)]);
        assert_eq!(run(2, 10).add(run(3, 20), &["file"]), run(5, 20));
    }
}
