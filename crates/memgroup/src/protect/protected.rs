//! Protected: whether any group of a hierarchy has a setting.

use memgroup_sync::atomic::{AtomicU32, Ordering};

use crate::tree::Tree;

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
