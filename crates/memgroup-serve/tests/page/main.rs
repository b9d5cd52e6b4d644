//! Tests of the page in Chromium without a window: `cargo test -p memgroup-serve --test page`. They
//! need the programs `chromium` and `chromedriver`.

mod answers;
mod browser;
#[path = "../all/client.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod client;
mod ends;
mod fixture;
mod keyboard;
mod large;
mod shows;
mod steers;
mod tasks;
