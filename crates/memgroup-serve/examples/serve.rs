//! A program with three tenants that an operator sees and steers: `cargo run -p memgroup-serve
//! --example serve`.
//!
//! It listens on a Unix socket and on port 9191 of the loopback, and works until it is stopped.
//! Arguments are the seconds after which it ends, and another port.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use memgroup::{Charge, Config, Group, Hierarchy, KillAnswer, KillRegistration, KillRequest};
use memgroup_serve::{Control, Serve, Token};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds: Option<u64> = std::env::args().nth(1).map(|text| text.parse()).transpose()?;
    let port = std::env::args().nth(2).map_or(Ok(9191), |text| text.parse())?;
    tracing_subscriber::fmt().with_target(true).without_time().init();
    let hierarchy = Hierarchy::new(Config::new())?;
    let tenants = hierarchy.create("/tenants")?;
    tenants.set_max(96 << 20)?;
    for (name, mebibytes) in [("alice", 16), ("bob", 32), ("carol", 32)] {
        tenants.create(name)?.set_max(mebibytes << 20)?;
    }

    let control = Token::random()?;
    let socket = folder()?.join("memgroup-example.sock");
    let serve = Serve::unix(&socket).and_tcp(([127, 0, 0, 1], port));
    let serve = serve.control(Control::Unix).control(Control::Token(control.clone()));
    let server = memgroup_serve::start(&hierarchy, serve).map_err(|error| error.to_string())?;
    println!("socket: {}", socket.display());
    println!("page to read:    {}", server.page().unwrap_or_default());
    println!("page to control: http://127.0.0.1:{port}/#token={}", control.secret());

    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    work(&tenants, end)
}

/// A folder where no other user can put a file: that of the session, or a new one.
fn folder() -> std::io::Result<PathBuf> {
    if let Some(folder) = std::env::var_os("XDG_RUNTIME_DIR") {
        return Ok(folder.into());
    }
    let folder = std::env::temp_dir().join(format!("memgroup-example-{}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&folder)?;
    Ok(folder)
}

/// A part of a tenant's work. Those of `carol` can be stopped.
struct Query {
    group: Group,
    held: Arc<Mutex<Vec<Charge>>>,
    _hook: Option<KillRegistration>,
}

impl Query {
    fn begin(tenant: &Group, number: usize) -> Result<Query, Box<dyn std::error::Error>> {
        let group = tenant.create(&format!("query-{number}"))?;
        let held = Arc::<Mutex<Vec<Charge>>>::default();
        let victim = Arc::clone(&held);
        let stop = move |_: &KillRequest<'_>| {
            let victim = Arc::clone(&victim);
            // A query needs some time to stop.
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(120));
                lock(&victim).clear();
            });
            KillAnswer::Dying
        };
        let is_carols = tenant.path().ends_with("/carol");
        let hook = is_carols.then(|| group.set_kill_hook(stop)).transpose()?;
        Ok(Query { group, held, _hook: hook })
    }
}

fn lock(held: &Mutex<Vec<Charge>>) -> std::sync::MutexGuard<'_, Vec<Charge>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Each query takes memory and gives it back. Those of `carol` ask for more than she may have, so
/// one is stopped now and then. Of two reports of `alice`, one waits for the other.
fn work(tenants: &Group, end: Option<Instant>) -> Result<(), Box<dyn std::error::Error>> {
    let mut queries = Vec::new();
    for tenant in tenants.children() {
        for number in 1..=3 {
            queries.push(Query::begin(&tenant, number)?);
        }
    }
    let alice = tenants.children().into_iter().next().ok_or("there is no tenant")?;
    for number in 1..=2 {
        let report = alice.create(&format!("report-{number}"))?;
        std::thread::spawn(move || {
            loop {
                let charge = report.charge_until(12 << 20, Instant::now() + Duration::from_secs(10));
                std::thread::sleep(Duration::from_secs(2));
                drop(charge);
            }
        });
    }
    let mut step = 0_u64;
    while end.is_none_or(|end| Instant::now() < end) {
        for (query, number) in queries.iter().zip(0_u64..) {
            let bytes = (1 + (step + 7 * number) % 13) << (16 + number / 3);
            let charge = query.group.try_charge(bytes);
            let mut held = lock(&query.held);
            if charge.is_err() || held.len() > 11 {
                let half = held.len() / 2;
                held.drain(..half);
            }
            held.extend(charge);
        }
        step += 1;
        std::thread::sleep(Duration::from_millis(250));
    }
    Ok(())
}
