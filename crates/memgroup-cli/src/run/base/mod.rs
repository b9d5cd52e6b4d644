//! Base: errors, early end, progress lines, units, fresh files. It imports no other folder of `run`.

pub(crate) mod error;
pub(crate) mod fresh;
pub(crate) mod progress;
pub(crate) mod stop;
pub(crate) mod units;
