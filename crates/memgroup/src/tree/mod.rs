//! Tree: names, topology, and the data that a hierarchy is made of.

pub(crate) mod children;
pub(crate) mod entries;
pub(crate) mod error;
pub(crate) mod handle;
pub(crate) mod holders;
pub(crate) mod listing;
pub(crate) mod marks;
pub(crate) mod name;
pub(crate) mod node;
pub(crate) mod owner;
pub(crate) mod parts;
pub(crate) mod shared;
pub(crate) mod topology;
pub(crate) mod weak;
