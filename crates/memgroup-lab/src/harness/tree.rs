//! The groups an experiment charges: a chain from the root, with leaves at its end.
//!
//!   depth 3:   root ── parent ──┬── leaf 0        depth 8:  root ── l1 ── ... ── l6 ──┬── leaf 0
//!                               └── leaf 1                                            └── leaf 1
//!
//! Depth counts counters, the root's included: a charge to a group of depth 3 moves three counters.
//!
//! - I1. Every level has a limit that is never reached: the check is real, its answer always yes.

use memgroup::{Config, Group, Hierarchy};

use crate::Error;

/// A limit far away, but a limit.
const FAR_BYTES: u64 = 1 << 47;

/// A chain of groups with leaves.
pub(crate) struct Tree {
    pub(crate) hierarchy: Hierarchy,
    /// The group that holds the leaves; the root when the leaves are its children or the root is the leaf.
    pub(crate) parent: Group,
    pub(crate) leaves: Vec<Group>,
}

impl Tree {
    /// Builds a chain of `depth` counters that ends in `leaves` groups side by side.
    ///
    /// # Panics
    /// When several leaves are asked for at depth 1: there is one root.
    pub(crate) fn grow(config: Config, depth: usize, leaves: usize) -> Result<Tree, Error> {
        assert!(depth > 1 || leaves == 1, "{leaves} leaves at depth {depth}");
        let hierarchy = Hierarchy::new(config).map_err(|error| Error::setup("the hierarchy", error))?;
        let mut parent = far(hierarchy.root())?;
        for level in 1..depth.saturating_sub(1) {
            parent = far(child(&parent, &format!("level{level}"))?)?;
        }
        let leaves = match depth {
            1 => vec![parent.clone()],
            _ => (0..leaves)
                .map(|index| far(child(&parent, &format!("leaf{index}"))?))
                .collect::<Result<Vec<Group>, Error>>()?,
        };
        Ok(Tree { hierarchy, parent, leaves })
    }

    /// Without a stock no charge may have been a hit and nothing is prepaid; with it, some were. Returns the hits and
    /// misses of all leaves.
    pub(crate) fn check_stock(&self, stock: bool, name: &str) -> Result<(u64, u64), Error> {
        let (mut hits, mut misses, mut prepaid) = (0, 0, 0);
        for leaf in &self.leaves {
            let seen = leaf.stock();
            hits += seen.hits;
            misses += seen.misses;
            prepaid += seen.prepaid_bytes;
        }
        if (stock && hits == 0) || (!stock && hits + prepaid > 0) {
            return Err(Error::Wrong(format!(
                "the variant \"{name}\" made {hits} hits and holds {prepaid} prepaid bytes"
            )));
        }
        Ok((hits, misses))
    }

    /// Nothing is charged any more: every counter must say so, with the stocks subtracted and with them drained.
    pub(crate) fn check_empty(&self) -> Result<(), Error> {
        let groups = self.hierarchy.groups();
        for group in &groups {
            expect_bytes(group, "usage without stock", group.usage_exact(), 0)?;
        }
        self.hierarchy.root().drain();
        for group in &groups {
            expect_bytes(group, "usage after a drain", group.usage(), 0)?;
        }
        Ok(())
    }
}

/// A wrong count of bytes is an error that names the group.
pub(crate) fn expect_bytes(group: &Group, what: &str, found: u64, right: u64) -> Result<(), Error> {
    if found == right {
        return Ok(());
    }
    Err(Error::Wrong(format!("{what} of {} is {found} bytes, {right} are charged", group.path())))
}

pub(crate) fn child(parent: &Group, name: &str) -> Result<Group, Error> {
    parent.create(name).map_err(|error| Error::setup(format_args!("{}/{name}", parent.path()), error))
}

pub(crate) fn limit(group: &Group, bytes: u64) -> Result<(), Error> {
    group.set_max(bytes).map_err(|error| Error::setup(format_args!("the limit of {}", group.path()), error))
}

fn far(group: Group) -> Result<Group, Error> {
    limit(&group, FAR_BYTES)?;
    Ok(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_the_root() {
        let paths = |depth, leaves| {
            let tree = Tree::grow(Config::new(), depth, leaves).unwrap();
            let mut paths: Vec<String> = tree.hierarchy.groups().iter().map(|group| group.path()).collect();
            paths.sort();
            paths
        };
        assert_eq!(paths(1, 1), ["/"]);
        assert_eq!(paths(2, 2), ["/", "/leaf0", "/leaf1"]);
        assert_eq!(paths(3, 2), ["/", "/level1", "/level1/leaf0", "/level1/leaf1"]);
    }

    #[test]
    fn a_byte_left_behind_is_a_wrong_result() {
        let tree = Tree::grow(Config::new(), 3, 1).unwrap();
        let charge = tree.leaves[0].try_charge(10).unwrap();
        let error = tree.check_empty().unwrap_err();
        assert!(matches!(&error, Error::Wrong(_)), "{error}");
        assert!(error.to_string().contains("10 bytes, 0 are charged"), "{error}");
        drop(charge);
        tree.check_empty().unwrap();
    }
}
