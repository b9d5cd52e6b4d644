//! Protection: what `min` and `low` keep, for whom, and what it costs the others.

#[path = "../random/mod.rs"]
mod random;

mod cache;
mod events;
mod hostile;
mod reserve;
mod settings;
mod sums;
mod tree;
