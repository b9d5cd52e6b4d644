#![doc = include_str!("../README.md")]

mod alloc;
mod block;
mod error;
mod feed;
mod freed;
mod install;
mod kill;
mod kinds;
mod mutation;
mod pcache;
mod rollback;
mod shortage;
mod shrink;
mod tenant;
mod throttle;
mod until;
mod uri;
mod vfs;

pub use rusqlite;

pub use error::{Killed, OutOfMemory, TenantError};
pub use install::{InstallError, Installed, install, install_with, installed};
pub use kinds::MemoryKinds;
pub use shortage::Shortage;
pub use tenant::TenantConnection;
pub use throttle::Throttling;
