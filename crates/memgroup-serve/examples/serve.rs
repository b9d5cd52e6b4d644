//! A program with three tenants that an operator sees and steers: `cargo run -p memgroup-serve --example serve`.
//!
//! It listens on a Unix socket and on port 9191 of the loopback, and works until it is stopped. Arguments are the seconds after which it ends, and
//! another port.

use std::time::{Duration, Instant};

use memgroup::{Config, Group, Hierarchy};
use memgroup_serve::{Control, Serve, Token};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds: Option<u64> = std::env::args().nth(1).map(|text| text.parse()).transpose()?;
    let port = std::env::args().nth(2).map_or(Ok(9191), |text| text.parse())?;
    tracing_subscriber::fmt().with_target(true).without_time().init();
    let hierarchy = Hierarchy::new(Config::new())?;
    let tenants = hierarchy.create("/tenants")?;
    tenants.set_max(64 << 20)?;
    for name in ["alice", "bob", "carol"] {
        tenants.create(name)?.set_max(32 << 20)?;
    }

    let control = Token::random()?;
    let socket = std::env::temp_dir().join("memgroup-example.sock");
    let serve = Serve::unix(&socket).and_tcp(([127, 0, 0, 1], port));
    let serve = serve.control(Control::Unix).control(Control::Token(control.clone()));
    let server = memgroup_serve::start(&hierarchy, serve)?;
    println!("socket: {}", socket.display());
    println!("page to read:    {}", server.page().unwrap_or_default());
    println!("page to control: http://127.0.0.1:{port}/#token={}", control.secret());

    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    work(&tenants, end)
}

/// Each tenant takes memory and gives it back. `carol` asks for more than she may have.
fn work(tenants: &Group, end: Option<Instant>) -> Result<(), Box<dyn std::error::Error>> {
    let mut step = 0_u64;
    let mut held = Vec::new();
    while end.is_none_or(|end| Instant::now() < end) {
        for (number, tenant) in tenants.children().iter().enumerate() {
            let bytes = (1 + (step + 7 * number as u64) % 13) << (18 + number);
            held.extend(tenant.try_charge(bytes));
        }
        if held.len() > 12 {
            held.drain(..6);
        }
        step += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
