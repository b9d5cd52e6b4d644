//! Effective: how much of a group is protected when a group above it needs memory.
//!
//! ```text
//!   top       nothing: it is the one that needs memory
//!    └─ a     its own settings
//!        └─ b its share of a's protection
//!               if Σ used of a's children > a's:  used × a's ÷ Σ used
//!               otherwise: used, and a part of the rest of a's in proportion to b's
//!                          unprotected usage
//! ```
//!
//! - I1. A group's effective protection is never more than that of the group above, except right
//!   below the top.
//! - I2. If the usage of a group is within its effective protection, so is the usage of each group
//!   below it, because the rest covers all of it.
//! - B1. Usages and sums are read one after the other. The error is at most what they change by in
//!   the meantime, and I1 holds all the same.

use crate::counter::protect::used::{LOW, MIN};
use crate::tree::node::Node;

/// The bytes of a group that are protected when a group above it needs memory.
///
/// A number may be larger than the group's usage. If a setting protects all bytes, it is the most
/// that a group can account: 256 TiB less a byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// Never taken.
    pub min: u64,
    /// Taken only if no other group has anything to give.
    pub low: u64,
}

impl Protection {
    pub(crate) const NONE: Protection = Protection { min: 0, low: 0 };

    pub(crate) fn is_none(self) -> bool {
        self == Protection::NONE
    }
}

impl Node {
    /// Returns the group's own settings.
    pub(crate) fn protection(&self) -> Protection {
        self.find_used().map_or(Protection::NONE, |used| Protection { min: used.min(), low: used.low() })
    }
}

/// Returns the protection of a group whose parent has the protection `above`. Right below `top`
/// the settings count as they are.
pub(crate) fn below(top: &Node, parent: &Node, above: Protection, node: &Node) -> Protection {
    let settings = node.protection();
    if std::ptr::eq(parent, top) {
        return settings;
    }
    if above.is_none() {
        return Protection::NONE;
    }
    let (usage, parent_usage, sums) = (node.counter.usage(), parent.counter.usage(), parent.find_used());
    let sum = |kind| sums.as_ref().map_or(0, |sums| sums.sum(kind));
    Protection {
        min: share(usage, settings.min, parent_usage, above.min, sum(MIN)),
        low: share(usage, settings.low, parent_usage, above.low, sum(LOW)),
    }
}

/// Returns one group's share of its parent's protection `above`, of which the group and its
/// siblings use `siblings` together.
fn share(usage: u64, setting: u64, parent_usage: u64, above: u64, siblings: u64) -> u64 {
    let part = |of: u64, by: u64, all: u64| (u128::from(of) * u128::from(by) / u128::from(all)) as u64;
    let used = usage.min(setting);
    if siblings > above {
        return part(above, used, siblings).min(above);
    }
    let unprotected = parent_usage.saturating_sub(siblings);
    let rest = part(above - siblings, (usage - used).min(unprotected), unprotected.max(1));
    used.saturating_add(rest).min(above)
}

/// Returns the protection of `node` when `top` needs memory. It is nothing for `top` itself, and
/// for a group that is not below it.
pub(crate) fn effective(node: &'static Node, top: &'static Node) -> Protection {
    if !node.shared().protected().is_any() || node.depth() <= top.depth() {
        return Protection::NONE;
    }
    let counts = |level: &Node| level.depth() > top.depth();
    fold_down(node, &counts, Protection::NONE, &mut |above, parent, level| below(top, parent, above, level))
}

/// The number of levels that are on the stack at a time. A frame for each level would need more
/// stack than some threads have.
const LEVELS: usize = 16;

/// Folds the levels from the highest for which `counts` returns `true` down to `node`. `step` gets
/// the value so far, a level's parent and the level.
///
/// If nothing is protected, no level counts. A walk calls this for each slot, so that case must
/// not cost an array of levels.
#[inline]
pub(crate) fn fold_down<T>(
    node: &'static Node,
    counts: &impl Fn(&Node) -> bool,
    start: T,
    step: &mut impl FnMut(T, &'static Node, &'static Node) -> T,
) -> T {
    if counts(node) { fold_levels(node, counts, start, step) } else { start }
}

#[inline(never)]
fn fold_levels<T>(
    node: &'static Node,
    counts: &impl Fn(&Node) -> bool,
    start: T,
    step: &mut impl FnMut(T, &'static Node, &'static Node) -> T,
) -> T {
    let (mut path, mut count, mut level) = ([(node, node); LEVELS], 0, node);
    let mut value = loop {
        let Some(parent) = level.parent().filter(|_| counts(level)) else { break start };
        if count == LEVELS {
            break fold_levels(level, counts, start, step);
        }
        path[count] = (parent, level);
        (count, level) = (count + 1, parent);
    };
    for &(parent, level) in path[..count].iter().rev() {
        value = step(value, parent, level);
    }
    value
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::counter::protect::effective::share;

    #[test]
    fn shares_among_siblings_in_proportion_to_their_use() {
        // 50 bytes are protected above. The first two use 50 and 25 of their settings of 75 and 25;
        // the third has no setting.
        assert_eq!(share(50, 75, 150, 50, 75), 33);
        assert_eq!(share(50, 25, 150, 50, 75), 16);
        assert_eq!(share(50, 0, 150, 50, 75), 0);
    }

    #[test]
    fn spreads_the_rest_over_unprotected_usage() {
        // Of the 60 bytes above, one sibling uses 10. 90 bytes are unprotected, 30 of them here.
        assert_eq!(share(30, 0, 100, 60, 10), 16);
        assert_eq!(share(40, 10, 100, 60, 10), 10 + 50 * 30 / 90);
        assert_eq!(share(0, 500, 100, 60, 10), 0);
        // There is enough for all, so all of it is covered.
        assert_eq!(share(30, 0, 100, 100, 10), 30);
    }

    #[test]
    fn never_protects_more_than_the_group_above() {
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
