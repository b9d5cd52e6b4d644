//! Fair shares of a group, as users set and read them. The rule itself is in `counter::share`.

use core::fmt;

use crate::base::id::GroupId;
use crate::control::{freeze, waiters};
use crate::counter::protect::used;
use crate::counter::{chain, share};
use crate::tree::children::ChildSteps;
use crate::tree::handle::Group;
use crate::tree::node::Node;
use crate::tree::topology::{State, Tree};

/// The largest factor.
pub const SHARE_MAX: u32 = 1024;

/// Gives each child of `node` a share, or takes it away. Returns whether the group is online: a
/// group that goes offline during the call gives no shares.
fn set_factor(node: &'static Node, factor: u32) -> bool {
    let (shared, used) = (node.shared(), node.used());
    let lock = shared.level_lock(node.id());
    let mut children = ChildSteps::of(node);
    loop {
        let tree = shared.tree.lock_behind();
        if tree.state(node.id()) != State::Online {
            return false;
        }
        if factor == 0 {
            used.set_factor(0);
        }
        // From the first step on, new groups get a share, or none, when they are created.
        give(&tree, node, factor > 0);
        if !children.step(&tree, |child| join(&tree, child, factor > 0)) {
            used.set_factor(u64::from(factor));
            break;
        }
    }
    drop(lock);
    if factor > 0 {
        share::recount_own(node);
        // Stocks that were opened before have caps that leave too little for the shares. After the
        // drain they get smaller ones.
        freeze::drain_all(node);
    }
    chain::levels(node).for_each(|level| _ = waiters::serve(level));
    true
}

/// Marks a group as one that gives shares, or that gives none. The caller must hold the tree lock.
pub(crate) fn give(tree: &Tree, node: &'static Node, is_on: bool) {
    if node.marks.is_shared() != is_on {
        node.marks.share(tree, is_on);
        node.shared().protected().count_sharing(is_on);
    }
}

/// Gives the group a share of its parent, or takes it away. The group must be online, and the
/// caller must hold the tree lock.
fn join(tree: &Tree, node: &'static Node, is_on: bool) {
    used::set_weight(tree, node, if is_on { u64::from(node.waiting.weight()) } else { 0 });
    if let Some(level) = node.up().filter(|_| is_on) {
        share::note_largest(level, node);
    }
}

/// Gives a new group a share if its parent gives shares.
pub(crate) fn created(tree: &Tree, node: &'static Node) {
    if node.up().is_some_and(|up| up.marks.is_shared()) {
        join(tree, node, true);
    }
}

/// The reason why a share factor was not set. The previous one stays in force. Printed, it
/// completes the phrase "failed to ...".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShareError {
    /// The factor is out of range.
    OutOfRange {
        /// The group's path.
        path: String,
        /// The factor that was asked for.
        asked: u32,
    },
    /// The group was removed, so it gives no shares any more.
    Offline {
        /// The path that it had.
        path: String,
    },
    /// Charges are not counted in the root of this hierarchy, so it has nothing to share.
    RootNotAccounted,
}

impl fmt::Display for ShareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShareError::OutOfRange { path, asked } => {
                write!(
                    f,
                    "set share of group {path} to {asked}: allowed are 1 to {SHARE_MAX}; None turns it off, as 0 in memory.share does"
                )
            }
            ShareError::Offline { path } => {
                write!(f, "set share of group {path}: it was removed; set that of a group that is online")
            }
            ShareError::RootNotAccounted => f.write_str(
                "set share of group /: its hierarchy does not account the root (Config::account_root)",
            ),
        }
    }
}

impl std::error::Error for ShareError {}

/// A group's fair share of the group above, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct FairShare {
    /// Bytes that the group may use while its siblings use no more than now.
    pub bytes: u64,
    /// The group's even part, or its `min` if that is more. When the group needs these bytes,
    /// siblings above their own part release memory, provided that they have caches or kill hooks.
    #[cfg_attr(feature = "serde", serde(rename = "even_bytes"))]
    pub even: u64,
    /// Bytes that it uses above that. They are the first that it must release when a sibling needs
    /// them.
    #[cfg_attr(feature = "serde", serde(rename = "excess_bytes"))]
    pub excess: u64,
    /// Bytes that its caches released for charges of its siblings since it was created.
    #[cfg_attr(feature = "serde", serde(rename = "given_bytes"))]
    pub given: u64,
    /// Bytes that its siblings' caches released for its charges.
    #[cfg_attr(feature = "serde", serde(rename = "taken_bytes"))]
    pub taken: u64,
    /// The sibling for which it released bytes last.
    #[cfg_attr(feature = "serde", serde(with = "crate::base::json::maybe_id"))]
    pub given_to: Option<GroupId>,
}

