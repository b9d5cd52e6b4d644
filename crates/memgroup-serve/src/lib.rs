// The first definition of a link counts: here items of the crate, on other sites files.
#![doc = "[`Snapshot`]: memgroup::Snapshot\n[`set_reserve_min`]: memgroup::Group::set_reserve_min\n"]
#![doc = "[api]: #answers\n[files]: memgroup::guide::snapshot#files\n[json]: memgroup::guide::snapshot\n[threats]: #threats-and-answers\n"]
#![doc = include_str!("../README.md")]
#![doc = include_str!("../docs/api.md")]
#![doc = include_str!("../docs/threats.md")]
//!
//! # Layers
//!
//! For readers of the source. A module imports only modules of earlier lines, or earlier in its own
//! line:
//!
//! - `pace`, `config`: the share of a CPU, settings.
//! - `problem`, `route`, `access`: the parts of a request, and the right that it has.
//! - `account`, `actions`, `snapshots`, `conn`, `listen`: bytes, threads, values and connections,
//!   each with its bound.
//! - `sample`, `log`, `app`: the values that requests share, and lines about them.
//! - `facade`, `metrics`, `answer`, `sampler`, `server`: the readers of those values, the task that
//!   makes them, the thread.
#![forbid(unsafe_code)]

mod access;
mod account;
mod actions;
mod answer;
mod app;
mod config;
mod conn;
#[cfg(feature = "metrics")]
mod facade;
mod listen;
mod log;
mod metrics;
mod pace;
mod problem;
mod route;
mod sample;
mod sampler;
mod server;
mod snapshots;

pub use config::{Control, Serve, Times, Token, TokenError};
pub use listen::ListenError;
pub use route::{ROUTES, Right, Route};
pub use server::{Server, StartError, start};
