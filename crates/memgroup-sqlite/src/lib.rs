#![doc = include_str!("../README.md")]

mod alloc;
mod block;
mod error;
mod install;
mod rollback;
mod shortage;
mod tenant;
mod uri;

pub use rusqlite;

pub use error::{OutOfMemory, TenantError};
pub use install::{InstallError, Installed, install, install_with, installed};
pub use shortage::Shortage;
pub use tenant::TenantConnection;
