//! Groups: finds the groups that are new, gone, or have met a limit since the last check.
//!
//! - I1. A group that exists during a check is reported once as made and once as removed. A group
//!   that is made and removed between two checks is not reported.
//! - I2. One check reports at most [`SINGLY`] events of a kind, and then one event with the sums of
//!   the others.
//! - I3. A group and its path are charged before they are allocated. Groups beyond the server's
//!   limit are counted, and not reported.

use std::collections::BTreeMap;

use memgroup::{Charge, Events, Group, GroupId};
use serde::Serialize;

use super::ring::Ring;
use crate::account::{Account, uncounted};

/// The most events of a kind that one check reports one by one.
const SINGLY: usize = 100;

#[derive(Debug)]
struct Seen {
    path: Box<str>,
    /// The counts so far.
    counts: Counts,
    /// The last check that found it.
    look: u32,
}

/// The groups of the last check.
#[derive(Debug)]
pub(crate) struct Groups {
    /// A tree, because it grows by small blocks. A table would need both its old and its new memory
    /// while it grows.
    seen: BTreeMap<GroupId, Seen>,
    charge: Charge,
    look: u32,
    /// Groups that are not known, because the server's group is full.
    pub(crate) untold: usize,
}

/// A group that was made or removed.
#[derive(Serialize)]
struct Change<'g> {
    unix_us: u64,
    group: &'g str,
    id: u64,
}

/// The sum of changes that are not reported one by one.
#[derive(Default, Serialize)]
struct Changes {
    unix_us: u64,
    made: usize,
    removed: usize,
}

/// How often a group itself has met its limits since the last check.
#[derive(Debug, Serialize)]
pub(crate) struct Met<'g> {
    unix_us: u64,
    pub(crate) group: &'g str,
    #[serde(flatten)]
    pub(crate) counts: Counts,
    pub(crate) usage_bytes: u64,
    pub(crate) max_bytes: Option<u64>,
}

/// Counts of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    pub(crate) low: u64,
    pub(crate) high: u64,
    pub(crate) max: u64,
    pub(crate) oom: u64,
    pub(crate) oom_kill: u64,
    pub(crate) oom_group_kill: u64,
    pub(crate) would_refuse: u64,
    pub(crate) refused: u64,
}

impl Counts {
    /// Returns the counts of a group so far.
    fn of(group: &Group) -> Counts {
        // Refusals before events: a charge is refused after its events are counted.
        let refused = group.refusals();
        let Events { low, high, max, oom, oom_kill, oom_group_kill, would_refuse, .. } = group.events_local();
        Counts { low, high, max, oom, oom_kill, oom_group_kill, would_refuse, refused }
    }

    fn each(&mut self) -> [&mut u64; 8] {
        let Counts { low, high, max, oom, oom_kill, oom_group_kill, would_refuse, refused } = self;
        [low, high, max, oom, oom_kill, oom_group_kill, would_refuse, refused]
    }

    fn since(mut self, mut before: Counts) -> Counts {
        self.each().into_iter().zip(before.each()).for_each(|(new, old)| *new = new.saturating_sub(*old));
        self
    }

    pub(crate) fn add(&mut self, mut other: Counts) {
        self.each().into_iter().zip(other.each()).for_each(|(sum, more)| *sum += *more);
    }
}

/// The sum of limits met that are not reported one by one.
#[derive(Default, Serialize)]
struct MetMore {
    unix_us: u64,
    groups: usize,
    #[serde(flatten)]
    counts: Counts,
}

impl Groups {
    pub(crate) fn new(charge: Charge) -> Groups {
        Groups { seen: BTreeMap::new(), charge, look: 0, untold: 0 }
    }

    /// Charges one more group with a path of `path` bytes. Returns whether there is memory for it.
    fn has_room(&mut self, account: &Account, path: usize) -> bool {
        let bytes = self.charge.bytes() + bytes_of(path);
        account.resize(&mut self.charge, bytes).is_ok()
    }

