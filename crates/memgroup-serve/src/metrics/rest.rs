//! Rest: the values of series, and their sums over the groups that have no series.

use std::fmt;

use memgroup::{GroupSnapshot, SnapshotReader};
use prometheus_client::encoding::{
    CounterValueEncoder, EncodeCounterValue, EncodeGaugeValue, GaugeValueEncoder,
};

use super::family::{self, FAMILIES, Of, Statistic};

/// A number of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    Whole(u64),
    Signed(i64),
    Seconds(f64),
}

impl Value {
    /// Microseconds as seconds.
    pub(super) fn micros(micros: u64) -> Value {
        Value::Seconds(micros as f64 / 1e6)
    }

    pub(super) fn plus(self, other: Value) -> Value {
        match (self, other) {
            (Value::Whole(one), Value::Whole(other)) => Value::Whole(one.saturating_add(other)),
            (Value::Signed(one), Value::Signed(other)) => Value::Signed(one.saturating_add(other)),
            (one, other) => Value::Seconds(one.as_f64() + other.as_f64()),
        }
    }

    pub(super) fn as_f64(self) -> f64 {
        match self {
            Value::Whole(number) => number as f64,
            Value::Signed(number) => number as f64,
            Value::Seconds(number) => number,
        }
    }
}

impl EncodeGaugeValue for Value {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> fmt::Result {
        match self {
            Value::Whole(number) => EncodeGaugeValue::encode(number, encoder),
            Value::Signed(number) => EncodeGaugeValue::encode(number, encoder),
            Value::Seconds(number) => EncodeGaugeValue::encode(number, encoder),
        }
    }
}

impl EncodeCounterValue for Value {
    fn encode(&self, encoder: &mut CounterValueEncoder<'_>) -> fmt::Result {
        match self {
            Value::Whole(number) => EncodeCounterValue::encode(number, encoder),
            // A sum that has wrapped.
            Value::Signed(number) => EncodeCounterValue::encode(&(*number).max(0).unsigned_abs(), encoder),
            Value::Seconds(number) => EncodeCounterValue::encode(number, encoder),
        }
    }
}

/// Groups that are read at once.
pub(super) const PIECE: usize = 2048;

/// The sums over all online groups but those with series.
#[derive(Debug, PartialEq)]
pub(super) struct Rest {
    /// How many there are.
    pub(super) groups: usize,
    /// One for each family of groups, in their order. `None` if no group has a value, or if a sum
    /// would mean nothing.
    pub(super) families: Vec<Option<Value>>,
    /// One for each kind of event, in their order. `None` if there is no group.
    pub(super) events: Option<Vec<u64>>,
    pub(super) statistics: Vec<Option<Value>>,
}

impl Rest {
    /// Reads the online groups of a tree that are not at the positions `shown`, piece by piece.
    /// Each shown group is listed after the shown one above it.
    pub(super) fn read(
        reader: &mut SnapshotReader,
        shown: &[usize],
        statistics: &[Statistic],
        mut rest: impl FnMut(),
    ) -> Rest {
        let is_shown = |at: usize| shown.binary_search(&at).is_ok();
        let all = 0..reader.groups().len();
        let others: Vec<usize> = all.filter(|&at| reader.is_online(at) && !is_shown(at)).collect();
        let mut sums = Rest {
            groups: others.len(),
            families: vec![None; FAMILIES.len()],
            events: None,
            statistics: vec![None; statistics.len()],
        };
        for piece in others.chunks(PIECE) {
            for (group, &at) in reader.read(piece, &mut rest).iter().zip(piece) {
                // Its figures include the groups below it, and none of those is shown.
                let is_top = reader.parent(at).is_none_or(is_shown);
                sums.add(group, is_top, statistics);
            }
        }
        sums
    }

    fn add(&mut self, group: &GroupSnapshot, is_top: bool, statistics: &[Statistic]) {
        for (sum, family) in self.families.iter_mut().zip(FAMILIES) {
            if family.of == Of::Group || family.of == Of::Subtree && is_top {
                add(sum, (family.value)(group));
            }
        }
        if !is_top {
            return;
        }
        let events = family::event_counts(group).map(|(_, count)| count);
        match &mut self.events {
            None => self.events = Some(events.collect()),
            Some(sums) => sums.iter_mut().zip(events).for_each(|(sum, count)| *sum += count),
        }
        for (sum, statistic) in self.statistics.iter_mut().zip(statistics) {
            add(sum, statistic.value(group));
        }
    }
}

