//! Observe: events, pressure and the list of waits.

pub(crate) mod event;
pub(crate) mod pressure;
pub(crate) mod wait;