    /// Compares all online groups with those of the last check, and reports the differences. `met`
    /// is called for each group that has met a limit.
    pub(crate) fn look<'g>(
        &mut self,
        account: &Account,
        groups: impl IntoIterator<Item = &'g Group>,
        unix_us: u64,
        ring: Option<&Ring>,
        mut met: impl FnMut(&Group, &Met<'_>),
    ) {
        self.look = self.look.wrapping_add(1);
        self.untold = 0;
        let mut changes = Changes { unix_us, ..Changes::default() };
        let mut more = MetMore { unix_us, ..MetMore::default() };
        let mut told = 0;
        for group in groups {
            let id = group.id();
            let (now, look) = (Counts::of(group), self.look);
            let seen = match self.seen.get_mut(&id) {
                Some(seen) => seen,
                None => {
                    let path = uncounted(|| group.path().into_boxed_str());
                    if !self.has_room(account, path.len()) {
                        self.untold += 1;
                        continue;
                    }
                    let change = Change { unix_us, group: &path, id: id.as_u64() };
                    tell_change(ring, "group_made", &change, &mut changes.made);
                    // The first check reports nothing that happened before.
                    let counts = if ring.is_none() { now } else { Counts::default() };
                    let entry = self.seen.entry(id);
                    uncounted(|| entry.or_insert(Seen { path, counts, look }))
                }
            };
            seen.look = look;
            if seen.counts == now {
                continue;
            }
            let counts = now.since(std::mem::replace(&mut seen.counts, now));
            let (usage_bytes, max_bytes) = group.usage_and_max();
            let one = Met { unix_us, group: &seen.path, counts, usage_bytes, max_bytes };
            met(group, &one);
            told += 1;
            if told <= SINGLY {
                push(ring, "limit", &one);
            } else {
                more.groups += 1;
                more.counts.add(counts);
            }
        }
        let Groups { seen, charge, look, .. } = self;
        seen.retain(|id, seen| {
            let is_there = seen.look == *look;
            if !is_there {
                let change = Change { unix_us, group: &seen.path, id: id.as_u64() };
                tell_change(ring, "group_removed", &change, &mut changes.removed);
                charge.shrink(bytes_of(seen.path.len()));
            }
            is_there
        });
        let over = |count: usize| count.saturating_sub(SINGLY);
        (changes.made, changes.removed) = (over(changes.made), over(changes.removed));
        if changes.made + changes.removed > 0 {
            push(ring, "groups_more", &changes);
        }
        if more.groups > 0 {
            push(ring, "limits_more", &more);
        }
    }
}

/// Returns the bytes of a group with a path of this length. A node of the tree has room for eleven
/// groups, and every node but the root has at least five, so a group takes at most 2.2 times the
/// size of its entry.
fn bytes_of(path: usize) -> u64 {
    (9 * size_of::<(GroupId, Seen)>() / 4 + path) as u64
}

fn push(ring: Option<&Ring>, kind: &'static str, data: &impl Serialize) {
    if let Some(ring) = ring {
        ring.push(kind, data);
    }
}

