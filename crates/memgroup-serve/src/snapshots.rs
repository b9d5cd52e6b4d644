//! Snapshots: values of the tree for answers, charged before they are made.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use memgroup::{Charge, ChargeError, Group, GroupSnapshot, Hierarchy, ShrinkerReport, Snapshot};
use tokio::time::{Duration, Instant};

use crate::account::{Account, uncounted};
use crate::pace::Pace;

/// The age up to which requests share a snapshot that another one still sends.
const SHARED_FOR: Duration = Duration::from_millis(250);

/// Bytes of the temporary values of a snapshot, for each group.
const PASSING: usize = 160;

/// A snapshot with its charge.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) snapshot: Snapshot,
    /// The text of the snapshot before and after its groups, as the engine serialises it.
    pub(crate) frame: (String, String),
    _charge: Charge,
}

/// The snapshot of the whole tree that was made last, while an answer has it.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    last: Mutex<Option<(Weak<Held>, Instant)>>,
}

impl Snapshots {
    /// A snapshot of the whole tree, which has some `groups`. It may be one that another answer has, if that is a quarter of a second old at most.
    pub(crate) fn tree(
        &self,
        hierarchy: &Hierarchy,
        account: &Account,
        pace: &Pace,
        groups: usize,
    ) -> Result<Arc<Held>, ChargeError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let held = last.as_ref().filter(|(_, taken)| taken.elapsed() <= SHARED_FOR);
        if let Some(held) = held.and_then(|(held, _)| held.upgrade()) {
            return Ok(held);
        }
        // Many groups may have come since the last look.
        let listed = account.charge((groups * 2 * size_of::<Group>()) as u64)?;
        let groups = hierarchy.groups().len().max(groups);
        drop(listed);
        let held = Arc::new(take(hierarchy, &hierarchy.root(), account, pace, groups)?);
        *last = Some((Arc::downgrade(&held), Instant::now()));
        Ok(held)
    }

    /// Has the next request take a snapshot of its own: a client has changed the tree.
    pub(crate) fn forget(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A snapshot of a part of the tree, which has some `groups`.
pub(crate) fn take(
    hierarchy: &Hierarchy,
    top: &Group,
    account: &Account,
    pace: &Pace,
    groups: usize,
) -> Result<Held, ChargeError> {
    let mut charge = account.charge(bytes_of_groups(hierarchy, groups + groups / 8 + 1))?;
    let mut snapshot = uncounted(|| top.snapshot_with(|| _ = pace.settle()));
    let frame = uncounted(|| frame(&mut snapshot));
    account.resize(&mut charge, bytes_of(&snapshot) + (frame.0.len() + frame.1.len()) as u64)?;
    Ok(Held { snapshot, frame, _charge: charge })
}

/// Serialises a snapshot without its groups. A name that holds the key's text has its quotes escaped, so the first one found is the key.
fn frame(snapshot: &mut Snapshot) -> (String, String) {
    const GROUPS: &str = "\"groups\":[";
    let groups = std::mem::take(&mut snapshot.groups);
    let text = serde_json::to_string(snapshot).unwrap_or_default();
    snapshot.groups = groups;
    let at = text.find(GROUPS).map_or(0, |at| at + GROUPS.len());
    let (head, tail) = text.split_at(at);
    (head.to_owned(), tail.to_owned())
}

/// Bytes of the snapshot of so many groups, by the lengths of paths that are usual.
fn bytes_of_groups(hierarchy: &Hierarchy, groups: usize) -> u64 {
    const NAMES: usize = 128;
    let statistics: usize = hierarchy
        .subsystems()
        .into_iter()
        .filter_map(|name| hierarchy.statistics(name))
        .map(|one| one.stats().len())
        .sum();
    (groups * (size_of::<GroupSnapshot>() + 16 * statistics + NAMES + PASSING)) as u64
}

fn bytes_of(snapshot: &Snapshot) -> u64 {
    let statistics: usize = snapshot
        .groups
        .first()
        .map_or(0, |group| group.subsystems().map(|subsystem| subsystem.stats.len()).sum());
    let labels =
        |group: &GroupSnapshot| group.labels.iter().map(|(name, _)| name.capacity() + 32).sum::<usize>();
    let texts = |group: &GroupSnapshot| group.path.capacity() + group.name.capacity() + labels(group);
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
        let tree = || snapshots.tree(&hierarchy, &account, &Pace::new(25), 2).unwrap();
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
        let held = take(&hierarchy, &hierarchy.root(), &account, &Pace::new(25), 3).unwrap();
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
            crate::pace::settles_of(|pace| drop(take(&hierarchy, top, &account, pace, groups).unwrap()))
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
        account.group.set_max(100_000).unwrap();
        // The last look found two groups.
        let refused = Snapshots::default().tree(&hierarchy, &account, &Pace::new(25), 2).unwrap_err();
        let asked = bytes_of_groups(&hierarchy, 1002);
        assert!(refused.asked() >= asked, "{} of {asked}: all at once", refused.asked());
        assert_eq!(account.group.usage(), 0);
    }
}
