//! State: the words that make up one group or one slot, and their transitions. Nothing here knows
//! the tree.

pub(crate) mod budget;
pub(crate) mod config;
pub(crate) mod counter;
pub(crate) mod debt;
pub(crate) mod event_counts;
pub(crate) mod high;
pub(crate) mod past;
pub(crate) mod peak;
pub(crate) mod settings;
pub(crate) mod stalls;
pub(crate) mod stats;
pub(crate) mod stock_word;
pub mod tuning;
pub(crate) mod waiting;
