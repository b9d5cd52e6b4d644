//! Shrinkers: who is asked for memory, who gets it, and what callbacks cannot break.

mod bounds;
mod cache;
mod calls;
mod hostile;
mod idle;
mod limits;
mod marks;
mod queue;
mod reclaim;
mod registry;
mod soak;