/// Reports a change, unless too many of its kind were reported.
fn tell_change(ring: Option<&Ring>, kind: &'static str, change: &Change<'_>, count: &mut usize) {
    *count += 1;
    if *count <= SINGLY {
        push(ring, kind, change);
    }
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, Hierarchy};
    use serde_json::Value;

    use super::*;

    struct Fixture {
        hierarchy: Hierarchy,
        account: Account,
        groups: Groups,
        ring: Ring,
        read: u64,
    }

    impl Fixture {
        fn new() -> Fixture {
            let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
            let account = Account { group: hierarchy.create("/serve").unwrap() };
            let groups = Groups::new(account.empty().unwrap());
            let mut fixture = Fixture { hierarchy, account, groups, ring: Ring::new(1000), read: 1 };
            fixture.groups.look(&fixture.account, &fixture.hierarchy.groups(), 0, None, |_, _| ());
            fixture
        }

        /// Makes one more check. Returns the kinds of its events, each with its group.
        fn look(&mut self) -> Vec<(&'static str, Value)> {
            self.groups.look(&self.account, &self.hierarchy.groups(), 7, Some(&self.ring), |_, _| ());
            let events = self.ring.from(self.read, usize::MAX).events;
            self.read = self.ring.next();
            events.iter().map(|event| (event.kind, serde_json::from_str(&event.data).unwrap())).collect()
        }
    }

    #[test]
    fn tells_groups_made_and_removed_once() {
        let mut fixture = Fixture::new();
        assert!(fixture.look().is_empty());
        let a = fixture.hierarchy.create("/a").unwrap();
        let told = fixture.look();
        assert_eq!((told.len(), told[0].0, &told[0].1["group"]), (1, "group_made", &Value::from("/a")));
        a.remove().unwrap();
        fixture.hierarchy.create("/a").unwrap();
        let told = fixture.look();
        assert_eq!(told.iter().map(|told| told.0).collect::<Vec<_>>(), ["group_made", "group_removed"]);
        assert_ne!(told[0].1["id"], told[1].1["id"], "the path is the same");
        assert!(fixture.look().is_empty());
    }

    #[test]
    fn tells_how_often_a_limit_was_met() {
        let mut fixture = Fixture::new();
        let a = fixture.hierarchy.create("/a").unwrap();
        a.set_max(100).unwrap();
        a.try_charge(101).unwrap_err();
        let told = fixture.look();
        assert_eq!(told.iter().map(|told| told.0).collect::<Vec<_>>(), ["group_made", "limit"]);
        a.try_charge(101).unwrap_err();
        a.try_charge(101).unwrap_err();
        let told = fixture.look();
        assert_eq!((told.len(), told[0].0), (1, "limit"));
        let limit = &told[0].1;
        let figures =
            ["max", "refused", "oom_kill", "max_bytes", "unix_us"].map(|key| limit[key].as_u64().unwrap());
        assert_eq!(figures, [2, 2, 0, 100, 7]);
    }

    #[test]
    fn many_changes_are_summed() {
        let mut fixture = Fixture::new();
        let groups: Vec<_> = (0..SINGLY + 50)
            .map(|number| fixture.hierarchy.create(&format!("/g{number}")).unwrap())
            .collect();
        let told = fixture.look();
        assert_eq!((told.len(), &told[SINGLY].1["made"]), (SINGLY + 1, &Value::from(50)));
        for group in &groups {
            group.set_max(1).unwrap();
            group.try_charge(2).unwrap_err();
        }
        let told = fixture.look();
        assert_eq!((told.len(), told[SINGLY].0), (SINGLY + 1, "limits_more"));
        assert_eq!((&told[SINGLY].1["groups"], &told[SINGLY].1["max"]), (&Value::from(50), &Value::from(50)));
        groups.iter().for_each(|group| group.remove().unwrap());
        let told = fixture.look();
        assert_eq!((told.len(), &told[SINGLY].1["removed"]), (SINGLY + 1, &Value::from(50)));
    }

    #[test]
    fn groups_beyond_the_limit_are_counted() {
        let mut fixture = Fixture::new();
        fixture.look();
        // For ten more groups, whose paths have four bytes.
        fixture.account.group.set_max(fixture.account.group.usage() + 10 * bytes_of(4)).unwrap();
        let groups: Vec<_> =
            (100..120).map(|number| fixture.hierarchy.create(&format!("/{number}")).unwrap()).collect();
        fixture.look();
        assert_eq!(
            (fixture.groups.untold, fixture.groups.seen.len()),
            (10, 12),
            "with the root and the server"
        );
        fixture.account.group.set_max(fixture.account.group.usage() + 5 * bytes_of(4)).unwrap();
        fixture.look();
        assert_eq!(fixture.groups.untold, 5);
        groups[..10].iter().for_each(|group| group.remove().unwrap());
        fixture.look();
        fixture.look();
        assert_eq!((fixture.groups.untold, fixture.groups.seen.len()), (0, 12));
    }

    #[test]
    fn charges_the_bytes_of_groups_and_of_their_paths() {
        let mut fixture = Fixture::new();
        fixture.look();
        let usage = |fixture: &Fixture| fixture.account.group.usage();
        let at_rest = usage(&fixture);
        let name = "x".repeat(200);
        let groups: Vec<_> = (0..2000)
            .map(|number| fixture.hierarchy.create(&format!("/{name}-{number:04}")).unwrap())
            .collect();
        fixture.look();
        let (entries, paths) = (2000 * size_of::<(GroupId, Seen)>(), 2000 * (1 + 200 + 1 + 4));
        let more = (usage(&fixture) - at_rest) as usize;
        assert!(more >= 11 * entries / 5 + paths, "{more} of {entries} and {paths}");
        assert!(more < 5 * entries / 2 + paths, "each byte once");
        groups.iter().for_each(|group| group.remove().unwrap());
        fixture.look();
        assert_eq!(usage(&fixture), at_rest);
    }
}
