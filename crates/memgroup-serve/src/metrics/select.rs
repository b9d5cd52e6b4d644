//! Select: the groups that have series each, and those that are summed.

use memgroup::GroupSnapshot;

/// The groups of a snapshot, parted.
#[derive(Debug)]
pub(super) struct Groups<'s> {
    /// Those with series each, in the order of the snapshot.
    pub(super) shown: Vec<&'s GroupSnapshot>,
    /// All other online groups.
    pub(super) rest: Vec<&'s GroupSnapshot>,
    /// Those of the rest with a parent that is shown: their figures include all groups of the rest below them.
    pub(super) tops: Vec<&'s GroupSnapshot>,
}

/// Bytes that a group takes at most while groups are parted.
pub(super) const EACH: usize = 8 * size_of::<&GroupSnapshot>();

/// Parts the online groups: the `most` with the most usage, and the others. Of two with the same usage the one that is listed first is shown, so a
/// parent comes before its children. The root is always shown. A removed group has no series: another group may have its path.
pub(super) fn select(groups: &[GroupSnapshot], most: usize) -> Groups<'_> {
    let mut ranked: Vec<usize> = (1..groups.len()).filter(|&at| groups[at].online).collect();
    let most = most.saturating_sub(1);
    if most < ranked.len() {
        ranked.select_nth_unstable_by_key(most, |&at| (std::cmp::Reverse(groups[at].usage_bytes), at));
    }
    let mut is_shown = vec![false; groups.len()];
    let first = (!groups.is_empty()).then_some(0);
    for at in first.into_iter().chain(ranked.into_iter().take(most)) {
        is_shown[at] = true;
    }
    let mut parted = Groups { shown: Vec::new(), rest: Vec::new(), tops: Vec::new() };
    for (at, group) in groups.iter().enumerate().filter(|(_, group)| group.online) {
        if is_shown[at] {
            parted.shown.push(group);
            continue;
        }
        parted.rest.push(group);
        if group.parent.is_none_or(|parent| is_shown[parent]) {
            parted.tops.push(group);
        }
    }
    parted
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, Hierarchy};
    use proptest::prelude::*;

    use super::*;

    fn paths<'g>(groups: &[&'g GroupSnapshot]) -> Vec<&'g str> {
        groups.iter().map(|group| group.path.as_str()).collect()
    }

    #[test]
    fn shows_the_largest_with_their_parents() {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let mut charges = Vec::new();
        for (path, bytes) in [("/a", 0), ("/a/x", 50), ("/a/y", 10), ("/b", 20), ("/b/z", 5), ("/c", 0)] {
            charges.push(hierarchy.create(path).unwrap().try_charge(bytes).unwrap());
        }
        let snapshot = hierarchy.snapshot();
        let groups = select(&snapshot.groups, 3);
        assert_eq!(paths(&groups.shown), ["/", "/a", "/a/x"]);
        assert_eq!(paths(&groups.rest), ["/a/y", "/b", "/b/z", "/c"]);
        assert_eq!(paths(&groups.tops), ["/a/y", "/b", "/c"]);
        assert_eq!(paths(&select(&snapshot.groups, 1).shown), ["/"]);
        assert_eq!(paths(&select(&snapshot.groups, 99).shown).len(), 7);
        assert!(select(&[], 3).shown.is_empty());
    }

    #[test]
    fn a_removed_group_has_no_series() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let first = hierarchy.create("/a").unwrap();
        let _charge = first.try_charge(100).unwrap();
        first.remove().unwrap();
        hierarchy.create("/a").unwrap();
        let snapshot = hierarchy.snapshot();
        assert_eq!(snapshot.groups.len(), 3);
        assert_eq!(paths(&select(&snapshot.groups, 9).shown), ["/", "/a"]);
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
            let groups = select(&snapshot.groups, most);
            prop_assert_eq!(groups.shown.len() + groups.rest.len(), snapshot.groups.len());
            prop_assert!(groups.shown.len() <= most);
            // The bytes that shown groups have themselves, and those of the rest, are all bytes.
            let own = |group: &GroupSnapshot| {
                let at = snapshot.groups.iter().position(|one| one.path == group.path).unwrap();
                group.usage_bytes - snapshot.children(at).map(|child| child.usage_bytes).sum::<u64>()
            };
            let shown: u64 = groups.shown.iter().map(|group| own(group)).sum();
            let rest: u64 = groups.tops.iter().map(|group| group.usage_bytes).sum();
            prop_assert_eq!(shown + rest, snapshot.groups[0].usage_bytes);
        }
    }
}
