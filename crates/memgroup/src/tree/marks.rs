//! Marks: whether a charge or an uncharge has anything to do at a group besides its counter.
//!
//! One word in a line of the node that a charge reads anyway. For most groups it is 0. Then no
//! `min` or `low` is set here or right below, the group has no fair share and gives none, no kill
//! waits for its usage to fall, and no failure is injected.
//!
//! - I1. Marks of settings and the mark of injected failures change under the tree lock, the mark
//!   of a kill under the lock of `oom::victims`.

use memgroup_sync::atomic::{AtomicU32, Ordering};
use memgroup_sync::erasable;

use crate::tree::topology::Tree;

const PROTECTED: u32 = 1;
const WATCHED: u32 = 2;
const INJECTED: u32 = 4;
const WEIGHED: u32 = 8;
const SHARED: u32 = 16;
const CHILD: u32 = 32;

erasable! {
    /// The bits, and from `CHILD` on how many of the groups right below have a setting.
    pub(crate) struct Marks {
        bits: AtomicU32,
    }
}

impl Marks {
    /// Whether the group has a setting of `min` or `low`.
    #[inline(always)]
    pub(crate) fn is_protected(&self) -> bool {
        // ORDERING: Relaxed; a thread that changed the usage after the setter's look has acquired the mark
        // with that change (`protect::used` E1).
        self.bits.load(Ordering::Relaxed) & PROTECTED != 0
    }

    /// Whether the group has a fair share of the group above.
    #[inline(always)]
    pub(crate) fn is_weighed(&self) -> bool {
        // ORDERING: Relaxed, as in `is_protected`.
        self.bits.load(Ordering::Relaxed) & WEIGHED != 0
    }

    pub(crate) fn weigh(&self, _tree: &Tree, is_on: bool) {
        // Published as in `protect`.
        self.turn(WEIGHED, is_on);
    }

    /// Whether a group right below has `min` or `low`.
    #[inline(always)]
    pub(crate) fn is_protected_below(&self) -> bool {
        // ORDERING: Relaxed; a charge that is on while the first setting is made may miss it.
        self.bits.load(Ordering::Relaxed) >= CHILD
    }

    /// Whether charges are to leave bytes free here: for protected groups right below, or for the
    /// fair shares of others.
    #[inline(always)]
    pub(crate) fn keeps_free(&self) -> bool {
        // ORDERING: Relaxed, as in `is_protected_below`.
        self.bits.load(Ordering::Relaxed) >= SHARED
    }

    /// Whether the groups right below have fair shares.
    pub(crate) fn is_shared(&self) -> bool {
        // ORDERING: Relaxed; changed under the tree lock, or a hint.
        self.bits.load(Ordering::Relaxed) & SHARED != 0
    }

    pub(crate) fn share(&self, _tree: &Tree, is_on: bool) {
        self.turn(SHARED, is_on);
    }

    /// Whether a kill waits for the group's usage to fall.
    #[inline(always)]
    pub(crate) fn is_watched(&self) -> bool {
        // ORDERING: Relaxed; a hint (`oom::state` E1).
        self.bits.load(Ordering::Relaxed) & WATCHED != 0
    }

    /// Whether a fall of the usage may matter besides the counter: one look for three marks.
    #[inline(always)]
    pub(crate) fn follows_falls(&self) -> bool {
        // ORDERING: Relaxed, as in `is_protected` and `is_watched`.
        self.bits.load(Ordering::Relaxed) & (PROTECTED | WATCHED | WEIGHED) != 0
    }

    /// Whether charges of the group draw for an injected failure.
    #[inline(always)]
    pub(crate) fn has_injection(&self) -> bool {
        // ORDERING: Relaxed; an injection promises nothing for charges under way.
        self.bits.load(Ordering::Relaxed) & INJECTED != 0
    }

    pub(crate) fn set_injection(&self, is_on: bool) {
        self.turn(INJECTED, is_on);
    }

    pub(crate) fn protect(&self, _tree: &Tree, is_set: bool) {
        // Published by the setter's look at the usage; a thread that still finds the mark finds nothing to
        // record.
        self.turn(PROTECTED, is_set);
    }

    pub(crate) fn watch(&self, is_watched: bool) {
        self.turn(WATCHED, is_watched);
    }

    fn turn(&self, mark: u32, is_on: bool) {
        if is_on {
            // ORDERING: Relaxed; see the callers.
            self.bits.fetch_or(mark, Ordering::Relaxed);
        } else {
            // ORDERING: Relaxed, as above.
            self.bits.fetch_and(!mark, Ordering::Relaxed);
        }
    }

    pub(crate) fn count_protected_child(&self, _tree: &Tree, is_set: bool) {
        if is_set {
            // ORDERING: Relaxed, as in `is_protected_below`.
            self.bits.fetch_add(CHILD, Ordering::Relaxed);
        } else {
            // ORDERING: Relaxed, as above.
            self.bits.fetch_sub(CHILD, Ordering::Relaxed);
        }
    }
}
