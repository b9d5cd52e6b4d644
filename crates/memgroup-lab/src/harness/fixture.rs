//! The groups an experiment charges: a chain from the root, with leaves at its end.
//!
//!   depth 3:   root ── parent ──┬── leaf 0        depth 8:  root ── l1 ── ... ── l6 ──┬── leaf 0
//!                               └── leaf 1                                            └── leaf 1
//!
//! Depth counts counters, the root's included: a charge to a group of depth 3 moves three counters.

use memgroup::{Config, Group, Hierarchy};

use crate::error::{OrFail, Result, ensure};

/// A limit that is never reached.
pub(crate) const FAR_BYTES: u64 = 1 << 47;

/// A hierarchy with one parent of some leaves.
pub(crate) struct Fixture {
    /// The group that holds the leaves; the root when the leaves are its children or the root is
    /// the leaf.
    pub(crate) parent: Group,
    pub(crate) leaves: Vec<Group>,
    pub(crate) hierarchy: Hierarchy,
}

impl Fixture {
    /// A chain of `depth` counters that ends in `leaves` groups. Every level has a limit that is
    /// never reached, so each check is real.
    ///
    /// # Panics
    /// When several leaves are asked for at depth 1: there is one root.
    pub(crate) fn chain(config: Config, depth: usize, leaves: usize) -> Result<Fixture> {
        assert!(depth > 1 || leaves == 1, "{leaves} leaves at depth {depth}");
        let hierarchy = hierarchy(config)?;
        let mut parent = hierarchy.root();
        for level in 1..depth.saturating_sub(1) {
            parent = child(&parent, &format!("level{level}"))?;
        }
        let leaves = if depth == 1 { vec![parent.clone()] } else { children(&parent, "leaf", leaves)? };
        hierarchy.groups().iter().try_for_each(|group| limit(group, FAR_BYTES))?;
        Ok(Fixture { parent, leaves, hierarchy })
    }

    /// Many groups without limits below one parent, which is a child of the root.
    pub(crate) fn flat(config: Config, groups: usize) -> Result<Fixture> {
        let hierarchy = hierarchy(config.groups_max(groups as u32 + 3))?;
        let parent = child(&hierarchy.root(), "parent")?;
        let leaves = children(&parent, "g", groups)?;
        Ok(Fixture { parent, leaves, hierarchy })
    }

    /// Without stock no charge was a hit and nothing is prepaid; with it, some were hits. Returns
    /// the hits and misses of all leaves.
    pub(crate) fn check_stock(&self, stock: bool, name: &str) -> Result<(u64, u64)> {
        let (mut hits, mut misses, mut prepaid) = (0, 0, 0);
        for seen in self.leaves.iter().map(Group::stock) {
            hits += seen.hits;
            misses += seen.misses;
            prepaid += seen.prepaid_bytes;
        }
        ensure(if stock { hits > 0 } else { hits + prepaid == 0 }, || {
            format!("the variant \"{name}\" made {hits} hits and holds {prepaid} prepaid bytes")
        })?;
        Ok((hits, misses))
    }

    /// Nothing is charged any more: every counter says so, with the stocks subtracted and with them
    /// drained.
    pub(crate) fn check_empty(&self) -> Result<()> {
        check_empty(&self.hierarchy)
    }
}

/// Nothing is charged in any group of a hierarchy, with the stocks subtracted and with them
/// drained.
pub(crate) fn check_empty(hierarchy: &Hierarchy) -> Result<()> {
    let groups = hierarchy.groups();
    groups.iter().try_for_each(|group| expect_bytes(group, "usage without stock", group.usage_exact(), 0))?;
    hierarchy.root().drain();
    groups.iter().try_for_each(|group| expect_bytes(group, "usage after a drain", group.usage(), 0))
}

/// A wrong count of bytes is an error that names the group.
pub(crate) fn expect_bytes(group: &Group, what: &str, found: u64, right: u64) -> Result<()> {
    ensure(found == right, || format!("{what} of {} is {found} bytes, {right} are charged", group.path()))
}

/// A hierarchy, and a child of its root that may have so many bytes.
pub(crate) fn limited_parent(config: Config, max: impl Into<Option<u64>>) -> Result<(Hierarchy, Group)> {
    let hierarchy = hierarchy(config)?;
    let parent = child(&hierarchy.root(), "parent")?;
    limit(&parent, max)?;
    Ok((hierarchy, parent))
}

pub(crate) fn hierarchy(config: Config) -> Result<Hierarchy> {
    Hierarchy::new(config).set_up("the hierarchy")
}

pub(crate) fn child(parent: &Group, name: &str) -> Result<Group> {
    parent.create(name).set_up(format_args!("{}/{name}", parent.path()))
}

/// Children named by a prefix and their number, from 0 on.
pub(crate) fn children(parent: &Group, prefix: &str, count: usize) -> Result<Vec<Group>> {
    (0..count).map(|number| child(parent, &format!("{prefix}{number}"))).collect()
}

pub(crate) fn limit(group: &Group, max: impl Into<Option<u64>>) -> Result<()> {
    group.set_max(max).set_up(format_args!("the limit of {}", group.path()))
}

/// Removes a group in which everything was closed, with all groups below it: no byte may be left.
pub(crate) fn remove_empty(group: &Group) -> Result<()> {
    expect_bytes(group, "usage after all was closed", group.usage_exact(), 0)?;
    group.drain();
    expect_bytes(group, "usage after a drain", group.usage(), 0)?;
    remove_tree(group)
}

/// Removes a group with all groups below it.
pub(crate) fn remove_tree(group: &Group) -> Result<()> {
    group.children().iter().try_for_each(remove_tree)?;
    group.remove().or_wrong(format_args!("failed to remove {}", group.path()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn counts_the_root_in_the_depth() {
        let paths = |depth, leaves| {
            let tree = Fixture::chain(Config::new(), depth, leaves).unwrap();
            let mut paths: Vec<String> = tree.hierarchy.groups().iter().map(|group| group.path()).collect();
            paths.sort();
            paths
        };
        assert_eq!(paths(1, 1), ["/"]);
        assert_eq!(paths(2, 2), ["/", "/leaf0", "/leaf1"]);
        assert_eq!(paths(3, 2), ["/", "/level1", "/level1/leaf0", "/level1/leaf1"]);
    }

    #[test]
    fn fails_when_a_byte_is_left_behind() {
        let tree = Fixture::chain(Config::new(), 3, 1).unwrap();
        let charge = tree.leaves[0].try_charge(10).unwrap();
        let error = tree.check_empty().unwrap_err();
        assert!(matches!(&error, Error::Wrong(_)), "{error}");
        assert!(error.to_string().contains("10 bytes, 0 are charged"), "{error}");
        drop(charge);
        tree.check_empty().unwrap();
    }
}
