//! Storage of statistics: definitions of subsystems, the words of one group, and its flushed
//! values.

pub(crate) mod builtin;
pub(crate) mod flushed;
pub(crate) mod miss_counts;
pub(crate) mod registry;
pub(crate) mod stat;
pub(crate) mod store;
pub(crate) mod update_tree;

/// The most subsystems of one hierarchy, the three built-in ones included.
pub const SUBSYSTEMS_MAX: usize = 8;

/// Scope of a value: one group alone, or with all groups below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// The group's own value.
    Local,
    /// The value of the group and of all groups below it, removed ones included.
    Subtree,
}
