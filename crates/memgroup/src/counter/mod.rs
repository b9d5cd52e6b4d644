//! Counter: charging a group and its ancestors.

pub(crate) mod chain;
pub(crate) mod events;
pub(crate) mod peaks;
pub(crate) mod protect;
pub(crate) mod share;
