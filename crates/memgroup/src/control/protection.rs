//! Protection of a group, as users set and read it.

use crate::base::id::GroupId;
use crate::base::limit::BYTES_MAX;
use crate::control::{share, waiters};
use crate::counter::chain;
use crate::counter::protect::effective::Protection;
use crate::counter::protect::error::ProtectionError;
use crate::counter::protect::{effective, used};
use crate::tree::handle::Group;
use crate::tree::listing::Listing;
use crate::tree::node::Node;
use crate::tree::topology::{State, Tree};

/// Changes the settings of an online group, and serves the waiting charges that fit now.
pub(crate) fn set(tree: &Tree, node: &'static Node, min: u64, low: u64) {
    used::set(tree, node, min, low);
    chain::levels(node).for_each(waiters::serve_untold);
}

/// Ends the protection of a group that goes offline, its own share, and the shares that it gives.
pub(crate) fn clear(tree: &Tree, node: &'static Node) {
    if let Some(used) = node.find_used() {
        used.set_factor(0);
        used.set_reserves_min(tree, false);
        share::give(tree, node, false);
        used::set_weight(tree, node, 0);
        set(tree, node, 0, 0);
        used::close(node);
    }
}

/// Protection.
impl Group {
    /// Protects the first `bytes` of the group as [`set_min`](Group::set_min) does, but only while
    /// other groups have something to release. Once they don't, bytes are taken from here, too,
    /// down to `min`, and counted ([`Events::low`](crate::Events::low)). This is `memory.low` of
    /// cgroup v2.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// # let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let dashboards = hierarchy.create("/dashboards").unwrap();
    /// dashboards.set_low(16 << 20).unwrap();
    /// assert_eq!(dashboards.low(), 16 << 20);
    /// ```
    ///
    /// # Errors
    /// The same as for [`set_min`](Group::set_min).
    pub fn set_low(&self, bytes: u64) -> Result<(), ProtectionError> {
        self.set_protection("low", bytes, |low, settings| Protection { low, ..settings })
    }

    pub(crate) fn set_protection(
        &self,
        setting: &'static str,
        bytes: u64,
        with: impl FnOnce(u64, Protection) -> Protection,
    ) -> Result<(), ProtectionError> {
        let node = self.node();
        if bytes > BYTES_MAX {
            return Err(ProtectionError::OutOfRange { setting, path: self.path(), asked: bytes });
        }
        let tree = node.shared().tree.lock();
        if tree.state(node.id()) != State::Online {
            return Err(ProtectionError::Offline { setting, path: tree.path(node.id()) });
        }
        let Protection { min, low } = with(bytes, node.protection());
        set(&tree, node, min, low);
        Ok(())
    }

    /// Reserves the [`min`](Group::set_min) of each child of this group: the bytes that a child
    /// may charge within its `min` stay free for it, even while it uses none. By default only
    /// a small reserve is kept, and others may use the rest.
    ///
    /// Other charges see this group's [`max`](Group::max) minus those bytes, and are refused above
    /// that ([`ChargeError::reserved`](crate::ChargeError::reserved)). Bytes that are already in
    /// use when this is set are not taken back: the reservation fills as they are freed or
    /// reclaimed. If the `min` of all children together exceed `max`, the children that charge
    /// first get theirs. At most 512 GiB are reserved for one child, and none for a child that
    /// protects all its bytes ([`BYTES_MAX`](crate::BYTES_MAX)). Forced charges may use reserved
    /// bytes. So may a charge that is decided while another group frees bytes within its `min`, by
    /// as many bytes.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// # let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
    /// let tenants = hierarchy.create("/tenants").unwrap();
    /// tenants.set_max(100 << 20).unwrap();
    /// let (idle, hoarder) = (tenants.create("idle").unwrap(), tenants.create("hoarder").unwrap());
    /// idle.set_min(40 << 20).unwrap();
    /// tenants.set_reserve_min(true).unwrap();
    /// let _hoard = hoarder.try_charge(60 << 20).unwrap();
    /// assert_eq!(hoarder.try_charge(1).unwrap_err().reserved(), 40 << 20);
    /// assert!(idle.try_charge(40 << 20).is_ok());
    /// ```
    ///
    /// # Errors
    /// The group was removed.
    pub fn set_reserve_min(&self, is_on: bool) -> Result<(), ProtectionError> {
        let node = self.node();
        let tree = node.shared().tree.lock();
        if tree.state(node.id()) != State::Online {
            return Err(ProtectionError::Offline { setting: "reserve_min", path: tree.path(node.id()) });
        }
        node.used().set_reserves_min(&tree, is_on);
        drop(tree);
        chain::levels(node).for_each(|level| _ = waiters::serve(level));
        Ok(())
    }

    /// Returns whether the `min` of each child is [reserved](Group::set_reserve_min). Returns
    /// `false` once the group is removed.
    pub fn reserves_min(&self) -> bool {
        self.node().find_used().is_some_and(|used| used.reserves_min())
    }

    /// Returns the setting of [`set_min`](Group::set_min) in bytes, or 0 once the group is
    /// removed.
    pub fn min(&self) -> u64 {
        self.node().protection().min
    }

    /// Returns the setting of [`set_low`](Group::set_low) in bytes, or 0 once the group is
    /// removed.
    pub fn low(&self) -> u64 {
        self.node().protection().low
    }

    /// Returns the bytes of the group that are protected now when the root needs memory. They
    /// follow from its own settings and those of its ancestors and siblings, and may have changed
    /// when the call returns.
    pub fn protection(&self) -> Protection {
        effective::effective(self.node(), self.node().shared().root())
    }

    /// Does the same for when the group `top` needs memory. Returns nothing if `top` is not above
    /// this group.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy, Protection};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let tenants = hierarchy.create("/tenants").unwrap();
    /// let alice = tenants.create("alice").unwrap();
    /// alice.set_min(4096).unwrap();
    /// // The tenants are not protected from others, so neither is alice.
    /// // Among the tenants, alice has her min.
    /// assert_eq!(alice.protection(), Protection::default());
    /// assert_eq!(alice.protection_within(&tenants).min, 4096);
    /// ```
    pub fn protection_within(&self, top: &Group) -> Protection {
        let (node, top) = (self.node(), top.node());
        if std::ptr::eq(node.shared(), top.shared()) && node.is_within(top) {
            effective::effective(node, top)
        } else {
            Protection::default()
        }
    }

    /// Returns the protection of each online group below this one when this one needs memory,
    /// parents before children, in one pass from the top. It allocates and takes the tree lock for
    /// short steps, so it is meant for reports.
    pub fn protections(&self) -> Vec<(GroupId, Protection)> {
        let top = self.node();
        // The protection of the groups above the next one, by their depth below the top.
        let mut above = vec![Protection::default()];
        let of = |group: Group| {
            let node = group.node();
            let parent = node.parent()?;
            above.truncate((node.depth() - top.depth()) as usize);
            let over = above.last().copied().unwrap_or_default();
            let own = effective::below(top, parent, over, node);
            above.push(own);
            Some((node.group_id(), own))
        };
        Listing::of(self).online().skip(1).filter_map(of).collect()
    }
}
