//! Out of memory: who is told to stop for whom, what hooks cannot break, and what is told of it.
#![cfg(not(memgroup_loom))]

mod hostile;
mod oracles;
mod order;
mod registry;
mod storm;
mod tenant;
mod trials;