/// Fair shares.
impl Group {
    /// Gives each child of this group a fair share of its room; `None` turns that off. One setting
    /// on a parent keeps a runaway child from starving the others.
    ///
    /// The factor `a` bounds a child by the bytes that are left free: it may use up to `a` times
    /// as many. With the usual factor, 8, a child that is alone gets at most 8/9 of the room,
    /// and a ninth stays free for a newcomer. The room is this group's [`max`](Group::max), or
    /// less if a group above leaves less. Whatever others ask for, each of `n` groups of equal
    /// [weight](Group::set_weight) is sure of `8 / (8 n + 1)` of it.
    ///
    /// A group above its share is treated as if it were at a limit of its own: its own caches
    /// release memory, its own victims are stopped, and then it is refused. The error names it
    /// ([`ChargeError::is_by_share`](crate::ChargeError::is_by_share)).
    ///
    /// The setting is in force when the call returns, also for groups that are created later.
    /// Charges under way may miss it.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let tenants = hierarchy.create("/tenants").unwrap();
    /// tenants.set_max(9 << 20).unwrap();
    /// tenants.set_share(8).unwrap();
    /// let runaway = tenants.create("runaway").unwrap();
    /// let small = tenants.create("small").unwrap();
    /// let mut held = Vec::new();
    /// let error = loop {
    ///     match runaway.try_charge(64 << 10) {
    ///         Ok(charge) => held.push(charge),
    ///         Err(error) => break error,
    ///     }
    /// };
    /// assert!(error.is_by_share() && error.path().as_deref() == Some("/tenants/runaway"));
    /// assert!(small.try_charge(512 << 10).is_ok(), "a ninth was left free");
    /// ```
    ///
    /// # Errors
    /// The factor is 0 or more than 1,024, the group was removed, or it is a root that is not
    /// accounted.
    pub fn set_share(&self, factor: impl Into<Option<u32>>) -> Result<(), ShareError> {
        let (node, factor) = (self.node(), factor.into());
        if factor.is_some_and(|factor| !(1..=SHARE_MAX).contains(&factor)) {
            return Err(ShareError::OutOfRange { path: self.path(), asked: factor.unwrap_or(0) });
        }
        if node.parent().is_none() && !node.shared().config.account_root() {
            return Err(ShareError::RootNotAccounted);
        }
        if set_factor(node, factor.unwrap_or(0)) {
            Ok(())
        } else {
            Err(ShareError::Offline { path: self.path() })
        }
    }

    /// Returns the factor of the fair shares of this group's children, or `None` if it gives none.
    pub fn share(&self) -> Option<u32> {
        let factor = self.node().find_used().map_or(0, |used| used.factor());
        u32::try_from(factor).ok().filter(|&factor| factor > 0)
    }

    /// Returns the group's own share of its parent now, or `None` if the parent gives no shares or
    /// has no limit.
    pub fn fair_share(&self) -> Option<FairShare> {
        let node = self.node();
        let share = share::of_child(node)?;
        let excess = node.counter.usage().saturating_sub(share.even);
        let (given, taken, given_to) = node.used().exchanged();
        Some(FairShare { bytes: share.bytes, even: share.even, excess, given, taken, given_to })
    }

    /// Adjusts the group's share after its weight has changed.
    pub(crate) fn reweigh_share(&self) {
        let node = self.node();
        let tree = node.shared().tree.lock();
        if tree.state(node.id()) == State::Online {
            created(&tree, node);
        }
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::{give, join};
    use crate::{Config, Hierarchy};

    /// Between two steps of a change that takes several.
    #[test]
    fn a_child_has_no_share_until_all_children_have_their_weight() {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        parent.set_max(1000).unwrap();
        let child = parent.create("child").unwrap();
        let node = parent.node();
        {
            let tree = node.shared().tree.lock();
            give(&tree, node, true);
            join(&tree, child.node(), true);
        }
        assert_eq!(child.fair_share(), None);
        drop(child.try_charge(1000).expect("the limit is the only bound yet"));
        parent.set_share(1).unwrap();
        assert!(child.try_charge(1000).is_err());
    }
}
