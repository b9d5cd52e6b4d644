//! Memory pools of DataFusion queries in a tree of memgroup groups.
#![forbid(unsafe_code)]

mod consumers;
mod pool;
mod spill;

pub use consumers::ConsumerReport;
pub use pool::GroupPool;
