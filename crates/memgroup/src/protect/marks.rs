//! Marks: which groups have anything to do with protection at all.
//!
//! What a charge has to know is one word in the line of its node that it reads anyway: most groups have no setting, and none below them either.
//!
//! - I1. Changes under the tree lock only.

use memgroup_sync::atomic::{AtomicU32, Ordering};

use crate::tree::Tree;

const OWN: u32 = 1;
const CHILD: u32 = 2;

/// Whether a group has a setting, and how many of the groups right below it have one.
pub(crate) struct Marks(AtomicU32);

impl Marks {
    pub(crate) fn new() -> Marks {
        Marks(AtomicU32::new(0))
    }

    /// Whether the group has a setting.
    #[inline(always)]
    pub(crate) fn is_set(&self) -> bool {
        // ORDERING: Relaxed; whoever changed the usage after the setter's look has acquired the setter's mark with that change (`used` E1).
        self.0.load(Ordering::Relaxed) & OWN != 0
    }

    /// Whether a group right below has one.
    #[inline(always)]
    pub(crate) fn is_below(&self) -> bool {
        // ORDERING: Relaxed; a charge that is on while the first setting is made may miss it.
        self.0.load(Ordering::Relaxed) >= CHILD
    }

    pub(super) fn set(&self, _tree: &Tree, own: bool) {
        if own {
            // ORDERING: Relaxed; published by the setter's look at the usage.
            self.0.fetch_or(OWN, Ordering::Relaxed);
        } else {
            // ORDERING: Relaxed; who still finds the mark finds nothing to record.
            self.0.fetch_and(!OWN, Ordering::Relaxed);
        }
    }

    pub(super) fn count_child(&self, _tree: &Tree, is_set: bool) {
        if is_set {
            // ORDERING: Relaxed, as in `is_below`.
            self.0.fetch_add(CHILD, Ordering::Relaxed);
        } else {
            // ORDERING: Relaxed, as above.
            self.0.fetch_sub(CHILD, Ordering::Relaxed);
        }
    }
}

/// How many groups of a hierarchy have a setting: where none has, nothing is computed.
pub(crate) struct Protected(AtomicU32);

impl Protected {
    pub(crate) fn new() -> Protected {
        Protected(AtomicU32::new(0))
    }

    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        // ORDERING: Relaxed; a reclaim that is on while the first setting is made may not know of it.
        self.0.load(Ordering::Relaxed) > 0
    }

    pub(super) fn count(&self, _tree: &Tree, is_set: bool) {
        if is_set {
            // ORDERING: Relaxed, as in `is_any`.
            self.0.fetch_add(1, Ordering::Relaxed);
        } else {
            // ORDERING: Relaxed, as above.
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
