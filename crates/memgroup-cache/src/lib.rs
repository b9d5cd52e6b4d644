// The first definition of a link counts: here the item or the crate, on other sites the file.
#![doc = "[memgroup]: memgroup\n[`CacheConfig::entry_bytes`]: CacheConfig::entry_bytes\n[`CacheConfig::settle`]: CacheConfig::settle\n[`Effort::Reclaim`]: memgroup::Effort::Reclaim\n\n"]
#![doc = include_str!("../README.md")]
//!
//! # Layers
//!
//! For readers of the source. A module imports only modules of earlier lines, or earlier in its own
//! line:
//!
//! - `tally`: the bytes of a cache, and how long a lower capacity lasts.
//! - `entry`, `key`: a value with its charge; keys of the underlying cache.
//! - `cache`: settings; charges an entry, then gives it to its store.
//! - `quick`, `moka`: the stores.
#![forbid(unsafe_code)]
// Some parts are only for `quick_cache`, and without a store there is only the interface.
#![cfg_attr(not(feature = "quick_cache"), allow(dead_code))]

mod cache;
mod entry;
#[cfg(any(feature = "quick_cache", feature = "moka"))]
mod key;
#[cfg(feature = "moka")]
mod moka;
#[cfg(feature = "quick_cache")]
mod quick;
mod tally;

pub use cache::{Cache, CacheConfig};
pub use entry::{Entry, NotCached, NotCachedReason};
#[cfg(feature = "moka")]
pub use moka::{MokaCache, MokaConfig};
#[cfg(feature = "quick_cache")]
pub use quick::QuickCache;
