//! All views of one program: its server, its mount, `memgroup-top` and recorders. The program is a
//! process of its own, so that its descriptors, threads and memory are those of the program alone.
#![cfg(target_os = "linux")]

#[path = "../../../memgroup-serve/tests/all/client.rs"]
#[allow(dead_code, reason = "the tests of the server use the rest")]
mod client;
mod kills;
mod program;
mod soak;
mod visitors;