fn add(sum: &mut Option<Value>, value: Option<Value>) {
    *sum = match (*sum, value) {
        (Some(sum), Some(value)) => Some(sum.plus(value)),
        (sum, value) => sum.or(value),
    };
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, Hierarchy};
    use proptest::prelude::*;

    use super::*;
    use crate::account::Account;
    use crate::snapshots::Found;

    /// The paths of the `most` largest online groups, those groups as they are read, and the sums
    /// over the others.
    fn part(hierarchy: &Hierarchy, most: usize) -> (Vec<GroupSnapshot>, Rest) {
        let other = Hierarchy::new(Config::new()).unwrap();
        let mut found = Found::below(&hierarchy.root(), &Account { group: other.root() }, 0).unwrap();
        let chosen = found.largest(most, |at| found.reader.is_online(at));
        let shown = found.reader.snapshot(&chosen, || ());
        let statistics = family::statistics(&shown);
        (shown.groups, Rest::read(&mut found.reader, &chosen, &statistics, || ()))
    }

    fn paths(groups: &[GroupSnapshot]) -> Vec<&str> {
        groups.iter().map(|group| group.path.as_str()).collect()
    }

    /// The sum of a family over the rest.
    fn sum(rest: &Rest, name: &str) -> Option<Value> {
        rest.families[FAMILIES.iter().position(|family| family.name == name).unwrap()]
    }

    #[test]
    fn sums_the_highest_groups_or_all_of_them() {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let mut charges = Vec::new();
        for (path, bytes) in [("/a", 0), ("/a/x", 50), ("/a/y", 10), ("/b", 20), ("/b/z", 5), ("/c", 0)] {
            let group = hierarchy.create(path).unwrap();
            charges.push(group.try_charge(bytes).unwrap());
        }
        let groups = hierarchy.groups();
        groups[1..].iter().for_each(|group| group.set_max(group.usage()).unwrap());
        groups[1..].iter().for_each(|group| _ = group.try_charge(1).unwrap_err());
        let (shown, rest) = part(&hierarchy, 3);
        assert_eq!((paths(&shown), rest.groups), (vec!["/", "/a", "/a/x"], 4));
        assert_eq!(sum(&rest, "memory_usage"), Some(Value::Whole(10 + 25)), "of /a/y, /b and /c");
        assert_eq!(sum(&rest, "memory_refusals"), Some(Value::Whole(4)), "of all four");
        assert_eq!(sum(&rest, "memory_max"), None);
        assert_eq!(rest.events.as_ref().unwrap()[2], 4, "those of /b include /b/z");
        let (shown, rest) = part(&hierarchy, 99);
        assert_eq!((shown.len(), rest.groups, &rest.events), (7, 0, &None));
        assert!(rest.families.iter().all(Option::is_none) && rest.statistics.iter().all(Option::is_none));
        assert_eq!(paths(&part(&hierarchy, 1).0), ["/"]);
    }

    #[test]
    fn a_removed_group_has_no_series() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let first = hierarchy.create("/a").unwrap();
        let _charge = first.try_charge(100).unwrap();
        first.remove().unwrap();
        hierarchy.create("/a").unwrap();
        let (shown, rest) = part(&hierarchy, 9);
        assert_eq!((paths(&shown), rest.groups), (vec!["/", "/a"], 0));
        assert_eq!((shown[1].usage_bytes, part(&hierarchy, 1).1.groups), (0, 1));
    }

    #[test]
    fn pieces_add_up() {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let groups = 2 * PIECE + 100;
        let charges: Vec<_> = (0..groups)
            .map(|number| hierarchy.create(&format!("/{number}")).unwrap().try_charge(3).unwrap())
            .collect();
        let (shown, rest) = part(&hierarchy, 11);
        assert_eq!((shown.len(), rest.groups), (11, groups - 10));
        assert_eq!(sum(&rest, "memory_charged"), Some(Value::Whole(3 * (groups as u64 - 10))));
        drop(charges);
    }

    proptest! {
        #[test]
        fn every_byte_is_in_one_of_the_parts(sizes in prop::collection::vec((0_usize..12, 0_u64..1000), 1..12), most in 1_usize..16) {
            let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
            let mut all = vec![hierarchy.root()];
            let mut charges = Vec::new();
            for (number, (parent, bytes)) in sizes.into_iter().enumerate() {
                let group = all[parent % all.len()].create(&format!("g{number}")).unwrap();
                charges.push(group.try_charge(bytes).unwrap());
                all.push(group);
            }
            let snapshot = hierarchy.snapshot();
            let (shown, rest) = part(&hierarchy, most);
            prop_assert_eq!(shown.len() + rest.groups, snapshot.groups.len());
            prop_assert!(shown.len() <= most);
            // The bytes that shown groups have themselves, and those of the rest, are all bytes.
            let own = |group: &GroupSnapshot| {
                let at = snapshot.groups.iter().position(|one| one.path == group.path).unwrap();
                group.usage_bytes - snapshot.children(at).map(|child| child.usage_bytes).sum::<u64>()
            };
            let shown: u64 = shown.iter().map(own).sum();
            let rest = sum(&rest, "memory_usage").map_or(0.0, Value::as_f64);
            prop_assert_eq!(shown as f64 + rest, snapshot.groups[0].usage_bytes as f64);
        }
    }
}
