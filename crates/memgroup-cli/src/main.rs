//! The program `memgroup`.
fn main() {}
