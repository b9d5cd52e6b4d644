//! Base: deadlines, ids, limits and errors, which know nothing of groups.

pub(crate) mod deadline;
pub(crate) mod effort;
pub(crate) mod error;
pub(crate) mod id;
#[cfg(feature = "serde")]
pub(crate) mod json;
pub(crate) mod limit;
pub(crate) mod mutation;
pub(crate) mod panic;
pub(crate) mod process;
