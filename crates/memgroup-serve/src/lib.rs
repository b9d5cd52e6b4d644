#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod access;
mod account;
mod answer;
mod app;
mod chunks;
mod config;
mod conn;
#[cfg(feature = "metrics")]
mod facade;
mod listen;
mod log;
mod metrics;
mod pace;
mod page;
mod path;
mod problem;
mod route;
mod sample;
mod server;
mod snapshots;
mod token;

pub use config::{Control, Serve, Times};
pub use listen::ListenError;
pub use route::{ROUTES, Right, Route};
pub use server::{Server, StartError, start};
pub use token::{Token, TokenError};
