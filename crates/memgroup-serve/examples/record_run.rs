//! Records a run for the test of the alerts: `cargo run -p memgroup-serve --example record_run --
//! 600 > series.yml`.
//!
//! A program with four tenants runs for the given number of seconds. Every fifteen seconds it asks
//! its own server for `/metrics`. At the end it prints the values as the `input_series` of
//! `promtool test rules`, which `ops/alerts_test.yml` has.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memgroup::{Charge, Config, Group, Hierarchy, KillAnswer, KillRequest};
use memgroup_serve::Serve;

const STEP: Duration = Duration::from_secs(15);

/// The families that the alerts read.
const FAMILIES: [&str; 8] = [
    "memgroup_memory_usage_bytes{",
    "memgroup_memory_max_bytes{",
    "memgroup_memory_refusals_total{",
    "memgroup_memory_events_total{",
    "memgroup_kills_total{",
    "memgroup_pressure_memory_waiting_seconds_total{",
    "memgroup_waiters_longest_seconds{",
    "memgroup_dying_bytes ",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds: u64 = std::env::args().nth(1).map_or(Ok(600), |text| text.parse())?;
    let hierarchy = Hierarchy::new(Config::new())?;
    let tenants = hierarchy.create("/tenants")?;
    tenants.set_max(64 << 20)?;
    let [steady, greedy, victim, waiting] =
        ["steady", "greedy", "victim", "waiting"].map(|name| tenants.create(name));
    let (steady, greedy, victim, waiting) = (steady?, greedy?, victim?, waiting?);
    for (tenant, mebibytes) in [(&steady, 16), (&greedy, 8), (&victim, 64), (&waiting, 8)] {
        tenant.set_max(mebibytes << 20)?;
    }
    let folder = std::env::temp_dir().join(format!("memgroup-record-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let server = memgroup_serve::start(&hierarchy, Serve::unix(folder.join("s")))?;

    let began = Instant::now();
    let end = began + Duration::from_secs(seconds);
    let neighbour = steady.clone();
    std::thread::spawn(move || work(&steady, &greedy));
    let held = Arc::new(Mutex::new(None::<Charge>));
    let stopped = Arc::clone(&held);
    let _hook = victim.set_kill_hook(move |_: &KillRequest<'_>| {
        drop(stopped.lock().map(|mut held| held.take()));
        KillAnswer::Dying
    })?;
    std::thread::spawn(move || wait(&waiting));
    let mut recorded: BTreeMap<String, Vec<(usize, String)>> = BTreeMap::new();
    let mut step = 0;
    while Instant::now() < end {
        // In the middle the victim takes all that is left, and is killed for the next charge of
        // another tenant.
        if began.elapsed() > Duration::from_secs(seconds / 2) && victim.events().oom_kill == 0 {
            let bytes = tenants.headroom();
            if let Ok(mut held) = held.lock() {
                *held = victim.try_charge(bytes).ok();
            }
            let _made = neighbour.try_charge(8 << 20);
        }
        record(&folder.join("s"), step, &mut recorded)?;
        step += 1;
        std::thread::sleep((began + STEP * step as u32).saturating_duration_since(Instant::now()));
    }
    drop(server);
    std::fs::remove_dir_all(&folder)?;
    print(&recorded, step);
    Ok(())
}

/// One tenant stays far below its limit, and one asks for more than it may have.
fn work(steady: &Group, greedy: &Group) {
    let mut held: Vec<Charge> = Vec::new();
    let _most = greedy.try_charge(8 << 20);
    loop {
        held.extend(steady.try_charge(1 << 20));
        if held.len() > 6 {
            held.drain(..3);
        }
        let _refused = greedy.try_charge(4096);
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// A charge of this tenant waits for a minute, again and again, because the tenant itself holds all
/// of its bytes.
fn wait(waiting: &Group) {
    let _all = waiting.try_charge(8 << 20);
    loop {
        let _late = waiting.charge_until(4096, Duration::from_secs(60));
    }
}

/// Asks for the figures, and keeps those of the alerts.
fn record(
    socket: &Path,
    step: usize,
    recorded: &mut BTreeMap<String, Vec<(usize, String)>>,
) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let is_read = |line: &&str| !line.contains("event=\"") || line.contains("event=\"oom_kill\"");
    for line in
        answer.lines().filter(is_read).filter(|line| FAMILIES.iter().any(|family| line.starts_with(family)))
    {
        if let Some((series, value)) = line.rsplit_once(' ') {
            recorded.entry(series.to_owned()).or_default().push((step, value.to_owned()));
        }
    }
    Ok(())
}

/// Prints the series. A value that is lacking is `_`.
fn print(recorded: &BTreeMap<String, Vec<(usize, String)>>, steps: usize) {
    for (series, values) in recorded {
        let series = match series.strip_suffix('}') {
            Some(labels) => format!("{labels},job=\"memgroup\",instance=\"a\"}}"),
            None => format!("{series}{{job=\"memgroup\",instance=\"a\"}}"),
        };
        let value = |step| values.iter().find(|(at, _)| *at == step).map_or("_", |(_, value)| value);
        let values: Vec<&str> = (0..steps).map(value).collect();
        println!("      - series: '{series}'\n        values: '{}'", values.join(" "));
    }
}
