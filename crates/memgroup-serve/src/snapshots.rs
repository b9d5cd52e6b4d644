//! Snapshots: values of the tree for answers, charged before they are made.
//!
//! - I1. An answer has as many groups as its client asks for, or as many as fit in a quarter of the
//!   server's limit, and these are the ones with the most usage. So a tenant cannot make an
//!   operator's answer fail by creating groups. The answer says how many groups it left out.
//! - I2. A group is chosen before the groups below it.

use std::cmp::Reverse;
use std::sync::{Arc, Weak};

use memgroup::{
    Charge, ChargeError, Group, GroupSnapshot, Hierarchy, ShrinkerReport, Snapshot, SnapshotReader,
};
use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

use crate::account::{Account, uncounted};
use crate::pace::Pace;

/// A request shares the snapshot of another answer that is still being sent, if it isn't older than
/// this.
const SHARED_FOR: Duration = Duration::from_millis(250);

/// Bytes for each group while the groups are listed, with a name of usual length.
const FINDING: usize = 384;

/// Bytes for each group that was found, while groups are chosen and read.
const FOUND: usize = 160;

/// The groups of one answer take at most the server's limit divided by this, unless its client asks
/// for more.
const PART: u64 = 4;

/// A snapshot with its charge.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) snapshot: Snapshot,
    /// The text of the snapshot before and after its groups, as the engine serialises it.
    pub(crate) frame: (String, String),
    _charge: Charge,
}

/// The snapshot of an answer, the time at which it was taken, and the number of groups that its
/// client asked for.
type Last = (Weak<Held>, Instant, Option<usize>);

/// The last snapshot of the whole tree, as long as an answer uses it.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    last: Mutex<Option<Last>>,
}

impl Snapshots {
    /// Returns a snapshot of the whole tree, which has about `groups` groups. If the client asks
    /// for a number, the snapshot has the `most` largest ones. Another answer may use the same
    /// snapshot if it is at most a quarter of a second old.
    pub(crate) fn tree(
        &self,
        hierarchy: &Hierarchy,
        account: &Account,
        pace: &Pace,
        groups: usize,
        most: Option<usize>,
    ) -> Result<Arc<Held>, ChargeError> {
        let mut last = self.last.lock();
        let is_shared = |last: &&Last| last.1.elapsed() <= SHARED_FOR && last.2 == most;
        if let Some(held) = last.as_ref().filter(is_shared).and_then(|last| last.0.upgrade()) {
            return Ok(held);
        }
        let held = Arc::new(take(hierarchy, &hierarchy.root(), account, pace, groups, most)?);
        *last = Some((Arc::downgrade(&held), Instant::now(), most));
        Ok(held)
    }

    /// Makes the next request take a snapshot of its own, because a client has changed the tree.
    pub(crate) fn forget(&self) {
        *self.last.lock() = None;
    }
}

/// The groups of a part of the tree, before they are read.
pub(crate) struct Found {
    pub(crate) reader: SnapshotReader,
    _charge: Charge,
}

impl Found {
    /// Lists the groups of a part of the tree, which has about `groups` groups.
    pub(crate) fn below(top: &Group, account: &Account, groups: usize) -> Result<Found, ChargeError> {
        let mut charge = account.charge(((groups + groups / 8 + 1) * FINDING) as u64)?;
        let reader = uncounted(|| top.snapshot_reader());
        account.resize(&mut charge, (reader.groups().len() * FOUND) as u64)?;
        Ok(Found { reader, _charge: charge })
    }

    /// The groups that are online.
    pub(crate) fn online(&self) -> impl Iterator<Item = &Group> {
        let groups = self.reader.groups().enumerate();
        groups.filter(|(at, _)| self.reader.is_online(*at)).map(|(_, group)| group)
    }

    /// Returns the positions of the `most` groups with the most usage, among those that are
    /// `wanted`, in ascending order. The first group is always one of them. A group counts as large
    /// as the largest group below it, so it is chosen before that one even if both change in the
    /// meantime (I2). Of two groups with the same usage, the first one is chosen.
    pub(crate) fn largest(&self, most: usize, wanted: impl Fn(usize) -> bool) -> Vec<usize> {
        choose(self.reader.groups().map(Group::usage).collect(), |at| self.reader.parent(at), most, wanted)
    }
}

/// Does the work of [`Found::largest`] for groups with this usage.
fn choose(
    mut usage: Vec<u64>,
    parent: impl Fn(usize) -> Option<usize>,
    most: usize,
    wanted: impl Fn(usize) -> bool,
) -> Vec<usize> {
    for at in (1..usage.len()).rev().filter(|&at| wanted(at)) {
        if let Some(parent) = parent(at) {
            usage[parent] = usage[parent].max(usage[at]);
        }
    }
    let mut ranked: Vec<usize> = (1..usage.len()).filter(|&at| wanted(at)).collect();
    let most = most.saturating_sub(1);
    if most < ranked.len() {
        ranked.select_nth_unstable_by_key(most, |&at| (Reverse(usage[at]), at));
        ranked.truncate(most);
    }
    ranked.push(0);
    ranked.sort_unstable();
    ranked
}

