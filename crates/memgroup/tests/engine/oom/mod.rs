//! Out of memory: the choice of victims, hooks that misbehave, and reports.

mod claims;
mod hostile;
mod oracles;
mod order;
mod registry;
mod storm;
mod tenant;
mod trials;
