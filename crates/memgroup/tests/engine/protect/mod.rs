//! Protection: the bytes that `min` and `low` keep, and the cost for other groups.

pub(crate) mod cache;
mod events;
mod hostile;
mod reserve;
mod settings;
mod sums;
mod tree;
