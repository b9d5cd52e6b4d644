#![doc = include_str!("../README.md")]
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod attach;
mod error;
mod files;
mod inode;
mod mount;
mod open;
mod owners;
mod place;
mod row;
mod table;
mod tree;
mod watch;
mod workers;

pub use error::{MountError, MountProblem};
pub use mount::{Mount, Options, mount};
