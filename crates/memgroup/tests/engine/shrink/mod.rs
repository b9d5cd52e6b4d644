//! Shrinkers: which are asked for memory, which charge gets it, and the callbacks that the engine
//! survives.

mod bounds;
pub(crate) mod cache;
mod calls;
mod hostile;
mod idle;
mod limits;
mod marks;
mod never_refused;
mod patience;
mod queue;
mod reclaim;
mod refills;
mod registry;
mod soak;
