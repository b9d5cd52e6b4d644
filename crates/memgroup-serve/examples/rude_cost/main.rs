//! The cost of rude clients for the tenants: `cargo run --release -p memgroup-serve --example
//! rude_cost`.
//!
//! Two protected tenants have a request each 2 ms. A request charges 64 KiB, and parses and writes
//! a JSON document of some 20 KB. The blocks of the document are charged to the tenant, too. Its
//! time counts from the moment at which it was due. A third tenant works without a pause, and is
//! refused at its limit.
//!
//! Rounds with all kinds of rude clients (`rude.rs`) and without any take turns. The clients are in
//! another process. They send a `Host` that the server allows, and the token for reading.
//!
//! | option | default | sets |
//! |---|---|---|
//! | `--server-niceness N` | 10 | the niceness of the server's threads |
//! | `--cpu-percent N` | 25 | the part of a CPU that requests may take |
//! | `--groups N` | 500 | groups of the tree beside those of the tenants |
//! | `--client-niceness N` | 0 | the niceness of the clients. With 15 they get a small part of a CPU that a thread of the program wants, and the difference between the rounds is mostly the server's |
//! | `--flood` | off | clients that take all that the server gives, as fast as they can, instead of those that hold places and memory |
//! | `--control` | off | the token with the right to control. More clients set a limit, and make and remove a group, as fast as they can |
//! | `--plain` | off | in place of the server, a plain one as a program would write it (`plain.rs`) |
//! | `--rounds N` | 15 | pairs of rounds |
//!
//! On a machine with other work, start the example with more weight in a session of its own:
//!
//! ```text
//! setsid -w sh -c 'echo -20 > /proc/self/autogroup; exec target/release/examples/rude_cost'
//! ```

mod plain;
mod rude;

use std::error::Error;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use memgroup::{Config, Group, Hierarchy, scope};
use memgroup_alloc::Allocator;
use memgroup_serve::{Control, Serve, Token};
use rude::{CONTROL, FLOOD, HOLDING, Target};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::system();

const ROUND: Duration = Duration::from_secs(3);
/// Time at the beginning of a round that does not count.
const WARM: Duration = Duration::from_secs(1);
/// The server is at rest when it takes less than 6 % of this time. Its own checks of a large tree
/// take up to 5 %.
const LOOK: Duration = Duration::from_millis(500);
const EACH: Duration = Duration::from_millis(2);
const GOAL: f64 = 1.1;

/// The variant that is measured. The program hands the options on to the process of the clients.
#[derive(Clone, Copy, Debug)]
struct Options {
    server_niceness: u8,
    cpu_percent: u32,
    groups: usize,
    client_niceness: u8,
    is_flood: bool,
    has_control: bool,
    is_plain: bool,
    rounds: usize,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options> {
        let mut options = Options {
            server_niceness: 10,
            cpu_percent: 25,
            groups: 500,
            client_niceness: 0,
            is_flood: false,
            has_control: false,
            is_plain: false,
            rounds: 15,
        };
        while let Some(option) = arguments.next() {
            let mut number = || arguments.next().ok_or(format!("{option} needs a number"));
            match option.as_str() {
                "--server-niceness" => options.server_niceness = number()?.parse()?,
                "--cpu-percent" => options.cpu_percent = number()?.parse()?,
                "--groups" => options.groups = number()?.parse()?,
                "--client-niceness" => options.client_niceness = number()?.parse()?,
                "--rounds" => options.rounds = number()?.parse()?,
                "--flood" => options.is_flood = true,
                "--control" => options.has_control = true,
                "--plain" => options.is_plain = true,
                _ => {
                    return Err(
                        format!("there is no option {option}; the first lines of main.rs list them").into()
                    );
                }
            }
        }
        if options.rounds == 0 {
            return Err("--rounds must be at least 1".into());
        }
        Ok(options)
    }
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    if env::args().nth(1).as_deref() == Some(CLIENTS) {
        let [unix, tcp, token] = [2, 3, 4].map(|nth| env::args().nth(nth).unwrap_or_default());
        let options = Options::parse(env::args().skip(5))?;
        be_rude(&Target { unix: unix.into(), tcp: tcp.parse()?, token }, options);
        return Ok(());
    }
    let options = Options::parse(env::args().skip(1))?;
    let hierarchy = Hierarchy::new(Config::new())?;
    for number in 0..options.groups {
        hierarchy.get_or_create(&format!("/others/group-{number}"))?.try_charge(4096)?.into_parts();
    }
    let tenants = ["/alice", "/bob"]
        .map(|path| hierarchy.create(path))
        .into_iter()
        .collect::<std::result::Result<Vec<_>, _>>()?;
    tenants.iter().try_for_each(|tenant| tenant.set_min(16 << 20))?;
    let noisy = hierarchy.create("/carol")?;
    noisy.set_max(1 << 20)?;
    let folder = env::temp_dir().join(format!("memgroup-rude-{}", std::process::id()));
    fs::create_dir(&folder)?;
    let socket = folder.join("s");
    let serve = Serve::unix(&socket).and_tcp(([127, 0, 0, 1], 0));
    let serve = serve.niceness(options.server_niceness).cpu_percent(options.cpu_percent);
    let (reads, controls) = (Token::random()?, Token::random()?);
    let token = if options.has_control { &controls } else { &reads }.secret().to_owned();
    let serve = serve.token(reads);
    let serve = if options.has_control { serve.control(Control::Token(controls)) } else { serve };
    let server = (!options.is_plain).then(|| memgroup_serve::start(&hierarchy, serve)).transpose()?;
    let tcp = match &server {
        Some(server) => server.address().ok_or("the server has no address")?,
        None => plain::start(&hierarchy, &socket, THREAD)?,
    };
    let target = Target { unix: socket, tcp, token };
    println!("{options:?}");

