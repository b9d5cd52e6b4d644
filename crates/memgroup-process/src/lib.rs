// The first definition of a link counts: here the crate, on other sites the file.
#![doc = "[memgroup]: memgroup\n\n"]
#![doc = include_str!("../README.md")]

mod cgroup;
mod files;
mod limit;
mod meter;
mod system;
mod watcher;

pub use files::ProcessError;
pub use limit::{Applied, LimitSource, ProcessLimit, limit_from_cgroup};
pub use system::trim_malloc;
pub use watcher::{Action, Check, Watcher};
