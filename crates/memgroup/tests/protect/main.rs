//! Protection: the bytes that `min` and `low` keep, and the cost for other groups.

#[path = "../random/mod.rs"]
mod random;

mod cache;
mod events;
mod hostile;
mod reserve;
mod settings;
mod sums;
mod tree;