/// Takes a snapshot of a part of the tree, which has about `groups` groups. The snapshot has the
/// `most` largest of them, or as many as there is room for if the client asks for no number.
pub(crate) fn take(
    hierarchy: &Hierarchy,
    top: &Group,
    account: &Account,
    pace: &Pace,
    groups: usize,
    most: Option<usize>,
) -> Result<Held, ChargeError> {
    let mut found = Found::below(top, account, groups)?;
    let room = account.group.max().map_or(u64::MAX, |max| max / PART) / bytes_of_group(hierarchy);
    let most =
        most.unwrap_or(usize::try_from(room).unwrap_or(usize::MAX)).clamp(1, found.reader.groups().len());
    let mut charge = account.charge(most as u64 * bytes_of_group(hierarchy))?;
    let chosen = uncounted(|| found.largest(most, |_| true));
    let mut snapshot = uncounted(|| found.reader.snapshot(&chosen, || _ = pace.settle()));
    drop(found);
    let frame = uncounted(|| frame(&mut snapshot));
    account.resize(&mut charge, bytes_of(&snapshot) + (frame.0.len() + frame.1.len()) as u64)?;
    Ok(Held { snapshot, frame, _charge: charge })
}

/// Serialises a snapshot without its groups. If a name contains the text of the key, its quotes are
/// escaped, so the first match is the key.
fn frame(snapshot: &mut Snapshot) -> (String, String) {
    const GROUPS: &str = "\"groups\":[";
    let groups = std::mem::take(&mut snapshot.groups);
    let text = serde_json::to_string(snapshot).unwrap_or_default();
    snapshot.groups = groups;
    let at = text.find(GROUPS).map_or(0, |at| at + GROUPS.len());
    let (head, tail) = text.split_at(at);
    (head.to_owned(), tail.to_owned())
}

/// The number of statistics that each group has.
pub(crate) fn statistics(hierarchy: &Hierarchy) -> usize {
    let subsystems = hierarchy.subsystems().into_iter();
    subsystems.filter_map(|name| hierarchy.statistics(name)).map(|one| one.stats().len()).sum()
}

/// Bytes of one group in a snapshot, with paths of usual length.
pub(crate) fn bytes_of_group(hierarchy: &Hierarchy) -> u64 {
    const NAMES: usize = 128;
    (size_of::<GroupSnapshot>() + 16 * statistics(hierarchy) + NAMES) as u64
}

fn bytes_of(snapshot: &Snapshot) -> u64 {
    let statistics: usize = snapshot
        .groups
        .first()
        .map_or(0, |group| group.subsystems().map(|subsystem| subsystem.stats.len()).sum());
    let texts = |group: &GroupSnapshot| group.path.capacity() + group.name.capacity();
    let groups: usize = snapshot.groups.iter().map(|group| texts(group) + 16 * statistics).sum();
    let shrinkers: usize =
        snapshot.shrinkers.iter().map(|one| size_of::<ShrinkerReport>() + one.name.capacity()).sum();
    (snapshot.groups.capacity() * size_of::<GroupSnapshot>() + groups + shrinkers) as u64
}

/// Number of groups in a part of the tree, up to `most`.
pub(crate) fn count(top: &Group, most: usize) -> usize {
    let (mut groups, mut open) = (1, vec![top.clone()]);
    while let Some(group) = open.pop().filter(|_| groups < most) {
        let children = group.children();
        groups += children.len();
        open.extend(children);
    }
    groups.min(most)
}

#[cfg(test)]
mod tests {
    use memgroup::Config;

    use super::*;

    fn fixture() -> (Hierarchy, Account) {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let account = Account { group: hierarchy.create("/serve").unwrap() };
        (hierarchy, account)
    }

    #[test]
    fn requests_share_a_snapshot_while_one_of_them_has_it() {
        let (hierarchy, account) = fixture();
        let snapshots = Snapshots::default();
        let tree = || snapshots.tree(&hierarchy, &account, &Pace::new(25), 2, None).unwrap();
        let (first, second) = (tree(), tree());
        assert!(Arc::ptr_eq(&first, &second) || first.snapshot.taken.elapsed().unwrap() > SHARED_FOR);
        snapshots.forget();
        let third = tree();
        assert!(!Arc::ptr_eq(&first, &third), "a client has changed the tree");
        drop((first, second, third));
        assert_eq!(account.group.usage(), 0, "no snapshot is kept for later");
        let other = hierarchy.create("/other").unwrap();
        assert_eq!(tree().snapshot.group("/other").unwrap().id, other.id());
    }

    #[test]
    fn frames_the_groups_as_the_engine_does() {
        let (hierarchy, account) = fixture();
        hierarchy.create("/\"groups\":[x").unwrap();
        let held = take(&hierarchy, &hierarchy.root(), &account, &Pace::new(25), 3, None).unwrap();
        let groups: Vec<String> =
            held.snapshot.groups.iter().map(|group| serde_json::to_string(group).unwrap()).collect();
        let text = format!("{}{}{}", held.frame.0, groups.join(","), held.frame.1);
        assert_eq!(text, serde_json::to_string(&held.snapshot).unwrap());
    }