    let document = document();
    let is_over = AtomicBool::new(false);
    let [mut quiet, mut rude] = [Vec::new(), Vec::new()];
    let mut ratios = Vec::new();
    thread::scope(|threads| -> Result<()> {
        threads.spawn(|| {
            // ORDERING: Relaxed; only the flag is handed over, and the reader polls.
            while !is_over.load(Ordering::Relaxed) {
                request(&noisy, &document, 2 << 20);
            }
        });
        let measured = (|| {
            for _ in 0..options.rounds {
                wait_for_rest()?;
                let (mut one, calm) = round(&tenants, &document)?;
                let clients = Clients::start(&target, options)?;
                let (mut other, busy) = round(&tenants, &document)?;
                let clients = clients.end()?;
                let [before, after] = [&mut one, &mut other].map(|times| percentile(times, 0.99));
                println!(
                    "p99 {:.0} us, server {:.1} % of a CPU; with rude clients {:.0} us, server {:.0} %, clients {:.0} %",
                    before * 1e6,
                    calm * 100.0,
                    after * 1e6,
                    busy * 100.0,
                    clients * 100.0
                );
                ratios.push(after / before);
                quiet.extend(one);
                rude.extend(other);
            }
            Ok(())
        })();
        // ORDERING: Relaxed, as above.
        is_over.store(true, Ordering::Relaxed);
        measured
    })?;
    drop(server);
    fs::remove_dir_all(&folder)?;
    for share in [0.5, 0.9, 0.99] {
        let [one, other] = [&mut quiet, &mut rude].map(|times| percentile(times, share));
        println!(
            "p{:.0} of all rounds: {:.0} us and {:.0} us, ratio {:.3}",
            share * 100.0,
            one * 1e6,
            other * 1e6,
            other / one
        );
    }
    // Another program that takes the CPUs for a while spoils the rounds of that time, and not the
    // median.
    let [low, median, high] = [0.25, 0.5, 0.75].map(|share| percentile(&mut ratios, share));
    println!(
        "p99 with rude clients by that without, of rounds side by side: median {median:.3}, quartiles {low:.3} and {high:.3}"
    );
    println!("goal of the median: {GOAL}, {}", if median <= GOAL { "met" } else { "missed" });
    Ok(())
}

