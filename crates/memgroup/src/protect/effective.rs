//! Effective: how much of a group is protected, seen from a group above that needs memory.
//!
//! ```text
//!   top       exempt: whoever reclaims in it, or by hand, means it
//!    └─ a     its own settings
//!        └─ b its share of what a's protection comes to:   Σ used of a's children > a's:   used × a's ÷ Σ used
//!                                                          else used, and of the rest of a's in proportion to what is not protected of it
//! ```
//!
//! - I1. Never more than the effective protection of the group above, but for those right below the top.
//! - I2. A group whose usage is within its effective protection has no group below it that is not: what is left over covers all there.
//! - B1. Usages and sums are read one after the other; what is wrong because they moved is bounded by how much they did, and by I1.

use crate::node::Node;

/// Bytes of a group that are protected, as seen from a group above it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// Not taken, whatever the need.
    pub min: u64,
    /// Taken only when nothing else can be had.
    pub low: u64,
}

impl Protection {
    pub(crate) const NONE: Protection = Protection { min: 0, low: 0 };

    pub(crate) fn is_none(self) -> bool {
        self == Protection::NONE
    }
}

/// What is protected of a group, where `above` is what is protected of its parent; the settings count as they are right below `top`.
pub(super) fn below(top: &Node, parent: &Node, above: Protection, node: &Node) -> Protection {
    use super::used::{LOW, MIN};
    let used = &node.control.used;
    let settings = Protection { min: used.min(), low: used.low() };
    if std::ptr::eq(parent, top) {
        return settings;
    }
    if above.is_none() {
        return Protection::NONE;
    }
    let (usage, parent_usage) = (node.counter.usage(), parent.counter.usage());
    let sums = &parent.control.used;
    Protection {
        min: share(usage, settings.min, parent_usage, above.min, sums.sum(MIN)),
        low: share(usage, settings.low, parent_usage, above.low, sums.sum(LOW)),
    }
}

/// One group's share of what its parent's protection comes to, of which it and its siblings use `siblings` themselves.
fn share(usage: u64, setting: u64, parent_usage: u64, above: u64, siblings: u64) -> u64 {
    let used = usage.min(setting);
    let part = |of: u64, by: u64, all: u64| (u128::from(of) * u128::from(by) / u128::from(all)) as u64;
    if siblings > above {
        return part(above, used, siblings).min(above);
    }
    let unprotected = parent_usage.saturating_sub(siblings);
    let rest = if unprotected > 0 {
        part(above - siblings, (usage - used).min(unprotected), unprotected)
    } else {
        0
    };
    used.saturating_add(rest).min(above)
}

/// What is protected of `node` where `top` needs memory. Nothing where it is `top` itself, or not below it.
pub(crate) fn effective(node: &'static Node, top: &'static Node) -> Protection {
    if !node.shared.protected.is_any() || node.depth() <= top.depth() {
        return Protection::NONE;
    }
    node.parent().map_or(Protection::NONE, |parent| below(top, parent, effective(parent, top), node))
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::share;

    #[test]
    fn siblings_that_use_too_much_share_in_proportion_to_what_they_use() {
        // 50 to be had, 50 and 25 used of settings of 75 and 25, nothing of the one without.
        assert_eq!(share(50, 75, 150, 50, 75), 33);
        assert_eq!(share(50, 25, 150, 50, 75), 16);
        assert_eq!(share(50, 0, 150, 50, 75), 0);
    }

    #[test]
    fn what_is_left_over_goes_to_usage_that_is_not_protected() {
        // Of 60 above, 10 are used by one sibling; 90 are unprotected, 30 of them here.
        assert_eq!(share(30, 0, 100, 60, 10), 16);
        assert_eq!(share(40, 10, 100, 60, 10), 10 + 50 * 30 / 90);
        assert_eq!(share(0, 500, 100, 60, 10), 0);
        // Enough for all: all of it is covered.
        assert_eq!(share(30, 0, 100, 100, 10), 30);
    }

    #[test]
    fn numbers_of_different_moments_and_of_any_size_never_give_more_than_there_is_above() {
        let numbers = [0, 1, 7, 1 << 20, (1 << 48) - 1, u64::MAX];
        for usage in numbers {
            for setting in numbers {
                for parent in numbers {
                    for above in numbers {
                        for siblings in numbers {
                            assert!(share(usage, setting, parent, above, siblings) <= above);
                        }
                    }
                }
            }
        }
    }
}