    #[test]
    fn settles_for_each_32_groups_of_a_snapshot() {
        let (hierarchy, account) = fixture();
        let groups: Vec<_> = (0..62).map(|number| hierarchy.create(&format!("/{number}")).unwrap()).collect();
        let settles = |top: &Group, groups| {
            crate::pace::settles_of(|pace| drop(take(&hierarchy, top, &account, pace, groups, None).unwrap()))
        };
        assert_eq!((settles(&groups[0], 1), settles(&hierarchy.root(), 64)), (1, 2));
        hierarchy.create("/one-more").unwrap();
        assert_eq!(settles(&hierarchy.root(), 65), 3);
    }

    #[test]
    fn counts_the_groups_of_a_part() {
        let (hierarchy, _) = fixture();
        for path in ["/a", "/a/b", "/a/b/c", "/a/d", "/e"] {
            hierarchy.create(path).unwrap();
        }
        let count_of = |path: &str, most| count(&hierarchy.lookup(path).unwrap(), most);
        assert_eq!(
            [count_of("/", 99), count_of("/a", 99), count_of("/e", 99), count_of("/", 3)],
            [7, 4, 1, 3]
        );
    }

    #[test]
    fn a_snapshot_is_refused_before_it_is_made() {
        let (hierarchy, account) = fixture();
        for number in 0..1000 {
            hierarchy.create(&format!("/{number}")).unwrap();
        }
        let refused = |limit, known, most| {
            account.group.set_max(limit).unwrap();
            let refused =
                Snapshots::default().tree(&hierarchy, &account, &Pace::new(25), known, most).unwrap_err();
            assert_eq!(account.group.usage(), 0);
            refused.asked()
        };
        let list = 1002 * FINDING as u64;
        assert!(refused(list / 2, 1002, None) >= list, "the list of all groups at once");
        // The last check found two groups.
        assert_eq!(refused(100_000, 2, None), (1002 * FOUND - 3 * FINDING) as u64);
        let groups = 1002 * bytes_of_group(&hierarchy);
        assert_eq!(refused(groups, 1002, Some(5000)), groups, "all groups that the client asks for, at once");
    }

    #[test]
    fn a_snapshot_has_the_largest_groups_for_which_there_is_room() {
        // The server's own group is in another tree.
        let ((_other, account), (hierarchy, _)) = (fixture(), fixture());
        let mut charges = Vec::new();
        for number in 0..1000 {
            let group = hierarchy.create(&format!("/{number:03}")).unwrap();
            charges.push(group.create("below").unwrap().try_charge(1000 - number).unwrap());
        }
        let each = bytes_of_group(&hierarchy);
        account.group.set_max(4 * 500 * each).unwrap();
        let take = |most| take(&hierarchy, &hierarchy.root(), &account, &Pace::new(25), 2002, most).unwrap();
        for (most, groups) in [(None, 500), (Some(500), 500), (Some(1), 1), (Some(0), 1), (Some(4), 4)] {
            let held = take(most);
            let paths: Vec<&str> = held.snapshot.groups.iter().map(|group| group.path.as_str()).collect();
            assert_eq!((paths.len(), held.snapshot.left_out), (groups, 2002 - groups), "{most:?}");
            let first = ["/", "/000", "/000/below", "/001", "/001/below"];
            assert_eq!(paths[..groups.min(5)], first[..groups.min(5)]);
            assert_eq!(held.snapshot.groups[0].descendants, 2001, "with those that are left out");
        }
        account.group.set_max(None).unwrap();
        assert_eq!((take(None).snapshot.left_out, take(Some(9999)).snapshot.groups.len()), (0, 2002));
        assert_eq!(account.group.usage(), 0);
    }

    #[test]
    fn a_group_is_as_large_as_those_below_it() {
        let (_other, account) = fixture();
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0).account_root(false)).unwrap();
        let deep = ["/a", "/a/b", "/a/b/c", "/d"].map(|path| hierarchy.create(path).unwrap());
        let (_small, _large) = (deep[3].try_charge(10).unwrap(), deep[2].try_charge(20).unwrap());
        let found = Found::below(&hierarchy.root(), &account, 5).unwrap();
        let paths = |most, wanted: fn(usize) -> bool| -> Vec<String> {
            let groups: Vec<String> = found.reader.groups().map(Group::path).collect();
            found.largest(most, wanted).into_iter().map(|at| groups[at].clone()).collect()
        };
        assert_eq!(paths(1, |_| true), ["/"]);
        assert_eq!(paths(3, |_| true), ["/", "/a", "/a/b"]);
        assert_eq!(paths(5, |_| true), ["/", "/a", "/a/b", "/a/b/c", "/d"]);
        assert_eq!(paths(2, |at| at > 3), ["/", "/d"], "only of those that are wanted");
        assert_eq!(paths(99, |_| true).len(), 5);
        // The last group took its bytes after those above it were looked at.
        let parents = [None, Some(0), Some(1), Some(2), Some(0)];
        assert_eq!(choose(vec![0, 1, 2, 20, 10], |at| parents[at], 4, |_| true), [0, 1, 2, 3]);
    }
}
