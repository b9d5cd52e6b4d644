//! Tests of a running server, through its sockets.

mod client;
mod control;
mod corpus;
mod events;
mod fixture;
mod life;
mod many;
mod prometheus;
mod rights;
mod rude;
mod show;
mod sweep;
