//! Bounds on the groups below a group.

use crate::tree::entries::Bounds;
use crate::tree::handle::Group;

/// Bounds on the number of groups.
impl Group {
    /// Sets how many groups there may be below this group, on all levels together. `None`, which
    /// is the default, sets no bound. `cgroup.max.descendants` of cgroup v2.
    ///
    /// A tenant that may create groups should have a bound. A group costs memory that is charged
    /// to no group, and takes one of the [`Config::groups_max`](crate::Config::groups_max)
    /// places of the hierarchy. Without a bound, one tenant can take them all, whatever its
    /// [`max`](Group::set_max) is.
    ///
    /// A group counts until it's released: a removed one as long as it has bytes or handles,
    /// because it keeps its memory and its place until then. In this it differs from the
    /// kernel, which counts online groups only. Every group up to the root checks a creation. A
    /// bound below the present number removes no group, and refuses further ones. 0 allows no
    /// groups.
    ///
    /// ```
    /// # use memgroup::{Config, GroupError, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let alice = hierarchy.create("/alice").unwrap();
    /// alice.set_max_descendants(100);
    /// let requests: Vec<_> = (0..100).map(|number| alice.create(&format!("{number}")).unwrap()).collect();
    /// let error = alice.create("one-more").unwrap_err();
    /// assert!(matches!(error, GroupError::TooManyDescendants { max_descendants: 100, .. }));
    /// // A charge keeps the removed group, which goes on to count.
    /// let charge = requests[0].try_charge(4096).unwrap();
    /// requests.into_iter().for_each(|request| request.remove().unwrap());
    /// for number in 0..99 {
    ///     alice.create(&format!("{number}")).unwrap();
    /// }
    /// assert!(alice.create("one-more").is_err());
    /// drop(charge);
    /// assert!(alice.create("one-more").is_ok());
    /// ```
    pub fn set_max_descendants(&self, max: impl Into<Option<u32>>) {
        let descendants = max.into().unwrap_or(Bounds::UNSET);
        self.change_bounds(|bounds| Bounds { descendants, ..bounds });
    }

    /// Returns how many groups there may be below this group; `None` if there is no bound.
    pub fn max_descendants(&self) -> Option<u32> {
        given(self.bounds().descendants)
    }

    /// Sets how many levels of groups there may be below this group. `None`, which is the default,
    /// sets no bound besides [`Config::depth_max`](crate::Config::depth_max).
    /// `cgroup.max.depth` of cgroup v2.
    ///
    /// With 0 there can be no groups below it, with 1 its children have none. A bound below the
    /// present depth removes no group, and refuses further ones.
    ///
    /// ```
    /// # use memgroup::{Config, GroupError, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let alice = hierarchy.create("/alice").unwrap();
    /// alice.set_max_depth(1);
    /// let request = alice.create("request").unwrap();
    /// let error = request.create("sort").unwrap_err();
    /// assert!(matches!(error, GroupError::TooDeepBelow { depth: 2, max_depth: 1, .. }));
    /// alice.set_max_depth(None);
    /// assert!(request.create("sort").is_ok());
    /// ```
    pub fn set_max_depth(&self, max: impl Into<Option<u32>>) {
        let depth = max.into().unwrap_or(Bounds::UNSET);
        self.change_bounds(|bounds| Bounds { depth, ..bounds });
    }

    /// Returns how many levels of groups there may be below this group; `None` if there is no
    /// bound.
    pub fn max_depth(&self) -> Option<u32> {
        given(self.bounds().depth)
    }

    fn change_bounds(&self, change: impl FnOnce(Bounds) -> Bounds) {
        let mut tree = self.node().shared().tree.lock();
        let bounds = change(tree.bounds(self.node().id()));
        tree.set_bounds(self.node().id(), bounds);
    }
}

/// A bound as callers see it.
pub(crate) fn given(bound: u32) -> Option<u32> {
    Some(bound).filter(|&bound| bound != Bounds::UNSET)
}
