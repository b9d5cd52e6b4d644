//! Marks: what a charge or an uncharge has to do at a group besides counting, if anything.
//!
//! The marks are one word, in a line of the node that a charge reads anyway. It is 0 for most
//! groups, which means that no `min` or `low` is set here or right below, that the group has no
//! fair share and gives none, and that no kill waits for its usage to fall.
//!
//! - I1. Marks of settings change under the tree lock, the mark of a kill under the lock of
//!   `oom::victims`.

use memgroup_sync::atomic::{AtomicU32, Ordering};
use memgroup_sync::erasable;

use crate::tree::topology::Tree;

const PROTECTED: u32 = 1;
const WATCHED: u32 = 2;
const WEIGHED: u32 = 4;
const SHARED: u32 = 8;
const CHILD: u32 = 16;

erasable! {
    /// The bits below `CHILD` are marks. Those above count the groups right below with a setting.
    pub(crate) struct Marks {
        bits: AtomicU32,
    }
}

impl Marks {
    /// Returns whether the group has a setting of `min` or `low`.
    #[inline(always)]
    pub(crate) fn is_protected(&self) -> bool {
        // ORDERING: Relaxed, here and in all methods below. A thread that changed the usage after
        // the setter read it has acquired the mark with that change (`protect::used` E1). To all
        // others the marks are hints: a charge or a kill under way while one changes may miss it.
        self.bits.load(Ordering::Relaxed) & PROTECTED != 0
    }

    /// Returns whether the group has a fair share of the group above.
    #[inline(always)]
    pub(crate) fn is_weighed(&self) -> bool {
        self.bits.load(Ordering::Relaxed) & WEIGHED != 0
    }

    /// Returns whether a rise of the group's usage is recorded: for a setting, or if the group only
    /// has a fair share, its first bytes.
    #[inline(always)]
    pub(crate) fn is_recorded(&self, is_first: bool) -> bool {
        // ORDERING: Relaxed, as in `is_protected`.
        self.bits.load(Ordering::Relaxed) & (PROTECTED | if is_first { WEIGHED } else { 0 }) != 0
    }

    pub(crate) fn weigh(&self, _tree: &Tree, is_on: bool) {
        self.turn(WEIGHED, is_on);
    }

    /// Returns whether a group right below has `min` or `low`.
    #[inline(always)]
    pub(crate) fn is_protected_below(&self) -> bool {
        self.bits.load(Ordering::Relaxed) >= CHILD
    }

    /// Returns whether charges must leave bytes free here, for protected groups right below or for
    /// the fair shares of others.
    #[inline(always)]
    pub(crate) fn keeps_free(&self) -> bool {
        self.bits.load(Ordering::Relaxed) >= SHARED
    }

    /// Returns whether the groups right below have fair shares.
    pub(crate) fn is_shared(&self) -> bool {
        self.bits.load(Ordering::Relaxed) & SHARED != 0
    }

    pub(crate) fn share(&self, _tree: &Tree, is_on: bool) {
        self.turn(SHARED, is_on);
    }

    /// Returns whether a kill waits for the group's usage to fall.
    #[inline(always)]
    pub(crate) fn is_watched(&self) -> bool {
        self.bits.load(Ordering::Relaxed) & WATCHED != 0
    }

    /// Returns whether a fall of the usage has consequences besides the counter, by one look for
    /// three marks.
    #[inline(always)]
    pub(crate) fn follows_falls(&self) -> bool {
        self.bits.load(Ordering::Relaxed) & (PROTECTED | WATCHED | WEIGHED) != 0
    }

    pub(crate) fn protect(&self, _tree: &Tree, is_set: bool) {
        // The setter reads the usage by an RMW, which publishes the mark. A thread that still finds
        // the mark after it was cleared finds nothing to record.
        self.turn(PROTECTED, is_set);
    }

    pub(crate) fn watch(&self, is_watched: bool) {
        self.turn(WATCHED, is_watched);
    }

    fn turn(&self, mark: u32, is_on: bool) {
        if is_on {
            self.bits.fetch_or(mark, Ordering::Relaxed);
        } else {
            self.bits.fetch_and(!mark, Ordering::Relaxed);
        }
    }

    pub(crate) fn count_protected_child(&self, _tree: &Tree, is_set: bool) {
        if is_set {
            self.bits.fetch_add(CHILD, Ordering::Relaxed);
        } else {
            self.bits.fetch_sub(CHILD, Ordering::Relaxed);
        }
    }
}
