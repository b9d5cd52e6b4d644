//! Marks: whether a charge or an uncharge has anything to do at a group besides its counter.
//!
//! One word in the line of the node that it reads anyway. For most groups it is 0: no setting of `min` or `low`, none right below, nobody who waits for the group to die, and no
//! charges denied at random.
//!
//! - I1. What tells of settings changes under the tree lock only, what tells of a watch under the lock of `oom::victims`, and of a denial by who has taken
//!   that.

use memgroup_sync::atomic::{AtomicU32, Ordering};

use crate::tree::Tree;

const PROTECTED: u32 = 1;
const WATCHED: u32 = 2;
const DENIED: u32 = 4;
const CHILD: u32 = 8;

/// What there is besides a group's counter; from `CHILD` on, how many of the groups right below it have a setting.
pub(crate) struct Marks(AtomicU32);

impl Marks {
    pub(crate) fn new() -> Marks {
        Marks(AtomicU32::new(0))
    }

    /// Whether the group's own usage matters to anybody.
    #[inline(always)]
    pub(crate) fn is_any_own(&self) -> bool {
        // ORDERING: Relaxed; as in `is_protected` and `is_watched`.
        self.0.load(Ordering::Relaxed) & (PROTECTED | WATCHED) != 0
    }

    /// Whether the group has a setting of `min` or `low`.
    #[inline(always)]
    pub(crate) fn is_protected(&self) -> bool {
        // ORDERING: Relaxed; whoever changed the usage after the setter's look has acquired the setter's mark with that change (`protect::used` E1).
        self.0.load(Ordering::Relaxed) & PROTECTED != 0
    }

    /// Whether a group right below has one.
    #[inline(always)]
    pub(crate) fn is_protected_below(&self) -> bool {
        // ORDERING: Relaxed; a charge that is on while the first setting is made may miss it.
        self.0.load(Ordering::Relaxed) >= CHILD
    }

    /// Whether somebody waits for the group's usage to fall.
    #[inline(always)]
    pub(crate) fn is_watched(&self) -> bool {
        // ORDERING: Relaxed; a hint (`oom::settings` E1).
        self.0.load(Ordering::Relaxed) & WATCHED != 0
    }

    /// Whether charges of the group are denied at random.
    #[inline(always)]
    pub(crate) fn is_denied(&self) -> bool {
        // ORDERING: Relaxed; who sets the odds looks for no charge that is on.
        self.0.load(Ordering::Relaxed) & DENIED != 0
    }

    pub(crate) fn deny(&self, is_denied: bool) {
        self.turn(DENIED, is_denied);
    }

    pub(crate) fn protect(&self, _tree: &Tree, is_set: bool) {
        // Published by the setter's look at the usage; who still finds the mark finds nothing to record.
        self.turn(PROTECTED, is_set);
    }

    pub(crate) fn watch(&self, is_watched: bool) {
        self.turn(WATCHED, is_watched);
    }

    fn turn(&self, mark: u32, is_on: bool) {
        if is_on {
            // ORDERING: Relaxed; see the callers.
            self.0.fetch_or(mark, Ordering::Relaxed);
        } else {
            // ORDERING: Relaxed, as above.
            self.0.fetch_and(!mark, Ordering::Relaxed);
        }
    }

    pub(crate) fn count_protected_child(&self, _tree: &Tree, is_set: bool) {
        if is_set {
            // ORDERING: Relaxed, as in `is_protected_below`.
            self.0.fetch_add(CHILD, Ordering::Relaxed);
        } else {
            // ORDERING: Relaxed, as above.
            self.0.fetch_sub(CHILD, Ordering::Relaxed);
        }
    }
}