/// The process of the clients: each kind has a thread.
fn be_rude(target: &Target, options: Options) {
    let kinds = if options.is_flood { FLOOD } else { HOLDING };
    for (_, act) in kinds.iter().chain(CONTROL.iter().filter(|_| options.has_control)) {
        let target = target.clone();
        thread::spawn(move || {
            loop {
                act(&target);
            }
        });
    }
    // Until the program closes its end, or kills this process.
    let _end = std::io::stdin().read(&mut [0]);
}

/// The name of the server's own thread.
const THREAD: &str = "memgroup-serve";

/// The first argument of the process of the clients.
const CLIENTS: &str = "clients";

struct Clients(Child);

impl Clients {
    fn start(target: &Target, options: Options) -> Result<Clients> {
        let mut command = Command::new("nice");
        command.arg(format!("-n{}", options.client_niceness)).arg(env::current_exe()?);
        command.arg(CLIENTS).arg(&target.unix).arg(target.tcp.to_string()).arg(&target.token);
        command.args(env::args().skip(1));
        Ok(Clients(command.stdin(Stdio::piped()).spawn()?))
    }

    /// Kills them. Returns the part of a CPU that they took, with threads that have ended.
    fn end(mut self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        // The name, in brackets, may have spaces. After it, the times are the 12th and the 13th
        // field.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks = fields.skip(11).take(2).map(str::parse::<u64>).sum::<std::result::Result<u64, _>>()?;
        self.0.kill()?;
        self.0.wait()?;
        let seconds = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        Ok(seconds / (ROUND + WARM).as_secs_f64())
    }
}

/// The CPU time of a thread with this folder in `/proc`.
fn cpu_time(task: &Path) -> Result<Duration> {
    let text = fs::read_to_string(task.join("schedstat"))?;
    Ok(Duration::from_nanos(text.split(' ').next().ok_or("no time in schedstat")?.parse()?))
}

/// CPU time of the server's threads so far: its own, and those of control actions.
fn server_time() -> Result<Duration> {
    let mut sum = Duration::ZERO;
    for task in fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        // A thread of actions may end in the meantime.
        let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
        if [THREAD, "memgroup-start", "memgroup-act"].contains(&name.trim()) {
            sum += cpu_time(&task).unwrap_or_default();
        }
    }
    Ok(sum)
}

/// Waits until the server has no more work for the clients of the round before.
fn wait_for_rest() -> Result<()> {
    loop {
        let before = server_time()?;
        thread::sleep(LOOK);
        if server_time()?.saturating_sub(before) < LOOK * 6 / 100 {
            return Ok(());
        }
    }
}

fn document() -> String {
    let rows = (0..300).map(|number| serde_json::json!({"id": number, "name": format!("item {number}"), "tags": ["a", "b"], "price": 1.5}));
    serde_json::Value::from_iter(rows).to_string()
}

/// A request of a tenant.
fn request(group: &Group, document: &str, bytes: u64) {
    let _scope = scope::enter(group);
    // The noisy tenant is refused.
    let _charge = group.try_charge(bytes);
    let value: serde_json::Value = serde_json::from_str(document).unwrap_or_default();
    std::hint::black_box(value.to_string());
}

/// The times of all requests of a round in seconds, and the part of a CPU that the server took.
fn round(tenants: &[Group], document: &str) -> Result<(Vec<f64>, f64)> {
    let tenant = |group: &Group| {
        let (began, mut times) = (Instant::now(), Vec::new());
        for number in 0.. {
            let due = began + EACH * number;
            if due > began + WARM + ROUND {
                break;
            }
            thread::sleep(due.saturating_duration_since(Instant::now()));
            request(group, document, 64 << 10);
            if due >= began + WARM {
                times.push(due.elapsed().as_secs_f64());
            }
        }
        times
    };
    let before = server_time()?;
    let times = thread::scope(|threads| {
        let running: Vec<_> = tenants.iter().map(|group| threads.spawn(|| tenant(group))).collect();
        running.into_iter().map(|thread| thread.join()).collect::<thread::Result<Vec<_>>>()
    });
    let times = times.map_err(|_| "a tenant's thread panicked")?;
    let busy = server_time()?.saturating_sub(before).as_secs_f64() / (ROUND + WARM).as_secs_f64();
    Ok((times.concat(), busy))
}

/// Sorts the values.
fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share) as usize]
}
